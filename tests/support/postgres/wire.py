"""For tests of the PostgreSQL decoders: real bytes from a real server, spools in memory, changes as plain rows."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
from tests.servers.postgres import Database

from cdcflow.capture.interleave.messages import Advanced, Committed, MarkSeen
from cdcflow.capture.ports.stream import StreamEvent
from cdcflow.model.change import ChangeBatch, Run, SpooledTransaction, Uint64s
from cdcflow.model.table import BEFORE, OP, UNCHANGED, Identity, TableId
from cdcflow.sources.postgres.connection import VALUE_SETTINGS
from cdcflow.sources.postgres.copy import decode_copy
from cdcflow.sources.postgres.decoders import COMPILED, Compiled
from cdcflow.sources.postgres.pgoutput import PgoutputDecoder, Relation
from cdcflow.sources.postgres.types import AttributeInfo, DescribedTable, Policy, describe_table

_ATTRIBUTES = """
WITH RECURSIVE base (oid, root, modifier) AS (
    SELECT oid, oid, -1 FROM pg_type
    UNION ALL
    SELECT base.oid, t.typbasetype, t.typtypmod FROM base JOIN pg_type t ON t.oid = base.root WHERE t.typtype = 'd'
), resolved AS (
    SELECT b.oid, b.root, b.modifier, t.typtype, t.typelem
    FROM base b JOIN pg_type t ON t.oid = b.root AND t.typtype <> 'd'
)
SELECT a.attname, a.attnum, a.atttypid::bigint, a.atttypmod, format_type(a.atttypid, a.atttypmod), a.attnotnull,
       coalesce(a.attnum = ANY (i.indkey::int2[]), false), r.root::bigint,
       CASE WHEN r.oid = r.root THEN a.atttypmod ELSE r.modifier END, r.typtype::text,
       coalesce(e.root, 0)::bigint,
       CASE WHEN e.oid IS DISTINCT FROM e.root THEN coalesce(e.modifier, -1)
            WHEN r.oid = r.root THEN a.atttypmod ELSE r.modifier END, coalesce(e.typtype::text, 'b'),
       coalesce(el.typdelim::text, ',')
FROM pg_attribute a
JOIN resolved r ON r.oid = a.atttypid
LEFT JOIN pg_type el ON el.oid = r.typelem AND el.typarray = r.root
LEFT JOIN resolved e ON e.oid = el.oid
LEFT JOIN pg_index i ON i.indrelid = a.attrelid AND i.indisprimary
WHERE a.attrelid = %s::regclass AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attnum
"""


def xlog(payload: bytes) -> bytes:
    """A payload as the walsender wraps it."""
    return b"w" + struct.pack(">QQq", 0, 0, 0) + payload


@dataclass(eq=False)
class MemorySpool:
    """A spool that keeps its pieces."""

    name: str = ""
    pieces: list[tuple[list[ChangeBatch], Uint64s | None]] = field(default_factory=list)
    finished: bool = False
    discarded: bool = False

    def write(self, batches: Sequence[ChangeBatch], subxids: Uint64s | None) -> None:
        assert not self.finished
        self.pieces.append((list(batches), subxids))

    def finish(self) -> None:
        self.finished = True

    def discard(self) -> None:
        self.discarded = True


class Spools:
    """Creates spools and keeps them, by their names."""

    def __init__(self) -> None:
        self.all: dict[str, MemorySpool] = {}

    def __call__(self) -> MemorySpool:
        name = f"spool-{len(self.all)}"
        self.all[name] = MemorySpool(name)
        return self.all[name]


Row = tuple[str, str, dict[str, Any]]
"""Table name, op, and the values that were sent; `_unchanged` and `_before` only if they are not empty."""


def rows_of(
    batches: Sequence[ChangeBatch], subxids: Uint64s | None = None, dropped: frozenset[int] = frozenset()
) -> list[Row]:
    """Changes in order, as plain rows."""
    out: list[tuple[int, Row]] = []
    for batch in batches:
        batch.rows.validate(full=True)
        assert batch.rows.schema == batch.table.change_schema
        assert (np.diff(batch.index) > 0).all()
        for index, row in zip(batch.index.tolist(), batch.rows.to_pylist(), strict=True):
            if subxids is not None and int(subxids[index]) in dropped:
                continue
            op = row.pop(OP)
            for name in (UNCHANGED, BEFORE):
                if row[name] is None:
                    del row[name]
            if op == "t":
                row = {}
            out.append((index, (batch.table.id.name, op, row)))
    assert len({i for i, _ in out}) == len(out)
    return [row for _, row in sorted(out, key=lambda pair: pair[0])]


def transactions(events: Sequence[StreamEvent], spools: Spools | None = None) -> list[tuple[int, str, list[Row]]]:
    """The transactions of all events: xid, position, rows."""
    out: list[tuple[int, str, list[Row]]] = []
    for event in events:
        if not isinstance(event, Committed):
            continue
        run = event.run
        if isinstance(run, Run):
            rows = rows_of(run.batches)
            assert len(rows) == run.rows
            begin = 0
            for number in range(run.transactions):
                end = int(run.ends[number])
                out.append((int(run.xid[number]), run.position[number].as_py(), rows[begin:end]))
                begin = end
        else:
            assert isinstance(run, SpooledTransaction)
            assert spools is not None
            spool = spools.all[run.spool]
            assert spool.finished
            rows = [row for batches, subs in spool.pieces for row in rows_of(batches, subs, run.aborted)]
            assert len(rows) == run.rows
            out.append((run.xid, run.position.text, rows))
    return out


def origins(events: Sequence[StreamEvent]) -> list[str | None]:
    """The origins of the transactions of all events."""
    out: list[str | None] = []
    for event in events:
        if isinstance(event, Committed):
            run = event.run
            assert isinstance(run, Run | SpooledTransaction)
            if isinstance(run, SpooledTransaction):
                out.append(run.origin)
            else:
                out += [None] * run.transactions if run.origin is None else run.origin.to_pylist()
    return out


def marks(events: Sequence[StreamEvent]) -> list[str]:
    return [e.token.text for e in events if isinstance(e, MarkSeen)]


def advanced(events: Sequence[StreamEvent]) -> list[str]:
    return [e.position.text for e in events if isinstance(e, Advanced)]


@dataclass
class Lab:
    """One database with a slot: run SQL, then see how the decoders read the server's bytes."""

    database: Database
    policy: Policy = field(default_factory=Policy)
    version: int = 0

    def __post_init__(self) -> None:
        self.version = self.database.server.version
        settings = dict(VALUE_SETTINGS) | {"search_path": "public"}
        options = " ".join(f"-c {name}={value.replace(' ', chr(92) + ' ')}" for name, value in settings.items())
        self.connection = self.database.connect(options=options)
        self.execute("CREATE PUBLICATION everything FOR ALL TABLES")

    def close(self) -> None:
        self.connection.close()

    def execute(self, statement: str, parameters: Sequence[object] | None = None) -> list[tuple[Any, ...]]:
        cursor = self.connection.execute(statement.encode(), parameters)
        return cursor.fetchall() if cursor.description else []

    def slot(self, name: str = "lab") -> None:
        self.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [name])

    def peek(
        self,
        *,
        binary: bool = False,
        protocol: int = 1,
        publication: str = "everything",
        slot: str = "lab",
        streaming: bool = False,
    ) -> list[bytes]:
        """The slot's content, as XLogData messages."""
        options = ["proto_version", str(protocol), "publication_names", publication, "messages", "true"]
        options += ["binary", str(binary).lower()]
        if streaming:
            options += ["streaming", "on"]
        found = self.execute(
            "SELECT data FROM pg_logical_slot_peek_binary_changes(%s, NULL, NULL, VARIADIC %s)", [slot, options]
        )
        return [xlog(row[0]) for row in found]

    def attributes(self, table: str) -> list[AttributeInfo]:
        return [
            AttributeInfo(
                name=row[0],
                number=row[1],
                type_oid=row[2],
                type_modifier=row[3],
                type_text=row[4],
                not_null=row[5],
                in_key=row[6],
                base_oid=row[7],
                base_modifier=row[8],
                kind=row[9],
                element_oid=row[10],
                element_modifier=row[11],
                element_kind=row[12],
                element_delimiter=row[13],
            )
            for row in self.execute(_ATTRIBUTES, [table])
        ]

    def described(self, table: str, oid: int = 0, identity: str = "d") -> DescribedTable:
        kind = Identity.FULL if identity == "f" else Identity.KEY
        return describe_table(TableId("public", table), oid, self.attributes(table), kind, self.policy)

    def describe(self, relation: Relation) -> DescribedTable:
        return self.described(relation.name, relation.oid, relation.identity)

    def decoder(
        self,
        *,
        binary: bool = False,
        skip_until: int = 0,
        spool_bytes_max: int = 1 << 30,
        describe: Callable[[Relation], DescribedTable] | None = None,
        compiled: Compiled | None = COMPILED,
    ) -> tuple[PgoutputDecoder, Spools]:
        spools = Spools()
        made = PgoutputDecoder(
            describe=describe or self.describe,
            open_spool=spools,
            spool_bytes_max=spool_bytes_max,
            binary=binary,
            skip_until=skip_until,
            compiled=compiled,
        )
        return made, spools

    def streamed(self, *, binary: bool = False, publication: str = "everything") -> list[StreamEvent]:
        """The slot's content, decoded by the plain decoders and by those in use here, which must agree."""
        messages = self.peek(binary=binary, publication=publication)
        plain, _ = self.decoder(binary=binary, compiled=None)
        expected = _columns(plain.decode(messages))
        decoder, _ = self.decoder(binary=binary)
        events = decoder.decode(messages)
        assert _columns(events) == expected
        return events

    def copied(self, table: str, order: str = "") -> pa.RecordBatch:
        """The table's rows by COPY; by the plain decoders and by those that run here, which must agree."""
        described, messages = self.described(table), self.copy_messages(table, order)
        plain, rows = decode_copy(messages, described, None), decode_copy(messages, described)
        assert _printed(rows) == _printed(plain)
        return rows

    def copy_messages(self, table: str, order: str = "") -> list[bytes]:
        expressions = ", ".join(self.described(table).copy_expressions)
        query = f"COPY (SELECT {expressions} FROM {table} {order}) TO STDOUT (FORMAT binary)"
        with self.connection.cursor() as cursor, cursor.copy(query.encode()) as copy:
            return [bytes(piece) for piece in copy]


def _columns(events: Sequence[StreamEvent]) -> list[tuple[object, ...]]:
    runs = [e.run for e in events if isinstance(e, Committed) and isinstance(e.run, Run)]
    return [(b.table, b.index.tolist(), _printed(b.rows)) for run in runs for b in run.batches]


def _printed(rows: pa.RecordBatch) -> list[str]:
    """Columns in a form that is equal for equal values, including NaN; a struct's children where it is valid."""
    out: list[str] = []
    columns = list(rows.columns)
    while columns:
        column = columns.pop()
        if pa.types.is_struct(column.type):
            columns += column.flatten()
            column = column.is_valid()
        out.append(column.to_string(window=10_000))
    return out


def lab_of(database: Database) -> Iterator[Lab]:
    lab = Lab(database)
    try:
        yield lab
    finally:
        lab.close()


__all__ = [
    "Lab",
    "MemorySpool",
    "Row",
    "Spools",
    "advanced",
    "lab_of",
    "marks",
    "psycopg",
    "rows_of",
    "transactions",
    "xlog",
]
