"""Published messages, with Debezium as the witness."""
