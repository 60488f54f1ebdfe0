"""Topics and brokers, and logs in Kafka."""
