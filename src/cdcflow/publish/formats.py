"""The formats of messages: how values are encoded, and the bytes that surround a message."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cdcflow.config import FormatName
from cdcflow.errors import ConfigurationError
from cdcflow.publish.avro_writer import AvroWriter
from cdcflow.publish.avro_writer import schema_text as avro_text
from cdcflow.publish.connect import Schema
from cdcflow.publish.json_writer import JsonWriter, with_schema
from cdcflow.publish.message_columns import FormatWriter
from cdcflow.publish.protobuf_writer import ProtobufWriter
from cdcflow.publish.protobuf_writer import schema_text as protobuf_text

Frame = tuple[bytes, bytes]
Register = Callable[[str, str, str], int]
"""A function that returns the registry's number for a schema, given its subject, its type (AVRO, PROTOBUF) and its
text."""


@dataclass(frozen=True, slots=True)
class MessageFormat:
    """A format. `frame` returns the bytes before and after each message of a topic, given the part (key, value) and
    schema."""

    writer: FormatWriter
    frame: Callable[[str, str, Schema], Frame]


def format_of(name: FormatName, register: Register | None = None) -> MessageFormat:
    """Return the format with a name. Avro and Protobuf need a registry."""
    match name:
        case "json":
            return MessageFormat(JsonWriter(), lambda topic, part, schema: (b"", b""))
        case "json-schema":
            return MessageFormat(JsonWriter(), lambda topic, part, schema: with_schema(schema))
        case "avro":
            return MessageFormat(AvroWriter(), _confluent_frame(register, "AVRO", avro_text, b""))
        case "protobuf":
            return MessageFormat(ProtobufWriter(), _confluent_frame(register, "PROTOBUF", protobuf_text, b"\0"))


def _confluent_frame(
    register: Register | None, kind: str, text: Callable[[Schema], str], behind: bytes
) -> Callable[[str, str, Schema], Frame]:
    """Return a function for frames in Confluent's wire format: a zero, the schema's number, and for Protobuf which
    message of the schema it is."""
    if register is None:
        raise ConfigurationError(
            f"publishing as {kind} without a registry",
            remedy="set publish.kafka.registry.url",
            runbook="registry-refuses",
        )

    def frame(topic: str, part: str, schema: Schema) -> Frame:
        number = register(f"{topic}-{part}", kind, text(schema))
        return b"\0" + number.to_bytes(4, "big") + behind, b""

    return frame
