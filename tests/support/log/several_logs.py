"""Several open change logs with their writers, and a plain list of what was written, for the oracle."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np

from cdcflow.model.change import Kind, Run
from cdcflow.model.position import SourceIdentity
from cdcflow.model.table import OP, Table, TableId
from cdcflow.sinks.files.log import FileLog
from cdcflow.sinks.kafka.log import KafkaLog
from cdcflow.sinks.kafka.topics import Topics
from cdcflow.testing.sinks import ORDERS, PRODUCTS, Writer, changes, transactions

START = 1_800_000_000_000_000
"""A commit clock (µs since 1970) before that of anything written here."""
DONE = {"state": "done", "generation": 1, "since": 1, "whole_since": 1}


class Logged(NamedTuple):
    """A transaction that was written: its commit clock, the name of its log, and each row's table, op and offset."""

    clock: int
    log: str
    rows: tuple[tuple[str, str, int], ...]


@dataclass
class Branch:
    """A log with orders and products, and what was written to it. `schema`: that of its tables, where it is not what
    all have. `topics`: where the log is if it is not in a folder."""

    root: Path
    name: str
    schema: str = ORDERS.id.schema
    written: list[Logged] = field(default_factory=list)
    keys: list[tuple[int, str, str, int]] = field(default_factory=list)
    """Offset, table, op and id of each row."""
    ids: int = 0
    topics: Topics | None = None

    def __post_init__(self) -> None:
        identity = SourceIdentity("postgres", self.name, "shop", "1")
        self.log = FileLog.open(self.root, identity) if self.topics is None else KafkaLog.open(self.topics, identity)
        self.writer = Writer.of(self.log)
        self.orders, self.products = ORDERS, PRODUCTS
        if self.schema != ORDERS.id.schema:  # of types that every engine merges
            self.orders = replace(ORDERS, id=TableId(self.schema, "orders"))
            self.products = replace(PRODUCTS, id=TableId(self.schema, "products"), columns=PRODUCTS.columns[:2])
        progress = {"tables": {str(table.id): DONE for table in (self.orders, self.products)}}
        self.writer.checkpoint = replace(self.writer.checkpoint, progress=progress)

    @property
    def clock(self) -> int:
        return self.writer.checkpoint.commit_clock

    def renamed(self, table: Table, name: str) -> Table:
        """The same table by another name, whose rows are all read."""
        made = replace(table, id=TableId(table.id.schema, name))
        listed = {**self.writer.checkpoint.progress["tables"], str(made.id): DONE}  # type: ignore[dict-item]
        listed.pop(str(table.id))
        self.writer.checkpoint = replace(self.writer.checkpoint, progress={"tables": listed})
        return made

    def commit(self, ts: int, *rows: tuple[Table, dict[str, Any]], kind: Kind = Kind.SOURCE) -> None:
        """One transaction whose commit time at the source is `ts` µs after `START`. Without a cut it is not visible."""
        listed = {table: [n for n, row in enumerate(rows) if row[0] is table] for table in (self.orders, self.products)}
        batches = [changes(t, [rows[n][1] for n in at], at) for t, at in listed.items() if at]
        run = transactions([len(self.written) + 1], [len(rows)], *batches)
        run = Run(run.xid, run.position, np.array([START + ts], np.int64), run.ends, run.batches, kind)
        first = int(self.writer.checkpoint.next_offset)
        self.writer.append(run)
        told = tuple((str(table.id), row.get(OP, "c"), first + n) for n, (table, row) in enumerate(rows))
        self.keys += [(first + n, str(table.id), row.get(OP, "c"), row["id"]) for n, (table, row) in enumerate(rows)]
        self.written.append(Logged(self.clock, self.name, told))

    def insert(self, ts: int, count: int = 1) -> None:
        """New orders, in one transaction."""
        self.ids += count
        ids = range(self.ids - count + 1, self.ids + 1)
        self.commit(ts, *((self.orders, {"id": i, "note": f"{self.name} {i}"}) for i in ids))
        self.cut()

    def cut(self) -> None:
        self.writer.cut()
        self.log.sync()

    def beat(self, ts: int) -> None:
        """A heartbeat: the source reports that its time is now `ts` µs after `START`."""
        at = self.writer.checkpoint
        self.writer.checkpoint = replace(at, commit_clock=max(at.commit_clock, START + ts))
        self.cut()

    def rows(self, table: Table, offset: int) -> set[int]:
        """The ids of a table's rows as of an offset."""
        found: set[int] = set()
        for at, name, op, key in self.keys:
            if at <= offset and name == str(table.id):
                (found.discard if op == "d" else found.add)(key)
        return found

    def seal(self) -> None:
        self.log.roll()
        self.log.seal_pending()


def go_on(branch: Branch, rng: Random, steps: int, until: int) -> None:
    """Random transactions, heartbeats, chunks of backfills, cuts and seals. Commit times go back and forth, and meet
    those of other logs."""
    for _ in range(steps):
        ts = rng.randint(0, until)
        match rng.choice(["commit", "commit", "commit", "read", "beat", "seal"]):
            case "commit":
                table = rng.choice([branch.orders, branch.products, None])
                count = rng.choice([1, 1, 2, 5, 30])
                rows = [
                    (table or rng.choice([branch.orders, branch.products]), _row(branch, rng)) for _ in range(count)
                ]
                branch.commit(ts, *rows)
                if rng.random() < 0.7:
                    branch.cut()
            case "read":
                branch.commit(ts, *((branch.orders, {"id": 1000 + n, OP: "r"}) for n in range(7)), kind=Kind.READ)
                branch.cut()
            case "beat":
                branch.beat(ts)
            case _:
                branch.cut()
                branch.seal()
    branch.cut()


def _row(branch: Branch, rng: Random) -> dict[str, Any]:
    branch.ids += 1
    return {"id": branch.ids, OP: rng.choice("cud")}


def in_order(branches: list[Branch], after: int = 0, upto: int | None = None) -> list[Logged]:
    """What a reader of these logs has to return after one clock and through another (None: the smallest that all have
    reached): one transaction after another, sorted by clock and log. An oracle without columns."""
    limit = min(branch.clock for branch in branches) if upto is None else upto
    found = sorted((t for branch in branches for t in branch.written), key=lambda t: (t.clock, t.log))
    return [t for t in found if after < t.clock <= limit]


__all__ = ["START", "Branch", "Logged", "go_on", "in_order"]
