"""Sets of GTIDs: the transactions that a server, or cdcflow's log, has.

MySQL identifies a transaction by `uuid:number`, or `uuid:tag:number`; a set has intervals of numbers per uuid and tag,
with gaps. MariaDB identifies one by `domain-server-number`; the last GTID of each domain represents all that was read,
because a domain's transactions have one order.

    MySQL      3e11fa47-…:1-5:7:tag:1-3,4c6b8d21-…:1-9
    MariaDB    0-1-100,2-7-41

Here the *source* of a GTID is all of it except the number: `uuid`, `uuid:tag`, `domain-server`. A set must not be
shared: it changes as the stream advances. Store or pass on its text instead.
"""

from __future__ import annotations

import re
import uuid
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Literal, Protocol, Self

import numpy as np

from cdcflow.errors import ConfigurationError
from cdcflow.model.change import Int64s
from cdcflow.model.position import check_kind, own_kind

Flavor = Literal["mysql", "mariadb"]

_TAG = re.compile(r"[a-z_][a-z0-9_]{0,31}")
_NUMBER_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Gtids:
    """The GTIDs of consecutive transactions in columns: `sources[which[i]]` and `number[i]`; -1: no GTID."""

    sources: tuple[str, ...]
    which: Int64s
    number: Int64s

    def __len__(self) -> int:
        return len(self.which)

    def part(self, first: int, last: int) -> Gtids:
        return Gtids(self.sources, self.which[first:last], self.number[first:last])

    def gtid_at(self, index: int) -> tuple[str, int] | None:
        which = int(self.which[index])
        return None if which < 0 else (self.sources[which], int(self.number[index]))

    @property
    def has_tags(self) -> bool:
        """Whether some of the GTIDs may have a tag."""
        return any(":" in source for source in self.sources)

    @property
    def run(self) -> tuple[str, int] | None:
        """The source and the first number, if all have one source and consecutive numbers; otherwise None."""
        if not len(self.which) or int(self.which[0]) < 0 or (self.which != self.which[0]).any():
            return None
        if len(self.number) > 1 and (np.diff(self.number) != 1).any():
            return None
        return self.sources[int(self.which[0])], int(self.number[0])


def tag_of(gtids: Gtids, index: int) -> str | None:
    """Return the tag of a GTID; None if it has none."""
    found = gtids.gtid_at(index)
    return None if found is None else found[0].partition(":")[2] or None


class GtidSet(Protocol):
    """The interface of the sets of both flavors."""

    def add(self, source: str, number: int) -> None: ...
    def contains(self, source: str, number: int) -> bool: ...
    def covers(self, other: Self) -> bool:
        """Whether everything in `other` (of the same flavor) is in this set."""
        ...

    def text(self) -> str: ...
    def texts(self, gtids: Gtids, wanted: Int64s) -> list[str]:
        """Add `gtids` one after another. Return the texts of the set at some points on the way: after each GTID whose
        index is in `wanted` (ascending)."""
        ...


def gtid_set(flavor: Flavor, text: str) -> GtidSet:
    """Parse a set as the server, or cdcflow, wrote it; empty text is the empty set.

    Raises:
        ConfigurationError: the text is not a set of this flavor's GTIDs.
    """
    return MysqlGtids.parse(text) if flavor == "mysql" else MariadbGtids.parse(text)


@own_kind
class MysqlGtids:
    """MySQL's set: for each source, intervals of numbers, both ends inclusive, ascending and not touching."""

    def __init__(self, intervals: dict[str, list[list[int]]] | None = None) -> None:
        self._intervals = intervals or {}

    @classmethod
    def parse(cls, text: str) -> MysqlGtids:
        out = cls()
        for part in "".join(text.split()).split(","):
            if part:
                out._parse_server(part, text)
        return out

    def _parse_server(self, part: str, text: str) -> None:
        name, *rest = part.split(":")
        try:
            source = server = str(uuid.UUID(name))
        except ValueError:
            raise _not_a_set(text) from None
        if not rest or len(name) != 36:
            raise _not_a_set(text)
        for piece in rest:
            lower = piece.lower()
            if _TAG.fullmatch(lower):
                source = f"{server}:{lower}"
                continue
            first, dash, last = piece.partition("-")
            last = last if dash else first
            if not first.isdecimal() or not last.isdecimal():
                raise _not_a_set(text)
            self._add_interval(source, int(first), int(last), text)

    def _add_interval(self, source: str, first: int, last: int, text: str) -> None:
        if not 1 <= first <= last <= _NUMBER_MAX:
            raise _not_a_set(text)
        mine = self._intervals.setdefault(source, [])
        mine.append([first, last])
        mine.sort()
        merged: list[list[int]] = []
        for a, b in mine:
            if merged and a <= merged[-1][1] + 1:
                merged[-1][1] = max(merged[-1][1], b)
            else:
                merged.append([a, b])
        self._intervals[source] = merged

    def intervals(self) -> Iterable[tuple[str, Sequence[Sequence[int]]]]:
        """Return each source with its intervals, in the order of the text."""
        return sorted(self._intervals.items(), key=lambda item: item[0].split(":"))

    def add(self, source: str, number: int) -> None:
        mine = self._intervals.setdefault(source, [])
        if mine and mine[-1][1] == number - 1:
            mine[-1][1] = number
        elif not self.contains(source, number):
            self._add_interval(source, number, number, "")

    def contains(self, source: str, number: int) -> bool:
        mine = self._intervals.get(source)
        if not mine:
            return False
        at = bisect_right(mine, number, key=itemgetter(0)) - 1
        return at >= 0 and number <= mine[at][1]

    def is_beyond(self, source: str, number: int) -> bool:
        """Whether neither this number nor any later one of the source is in the set."""
        mine = self._intervals.get(source)
        return not mine or mine[-1][1] < number

    def covers(self, other: MysqlGtids) -> bool:
        check_kind(self, other)
        return all(
            any(a <= first and last <= b for a, b in self._intervals.get(source, ()))
            for source, intervals in other._intervals.items()
            for first, last in intervals
        )

    def text(self) -> str:
        out: list[str] = []
        before = ""
        for source, intervals in self.intervals():
            server, _, tag = source.partition(":")
            if server != before:
                out.append(("," if out else "") + server)
                before = server
            if tag:
                out.append(f":{tag}")
            out += [f":{a}" if a == b else f":{a}-{b}" for a, b in intervals]
        return "".join(out)

    def texts(self, gtids: Gtids, wanted: Int64s) -> list[str]:
        found = gtids.run
        if found is None or len(gtids) < 3:
            return _texts_one_by_one(self, gtids, wanted)
        source, first = found
        self.add(source, first)
        second = int(wanted[0] == 0) if len(wanted) else 0
        out = [self.text()] * second
        mine = self._intervals[source]
        if mine[-1][1] != first:
            return out + _texts_one_by_one(self, gtids, wanted[second:])
        # The last interval grows by one with each transaction: all but its end remains the same text.
        last = first + len(gtids) - 1
        mine[-1][1] = last
        text = self.text()
        before, after = self._around(source, text, last)
        out += [f"{before}{first + at}{after}" for at in wanted[second:].tolist()]
        return out

    def _around(self, source: str, text: str, last: int) -> tuple[str, str]:
        """Return the set's text before and after the end of this source's last interval."""
        upto = MysqlGtids({s: i for s, i in self._intervals.items() if s.split(":") <= source.split(":")}).text()
        return upto[: len(upto) - len(str(last))], text[len(upto) :]


@own_kind
class MariadbGtids:
    """MariaDB's set: the last transaction of each domain, by its server and its number."""

    def __init__(self) -> None:
        self._last: dict[int, tuple[int, int]] = {}

    @classmethod
    def parse(cls, text: str) -> MariadbGtids:
        out = cls()
        for part in "".join(text.split()).split(","):
            if not part:
                continue
            words = part.split("-")
            if len(words) != 3 or not all(w.isdecimal() for w in words):
                raise _not_a_set(text)
            domain, server, number = (int(w) for w in words)
            out._last[domain] = server, number
        return out

    def domains(self) -> dict[int, tuple[int, int]]:
        """Return the last server and number of each domain."""
        return dict(self._last)

    def add(self, source: str, number: int) -> None:
        domain, server = source.split("-")
        self._last[int(domain)] = int(server), number

    def contains(self, source: str, number: int) -> bool:
        """Whether the transaction is the last one of its domain, or precedes it (with a server's `gtid_strict_mode`, a
        domain's numbers only grow)."""
        found = self._last.get(int(source.split("-")[0]))
        return found is not None and number <= found[1]

    def covers(self, other: MariadbGtids) -> bool:
        check_kind(self, other)
        return all(d in self._last and n <= self._last[d][1] for d, (_, n) in other._last.items())

    def text(self) -> str:
        return ",".join(f"{domain}-{server}-{number}" for domain, (server, number) in sorted(self._last.items()))

    def texts(self, gtids: Gtids, wanted: Int64s) -> list[str]:
        found = gtids.run
        if found is None:
            return _texts_one_by_one(self, gtids, wanted)
        source, first = found
        last = first + len(gtids) - 1
        self.add(source, last)
        parts = [(d, f"{d}-{s}-{n}") for d, (s, n) in sorted(self._last.items())]
        domain = int(source.split("-")[0])
        before = "".join(f"{text}," for d, text in parts if d < domain)
        after = "".join(f",{text}" for d, text in parts if d > domain)
        return [f"{before}{source}-{first + at}{after}" for at in wanted.tolist()]


def _texts_one_by_one(mine: GtidSet, gtids: Gtids, wanted: Int64s) -> list[str]:
    out: list[str] = []
    asked = set(wanted.tolist())
    text: str | None = None
    for at, (which, number) in enumerate(zip(gtids.which.tolist(), gtids.number.tolist(), strict=True)):
        if which >= 0:
            mine.add(gtids.sources[which], number)
            text = None
        if at in asked:
            text = mine.text() if text is None else text
            out.append(text)
    return out


def _not_a_set(text: str) -> ConfigurationError:
    shown = text if len(text) <= 200 else f"{text[:200]}…"
    return ConfigurationError(f"not a set of GTIDs: {shown!r}", runbook="settings")
