"""The shape of Debezium's messages: keys, the envelope around a row, the events of a transaction."""

from __future__ import annotations

import re
from dataclasses import replace

from cdcflow.publish.connect import INT64, STRING, Schema, array, named_schema, struct

SNAPSHOT = replace(
    named_schema(
        STRING,
        "io.debezium.data.Enum",
        allowed="true,first,first_in_data_collection,last_in_data_collection,last,false,incremental",
    ),
    default="false",
)
_SOURCE_BEGIN = (
    ("version", STRING.as_required),
    ("connector", STRING.as_required),
    ("name", STRING.as_required),
    ("ts_ms", INT64.as_required),
    ("snapshot", SNAPSHOT),
    ("db", STRING.as_required),
    ("sequence", STRING),
    ("ts_us", INT64),
    ("ts_ns", INT64),
)
POSTGRES_SOURCE = struct(
    *_SOURCE_BEGIN,
    ("schema", STRING.as_required),
    ("table", STRING.as_required),
    ("txId", INT64),
    ("lsn", INT64),
    ("xmin", INT64),
    ("origin", STRING),
    ("origin_lsn", INT64),
    name="io.debezium.connector.postgresql.Source",
    version=1,
    optional=False,
)


def mysql_source(connector: str) -> Schema:
    return struct(
        *_SOURCE_BEGIN,
        ("table", STRING),
        ("server_id", INT64.as_required),
        ("gtid", STRING),
        ("file", STRING.as_required),
        ("pos", INT64.as_required),
        ("row", Schema("int32", optional=False)),
        ("thread", INT64),
        ("query", STRING),
        name=f"io.debezium.connector.{connector}.Source",
        version=1,
        optional=False,
    )


TRANSACTION = struct(
    ("id", STRING.as_required),
    ("total_order", INT64.as_required),
    ("data_collection_order", INT64.as_required),
    name="event.block",
    version=1,
)
TRANSACTION_KEY = struct(
    ("id", STRING.as_required), name="io.debezium.connector.common.TransactionMetadataKey", version=1, optional=False
)
TRANSACTION_VALUE = struct(
    ("status", STRING.as_required),
    ("id", STRING.as_required),
    ("event_count", INT64),
    (
        "data_collections",
        array(
            struct(
                ("data_collection", STRING.as_required),
                ("event_count", INT64.as_required),
                name="event.collection",
                version=1,
            )
        ),
    ),
    ("ts_ms", INT64.as_required),
    name="io.debezium.connector.common.TransactionMetadataValue",
    version=1,
    optional=False,
)


def key(topic: str, fields: tuple[tuple[str, Schema], ...]) -> Schema:
    return struct(*((name, inner.as_required) for name, inner in fields), name=f"{topic}.Key", optional=False)


def value(topic: str, fields: tuple[tuple[str, Schema], ...], source: Schema) -> Schema:
    row = struct(*fields, name=f"{topic}.Value")
    return struct(
        ("before", row),
        ("after", row),
        ("source", source),
        ("transaction", TRANSACTION),
        ("op", STRING.as_required),
        ("ts_ms", INT64),
        ("ts_us", INT64),
        ("ts_ns", INT64),
        name=f"{topic}.Envelope",
        version=2,
        optional=False,
    )


_ODD = re.compile(r"[^a-zA-Z0-9._-]")


def topic_name(*parts: str) -> str:
    """Return a topic's name; a character that Kafka does not allow becomes an underscore, as at Debezium."""
    return _ODD.sub("_", ".".join(parts))
