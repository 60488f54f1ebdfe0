"""Find the published cut for a past point in time: by cut number, by source position, or by commit time.

    as_of      52                            cut 52, or the latest one before it
               2026-11-25T10:00:00Z          the latest cut without later commits
               0/16B3748, binlog.000003:77   the latest cut up to that position

Positions are ordered only within one server's log. cdcflow refuses to guess if the positions do not grow from cut to
cut (there was a failover in between), or if they are of another kind than the requested one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from cdcflow.errors import ConfigurationError
from cdcflow.log.read.moments import Place, clock_of, place_of, without_order
from cdcflow.tables.cut import Cut, ListedCut, cut_expired
from cdcflow.tables.port import Cuts

AsOf = int | str | datetime
"""The number of a cut, a source position, or a commit time. A time without a zone is UTC."""


def find(cuts: Cuts, warehouse: object, cut: int | None, as_of: AsOf | None) -> Cut:
    """Return the published cut with a number, or the latest one at or before the point in time `as_of`; without either,
    the latest.

    Raises:
        ConfigurationError: there is no such cut.
        HistoryLost: it has expired.
    """
    if as_of is not None:
        if cut is not None:
            raise ConfigurationError(
                f"reading {warehouse}: both a cut and a point in time were named",
                remedy="name one of them",
                runbook="settings",
            )
        cut = latest_cut_at(cuts.list_cuts(), as_of, warehouse).cut
    found = cuts.newest() if cut is None else cuts.cut_by_number(cut)
    if found is None and cut is not None and cut <= (expired := cuts.latest_expired()):
        raise cut_expired(warehouse, cut, expired)
    if found is None:
        what = "no cut" if cut is None else f"no cut {cut}"
        raise ConfigurationError(
            f"reading {warehouse}: {what} was published there", remedy="run `cdcflow merge` first", runbook="no-cut"
        )
    return found


def latest_cut_at(cuts: Sequence[ListedCut], as_of: AsOf, warehouse: object) -> ListedCut:
    """Return the latest of these cuts, which are sorted by number, that is at or before a point in time.

    Raises:
        ConfigurationError: the point in time is before the first of them, or cannot be determined.
    """
    what, is_reached = _moment(cuts, as_of, f"reading {warehouse} as of {as_of}")
    reached = [one for one in cuts if is_reached(one)]
    if reached:
        return reached[-1]
    if not cuts:
        found, remedy = "no cut was published there", "run `cdcflow merge` first"
    else:
        found = f"the oldest cut that is kept is {cuts[0].cut}, {_cut_text(cuts[0])}"
        remedy = f"name a later {what}; `cdcflow cuts` lists them"
    raise ConfigurationError(f"reading {warehouse} as of {as_of}: {found}", remedy=remedy, runbook="no-cut")


def _moment(cuts: Sequence[ListedCut], as_of: AsOf, attempted: str) -> tuple[str, Callable[[ListedCut], bool]]:
    """Return the kind of `as_of`, and a function that returns whether a cut is at or before it."""
    if isinstance(as_of, str) and as_of.strip().isdecimal():
        as_of = int(as_of)
    if isinstance(as_of, int):
        number = as_of
        return "cut", lambda one: one.cut <= number
    if isinstance(as_of, str) and (place := place_of(as_of)) is not None:
        _check_order(cuts, place, attempted)
        return "position", lambda one: (place_of(one.position) or place) <= place
    until = _clock(as_of, attempted)
    return "time", lambda one: one.commit_clock <= until


def _clock(as_of: str | datetime, attempted: str) -> int:
    """Return a time in microseconds since 1970 UTC."""
    try:
        return clock_of(as_of)
    except ValueError:
        raise ConfigurationError(
            f"{attempted}: that is neither the number of a cut nor a position nor a time",
            remedy="name a cut (52), a position as `cdcflow cuts` shows it (0/16B3748, binlog.000003:77), or a time"
            " (2026-11-25T10:00:00Z)",
            runbook="settings",
        ) from None


def _check_order(cuts: Sequence[ListedCut], wanted: Place, attempted: str) -> None:
    """Check that the positions of these cuts are ordered, and that the requested one is comparable with them.

    Raises:
        ConfigurationError: they are not ordered, or not comparable.
    """
    if why := without_order([place_of(one.position) for one in cuts if one.position], wanted):
        raise ConfigurationError(
            f"{attempted}: {why}", remedy="name a cut or a commit time; `cdcflow cuts` lists them", runbook="no-cut"
        )


def _cut_text(cut: ListedCut) -> str:
    committed = datetime.fromtimestamp(cut.commit_clock / 1e6, UTC).isoformat(timespec="milliseconds")
    return f"at position {cut.position or 'none'}, committed by {committed}"
