"""Answers by `Idempotency-Key`, so that a program may repeat a request when it does not know its outcome.

An answer is a row of a table of the log, `push._idempotency`, in the same transaction as the rows that it is about:
after a restart it exists exactly if they do. An answer that is dropped, because it is old or there are too many, is
deleted in the same way, so the table stays small wherever the log is replicated to.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from cdcflow.log.query.log import ChangeLog
from cdcflow.log.read.log_reader import LogReader
from cdcflow.model.change import DELETE
from cdcflow.model.table import COMMIT_TS, OFFSET, OP, Column, Table, TableId
from cdcflow.model.types import ColumnType
from cdcflow.push.schemas import SCHEMA

ANSWERS_BYTES_MAX = 64 << 20
"""The maximum size of all remembered answers together."""
FORGOTTEN_AT_ONCE = 1000
_STRETCH = 1 << 18
_TEXT = ColumnType("string", pa.string())
TABLE = Table(
    TableId(SCHEMA, "_idempotency"),
    1,
    (Column("key", 1, _TEXT, False), Column("body", 2, _TEXT, False), Column("answer", 3, _TEXT, False)),
    ("key",),
)


@dataclass(frozen=True, slots=True)
class Once:
    """A request's `Idempotency-Key` and its content, as hashes: neither can be read from the log."""

    key: str
    body: str

    @classmethod
    def of(cls, caller: str, collection: str, key: str, *body: bytes) -> Once:
        """Return the hashes for a key, which counts for one caller and one collection."""
        told = hashlib.sha256()
        for part in body:
            told.update(len(part).to_bytes(8, "little"))
            told.update(part)
        named = "\0".join((caller, collection, key)).encode("utf-8", "surrogateescape")
        return cls(hashlib.sha256(named).hexdigest(), told.hexdigest())


@dataclass(frozen=True, slots=True)
class Remembered:
    """The answer, given at `at_us` (microseconds since 1970 UTC), to a request with this body."""

    at_us: int
    body: str
    answer: str

    def to_row(self, key: str) -> dict[str, Any]:
        return {"key": key, "body": self.body, "answer": self.answer}


class RememberedAnswers:
    """The remembered answers, oldest first. Used by the writer's thread alone."""

    def __init__(self, age_s: float, keys_max: int) -> None:
        self._age_us = int(age_s * 1e6)
        self._keys_max = keys_max
        self._answers: OrderedDict[str, Remembered] = OrderedDict()
        self._bytes = 0

    def begin(self, reader: LogReader, log: ChangeLog, now_us: int) -> None:
        """Load the answers from the log.

        Raises:
            HistoryLost, ConfigurationError: they have expired, and no state was stored.
        """
        if TABLE.id not in reader.table_shapes():
            return
        for part in self._in_log(reader, log, now_us):
            for row in part.to_pylist():
                self._forget(row["key"])
                if row[OP] != DELETE:
                    at_us = int(row[COMMIT_TS].timestamp() * 1e6)
                    self._add(row["key"], Remembered(at_us, row["body"], row["answer"]))

    def answer(self, once: Once, now_us: int) -> Remembered | None:
        """Return the answer to this key; `None` if it is not remembered, or no longer."""
        found = self._answers.get(once.key)
        return None if found is None or found.at_us < now_us - self._age_us else found

    def remember(self, once: Once, answer: str, now_us: int) -> list[tuple[str, Remembered]]:
        """Remember the answer to this key. Return the older answers that are dropped to make room for it."""
        self._forget(once.key)
        self._add(once.key, Remembered(now_us, once.body, answer))
        gone: list[tuple[str, Remembered]] = []
        while self._is_due(now_us) and len(gone) < FORGOTTEN_AT_ONCE:
            key = next(iter(self._answers))
            if key == once.key:
                break
            gone.append((key, self._answers[key]))
            self._forget(key)
        return gone

    # ── inside ──────────────────────────────────────────────────────────────────────────────────────────────

    def _in_log(self, reader: LogReader, log: ChangeLog, now_us: int) -> list[pa.Table]:
        """Return the table's changes back to those older than `age_s`, or all of its rows, oldest first."""
        end, first = int(reader.newest_checkpoint().next_offset) - 1, log.first_offset()
        parts: list[pa.Table] = []
        for last in range(end, first - 1, -_STRETCH):
            found = _rows(reader, max(first, last - _STRETCH + 1), last)
            parts[:0] = found
            if found and _at_us(found[0]) < now_us - self._age_us:
                return parts
        # Some may be older than the expired part: those were stored as rows.
        return parts if first == 1 else [log.fold_table(str(TABLE.id), end)[1].sort_by(OFFSET)]

    def _is_due(self, now_us: int) -> bool:
        oldest = next(iter(self._answers.values()))
        too_many = len(self._answers) > self._keys_max or self._bytes > ANSWERS_BYTES_MAX
        return too_many or oldest.at_us < now_us - self._age_us

    def _add(self, key: str, answer: Remembered) -> None:
        self._answers[key] = answer
        self._bytes += len(answer.answer)

    def _forget(self, key: str) -> None:
        found = self._answers.pop(key, None)
        self._bytes -= 0 if found is None else len(found.answer)


def _rows(reader: LogReader, first: int, last: int) -> Sequence[pa.Table]:
    def read() -> Iterator[pa.Table]:
        for _, _, rows in reader.read_rows(first, last, (TABLE.id,)):
            if rows.num_rows:
                yield rows

    return list(read())


def _at_us(rows: pa.Table) -> int:
    return int(rows.column(COMMIT_TS)[0].cast(pa.timestamp("us", tz="UTC")).value)
