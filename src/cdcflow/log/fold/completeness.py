"""Compute where the fold of a table begins, and whether the table has every row, from the backfills recorded in the
log.

    offsets   1 ───────── 40 ═══════════ 70 ─────────── 90 ═══ ─ ─
    backfill              │ generation 1 │              │ generation 2, running
                          since          done           since
    whole since           ─              40             40 (until generation 2 is done: 90)

Starting at `since` of a generation that is done, the log has a row of everything that exists. So a table that is folded
from that offset needs nothing from before it: neither rows nor shapes. That is how a table that could not follow its
source is built from scratch. A table that was whole stays whole while a generation runs, or after it was cancelled.

If changes were lost and a table's rows were kept, the table is folded as before. It counts as whole again when a
comparison has shown that it is right, or a later generation is done.

If changes of a table cannot leave the source, it fails, and the log lacks them since the offset in `missed`. The table
is whole again when a later generation is done. At earlier offsets it was whole, and stays so.

The same applies to a table that has a base: its rows were loaded another way, and the log does not have them. It has no
floor until a later generation is done, and only the table that has these very rows can be whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

ACTIVE = frozenset(("waiting", "reading", "paused"))
IN_DOUBT = "in doubt"
"""The state that is reported of a table if changes of it were lost, or if it has a base, and no comparison has yet
shown that its rows are right."""
WITHOUT_BASE = "without its base"
"""The state that is reported of a table with a base, if the base is missing: the log has only the changes since then.
"""


@dataclass(frozen=True, slots=True)
class TableBackfill:
    """The latest backfill of a table, from a checkpoint (`cdcflow.capture.interleave.progress` documents the
    fields)."""

    state: str = ""
    generation: int = 0
    since: int = 0
    whole_since: int | None = None
    gap: tuple[int, int] | None = None
    """The offsets of a gap: at or after the first one and before the second one, the log's rows may differ from the
    source, because changes were lost. The second is 0 while the end of the gap is not known."""
    in_doubt: bool = False
    base: str = ""
    """The base of an attached table: the name of the rows that only the table has. Empty if the log has all rows."""
    missed: tuple[tuple[int, int], ...] = ()
    """Pairs of an offset and a generation: starting at the offset the log lacks changes, until a generation later
    than this one is done."""
    lacks_changes: bool = False
    """Whether changes of the table are missing at the end of the log because the table failed: no further ones are
    captured."""

    @classmethod
    def of(cls, entry: Mapping[str, object]) -> TableBackfill:
        """Read a table's entry in a checkpoint. An empty entry means that nothing is known about the table."""

        def number(field: str) -> int:
            found = entry.get(field, 0)
            return found if isinstance(found, int) else 0

        whole = entry.get("whole_since")
        gap = entry.get("gap")
        missed = entry.get("missed")
        is_open = isinstance(gap, Mapping) and gap.get("after") == "" and not gap.get("base")
        return cls(
            str(entry.get("state", "")),
            number("generation"),
            number("since"),
            whole if isinstance(whole, int) else None,
            (int(gap["offset"]), int(gap.get("until") or 0)) if isinstance(gap, Mapping) else None,
            isinstance(gap, Mapping) and gap.get("proven") is None and not is_open,
            str(gap.get("base", "")) if isinstance(gap, Mapping) else "",
            tuple((int(offset), int(generation)) for offset, generation in missed) if isinstance(missed, list) else (),
            is_open and entry.get("state") == "failed",
        )

    @property
    def is_done(self) -> bool:
        return self.state == "done"

    @property
    def floor(self) -> int | None:
        """The offset since which the log has every row of the table; `None` if there is no such offset yet."""
        return self.since if self.is_done and not self.base else self.whole_since

    @property
    def needs_base(self) -> bool:
        """Whether a table that is built from the log alone would lack rows, and would not get them later."""
        return self.base != "" and self.state not in ACTIVE

    @property
    def finished_generation(self) -> int:
        """The generation whose `since` is `floor`, or a later one that was cancelled; 0 if there is none. A further
        generation may have begun before any merge saw that this one was done."""
        if self.floor is None:
            return 0
        return self.generation if self.floor == self.since else self.generation - 1

    def lacks_at(self, offset: int, generation: int) -> bool:
        """Return whether the log lacks changes at an offset, for a table whose rows are those of this generation and
        later changes."""
        return any(first <= offset and generation <= before for first, before in self.missed)

    def is_whole(self, begun: int, base: str = "") -> bool:
        """Return whether a table has every row, and no changes of it were lost. The table was folded from offset
        `begun`, onto the base named `base` ("": onto no rows)."""
        return self._has_all(begun, base) and not self.in_doubt

    def state_of(self, begun: int, base: str = "") -> str:
        """Return the state to report of a table (see `is_whole`): `IN_DOUBT` if only lost changes keep it from being
        whole."""
        if self._has_all(begun, base):
            return IN_DOUBT if self.in_doubt else self.state
        return WITHOUT_BASE if self.base and self.is_done else self.state

    def stays_whole(self, *, complete: bool, state: str) -> tuple[bool, str]:
        """Return whether a table without new changes is whole now, and the state to report. `complete` and `state`: the
        same facts from before."""
        if (self.floor is None and not self.base) or not (complete or state == IN_DOUBT):
            return False, self.state
        return not self.in_doubt, IN_DOUBT if self.in_doubt else self.state

    def _has_all(self, begun: int, base: str) -> bool:
        if self.base and self.base == base:
            return True
        return self.floor is not None and begun <= self.floor

    def beginnings(self) -> tuple[int, ...]:
        """Return the offsets from which a new table can be folded, the one that makes it most complete first. 0 means
        the whole log."""
        whole = self.floor or 0
        # Once a generation that is running is done, its rows are all that exist.
        return (whole, self.since) if self.state in ACTIVE and self.since > whole else (whole,)
