"""Logs of one table with transactions and backfill windows, generated from a seed, and the true history at the source.

source    transactions, each of a few changes; some are not captured
log       the changes as a capture writes them. A backfill's window is as the machine makes it: rows as of a
          snapshot inside it come first, then all that was committed in it. A repair's begins with deletes; it finds
          rows whose delete the log never got
truth     the rows after each transaction, by the offset of its last change
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cdcflow.log.fold.fold import Key, LogChange, Version

Values = dict[str, Any]
KEY = ("id",)
COLUMNS = ("id", "a", "doc")


@dataclass(frozen=True, slots=True)
class Piece:
    """One segment: its changes, and what is known at its end about the latest backfill."""

    changes: Sequence[LogChange]
    last_offset: int
    since: int
    is_done: bool
    generation: int = 0


@dataclass
class Log:
    """Write it by `make`."""

    chance: random.Random
    pieces: list[Piece] = field(default_factory=list)
    truth: list[tuple[int, dict[int, Values]]] = field(default_factory=list)
    gaps: list[int] = field(default_factory=list)
    generations: int = 0
    _rows: dict[int, Values] = field(default_factory=dict)
    _changes: list[LogChange] = field(default_factory=list)
    _offset: int = 0
    _transaction: int = 0
    _since: int = 0
    _done: bool = False
    _docs: int = 0

    def write(self, blocks: int, generations: int) -> None:
        chance = self.chance
        for _ in range(chance.choice([0, 0, 2, 4])):
            self._rows.setdefault(chance.randrange(4), self._values())
        is_reading = False
        for n in range(blocks):
            wanted = chance.random()
            if not is_reading and self.generations < generations and (wanted < 0.15 or (n == 0 and self._rows)):
                if chance.random() < 0.5 and self.generations:
                    self._unheard()
                self.generations += 1
                self._since, self._done, is_reading = self._offset + 1, False, True
            elif is_reading and wanted < 0.4:
                done = chance.random() < 0.5
                self._window(whole=done)
                if done:
                    self._done, is_reading = True, False
            elif wanted > 0.9:
                self._lose()
            elif wanted > 0.75:
                self._window(whole=False, repairs=True)
            else:
                self._committed()
            if chance.random() < 0.3:
                self._seal()
        self._seal()

    def changes(self, pieces: Sequence[Piece]) -> list[LogChange]:
        return [change for piece in pieces for change in piece.changes]

    # ── the source ──────────────────────────────────────────────────────────────────────────────────────────

    def _values(self) -> Values:
        self._docs += 1
        return {"a": self.chance.choice([None, 1, 2]), "doc": f"doc {self._docs}"}

    def _steps(self) -> Iterator[tuple[str, Values, tuple[str, ...], Values | None]]:
        """One transaction's changes: op, values, unchanged columns, and the old key."""
        chance = self.chance
        for _ in range(chance.choice([1, 1, 2, 4])):
            key = chance.randrange(4)
            match chance.choices(["put", "delete", "move", "truncate"], [10, 4, 3, 0.6])[0]:
                case "put" if key in self._rows:
                    yield "u", *self._changed(key), None
                case "put":
                    self._rows[key] = self._values()
                    yield "c", {"id": key} | self._rows[key], (), None
                case "delete" if key in self._rows:
                    del self._rows[key]
                    yield "d", {"id": key}, (), None
                case "move" if key in self._rows and (to := chance.randrange(6)) not in self._rows:
                    self._rows[to] = self._rows.pop(key)
                    yield "d", {"id": key}, (), None
                    yield "c", *self._changed(to), {"id": key}
                case "truncate":
                    self._rows = {}
                    yield "t", {}, (), None
                case _:
                    pass

    def _changed(self, key: int) -> tuple[Values, tuple[str, ...]]:
        """Give a row other values; those that are sent, and the columns that are not."""
        unchanged = tuple(c for c in ("a", "doc") if self.chance.random() < (0.2 if c == "a" else 0.5))
        self._rows[key] = self._rows[key] | {c: v for c, v in self._values().items() if c not in unchanged}
        return {"id": key} | {c: v for c, v in self._rows[key].items() if c not in unchanged}, unchanged

    def _unheard(self) -> None:
        for _ in range(self.chance.randint(1, 3)):
            for _ in self._steps():
                pass
        self.gaps.append(self._offset)

    def _lose(self) -> None:
        """A delete that the log never gets."""
        if self._rows:
            del self._rows[self.chance.choice(sorted(self._rows))]
            self.gaps.append(self._offset)

    # ── the log ─────────────────────────────────────────────────────────────────────────────────────────────

    def _committed(self) -> None:
        steps = list(self._steps())
        self._append([steps])

    def _append(self, transactions: Sequence[Sequence[Any]], *, read: bool = False) -> None:
        for steps in transactions:
            if steps:
                self._transaction += 1
            for op, values, unchanged, before in steps:
                self._offset += 1
                about = self._transaction, len(self.pieces) + 1, read
                change = LogChange(self._offset, op, values, frozenset(unchanged), before, *about)
                self._changes.append(change)
            if steps and not read:
                self.truth.append((self._offset, {k: dict(v) for k, v in self._rows.items()}))

    def _window(self, *, whole: bool, repairs: bool = False) -> None:
        """Transactions; the chunk's snapshot sees the first few."""
        count = self.chance.choice([0, 0, 1, 2, 4])
        sees = self.chance.randint(0, count)
        held, states = [], [{k: dict(v) for k, v in self._rows.items()}]
        for _ in range(count):
            held.append(list(self._steps()))
            states.append({k: dict(v) for k, v in self._rows.items()})
        # A key change that the snapshot sees and that omits columns must not be repeated over its rows.
        moved = [n for n in range(sees) if any(before and unchanged for _, _, unchanged, before in held[n])]
        first = moved[-1] + 1 if moved else 0
        shown = states[sees]
        keys = sorted(shown) if whole else self.chance.sample(sorted(shown), self.chance.randint(0, len(shown)))
        if repairs:
            asked = self.chance.sample(range(6), self.chance.randint(1, 6))
            keys = [k for k in asked if k in shown]
        rest = COLUMNS[1:]
        gone = [("d", {"id": k}, rest, None) for k in asked if k not in shown] if repairs else []
        read = [*gone, *(("r", {"id": k} | shown[k], (), None) for k in keys)]
        now = self._rows
        for n, steps in enumerate(held[:first]):
            self._rows = states[n + 1]
            self._append([steps])
        self._rows = now
        self._append([read], read=True)
        for n, steps in enumerate(held[first:], first):
            self._rows = states[n + 1]
            self._append([steps])
        self._rows = now

    def _seal(self) -> None:
        if self._changes:
            self.pieces.append(Piece(self._changes, self._offset, self._since, self._done, self.generations))
            self._changes = []


def make(seed: int, blocks: int = 12, generations: int = 2) -> Log:
    log = Log(random.Random(seed))
    log.write(blocks, generations)
    return log


def is_doubtful(log: Log, version: Version) -> bool:
    """Whether a version lasts over a time without a capture, or begins before all has been read again after it."""
    done = [(piece.since, piece.last_offset) for piece in log.pieces if piece.is_done]
    doubt = [(gap, next((last for since, last in done if since > gap), 1 << 60)) for gap in log.gaps]
    begin, end = version.start.offset, version.end.offset if version.end is not None else 1 << 60
    return any(begin <= last and gap < end for gap, last in doubt)


def untrue(log: Log, versions: Sequence[tuple[Key, Version]]) -> list[str]:
    """What versions report that did not happen. Nothing is checked for one that spans a time without a capture, or
    begins before everything was read again after it: what a change leaves unchanged may be older."""
    found = []
    for key, version in versions:
        if is_doubtful(log, version):
            continue
        begin, end = version.start.offset, version.end.offset if version.end is not None else 1 << 60
        before = [rows for offset, rows in log.truth if offset < begin][-1:]
        during = [rows for offset, rows in log.truth if begin <= offset < end]
        for rows in during if version.start.exact else before + during:
            row = rows.get(key[0])  # type: ignore[call-overload]
            held = None if row is None else {c: v for c, v in ({"id": key[0]} | row).items() if c in version.values}
            if held != dict(version.values):
                found.append(f"{key}: {version}: the source had {row}")
                break
    return found


def split(chance: random.Random, pieces: Sequence[Piece]) -> list[list[Piece]]:
    """The segments of each merge."""
    found: list[list[Piece]] = [[]]
    for piece in pieces:
        if found[-1] and chance.random() < 0.5:
            found.append([])
        found[-1].append(piece)
    return found


def compacted(chance: random.Random, pieces: Sequence[Piece]) -> list[Piece]:
    """Neighbours made one. Their changes keep the numbers of the segments that they were sealed in."""
    return [
        replace(group[-1], changes=[c for piece in group for c in piece.changes]) for group in split(chance, pieces)
    ]


def as_text(changes: Sequence[LogChange]) -> str:
    def one(c: LogChange) -> str:
        left = f" unchanged {sorted(c.unchanged)}" if c.unchanged else ""
        left += " read" if c.read else ""
        return f"  {c.segment}/{c.transaction}/{c.offset} {c.op} {dict(c.values)}{left} {c.before or ''}"

    return "\n".join(map(one, changes))
