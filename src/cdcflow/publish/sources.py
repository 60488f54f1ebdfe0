"""The `source` block: the origin of a change, once per transaction and table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdcflow.errors import InvariantViolated
from cdcflow.model.change import Int64s, Kind
from cdcflow.model.position import SourceIdentity
from cdcflow.model.table import TableId
from cdcflow.publish import envelope
from cdcflow.publish.connect import Schema
from cdcflow.version import __version__

CONNECTORS = {"postgres": "postgresql", "mysql": "mysql", "mariadb": "mariadb"}


@dataclass(frozen=True)
class HeaderBatch:
    """Headers of consecutive transactions (`TRANSACTIONS_SCHEMA`), and the position of the one before them."""

    headers: pa.Table
    previous: str | None = None

    @cached_property
    def numbers(self) -> Int64s:
        found: Int64s = self.headers.column("number").to_numpy()
        return found

    @cached_property
    def first_offsets(self) -> Int64s:
        found: Int64s = self.headers.column("first_offset").to_numpy()
        return found

    @cached_property
    def last_offset(self) -> int:
        return int(self.headers.column("last_offset")[-1].as_py())

    @cached_property
    def commit_us(self) -> Int64s:
        found: Int64s = self.headers.column("commit_ts").cast(pa.int64()).to_numpy()
        return found

    @cached_property
    def is_read(self) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        kinds = self.headers.column("kind")
        return np.asarray(pc.equal(kinds, Kind.READ.value).to_numpy(), bool)


@dataclass(frozen=True, slots=True)
class SourcePosition:
    """A transaction's position, for the `source` block. `lsn` for PostgreSQL, `file` and `pos` for the others."""

    id: str
    lsn: int | None = None
    file: str | None = None
    pos: int | None = None


class SourceBlocks:
    """Builds `source` for the transactions of one database."""

    def __init__(self, identity: SourceIdentity, prefix: str, server_id: int = 0) -> None:
        self.connector = CONNECTORS[identity.kind]
        self._database = identity.database
        self._prefix = prefix
        self._server_id = server_id
        self.schema: Schema = envelope.POSTGRES_SOURCE if self.is_postgres else envelope.mysql_source(self.connector)

    @property
    def is_postgres(self) -> bool:
        return self.connector == "postgresql"

    def topic(self, table: TableId) -> str:
        return envelope.topic_name(self._prefix, table.schema, table.name)

    def positions(self, transactions: HeaderBatch) -> list[SourcePosition]:
        """Return the position of each transaction."""
        texts: list[str] = transactions.headers.column("position").to_pylist()
        if not self.is_postgres:
            return [_binlog(p) for p in texts]
        xids = transactions.headers.column("xid").to_pylist()
        lsns = [_lsn(p) for p in texts]
        return [SourcePosition(f"{xid}:{lsn}", lsn) for xid, lsn in zip(xids, lsns, strict=True)]

    def columns(
        self, table: TableId, transactions: HeaderBatch, positions: Sequence[SourcePosition], which: Int64s
    ) -> list[pa.Array]:
        """Return the fields of `schema` for the transactions at these indexes in the headers."""
        count = len(which)
        us = transactions.commit_us[which]
        snapshot = np.where(transactions.is_read[which], "incremental", "false")
        chosen = [positions[i] for i in which]
        begin = [
            _all(__version__, count),
            _all(self.connector, count),
            _all(self._prefix, count),
            pa.array(us // 1000),
            pa.array(snapshot.tolist(), pa.string()),
            _all(self._database if self.is_postgres else table.schema, count),
            self._sequences(transactions, positions, which),
            pa.array(us),
            pa.array(us * 1000),
        ]
        if self.is_postgres:
            read = transactions.is_read[which]
            xids = transactions.headers.column("xid").take(pa.array(which)).cast(pa.int64())
            return [
                *begin,
                _all(table.schema, count),
                _all(table.name, count),
                pa.array(np.ma.masked_array(xids.to_numpy(), read)) if read.any() else _whole(xids),
                pa.array([p.lsn for p in chosen], pa.int64()),
                pa.nulls(count, pa.int64()),
                _whole(transactions.headers.column("origin").take(pa.array(which))),
                pa.nulls(count, pa.int64()),
            ]
        return [
            *begin,
            _all(table.name, count),
            pa.array(np.full(count, self._server_id)),
            pa.nulls(count, pa.string()),
            pa.array([p.file for p in chosen], pa.string()),
            pa.array([p.pos for p in chosen], pa.int64()),
            pa.array(np.zeros(count, np.int32)),
            pa.nulls(count, pa.int64()),
            pa.nulls(count, pa.string()),
        ]

    def _sequences(self, transactions: HeaderBatch, positions: Sequence[SourcePosition], which: Int64s) -> pa.Array:
        """Return, for PostgreSQL, the position of the previous commit and of this one, as Debezium's pair of texts."""
        if not self.is_postgres:
            return pa.nulls(len(which), pa.string())
        first = None if transactions.previous is None else _lsn(transactions.previous)
        pairs = ((positions[i - 1].lsn if i else first, positions[i].lsn) for i in which.tolist())
        return pa.array([f"[{_text(before)},{_text(own)}]" for before, own in pairs], pa.string())


def _text(number: int | None) -> str:
    return "null" if number is None else f'"{number}"'


def _all(text: str, count: int) -> pa.Array:
    return pa.array([text] * count, pa.string())


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _lsn(position: str) -> int:
    high, _, low = position.partition("/")
    try:
        return int(high, 16) << 32 | int(low, 16)
    except ValueError:
        raise InvariantViolated(f"publishing: not a position in PostgreSQL's log: {position[:200]!r}") from None


def _binlog(position: str) -> SourcePosition:
    """Return the position in a text `file:pos;GTIDs` (`sources/mysql/position.py` defines the text)."""
    file, _, pos = position.partition(";")[0].rpartition(":")
    if not file or not pos.isdecimal():
        raise InvariantViolated(f"publishing: not a position in a binary log: {position[:200]!r}")
    return SourcePosition(f"file={file},pos={pos}", file=file, pos=int(pos))
