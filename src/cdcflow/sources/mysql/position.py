"""Places in a binary log: a file and a byte in it, with the transactions that lie before.

    binlog.000003:1234;3e11fa47-…:1-77
    binlog.000003:1234;0-1-77;xa=binlog.000002:99;0-1-40

A file and position mean something on one server only; the set of GTIDs (empty where the server has none) means the
same on every server that has these transactions. `;xa=` is there while XA transactions are prepared and not decided:
their rows were held back, so a restart reads from there on again, and leaves out what was delivered.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from cdcflow.errors import ConfigurationError, InvariantViolated
from cdcflow.model.position import Position

FIRST_EVENT = 4
"""Where the first event of a file begins."""

_POSITION_BITS = 40
_NUMBER = re.compile(r"\.(\d+)$")
_XA = "xa="


@dataclass(frozen=True, slots=True)
class BinlogPosition:
    """A place between two transactions. `gtids` is the text of the set of those before it, `xa` as told above."""

    file: str
    pos: int
    gtids: str = ""
    xa: BinlogPosition | None = None

    @property
    def coordinate(self) -> int:
        return coordinate(self.file, self.pos)

    @property
    def text(self) -> Position:
        held = "" if self.xa is None else f";{_XA}{self.xa.file}:{self.xa.pos};{self.xa.gtids}"
        return Position(f"{self.file}:{self.pos};{self.gtids}{held}")

    @property
    def start(self) -> BinlogPosition:
        """Where to begin to read again."""
        return replace(self, xa=None) if self.xa is None else self.xa

    @classmethod
    def parse(cls, text: str) -> BinlogPosition:
        """Read what `text` wrote. InvariantViolated when it is something else."""
        place, *rest = text.split(";")
        file, _, pos = place.rpartition(":")
        if not file or not pos.isdecimal() or len(rest) not in (1, 3):
            raise InvariantViolated(f"not a position in a binary log: {text[:200]!r}")
        if len(rest) == 1:
            return cls(file, int(pos), rest[0])
        if not rest[1].startswith(_XA):
            raise InvariantViolated(f"not a position in a binary log: {text[:200]!r}")
        return cls(file, int(pos), rest[0], cls.parse(f"{rest[1].removeprefix(_XA)};{rest[2]}"))


def coordinate(file: str, pos: int) -> int:
    """A number that grows along one server's binary log, over its files: 23 bits for the file, 40 for the byte.

    Raises:
        ConfigurationError: the file has no number, or one too large.
    """
    found = _NUMBER.search(file)
    if found is None or (number := int(found[1])) >= 1 << 23 or pos >= 1 << _POSITION_BITS:
        raise ConfigurationError(
            f"the server's binary log {file} at byte {pos} has no number that cdcflow can count on",
            remedy="begin the binary log's files anew (RESET BINARY LOGS AND GTIDS), then read all tables again",
        )
    return number << _POSITION_BITS | pos


def byte_of(place: int) -> int:
    """The byte in its file that a coordinate stands for."""
    return place & (1 << _POSITION_BITS) - 1
