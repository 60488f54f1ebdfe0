"""Positions in a binary log: a file and a byte in it, with the transactions before it.

    binlog.000003:1234;3e11fa47-…:1-77
    binlog.000003:1234;0-1-77;xa=binlog.000002:99;0-1-40
    binlog.000003:1234;0-1-77;began=1764241200

A file and position are meaningful on one server only; the set of GTIDs (empty if the server has none) means the same on
every server that has these transactions. `;xa=` is present while XA transactions are prepared and not decided: their
rows were held back, so a restart reads again starting there, and skips transactions that were delivered. `;began=` is
the time at which the server created the file, in seconds since 1970: a file with the same name and a different time is
a different file (`overlap`). A position of an earlier cdcflow does not have it, nor does one that was queried with SQL.

`StreamProgress` holds how far a stream is, and the marks that wait for a position.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from queue import SimpleQueue

from cdcflow.capture.interleave.messages import Advanced, MarkSeen
from cdcflow.capture.ports.stream import StreamEvent
from cdcflow.errors import ConfigurationError, InvariantViolated
from cdcflow.model.position import Position, Token, own_kind

FIRST_EVENT = 4
"""Where the first event of a file begins."""

_POSITION_BITS = 40
_NUMBER = re.compile(r"\.(\d+)$")
_XA, _BEGAN = "xa=", "began="


@own_kind
@dataclass(frozen=True, slots=True, order=True)
class Coordinate:
    """A place in one server's binary log, as a number that grows across its files. Decoders keep many of them as
    numbers in columns, where they identify transactions."""

    value: int


@own_kind
@dataclass(frozen=True, slots=True)
class BinlogFile:
    """A file of one server's binary log, by its name."""

    name: str

    def __str__(self) -> str:
        return self.name


NOWHERE = Coordinate(-1)
"""A coordinate before every place."""


@own_kind
@dataclass(frozen=True, slots=True)
class BinlogPosition:
    """A position between two transactions. `gtids` is the set of the transactions before it, as text; `xa` and `began`
    are as at the top of this module (`began` 0: unknown)."""

    file: BinlogFile
    pos: int
    gtids: str = ""
    xa: BinlogPosition | None = None
    began: int = 0

    @property
    def coordinate(self) -> Coordinate:
        return coordinate(self.file, self.pos)

    @property
    def text(self) -> str:
        held = "" if self.xa is None else f";{_XA}{self.xa.file}:{self.xa.pos};{self.xa.gtids}"
        return f"{self.file}:{self.pos};{self.gtids}{held}{began_text(self.began)}"

    @property
    def start(self) -> BinlogPosition:
        """The position at which to start reading again."""
        return replace(self, xa=None) if self.xa is None else self.xa

    @classmethod
    def parse(cls, text: str) -> BinlogPosition:
        """Parse a position's `text`. Raises InvariantViolated for any other text."""
        head, *rest = text.split(";")
        file, _, pos = head.rpartition(":")
        began = 0
        if len(rest) > 1 and rest[-1].startswith(_BEGAN) and rest[-1].removeprefix(_BEGAN).isdecimal():
            began = int(rest.pop().removeprefix(_BEGAN))
        if not file or not pos.isdecimal() or len(rest) not in (1, 3):
            raise InvariantViolated(f"not a position in a binary log: {text[:200]!r}", runbook="stream-not-understood")
        if len(rest) == 1:
            return cls(BinlogFile(file), int(pos), rest[0], began=began)
        if not rest[1].startswith(_XA):
            raise InvariantViolated(f"not a position in a binary log: {text[:200]!r}", runbook="stream-not-understood")
        return cls(BinlogFile(file), int(pos), rest[0], cls.parse(f"{rest[1].removeprefix(_XA)};{rest[2]}"), began)


def binlog_position_of(position: Position) -> BinlogPosition:
    """Parse a position. Raises InvariantViolated for a position that is not one in a binary log."""
    return BinlogPosition.parse(position.text)


def position_of(position: BinlogPosition) -> Position:
    return Position(position.text)


def began_text(seconds: int) -> str:
    """Return the part of a position's text that contains when its file began."""
    return f";{_BEGAN}{seconds}" if seconds else ""


def coordinate(file: BinlogFile, pos: int) -> Coordinate:
    """Return the place at a byte of a file: 23 bits for the file, 40 for the byte.

    Raises:
        ConfigurationError: the file has no number, or one too large.
    """
    found = _NUMBER.search(file.name)
    if found is None or (number := int(found[1])) >= 1 << 23 or pos >= 1 << _POSITION_BITS:
        raise ConfigurationError(
            f"the server's binary log {file} at byte {pos} has no number that cdcflow can parse",
            remedy="start the binary log over (RESET BINARY LOGS AND GTIDS; before MySQL 8.2 RESET MASTER), then read "
            "all tables again",
            runbook="binlog-unknown",
        )
    return Coordinate(number << _POSITION_BITS | pos)


# ── how far a stream is ────────────────────────────────────────────────────────────────────────────────────────


class StreamProgress:
    """How far a stream is, as coordinates and as positions between transactions, and the marks and times that it must
    report. Any thread may call `expect` and `expect_time`, only one thread everything else.

    `skip_until`: everything through this coordinate was delivered before this connection (`NOWHERE` if the coordinates
    are those of another server, so that only GTIDs show what was delivered).
    """

    def __init__(self, position: BinlogPosition, *, by_gtid: bool) -> None:
        self.skip_until = NOWHERE if by_gtid else position.coordinate
        self.last = position_of(position)
        self.commit_ts = 0
        self.pos = position.start.pos
        # With GTIDs the server's files and bytes mean nothing to the change log until the first transaction has
        # arrived.
        self._silent = by_gtid
        self._passed = self._covered = self.skip_until
        self._asked: SimpleQueue[tuple[Token, Coordinate]] = SimpleQueue()
        self._expected: list[tuple[Token, Coordinate]] = []
        self._asked_times: SimpleQueue[tuple[int, Coordinate]] = SimpleQueue()
        self._times: list[tuple[int, Coordinate]] = []
        self.enter_file(position.start.file)

    def enter_file(self, file: BinlogFile) -> None:
        """Note that the following events are in this file."""
        self.file, self.began = file, 0
        self.base = coordinate(file, 0).value

    def coordinate_at(self, pos: int) -> Coordinate:
        """Return the place of a byte of the current file."""
        return Coordinate(self.base | pos)

    def position_at(self, pos: int, gtids: str, held: str) -> Position:
        return Position(f"{self.file}:{pos};{gtids}{held}")

    def expect(self, token: Token, coordinate: Coordinate) -> None:
        self._asked.put((token, coordinate))

    def expect_time(self, commit_ts: int, coordinate: Coordinate) -> None:
        """Report this time of the server (µs since 1970) once everything through this coordinate was delivered."""
        self._asked_times.put((commit_ts, coordinate))

    @property
    def due(self) -> bool:
        """Whether the stream has passed the position of an expected mark or time."""
        self._take_asked()
        return any(coordinate <= self._passed for _, coordinate in (*self._expected, *self._times))

    def passed_marks(self) -> list[StreamEvent]:
        """Return the expected marks whose positions were passed, and the latest expected time whose position was
        passed."""
        marks = [MarkSeen(token, self.last, self.commit_ts) for token, _ in self.take_marks(self._passed)]
        passed = [commit_ts for commit_ts, coordinate in self._times if coordinate <= self._passed]
        self._times = [e for e in self._times if e[1] > self._passed]
        return [*marks, Advanced(self.last, max(passed))] if passed else [*marks]

    def take_marks(self, upto: Coordinate) -> list[tuple[Token, Coordinate]]:
        """Remove and return the marks expected through a coordinate, which the caller reports."""
        self._take_asked()
        found = [e for e in self._expected if e[1] <= upto]
        self._expected = [e for e in self._expected if e[1] > upto]
        return found

    def _take_asked(self) -> None:
        while not self._asked.empty():
            self._expected.append(self._asked.get())
        while not self._asked_times.empty():
            self._times.append(self._asked_times.get())

    def record_delivery(self, position: Position, coordinate: Coordinate, commit_ts: int) -> None:
        """Note that everything through this position is in the events that are being returned."""
        self.last, self.commit_ts = position, commit_ts
        self._silent = False
        self._passed = self._covered = coordinate

    def advance(self, pos: int, gtids: str, held: str, *, known: bool, commit_ts: int = 0) -> list[StreamEvent]:
        """Note that no captured change remains before byte `pos` of the file. Return the marks expected there, and the
        progress.

        `known`: the server gave this position as its end, or it follows a transaction. `commit_ts`: when the last
        transaction before it was committed; 0 if unknown.
        """
        self.pos = pos
        self._silent = self._silent and not known
        if self._silent:
            return []
        reached = self.coordinate_at(pos)
        self._passed = max(self._passed, reached)
        if reached <= self._covered:
            return self.passed_marks()
        self._covered = reached
        self.last = self.position_at(pos, gtids, held)
        return [*self.passed_marks(), Advanced(self.last, commit_ts)]
