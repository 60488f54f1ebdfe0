"""Debezium itself, and Kafka Connect's own parts, as witnesses: Java programs that are independent of cdcflow."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cdcflow.demo.servers.cached import cache
from cdcflow.spark.jars import fetch_packages

PARTS = ("embedded", "connector-postgres", "connector-mysql")
PACKAGES = tuple(f"io.debezium:debezium-{part}:3.6.1.Final" for part in PARTS)
PROGRAMS = Path(__file__).parent / "java"
STATEMENTS = Path(__file__).parent / "statements"

Event = tuple[str, Any, Any]
"""Topic, key and value; each of the latter two with `schema` and `payload`, or None."""


def jars() -> Path:
    """The folder with Debezium's jars and their dependencies, including Kafka Connect; fetched if it is missing."""
    return fetch_packages(PACKAGES, cache() / "debezium-3.6.1")


def statements(name: str) -> list[str]:
    """The statements of a file in `statements`: tables of all types, and changes of them at the edges of each."""
    return [s for s in (STATEMENTS / f"{name}.sql").read_text().split(";\n") if s.strip()]


def _run(program: str, arguments: Sequence[str], given: str = "") -> list[str]:
    command = ["java", "-Xmx512m", "-XX:TieredStopAtLevel=1", "-cp", f"{jars()}/*", str(PROGRAMS / program), *arguments]
    done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout.splitlines()


def events(options: Mapping[str, str], last: str, folder: Path) -> list[Event]:
    """What Debezium's engine emits for a database, through the first event of the topic `last`."""
    settings = {
        "name": "witness",
        "offset.storage": "org.apache.kafka.connect.storage.MemoryOffsetBackingStore",
        "provide.transaction.metadata": "true",
        "skipped.operations": "none",
        **options,
    }
    file = folder / "debezium.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    lines = (line.split("\t") for line in _run("DebeziumEvents.java", [str(file), last]))
    return [(topic, json.loads(key), json.loads(value)) for topic, key, value in lines]


def unwrapped(messages: Sequence[tuple[str, bytes | None, bytes | None]], **options: str) -> list[Any]:
    """What Kafka Connect's JsonConverter and Debezium's ExtractNewRecordState make of messages (JSON with schemas).

    One entry per message: the payload of the record that a sink connector would get, None for a tombstone, and
    "dropped" where the transform drops it.
    """
    lines = ["\t".join((topic, _text(key), _text(value))) for topic, key, value in messages]
    said = _run("Unwrap.java", [f"{k.replace('_', '.')}={v}" for k, v in options.items()], "\n".join(lines) + "\n")
    return [line if line == "dropped" else json.loads(line) for line in said]


def _text(content: bytes | None) -> str:
    return "null" if content is None else content.decode()


if __name__ == "__main__":
    jars()
