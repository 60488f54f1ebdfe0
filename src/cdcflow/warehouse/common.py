"""How far the sealed parts of several logs have come together.

    sealed      ──segment──segment─┐ clock 80               a merge and Spark read only this
    journal                        └──cut──cut──▶ clock 95  without a row: heartbeats alone

What is sealed has everything up to its newest checkpoint's commit clock. Where the log's journals have no row behind
it, it has everything up to their newest cut, too: so an idle source does not hold the others back until it has a row to
seal. Where the journals are on another machine (a log in an object store, read from elsewhere), the store was told that
cut if the daemon had no row to seal.
"""

from __future__ import annotations

from collections.abc import Mapping

from cdcflow.changelog.layout import Layout
from cdcflow.changelog.moments import clock_of, sealed_checkpoint, time_text
from cdcflow.changelog.reader import newest_checkpoint
from cdcflow.errors import ConfigurationError
from cdcflow.model.position import Checkpoint
from cdcflow.warehouse.logranges import Time


def sealed_clock(layout: Layout, newest: Checkpoint | None = None) -> int:
    """The commit clock (µs since 1970) up to which the sealed part of a log has everything; 0: nothing is sealed.
    `newest`: the newest checkpoint of a log whose history this is; None: look for journals beside it."""
    # In this order. A row that comes in between is seen in the second, and then the first one counts.
    sealed = sealed_checkpoint(layout)
    if not sealed.cut:
        return 0
    now = newest if newest is not None else newest_checkpoint(layout)
    has_more = now.next_offset > sealed.next_offset
    return sealed.commit_clock if has_more else max(sealed.commit_clock, now.commit_clock)


def common_clock(logs: Mapping[str, Layout], to: Time | int | None = None) -> int:
    """The commit clock up to which the sealed parts of all these logs have everything, or an earlier one that is asked
    for.

    Raises:
        ConfigurationError: a log has nothing sealed, or has not come to that time; the message names it.
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
            f" {time_text(reached[slowest])}, and more may come from before that time",
            remedy="name an earlier time, or none: then it is the time that all of them have reached",
            runbook="log-range",
        )
    return clock


__all__ = ["common_clock", "sealed_clock"]
