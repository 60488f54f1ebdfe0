"""Third-party consumers read what is published: Kafka Connect with Debezium's unwrapping, and Confluent's deserializers
with a real schema registry.
"""

from __future__ import annotations

import base64
import math
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from decimal import Decimal
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from tests.servers.kafka import KafkaBroker
from tests.servers.registry import SchemaRegistry
from tests.support.kafka.topics import committed
from tests.support.publish import debezium
from tests.support.publish.every_type import TOPICS, Log, parsed

from cdcflow.publish.connect import adjust_name
from cdcflow.publish.values import number_bytes

pytestmark = [
    pytest.mark.postgres,
    # Confluent's client imports httpx, which warns that it is deprecated.
    pytest.mark.filterwarnings("ignore:The httpx module is deprecated"),
]
TABLES = [topic for topic in TOPICS if topic != "transaction"]


@pytest.fixture(scope="module")
def registry() -> Iterator[SchemaRegistry]:
    with SchemaRegistry() as running:
        yield running


@pytest.mark.long
def test_extract_new_record_state_unwraps_every_value(log: Log, broker: KafkaBroker) -> None:
    """Sink connectors read through this transform: it must see Connect's types, and return the row unchanged."""
    ours = log.published(broker.address, "defaults")
    messages = [(topic, m) for topic in sorted(ours) if "public" in topic for m in ours[topic]]
    found = debezium.unwrapped([(topic, m.key, m.value) for topic, m in messages])
    rows = 0
    for (topic, message), row in zip(messages, found, strict=True):
        value = parsed(message.value)
        match value and value["payload"]["op"]:
            case "c" | "u" | "r":
                rows += 1
                _same(row, _as_connect_reads(value["payload"]["after"]), topic)
            case "d":
                assert row is None  # a deletion becomes the tombstone,
            case _:
                assert row == "dropped"  # and what follows it, or a truncate, is nothing to a sink
    assert rows > 15


def _as_connect_reads(value: Any) -> Any:
    """Connect's JSON converter writes what is no finite number as a text, and reads a text as the number 0."""
    match value:
        case dict():
            return {name: _as_connect_reads(inner) for name, inner in value.items()}
        case list():
            return [_as_connect_reads(inner) for inner in value]
        case "NaN" | "Infinity" | "-Infinity":
            return 0.0
        case _:
            return value


def test_avro_has_the_same_values_as_json(log: Log, broker: KafkaBroker, registry: SchemaRegistry) -> None:
    """Confluent's deserializer, with nothing but the registry's address, must find the same values."""
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from confluent_kafka.schema_registry.avro import AvroDeserializer
    from confluent_kafka.serialization import MessageField, SerializationContext

    log.publish(
        broker.address, "avro", format="avro", registry={"url": registry.url}, provide_transaction_metadata=True
    )
    told = log.published(broker.address, "defaults")
    with SchemaRegistryClient({"url": registry.url}) as client:
        read = AvroDeserializer(client)
        for topic in TOPICS:
            key = SerializationContext(f"avro.{topic}", MessageField.KEY)
            value = SerializationContext(f"avro.{topic}", MessageField.VALUE)
            found = committed(broker.address, f"avro.{topic}")
            for message, same in zip(found, told[f"defaults.{topic}"], strict=True):
                _same(read(message.key, key), same.key and _plain(parsed(same.key)), topic)
                _same(read(message.value, value), same.value and _plain(parsed(same.value)), topic)


@pytest.mark.long
def test_protobuf_has_the_same_values_as_json(
    log: Log, broker: KafkaBroker, registry: SchemaRegistry, tmp_path: Path
) -> None:
    """Confluent's deserializer with classes that protoc built from the registry's schema must find the same values."""
    from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer
    from confluent_kafka.serialization import MessageField, SerializationContext

    log.publish(broker.address, "protobuf", format="protobuf", registry={"url": registry.url})
    told = log.published(broker.address, "defaults")
    for number, topic in enumerate(TABLES):
        kind = _class(f"{registry.url}/subjects/protobuf.{topic}-value/versions/latest/schema", number, tmp_path)
        read = ProtobufDeserializer(kind, {"use.deprecated.format": False})
        context = SerializationContext(f"protobuf.{topic}", MessageField.VALUE)
        found = committed(broker.address, f"protobuf.{topic}")
        for message, same in zip(found, told[f"defaults.{topic}"], strict=True):
            if message.value is None:
                assert same.value is None
                continue
            expected = _plain(parsed(same.value))
            _same(_object(read(message.value, context)), {**expected, "transaction": None})


def _class(url: str, number: int, folder: Path) -> Any:
    """The class of the first message of the schema at an address."""
    with urllib.request.urlopen(url, timeout=30) as answer:  # noqa: S310  loopback
        text = answer.read().decode()
    (folder / f"published{number}.proto").write_text(text)
    protoc = [sys.executable, "-m", "grpc_tools.protoc", f"-I{folder}", f"--python_out={folder}"]
    subprocess.run([*protoc, f"published{number}.proto"], check=True, cwd=folder)
    sys.path.insert(0, str(folder))
    try:
        module = import_module(f"published{number}_pb2")
    finally:
        sys.path.remove(str(folder))
    [name] = module.DESCRIPTOR.message_types_by_name
    return getattr(module, name)


def _object(message: Any) -> Any:
    """A Protobuf message as an object; an unset field that has presence is None."""
    found: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.has_presence and not message.HasField(field.name):
            value = None
        elif field.message_type is not None and field.message_type.name.endswith("_Array"):
            value = [_object(e)["value"] for e in value.elements]
        elif field.message_type is not None:
            value = _object(value)
        found[field.name] = value
    return found


def _plain(message: Any) -> Any:
    """The payload of a JSON message with bytes, NaN and decimals as other formats have them."""
    return _typed(message["payload"], message["schema"])


def _typed(value: Any, schema: Any) -> Any:
    if value is None:
        return None
    match schema["type"]:
        case "struct":
            return {f["field"]: _typed(value[f["field"]], f) for f in schema["fields"]}
        case "array":
            return [_typed(e, schema["items"]) for e in value]
        case "bytes":
            return base64.b64decode(value)
        case "float" | "double":
            return float(value)
        case _:
            return value


def _same(found: Any, expected: Any, where: str = "") -> None:
    """The same values; names that a format does not allow are adjusted, and its own decimals are numbers."""
    if isinstance(expected, dict):
        assert [adjust_name(name) for name in found] == [adjust_name(name) for name in expected], where
        for mine, (name, theirs) in zip(found.values(), expected.items(), strict=True):
            if where.endswith("after") or name not in ("ts_ms", "ts_us", "ts_ns", "name"):
                _same(mine, theirs, f"{where}.{name}")
    elif isinstance(expected, list):
        assert len(found) == len(expected), where
        for number, (mine, theirs) in enumerate(zip(found, expected, strict=True)):
            _same(mine, theirs, f"{where}[{number}]")
    elif isinstance(found, Decimal):
        sign, digits, exponent = found.as_tuple()
        number = int("".join(map(str, digits))) * (-1 if sign else 1)
        assert isinstance(exponent, int)
        assert number_bytes(number) == expected, where
    else:
        assert _near(found, expected), f"{where}: {found!r} {expected!r}"


def _near(found: Any, expected: Any) -> bool:
    """Equal; a float of 32 bits in as many digits as that has."""
    if isinstance(expected, float) and isinstance(found, float):
        return (
            found == expected
            or (math.isnan(found) and math.isnan(expected))
            or math.isclose(found, expected, rel_tol=1e-6)
        )
    return bool(found == expected and type(found) is type(expected))
