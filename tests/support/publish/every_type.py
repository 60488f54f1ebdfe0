"""A log with tables of all types, captured from a real PostgreSQL while they changed, and published from there."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.servers.postgres import Database, PostgresServer
from tests.support.kafka.topics import Found, committed
from tests.support.publish import debezium
from tests.support.publish.captured_rows import Capturing

from cdcflow import wiring
from cdcflow.config import Config

SETUP, CHANGES = (debezium.statements(name) for name in ("tables", "changes"))
MODES: dict[str, dict[str, str]] = {
    "defaults": {},
    "others": {
        "decimal.handling.mode": "string",
        "time.precision.mode": "connect",
        "binary.handling.mode": "hex",
        "interval.handling.mode": "string",
    },
}
"""Settings that have one name at both, dots there and underscores here."""
TOPICS = ("public.v", "public.r", "public.k", "public.f", "public.Odd_name", "transaction")


@dataclass(frozen=True)
class Log:
    """The log of `database`, which also has a slot `witness_MODE` for each run of Debezium."""

    config: Config
    database: Database

    def publish(self, address: str, prefix: str, **kafka: Any) -> None:
        settings = {"brokers": address, "topic_prefix": prefix, "skipped_operations": (), **kafka}
        whole = self.config.model_dump(mode="json", exclude_none=True)
        config = Config.model_validate({**whole, "publish": {"kafka": settings}})
        wiring.publisher(config, lambda event, fields: None).run(once=True)

    def published(self, address: str, mode: str) -> dict[str, list[Found]]:
        """The contents of the topics under the mode's name; published if missing."""
        own = {name.replace(".", "_"): value for name, value in MODES[mode].items()}
        self.publish(address, mode, format="json-schema", provide_transaction_metadata=True, **own)
        return {f"{mode}.{topic}": committed(address, f"{mode}.{topic}") for topic in TOPICS}


def parsed(text: bytes | None) -> Any:
    return None if text is None else json.loads(text)


def is_read(message: Found) -> bool:
    """A row from before the start: Debezium is configured to read none."""
    return message.value is not None and json.loads(message.value)["payload"].get("op") == "r"


@contextlib.contextmanager
def captured(folder: Path) -> Iterator[Log]:
    """Create the tables, capture them, change them; then return the log."""
    with PostgresServer() as server:
        database = server.create_database("shop")
        with database.session(autocommit=True) as session:
            for statement in SETUP:
                session.execute(statement)
        settings = {
            "source": {"kind": "postgres", "url": database.url, "tables": ["public.*"]},
            "log": {"path": str(folder / "log")},
        }
        config = Config.model_validate(settings)
        with Capturing(config) as capture, database.session(autocommit=True) as session:
            session.execute("INSERT INTO finished VALUES (0)")
            capture.until("public.finished", 1)
            session.execute('CREATE PUBLICATION witness FOR TABLE v, r, k, f, "Odd name", finished')
            for mode in MODES:
                session.execute(f"SELECT pg_create_logical_replication_slot('witness_{mode}', 'pgoutput')")
            for statement in [*CHANGES, "INSERT INTO finished VALUES (1)"]:
                session.execute(statement)
            capture.until("public.finished", 2)
        yield Log(config, database)
