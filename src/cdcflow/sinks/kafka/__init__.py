"""A change log in Kafka."""
