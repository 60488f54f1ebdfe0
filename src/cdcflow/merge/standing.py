"""Where the fold of a table begins, and whether every row of it is there: by what the log says of its backfills.

    offsets   1 ───────── 40 ═══════════ 70 ─────────── 90 ═══ ─ ─
    backfill              │ generation 1 │              │ generation 2, under way
                          since          done           since
    whole since           ─              40             40 (until generation 2 is done: 90)

From `since` of a generation that is done on the log has a row of everything that exists, so a table that is folded
from there needs nothing of before: neither rows nor shapes. That is what makes a table that could not follow its
source a new one. A generation that is under way, or was given up, takes nothing away from a table that was whole.

Where changes were lost and a table's rows were kept, it is folded on as before, and counts as whole again when a
comparison has shown that it is right, or a later generation is done.

So it is with a table that has a base: its rows were loaded another way, and the log does not have them. It has no floor
until a later generation is done, and only the table that has these very rows can be whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

ACTIVE = frozenset(("waiting", "reading", "paused"))
IN_DOUBT = "in doubt"
"""Said of a table in the place of its state: changes of it were lost, or it has a base, and no comparison has shown
that it is right."""
WITHOUT_BASE = "without its base"
"""The same: the log has only what changed since the table got a base, and the base is not there."""


@dataclass(frozen=True, slots=True)
class Backfill:
    """A table's newest backfill, as a checkpoint has it (`cdcflow.interleave.progress` says what the fields mean)."""

    state: str = ""
    generation: int = 0
    since: int = 0
    whole_since: int | None = None
    gap: tuple[int, int] | None = None
    """From this offset on up to the other one (exclusive; 0: there is none yet) a row may be one that a lost change has
    changed."""
    in_doubt: bool = False
    base: str = ""
    """What the table must have, because the log has not: the rows of this name ("": the log has all of them)."""

    @classmethod
    def of(cls, entry: Mapping[str, object]) -> Backfill:
        """Read a table's entry. Of a table without one nothing is known."""

        def number(field: str) -> int:
            found = entry.get(field, 0)
            return found if isinstance(found, int) else 0

        whole = entry.get("whole_since")
        gap = entry.get("gap")
        return cls(
            str(entry.get("state", "")),
            number("generation"),
            number("since"),
            whole if isinstance(whole, int) else None,
            (int(gap["offset"]), int(gap.get("until") or 0)) if isinstance(gap, Mapping) else None,
            isinstance(gap, Mapping) and gap.get("proven") is None,
            str(gap.get("base", "")) if isinstance(gap, Mapping) else "",
        )

    @property
    def is_done(self) -> bool:
        return self.state == "done"

    @property
    def floor(self) -> int | None:
        """The offset from which on the log has every row of the table; None: there is none yet."""
        return self.since if self.is_done and not self.base else self.whole_since

    @property
    def needs_base(self) -> bool:
        """Whether a table that is made of the log alone would lack rows, and go on to."""
        return self.base != "" and self.state not in ACTIVE

    @property
    def finished(self) -> int:
        """The generation of `floor`, or a later one that was given up; 0: there is none. Another one may have begun
        before any merge saw that it was done."""
        if self.floor is None:
            return 0
        return self.generation if self.floor == self.since else self.generation - 1

    def is_whole(self, begun: int, base: str = "") -> bool:
        """Whether a table that was folded from offset `begun` on, onto the rows of this name ("": onto none), has every
        row, and changes of none were lost."""
        return self._has_all(begun, base) and not self.in_doubt

    def state_of(self, begun: int, base: str = "") -> str:
        """What is said of such a table: in doubt where nothing else keeps it from being whole."""
        if self._has_all(begun, base):
            return IN_DOUBT if self.in_doubt else self.state
        return WITHOUT_BASE if self.base and self.is_done else self.state

    def stays_whole(self, *, complete: bool, state: str) -> tuple[bool, str]:
        """Whether a table is whole to which nothing has come since it was, or was not, and what is said of it."""
        if (self.floor is None and not self.base) or not (complete or state == IN_DOUBT):
            return False, self.state
        return not self.in_doubt, IN_DOUBT if self.in_doubt else self.state

    def _has_all(self, begun: int, base: str) -> bool:
        if self.base and self.base == base:
            return True
        return self.floor is not None and begun <= self.floor

    def beginnings(self) -> tuple[int, ...]:
        """The offsets from which on a new table can be folded, the best first: as whole as it can be. 0: all of it."""
        whole = self.floor or 0
        # The rows of a generation that is under way are all there is, once it is done.
        return (whole, self.since) if self.state in ACTIVE and self.since > whole else (whole,)
