"""Publishing: Debezium's messages, one topic per table, produced by a reader of the change log.

    tail ──▶ events (columns) ──▶ writers: JSON, Avro, Protobuf ──▶ producer: one Kafka transaction a group
             what a value is        how it is encoded                table topics, transaction topic, own position

Everything but `producer`, `registry` and `publisher` is pure: columns in, columns of bytes out. A value becomes a
Python object only where `produce` takes a message at a time. `docs/debezium.md` describes what a consumer gets.
"""
