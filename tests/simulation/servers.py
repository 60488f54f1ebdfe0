"""The kinds of servers that the model database can imitate: their logs, snapshots and plans."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from cdcflow.model.change import Uint64s

Fence = Literal["xids", "replay", "gtids", "prefix", "order"]


@dataclass(frozen=True, slots=True)
class Server:
    """How a server reports what a chunk sees, and in which order commits become visible.

    xids    PostgreSQL: a snapshot with the ids of running transactions
    replay  a standby of PostgreSQL: the end of the replayed log, before the snapshot and after it. Commits become
            visible in the order of the log, the last one shortly before it counts as replayed, and only what counts
            as replayed is sent.
    prefix  MariaDB: the place in the log up to which all is visible, of the very snapshot
    gtids   MySQL: the set of GTIDs that were visible before the snapshot, and the log's end after it
    order   MySQL without GTIDs, where commits are ordered: what was logged before a mark that is committed, and the
            log's end after the snapshot. Tables without a key are refused.

    `writes_marks`: they are in the log. Otherwise they are places in it, and nothing is written.
    """

    fence: Fence
    writes_marks: bool
    ordered: bool

    @property
    def has_binlog(self) -> bool:
        """It is MySQL or MariaDB: its log has the rows of all tables, and ranges are ranges of keys. Otherwise the log
        has what is published, and ranges are pages."""
        return self.fence not in ("xids", "replay")

    @property
    def numbers_places(self) -> bool:
        """What a snapshot sees is reported by places in the log, not by the ids of transactions."""
        return self.fence != "xids"

    @property
    def looks_twice(self) -> bool:
        """Two bounds determine what a snapshot sees: one from before it, one from after it."""
        return self.fence in ("replay", "gtids", "order")


SERVERS = {
    "postgres": Server("xids", writes_marks=True, ordered=False),
    "postgres-standby": Server("replay", writes_marks=False, ordered=True),
    "mysql": Server("gtids", writes_marks=True, ordered=True),
    "mysql-read-only": Server("gtids", writes_marks=False, ordered=False),
    "mysql-without-gtids": Server("order", writes_marks=True, ordered=True),
    "mariadb": Server("prefix", writes_marks=True, ordered=True),
    "mariadb-read-only": Server("prefix", writes_marks=False, ordered=True),
}


@dataclass(frozen=True, slots=True)
class Places:
    """Delivered transactions, identified by their place in the log; a snapshot sees these, or all up to `upto`."""

    upto: int
    besides: frozenset[int] = frozenset()

    def hidden(self, xids: Uint64s) -> Uint64s:
        return np.array([x for x in xids.tolist() if x > self.upto and x not in self.besides], np.uint64)

    def maybe_hidden(self) -> Uint64s:
        return np.empty(0, np.uint64)
