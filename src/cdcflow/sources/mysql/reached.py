"""How far the stream is in the log, and the marks that wait for a place in it."""

from __future__ import annotations

from queue import SimpleQueue

from cdcflow.interleave.messages import Advanced, MarkSeen
from cdcflow.model.position import Position, Token
from cdcflow.ports import StreamEvent
from cdcflow.sources.mysql.position import BinlogPosition, coordinate


class Reached:
    """Places between transactions, as coordinates and as positions. `expect` may be called by any thread, everything
    else by one.

    `skip_until`: everything up to this coordinate was delivered before this connection (-1 when coordinates of another
    server are meant, and only GTIDs say what was).
    """

    def __init__(self, position: BinlogPosition, *, by_gtid: bool) -> None:
        self.skip_until = -1 if by_gtid else position.coordinate
        self.last = position.text
        self.commit_ts = 0
        self.pos = position.start.pos
        # Until the first transaction comes, places that lie before what the GTIDs leave out say nothing.
        self._silent = by_gtid
        self._passed = self._covered = self.skip_until
        self._asked: SimpleQueue[tuple[Token, int]] = SimpleQueue()
        self._expected: list[tuple[Token, int]] = []
        self.at(position.start.file)

    def at(self, file: str) -> None:
        """What follows stands in this file."""
        self.file = file
        self.base = coordinate(file, 0)

    def text(self, pos: int, gtids: str, held: str) -> Position:
        return Position(f"{self.file}:{pos};{gtids}{held}")

    def expect(self, token: Token, place: int) -> None:
        self._asked.put((token, place))

    @property
    def due(self) -> bool:
        """A mark is expected that was passed already."""
        self._take_asked()
        return any(place <= self._passed for _, place in self._expected)

    def seen(self) -> list[StreamEvent]:
        """The expected marks that were passed already."""
        return [MarkSeen(token, self.last, self.commit_ts) for token, _ in self.taken(self._passed)]

    def taken(self, upto: int) -> list[tuple[Token, int]]:
        """The marks expected up to a coordinate, which the caller answers."""
        self._take_asked()
        found = [e for e in self._expected if e[1] <= upto]
        self._expected = [e for e in self._expected if e[1] > upto]
        return found

    def _take_asked(self) -> None:
        while not self._asked.empty():
            self._expected.append(self._asked.get())

    def delivered(self, position: Position, place: int, commit_ts: int) -> None:
        """Everything up to this position is in the events that are being returned."""
        self.last, self.commit_ts = position, commit_ts
        self._silent = False
        self._passed = self._covered = place

    def advanced(self, pos: int, gtids: str, held: str, *, known: bool) -> list[StreamEvent]:
        """Nothing of ours comes up to byte `pos` of the file: the marks expected there, and how far we are.

        `known`: the place was told as the end of all that the server has, or lies behind a transaction.
        """
        self.pos = pos
        self._silent = self._silent and not known
        if self._silent:
            return []
        place = self.base | pos
        self._passed = max(self._passed, place)
        if place <= self._covered:
            return self.seen()
        self._covered = place
        self.last = self.text(pos, gtids, held)
        return [*self.seen(), Advanced(self.last)]
