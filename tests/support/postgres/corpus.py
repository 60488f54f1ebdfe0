"""Recorded messages of a real PostgreSQL server: how a recording is written, read, and rendered as text.

# story  <what it shows>
# server <version>
sql      <statement>
table    <JSON: the catalog's description of a table>
text | binary | streamed         the way the messages were requested
<hex of one message's payload>
...
----
<one line per event, or per change>
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from decimal import Decimal

from tests.support.postgres.wire import Lab, Spools, rows_of, xlog

from cdcflow.capture.interleave.messages import Advanced, Committed, MarkSeen
from cdcflow.capture.ports.stream import StreamEvent
from cdcflow.model.change import Run, SpooledTransaction
from cdcflow.model.table import Identity, TableId
from cdcflow.sources.postgres.pgoutput import PgoutputDecoder, Relation
from cdcflow.sources.postgres.types import AttributeInfo, DescribedTable, Policy, describe_table

WAYS = ("text", "binary", "streamed")


@dataclass(frozen=True)
class Story:
    """`before` is run first, `after` is what the slot sees. `shows`: its purpose, with hard-case ids."""

    shows: str
    before: tuple[str, ...]
    after: tuple[str, ...]
    ways: tuple[str, ...] = ("text", "binary")


STORIES = {
    "values": Story(
        "one row of every type with a binary form, and one of NULLs (section T)",
        (
            "CREATE TYPE mood AS ENUM ('sad', 'so, so')",
            "CREATE TABLE v (id int PRIMARY KEY, b bool, i2 int2, i8 int8, f4 float4, f8 float8, n numeric(10,2), "
            "w numeric(40,5), t text, c char(5), y bytea, d date, ts timestamp, tz timestamptz, ti time, tt timetz, "
            "iv interval, u uuid, j jsonb, vb varbit, m money, e mood)",
        ),
        (
            "INSERT INTO v VALUES (1, true, -2, 9223372036854775807, 0.1, '-0', -1234.5, 12345678901234567890.12345, "
            "'Zoë', 'ab', '\\x00ff', '1066-10-14', '2024-02-29 23:59:59.999999', '1969-12-31 23:00:00-01', "
            "'24:00:00', '12:00:00.5+05:30:01', '-1 year 3 days -00:00:00.5', 'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11', "
            "'{\"b\": [1, null]}', B'00101', -0.01, 'so, so')",
            "INSERT INTO v (id) VALUES (2)",
        ),
    ),
    "text_only": Story(
        "types that come as the server's text: arrays, ranges, addresses, composites (T19, T22)",
        (
            "CREATE TYPE pair AS (a int, b text)",
            "CREATE TABLE v (id int PRIMARY KEY, n numeric, a text[], i int4[], r int4range, h inet, p pair, "
            "l tsvector)",
        ),
        (
            "INSERT INTO v VALUES (1, 1.500, ARRAY['NULL', NULL, '', 'a,\"b\\'], '{}', '[1,5)', '::1/64', "
            "(1, 'x, y'), 'fat:1A cat')",
        ),
        ("text",),
    ),
    "old_rows": Story(
        "updates and deletes under each identity, with values that were not repeated (P01, P03, P04, P08, P09)",
        (
            "CREATE TABLE k (id int PRIMARY KEY, n int, v text STORAGE EXTERNAL)",
            "CREATE TABLE f (id int PRIMARY KEY, n int, v text STORAGE EXTERNAL)",
            "CREATE TABLE o (n int, v text)",
            "ALTER TABLE f REPLICA IDENTITY FULL",
            "ALTER TABLE o REPLICA IDENTITY FULL",
            "INSERT INTO k SELECT i, 0, repeat('k', 2100) FROM generate_series(1, 2) i",
            "INSERT INTO f SELECT i, 0, repeat('f', 2100) FROM generate_series(1, 2) i",
            "INSERT INTO o VALUES (1, 'x'), (1, 'x')",
        ),
        (
            "UPDATE k SET n = 1 WHERE id = 1",
            "UPDATE k SET id = 3 WHERE id = 1",
            "UPDATE f SET n = 1 WHERE id = 1",
            "BEGIN; UPDATE f SET id = 3 WHERE id = 1; DELETE FROM k; DELETE FROM f WHERE id = 2; COMMIT",
            "UPDATE o SET v = NULL WHERE ctid = '(0,1)'",
            "DELETE FROM o WHERE v IS NOT NULL",
        ),
    ),
    "marks": Story(
        "marks, heartbeats, messages of other programs, truncate (P17, P58)",
        ("CREATE TABLE a (id int PRIMARY KEY)", "CREATE TABLE b (id int PRIMARY KEY)"),
        (
            "INSERT INTO a VALUES (1)",
            "SELECT pg_logical_emit_message(true, 'cdcflow', '1/1/low')",
            "BEGIN; INSERT INTO b VALUES (1); TRUNCATE a, b; INSERT INTO a VALUES (2); COMMIT",
            "SELECT pg_logical_emit_message(true, 'else', 'x')",
            "SELECT pg_logical_emit_message(true, 'cdcflow', '1/1/high')",
            "SELECT pg_logical_emit_message(true, 'cdcflow', 'heartbeat')",
        ),
    ),
    "pieces": Story(
        "a transaction streamed while it runs, with savepoints rolled back, and one rolled back whole (P29, P31)",
        ("CREATE TABLE a (id int PRIMARY KEY, v text)",),
        (
            "BEGIN; INSERT INTO a VALUES (1, 'x'); SAVEPOINT s; INSERT INTO a VALUES (2, 'gone'); ROLLBACK TO s; "
            "INSERT INTO a VALUES (3, 'y'); SAVEPOINT t; UPDATE a SET v = 'z' WHERE id = 1; COMMIT",
            "BEGIN; INSERT INTO a VALUES (9, 'never'); ROLLBACK",
            "INSERT INTO a VALUES (4, NULL)",
        ),
        ("text", "streamed"),
    ),
}


@dataclass
class Recording:
    shapes: dict[int, tuple[str, list[AttributeInfo]]] = field(default_factory=dict)
    messages: dict[str, list[bytes]] = field(default_factory=dict)
    told: dict[str, list[str]] = field(default_factory=dict)

    def describe(self, relation: Relation) -> DescribedTable:
        name, attributes = self.shapes[relation.oid]
        identity = Identity.FULL if relation.identity == "f" else Identity.KEY
        return describe_table(TableId("public", name), relation.oid, attributes, identity, Policy())

    def decoded(self, way: str) -> list[str]:
        spools = Spools()
        decoder = PgoutputDecoder(
            describe=self.describe, open_spool=spools, spool_bytes_max=1 << 30, binary=way == "binary", skip_until=0
        )
        return told(decoder.decode([xlog(m) for m in self.messages[way]]), spools)


def told(events: Sequence[StreamEvent], spools: Spools) -> list[str]:
    """Events and changes as lines that a person can read. Positions and times are omitted."""
    out: list[str] = []
    for event in events:
        match event:
            case Advanced():
                out.append("advanced")
            case MarkSeen():
                out.append(f"mark {event.token}")
            case Committed():
                run = event.run
                if isinstance(run, SpooledTransaction):
                    pieces = spools.all[run.spool].pieces
                    rows = [row for batches, subs in pieces for row in rows_of(batches, subs, run.aborted)]
                    ends = [len(rows)]
                else:
                    assert isinstance(run, Run)
                    rows, ends = rows_of(run.batches), run.ends.tolist()
                begin = 0
                for end in ends:
                    out.append("commit" if isinstance(run, Run) else "commit from a spool")
                    for table, op, row in rows[begin:end]:
                        values = " ".join(f"{k}={shown(v)}" for k, v in row.items())
                        out.append(f"  {op} {table} {values}".rstrip())
                    begin = end
    return out


def shown(value: object) -> str:
    text = str(value) if isinstance(value, Decimal | dt.date) else repr(value)
    return text if len(text) <= 200 else f"{text[:20]}…({len(text)})"


def recorded(lab: Lab, name: str, story: Story) -> str:
    """Run a story and write it down."""
    for statement in story.before:
        lab.execute(statement)
    lab.slot()
    for statement in story.after:
        lab.execute(statement)
    tables = lab.execute(
        "SELECT oid::bigint, relname FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace"
    )
    recording = Recording(shapes={oid: (table, lab.attributes(table)) for oid, table in sorted(tables)})
    out = [f"# story  {name}: {story.shows}", f"# server {lab.version}"]
    out += [f"sql      {statement}" for statement in (*story.before, *story.after)]
    for oid, (table, attributes) in recording.shapes.items():
        shape = {"oid": oid, "name": table, "attributes": [asdict(a) for a in attributes]}
        out.append(f"table    {json.dumps(shape)}")
    for way in story.ways:
        if way == "streamed":
            lab.execute("SET debug_logical_replication_streaming = immediate")
        streaming = way == "streamed"
        found = lab.peek(binary=way == "binary", protocol=2 if streaming else 1, streaming=streaming)
        recording.messages[way] = [m[25:] for m in found]
        out += [way, *(m.hex() for m in recording.messages[way]), "----", *recording.decoded(way)]
    return "\n".join(out) + "\n"


def read(text: str) -> Recording:
    """Read what `recorded` wrote."""
    recording = Recording()
    way, telling = "", False
    for line in text.splitlines():
        if line in WAYS:
            way, telling = line, False
            recording.messages[way], recording.told[way] = [], []
        elif line == "----":
            telling = True
        elif way and telling:
            recording.told[way].append(line)
        elif way:
            recording.messages[way].append(bytes.fromhex(line))
        elif line.startswith("table "):
            shape = json.loads(line[9:])
            recording.shapes[shape["oid"]] = (shape["name"], [AttributeInfo(**a) for a in shape["attributes"]])
    return recording
