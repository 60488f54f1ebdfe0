"""Transactions of several logs in one order: by commit clock, and for equal clocks by the name of their log.

    shop   ──1───4────────7──9──▶ 9        a number: the commit clock of a transaction
    crm    ────2─4──5───────────▶ 8        ▶ the commit clock that the log has reached
    both     1 2 4 4 5 7                   up to 8, the smallest clock that every log has reached

Why no transaction arrives too late. A log's commit clock is max(previous + 1 µs, commit time), so within a log this
order is the order of its offsets, whatever the source's wall clock did. A log that has reached clock T gives every
later transaction a clock above T. So once all logs have reached T, no transaction at or before T can arrive any longer,
and the order up to T is final: every later reading returns the same order. The rule is about clocks; if the clocks of
two servers differ, transactions of different sources that are closer together than that difference may be ordered
differently from how they were committed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from cdcflow.model.change import Int64s

LOG: Final = "_log"
"""The column with the name of a row's log."""
COMMIT_CLOCK: Final = "_commit_clock"
"""The column with the commit clock of a row's transaction."""


def in_commit_order(clocks: Sequence[Int64s], ends: Sequence[Int64s]) -> tuple[Int64s, Int64s]:
    """Return the runs of transactions that follow each other in one log: the index of the log, and the last offset of
    each run.

    The arguments hold, for each log in the order of the logs' names, the commit clocks (ascending) and last offsets of
    its transactions.
    """
    which = np.repeat(np.arange(len(clocks), dtype=np.int64), [len(one) for one in clocks])
    order = np.lexsort((which, np.concatenate(clocks)))
    which, end = which[order], np.concatenate(ends)[order]
    last = np.flatnonzero(np.append(which[1:] != which[:-1], True)) if len(which) else order
    return which[last], end[last]
