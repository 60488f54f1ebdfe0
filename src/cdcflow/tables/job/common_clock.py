"""The commit clock that the sealed parts of several logs have all reached.

    sealed      ──segment──segment─┐ clock 80               a merge and Spark read only this
    journal                        └──cut──cut──▶ clock 95  without a row: heartbeats alone

The sealed part of a log is complete up to its latest checkpoint's commit clock. If the log's journals hold no row after
that checkpoint, it is complete up to the journals' latest cut as well, so an idle source does not hold the others back
until it has a row to seal. If the journals are on another machine (a log in an object store, read from elsewhere), the
daemon has recorded that cut in the store whenever it had no row to seal.
"""

from __future__ import annotations

from collections.abc import Mapping

from cdcflow.errors import ConfigurationError
from cdcflow.log.files.layout import Layout
from cdcflow.log.read.moments import clock_of, sealed_checkpoint, time_text
from cdcflow.log.read.reader import newest_checkpoint
from cdcflow.model.position import Checkpoint
from cdcflow.tables.job.log_ranges import Time


def sealed_clock(layout: Layout, newest: Checkpoint | None = None) -> int:
    """Return the commit clock (µs since 1970) up to which the sealed part of a log is complete; 0 if nothing is sealed.
    `newest`: the latest checkpoint of the log, for a layout that is only a log's history; `None`: read it from the
    journals next to the segments."""
    # In this order: a row that arrives between the two reads is seen by the second, and then the first one counts.
    sealed = sealed_checkpoint(layout)
    if not sealed.cut:
        return 0
    now = newest if newest is not None else newest_checkpoint(layout)
    has_more = now.next_offset > sealed.next_offset
    return sealed.commit_clock if has_more else max(sealed.commit_clock, now.commit_clock)


def common_clock(logs: Mapping[str, Layout], to: Time | int | None = None) -> int:
    """Return the commit clock up to which the sealed parts of all these logs are complete, or `to` if that is earlier.

    Raises:
        ConfigurationError: a log has nothing sealed, or has not reached that time; the message names it.
    """
    reached = {name: sealed_clock(layout) for name, layout in logs.items()}
    slowest = min(reached, key=lambda name: (reached[name], name))
    if not reached[slowest]:
        raise ConfigurationError(
            f"reading several logs: nothing of log {slowest} is sealed yet",
            remedy="wait until its first rows are (log.seal.age_max), or leave it out",
            runbook="log-range",
        )
    if to is None:
        return reached[slowest]
    try:
        clock = to if isinstance(to, int) else clock_of(to)
    except ValueError:
        raise ConfigurationError(
            f"reading several logs up to {to}: that is no time",
            remedy="write it as 2026-11-25T10:00:00Z",
            runbook="log-range",
        ) from None
    if clock > reached[slowest]:
        raise ConfigurationError(
            f"reading several logs up to {time_text(clock)}: log {slowest} is sealed up to"
            f" {time_text(reached[slowest])}, and more changes from before that time may arrive",
            remedy="name an earlier time, or none: then it is the time that all of them have reached",
            runbook="log-range",
        )
    return clock
