"""A PostgreSQL database with everything that the server's regression suite creates there."""

from __future__ import annotations

import contextlib
import re
import struct
import time
from decimal import Decimal
from typing import Any

import psycopg
import pyarrow as pa
from tests.ddlfuzz.dialects import Beside
from tests.servers.postgres import PostgresServer
from tests.suites.values import Plain

from cdcflow.model.table import Table, TableId

DATABASE = "regression"
OPENING = (
    "SET lock_timeout = '3s'",
    "SET statement_timeout = '60s'",
    "SET DateStyle = 'ISO'",
    "SET IntervalStyle = postgres",
    "SET TimeZone = 'UTC'",
    "SET extra_float_digits = 3",
    "SET bytea_output = hex",
    "SET lc_monetary = 'C'",
    "SET search_path = ''",
    "SET row_security = off",
)
# Tables that get no key are followed all the same: their updates and deletes then carry the whole row.
FULL_WITHOUT_KEY = """
CREATE SCHEMA suites;
CREATE FUNCTION suites.full_without_key() RETURNS event_trigger LANGUAGE plpgsql SET search_path = pg_catalog AS $$
DECLARE made record;
BEGIN
  FOR made IN SELECT c.oid::regclass AS name FROM pg_event_trigger_ddl_commands() e JOIN pg_class c ON c.oid = e.objid
      WHERE e.classid = 'pg_class'::regclass AND c.relkind IN ('r', 'p') AND c.relpersistence = 'p'
      AND c.relreplident = 'd'
      AND NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary AND i.indimmediate)
  LOOP
    EXECUTE format('ALTER TABLE %s REPLICA IDENTITY FULL', made.name);
  END LOOP;
END $$;
CREATE EVENT TRIGGER full_without_key ON ddl_command_end WHEN TAG IN ('CREATE TABLE', 'CREATE TABLE AS', 'SELECT INTO',
  'ALTER TABLE') EXECUTE FUNCTION suites.full_without_key();
"""
RESTART_S = 90.0
"""How long the server may need to start its processes again."""
_CAPTURED = """
SELECT nspname, relname, relkind::text, array_agg(attname::text ORDER BY attnum)
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = relnamespace
JOIN pg_catalog.pg_attribute a ON attrelid = c.oid
WHERE nspname NOT IN ('pg_catalog', 'information_schema', 'suites') AND nspname !~ '^pg_(toast|temp)'
AND relkind IN ('r', 'p') AND relpersistence = 'p' AND NOT relispartition AND attnum > 0 AND NOT attisdropped
AND (attgenerated = '' OR attgenerated = 's' AND current_setting('server_version_num')::int >= 180000)
AND NOT EXISTS (SELECT FROM pg_catalog.pg_partition_tree(c.oid) t JOIN pg_catalog.pg_class p ON p.oid = t.relid
    WHERE p.relkind = 'f' OR p.relpersistence <> 'p')
GROUP BY 1, 2, 3
"""
_HEXADECIMAL = re.compile(r"\\x([0-9a-f]*)")


class OnRegression(Beside):
    def __init__(self, server: PostgresServer) -> None:
        self.server = server
        server.execute(f'CREATE DATABASE {DATABASE} TEMPLATE template0 ENCODING \'UTF8\' LC_COLLATE "C" LC_CTYPE "C"')
        for statement in (
            "SET bytea_output TO 'hex'",
            "SET lc_messages TO 'C'",
            "SET timezone_abbreviations TO 'Default'",
        ):
            server.execute(f"ALTER DATABASE {DATABASE} {statement}")
        self.kinds: dict[TableId, str] = {}
        self.left_out: set[TableId] = set()
        self.connection: psycopg.Connection[Any]
        self._connect()
        self.connection.execute(FULL_WITHOUT_KEY.encode())
        self.source = {
            "kind": "postgres",
            "url": server.url(DATABASE),
            "tables": ["*.*", "!suites.*"],
            "special_values": "text",
        }

    def _connect(self) -> None:
        self.connection = self.server.connect(DATABASE, autocommit=True)
        for statement in OPENING:
            self.connection.execute(statement.encode())

    def execute(self, statement: str) -> None:
        if "{publication}" in statement:
            ((name,),) = self.ask("SELECT quote_ident(pubname) FROM pg_publication")
            statement = statement.replace("{publication}", name)
        self._executed(statement)

    def ask(self, query: str) -> list[tuple[Any, ...]]:
        return self._executed(query).fetchall()

    def is_lock_wait(self, error: Exception) -> bool:
        """Whether another session held a lock for longer than a comparison waits."""
        return isinstance(error, psycopg.errors.LockNotAvailable)

    def _executed(self, statement: str) -> psycopg.Cursor[Any]:
        """Execute a statement, again if the connection was lost: a later suite has statements at which a process of an
        earlier release end, and then the server restarts all of them."""
        try:
            return self.connection.execute(statement.encode())
        except psycopg.OperationalError:
            if not self.connection.closed:
                raise
        self._connect_again()
        return self.connection.execute(statement.encode())

    def _connect_again(self) -> None:
        until = time.monotonic() + RESTART_S
        while True:
            try:
                return self._connect()
            except psycopg.OperationalError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.1)

    def fence(self) -> str:
        self.execute("SELECT pg_catalog.pg_logical_emit_message(true, 'suite', 'fence')")
        high, low = str(self.ask("SELECT pg_catalog.pg_current_wal_insert_lsn()")[0][0]).split("/")
        return f"{int(high, 16):08X}/{int(low, 16):08X}"

    def is_past(self, position: str, fence: str) -> bool:
        return position >= fence

    def columns(self) -> dict[TableId, list[str]]:
        found = self.ask(_CAPTURED)
        self.kinds = {TableId(schema, name): kind for schema, name, kind, _ in found}
        every = {TableId(schema, name): columns for schema, name, _, columns in found}
        return {table: columns for table, columns in every.items() if table not in self.left_out}

    def sql_name(self, table: TableId) -> str:
        only = "ONLY " if self.kinds.get(table) == "r" else ""
        return only + ".".join(_quoted(part) for part in (table.schema, table.name))

    def plain_rows(self, table: TableId, shape: Table, names: list[str]) -> list[tuple[Plain, ...]]:
        """The rows of a table in the form of `values`."""
        types = {c.name: c.type.arrow for c in shape.columns}
        selected = ", ".join(
            f"CASE WHEN pg_catalog.num_nonnulls({_quoted(name)}) = 1 THEN pg_catalog.format('%s', {_quoted(name)}) END"
            for name in names
        )
        rows = self.ask(f"SELECT {selected or '1'} FROM {self.sql_name(table)}")
        return [tuple(of_text(v, types[name]) for v, name in zip(row, names, strict=False)) for row in rows]

    def has_rows(self, table: TableId) -> bool:
        return bool(self.ask(f"SELECT 1 FROM {self.sql_name(table)} LIMIT 1"))

    def touch(self, table: TableId) -> None:
        """Delete one row, so that the log has a message of the table in its shape of now."""
        with contextlib.suppress(psycopg.Error):
            self.execute("SET session_replication_role = replica")
            name = self.sql_name(table)
            self.execute(f"DELETE FROM {name} WHERE (tableoid, ctid) = (SELECT tableoid, ctid FROM {name} LIMIT 1)")

    def forget(self) -> None:
        """Drop what a daemon leaves on a server: its slot and its publication."""
        for (slot,) in self.ask("SELECT slot_name FROM pg_catalog.pg_replication_slots WHERE slot_name ~ '^cdcflow_'"):
            with contextlib.suppress(psycopg.Error):
                self.execute(f"SELECT pg_catalog.pg_drop_replication_slot('{slot}')")
        for (name,) in self.ask("SELECT pubname FROM pg_catalog.pg_publication WHERE pubname ~ '^cdcflow'"):
            self.execute(f"DROP PUBLICATION {_quoted(name)}")

    def close(self) -> None:
        with contextlib.suppress(psycopg.Error):
            self.connection.close()


def of_text(text: str | None, type_: pa.DataType) -> Plain:
    """The server's text of a value, by the type that the column has in the log."""
    if text is None:
        return None
    if pa.types.is_boolean(type_):
        return text in ("t", "true")
    if pa.types.is_integer(type_):
        return int(text)
    if pa.types.is_floating(type_):
        return _float(text, ">f" if pa.types.is_float32(type_) else ">d")
    if pa.types.is_decimal(type_):
        return Decimal(re.sub(r"[$,()]", "", text)) * (-1 if text.startswith("(") else 1)
    if pa.types.is_binary(type_):
        found = _HEXADECIMAL.fullmatch(text)
        return found[1] if found else f"not hexadecimal: {text}"
    return text.encode("utf-8", "surrogateescape").hex()


def _float(text: str, width: str) -> str:
    return struct.pack(">d", struct.unpack(width, struct.pack(width, float(text)))[0]).hex()


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


__all__ = ["DATABASE", "OnRegression", "of_text"]
