"""Unstored facts about a table's backfill: the keys that must be read again, pauses, the plan under way."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from cdcflow.model.change import KeySet, Uint64s

KEYS_UNSORTED_MAX = 10_000
QUIET_WINDOWS_MIN = 20
"""After a table's chunks were shortened, they stay short until this many windows in a row held nothing back."""
PACES_KEPT = 3
"""A chunk's size follows the fastest of this many latest chunks: on a busy machine half of the reads wait for a
processor."""


@dataclass(frozen=True, slots=True)
class ChunkPace:
    """How fast a chunk was read: the seconds per unit, and the seconds that opening the table took before."""

    unit_s: float
    opening_s: float


def no_ids() -> Uint64s:
    return np.empty(0, np.uint64)


@dataclass(slots=True)
class Work:
    """Unstored facts about a table's backfill.

    `collecting`: a plan was requested and the table is not done, so keys of partial rows are remembered in `keys`.
    `planning`: a plan is under way; `planned_after`: the transactions delivered when it was requested that might not
    have been visible then. `hidden`: transactions that the last plan or chunk did not see and should have; nothing is
    read until a snapshot sees them. `overflows` counts the windows in a row that were abandoned because too many
    changes were held back, `quiet` those in a row that held nothing back, `still` those in a row in which no live
    transaction arrived, `failures` the times in a row that the source could not be queried. `paces`: how fast the
    latest chunks were read. `waits_s`: how long the latest windows were open, apart from reading. `version`: the
    table's row version at some point before `since`.

    For statements on other tables that may have changed rows (`TableProgress.stale`): the low mark of window
    `statements_before` is later than all of them in the source's log. `awaits_mark`: this generation's plan has waited
    for a mark because of them. `spaced`: they alone cause this generation, so it is not planned before `rest_until_us`.
    `read_us`: how long the windows of this generation were open; `read_before_us`: the same of the generation before.
    """

    keys_max: int
    version: str | None = None
    not_before_us: int = 0
    planning: bool = False
    planned_after: Uint64s = field(default_factory=no_ids)
    hidden: Uint64s = field(default_factory=no_ids)
    collecting: bool = False
    keys: list[KeySet] = field(default_factory=list)
    keys_count: int = 0
    compact_at: int = KEYS_UNSORTED_MAX
    overflows: int = 0
    failures: int = 0
    quiet: int = QUIET_WINDOWS_MIN
    still: int = QUIET_WINDOWS_MIN
    paces: deque[ChunkPace] = field(default_factory=lambda: deque(maxlen=PACES_KEPT))
    waits_s: deque[float] = field(default_factory=lambda: deque(maxlen=PACES_KEPT))
    statements_before: int = 0
    awaits_mark: bool = False
    spaced: bool = False
    rest_until_us: int = 0
    read_us: int = 0
    read_before_us: int = 0

    def is_resting(self, now_us: int) -> bool:
        """Whether it is too early to read the table once more because of statements on other tables."""
        return self.spaced and now_us < self.rest_until_us

    def remember(self, keys: KeySet | None) -> None:
        """Add keys; remove duplicates now and then."""
        if keys is None or not len(keys):
            return
        self.keys.append(keys)
        self.keys_count += len(keys)
        if self.keys_count > self.compact_at:
            self._put([self.keys[0].union(*self.keys[1:]).distinct()])
            self.compact_at = max(KEYS_UNSORTED_MAX, 2 * self.keys_count)

    def take_keys(self) -> KeySet | None:
        if not self.keys:
            return None
        taken, rest = self.keys[0].union(*self.keys[1:]).distinct().take(self.keys_max)
        self._put([rest] if len(rest) else [])
        return taken

    def has_more_than(self, keys_max: int) -> bool:
        """Whether more than `keys_max` different keys wait. Duplicates are removed only when there may be too many."""
        if self.keys_count > keys_max:
            self._put([self.keys[0].union(*self.keys[1:]).distinct()])
        return self.keys_count > keys_max

    def forget_keys(self) -> None:
        self._put([])

    def _put(self, keys: list[KeySet]) -> None:
        self.keys, self.keys_count = keys, sum(len(k) for k in keys)
