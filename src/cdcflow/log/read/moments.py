"""Find the offset of a log that corresponds to a cut, a position of the source, or a commit time.

    cut        a point between two transactions: everything up to it has offsets up to the returned one
    position   the same, by the positions of the source's own log
    time       `commit_clock`, the commit time made strictly increasing, so that it has one order

Manifests record at which cut, position and time each segment ends. So a binary search over manifests finds the one
segment in question, and only its transactions are read, not the rows of any table.

Positions are ordered only within one server's log. If those of the segments do not increase (another server was
promoted in between), or are of a different kind than the requested one, an error is raised instead of a guess.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdcflow.errors import ConfigurationError, HistoryLost
from cdcflow.log.files.extents import Found, retry_read
from cdcflow.log.files.layout import Bounds, Layout
from cdcflow.log.files.parquet import columns_of
from cdcflow.log.format.segment import Segment
from cdcflow.model.change import Int64s, Kind
from cdcflow.model.position import Checkpoint, position_text

Place = tuple[str, int, int]
"""The log of the source that a position refers to, and the position in it."""

_LSN = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")
_BINLOG = re.compile(r"(.+)\.(\d+):(\d+)(;.*)?", re.DOTALL)


def place_of(position: str) -> Place | None:
    """Return a position in a form that can be compared: an LSN, or a binary log file and a byte in it; `None` if it is
    neither."""
    if (lsn := _LSN.fullmatch(position.strip())) is not None:
        return "", int(lsn[1], 16), int(lsn[2], 16)
    if (binlog := _BINLOG.fullmatch(position.strip())) is not None:
        return binlog[1], int(binlog[2]), int(binlog[3])
    return None


def clock_of(time: str | datetime) -> int:
    """Return a time in microseconds since 1970 UTC. A time without a zone is UTC. Raises ValueError if a text is not a
    time."""
    found = time if isinstance(time, datetime) else datetime.fromisoformat(time.strip())
    whole = found.replace(tzinfo=UTC) if found.tzinfo is None else found
    since = whole - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def time_text(clock: int) -> str:
    """Return a commit clock as readable text."""
    return datetime.fromtimestamp(clock / 1e6, UTC).isoformat(timespec="microseconds")


def sealed_checkpoint(layout: Layout) -> Checkpoint:
    """Return the checkpoint at the end of the latest sealed segment (`cut` 0, next offset 1: nothing is sealed yet).

    Raises:
        ConfigurationError: there is no log, or a newer cdcflow wrote it.
    """
    return _reading(layout, lambda log: log.manifest(-1).last_checkpoint() if len(log) else Checkpoint())


def offset_of_cut(layout: Layout, cut: int) -> int:
    """Return the last offset of a cut at which a segment ended, compacted or not; 0 is the log's beginning.

    Raises:
        ConfigurationError: no sealed segment ends at that cut; the message names the nearest ones.
        HistoryLost: it has expired.
    """
    return _reading(layout, lambda log: _offset_of_cut(log, cut))


def offset_of_position(layout: Layout, position: str, tail: Iterable[pa.Table] = (), reached: str | None = None) -> int:
    """Return the last offset before the first source transaction after a position; 0: the log begins with that
    transaction. Rows that a backfill read in between are included: the position of such a transaction only records when
    it was read.

    `tail`: headers of the transactions after the sealed segments (from `read_transactions`), for callers that read
    these too, and `reached` the position of its latest cut: after the last transaction, if the source is idle.

    Raises:
        ConfigurationError: the log has not reached that position, or its positions cannot be compared with it.
        HistoryLost: the transactions up to it have expired.
    """
    wanted = place_of(position)
    if wanted is None:
        raise ConfigurationError(
            f"reading {layout.name} as of position {position}: cdcflow cannot compare that position",
            remedy="name a position as `cdcflow cuts` shows it (0/16B3748, binlog.000003:77), a cut, or a commit time",
            runbook="log-range",
        )
    has_tail = tail != ()
    return _reading(
        layout, lambda log: _offset_of_position(log, position, wanted, list(tail), reached), has_tail=has_tail
    )


def offset_before(layout: Layout, clock: int, tail: Iterable[pa.Table] = ()) -> int:
    """Return the last offset of the transactions whose commit clock (µs since 1970) is lower, or 0 if there are no such
    transactions.

    So the transactions committed at or before a time end at `offset_before(layout, clock + 1)`, and those committed at
    or after a time begin after `offset_before(layout, clock)`. `tail` as for `offset_of_position`.

    Raises:
        HistoryLost: transactions with that clock, or before it, have expired.
    """
    return _reading(layout, lambda log: _offset_before(log, clock, list(tail)), has_tail=tail != ())


# ── inside ──────────────────────────────────────────────────────────────────────────────────────────────────


class _Sealed:
    """The sealed segments that count, oldest first; each manifest is read when it is first needed."""

    def __init__(self, layout: Layout, *, has_tail: bool = False) -> None:
        """`has_tail`: the log has rows after these segments, so a log in Kafka may have no segments yet."""
        self.layout = layout
        self.begins = 1 if has_tail and not layout.exists() else layout.log_file().first_offset
        self.bounds: Sequence[Bounds] = [b for b in layout.segment_offsets() if b[0] >= self.begins]
        self._read: dict[Bounds, Segment] = {}

    def __len__(self) -> int:
        return len(self.bounds)

    @property
    def name(self) -> str:
        return self.layout.name

    @property
    def has_expired(self) -> bool:
        """Whether older transactions have expired."""
        return bool(self.bounds) and self.bounds[0][0] > 1

    def manifest(self, at: int) -> Segment:
        bounds = self.bounds[at]
        if bounds not in self._read:
            self._read[bounds] = self.layout.manifest(*bounds)[0]
        return self._read[bounds]

    def end(self, at: int) -> Checkpoint:
        return self.manifest(at).last_checkpoint()

    def headers(self, at: int, column: str) -> pa.Table:
        """Return one column of the headers of a segment's transactions, with the last offset and the kind of each."""
        segment = self.manifest(at)
        file = self.layout.file(segment, segment.transactions_file)
        return columns_of(file, ["last_offset", "kind", column])

    def history_lost(self, what: str) -> HistoryLost:
        first = self.bounds[0][0]
        return HistoryLost(
            f"reading {self.name} {what}: that has expired; the first offset left is {first}",
            remedy=f"read from offset {first}, or name a later time",
            runbook="log-expired",
        )


def _reading(layout: Layout, read: Callable[[_Sealed], Found], *, has_tail: bool = False) -> Found:
    """Return the result of reading the segments; if some were compacted in between, they are listed again."""
    return retry_read(lambda: read(_Sealed(layout, has_tail=has_tail)), layout.root)


def _offset_of_cut(log: _Sealed, cut: int) -> int:
    if cut == 0 and not log.has_expired:
        return 0
    newest = log.manifest(-1).last_cut if len(log) else 0
    if cut > newest:
        raise ConfigurationError(
            f"reading {log.name} as of cut {cut}: the log is sealed up to cut {newest}",
            remedy="name an older cut, or wait until the log is sealed further",
            runbook="log-range",
        )
    at = bisect_left(range(len(log)), cut, key=lambda n: log.manifest(n).last_cut)
    segment = log.manifest(at)
    if (offset := segment.offset_of(cut)) is not None:
        return offset
    before = segment.first_offset - 1
    if cut == segment.first_cut - 1:
        return before
    if cut < segment.first_cut:
        raise log.history_lost(f"as of cut {cut}")
    known = [(segment.first_cut - 1, before), *segment.seams, (segment.last_cut, segment.last_offset)]
    above = bisect_left(known, (cut, 0))
    (cut_before, offset_before_it), (cut_after, offset_after_it) = known[above - 1 : above + 1]
    raise ConfigurationError(
        f"reading {log.name} as of cut {cut}: that cut is inside segment {segment.first_offset}-"
        f"{segment.last_offset}, which does not record where it ended",
        remedy=f"name cut {cut_before} (offset {offset_before_it}) or cut {cut_after} (offset {offset_after_it});"
        " or an offset or a commit time",
        runbook="log-range",
    )


def _offset_before(log: _Sealed, clock: int, tail: Sequence[pa.Table]) -> int:
    at = bisect_left(range(len(log)), clock, key=lambda n: log.end(n).commit_clock)
    if at < len(log):
        headers = log.headers(at, "commit_clock")
        clocks = headers.column("commit_clock").cast(pa.int64()).to_numpy()
        count = int(bisect_left(clocks, clock))
        if not count and not at and log.has_expired and clock < int(clocks[0]):
            raise log.history_lost(f"since {time_text(clock)}")
        return _last_of(headers, count, log.bounds[at][0] - 1)
    last = log.bounds[-1][1] if len(log) else 0
    for headers in tail:
        clocks = headers.column("commit_clock").cast(pa.int64()).to_numpy()
        last = _last_of(headers, int(bisect_left(clocks, clock)), last)
    return last


def _offset_of_position(
    log: _Sealed, position: str, wanted: Place, tail: Sequence[pa.Table], reached: str | None
) -> int:
    attempted = f"reading {log.name} as of position {position}"
    ends = [position_text(log.end(n).position) for n in range(len(log))]
    behind = [*(text for headers in tail for text in _of_source(headers)[1]), reached]
    places = _comparable([text for text in (*ends, *behind) if text], wanted, attempted)
    if not places or wanted > places[-1]:
        raise ConfigurationError(
            f"{attempted}: the log has reached {next(filter(None, reversed((*ends, *behind))), 'no position yet')}",
            remedy="name an earlier position, or wait until the log has reached it",
            runbook="log-range",
        )
    # Segments from before the source was first read have no position, and precede all that have one.
    at = len(ends) - sum(1 for text in ends if text) + bisect_right(places[: sum(1 for text in ends if text)], wanted)
    if at < len(log):
        headers = log.headers(at, "position")
        before, upto = _split_at(headers, wanted, attempted)
        if not before and not at and log.has_expired:
            raise log.history_lost(f"as of position {position}")
        return _last_of(headers, upto, log.bounds[at][0] - 1)
    last = log.bounds[-1][1] if len(log) else 0
    for headers in tail:
        _, upto = _split_at(headers, wanted, attempted)
        last = _last_of(headers, upto, last)
        if upto < len(headers):
            break
    return last


def _of_source(headers: pa.Table) -> tuple[Int64s, list[str]]:
    """Return the transactions that the source committed: their indexes in the headers, and their positions."""
    own = np.flatnonzero(pc.not_equal(headers.column("kind"), str(Kind.READ)).to_numpy())
    positions: list[str] = headers.column("position").take(own).to_pylist()
    return own, positions


def _split_at(headers: pa.Table, wanted: Place, attempted: str) -> tuple[int, int]:
    """Return how many transactions of the source are at or before a position, and how many of all transactions precede
    the first one of the source after it."""
    own, positions = _of_source(headers)
    before = bisect_right(_comparable(positions, wanted, attempted), wanted)
    return before, int(own[before]) if before < len(own) else len(headers)


def _last_of(headers: pa.Table, count: int, before: int) -> int:
    """Return the last offset of the first `count` transactions, or `before` if `count` is 0."""
    return int(headers.column("last_offset")[count - 1].as_py()) if count else before


def _comparable(positions: Sequence[str], wanted: Place, attempted: str) -> list[Place]:
    """Return these positions in comparable form, after checking that they ascend and can be compared with the requested
    one.

    Raises:
        ConfigurationError: they do not ascend, or cannot be compared with it.
    """
    places = [place_of(text) for text in positions]
    if why := without_order(places, wanted):
        raise ConfigurationError(
            f"{attempted}: {why}", remedy="name an offset, a cut or a commit time instead", runbook="log-range"
        )
    return [place for place in places if place is not None]


def without_order(places: Sequence[Place | None], wanted: Place) -> str:
    """Return why a position cannot be searched among these positions, in the order of the log; "" if it can be."""
    known = [place for place in places if place is not None]
    if len(known) < len(places) or any(place[0] != wanted[0] for place in known):
        return "there are positions of another log, or of another kind"
    if any(before > after for before, after in pairwise(known)):
        return "the positions do not increase: the source has failed over to another server in between"
    return ""


__all__ = [
    "Place",
    "clock_of",
    "offset_before",
    "offset_of_cut",
    "offset_of_position",
    "place_of",
    "sealed_checkpoint",
    "time_text",
    "without_order",
]
