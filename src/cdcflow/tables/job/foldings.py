"""Turn a range of changes into a `Folding` for its table, by the table's mode; every engine can run a folding.

    mode          built from
    current       the changes after the last truncate
    soft_delete   all changes, deletes and truncates as changes of `_is_deleted`    (`tables.merge.soft_delete`)
    append        all changes, also those of tables that were dropped since         (`tables.merge.append_mode`)
    history       versions, built from all changes                                  (`histories`,
    `tables.merge.history`)

A mode is a function of a range, its evolutions (one for each incarnation of the source table that the mode needs) and
the session. It yields the folding, which is valid while the session has the views that the folding names.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace

from cdcflow.errors import InvariantViolated
from cdcflow.model.sqltypes import text_sql
from cdcflow.tables.job import changes, histories
from cdcflow.tables.job.ranges import TableRange
from cdcflow.tables.job.spans import shapes_over_time
from cdcflow.tables.merge import append_mode, statement
from cdcflow.tables.merge.evolution import Evolution
from cdcflow.tables.merge.policy import Mode
from cdcflow.tables.merge.reduce import ColumnLayout
from cdcflow.tables.merge.statement import Ending, Folding
from cdcflow.tables.port import SqlSession
from cdcflow.tables.segments import InputFile, offsets_of

Standing = Callable[..., str]
"""The function that returns the name in SQL of existing rows of the table (see `CurrentTable.standing`)."""


def folding(
    range_: TableRange, session: SqlSession, evolutions: Sequence[Evolution], standing: Standing
) -> AbstractContextManager[Folding]:
    """Yield the folding of a range into its table. `evolutions`: the changes of shape that the table has
    gone through."""
    return _MODES[range_.mode.name](range_, session, evolutions, standing)


@contextmanager
def _current(
    range_: TableRange, session: SqlSession, evolutions: Sequence[Evolution], standing: Standing
) -> Iterator[Folding]:
    (evolution,) = evolutions
    layout = ColumnLayout.of(evolution, shapes_over_time(range_.files)).with_constants(range_.member)
    living = range_.of(evolution)
    after = changes.last_truncate(session, living)
    if evolution.fresh:
        after = max(after, offsets_of(living)[0] - 1)
    emptied = after > 0 or range_.is_first
    rows = None if emptied else functools.partial(standing, layout)
    with changes.view(session, layout, living, after, rows) as found:
        yield Folding(
            layout,
            found.name,
            found.masks,
            empty=range_.is_first,
            emptied=emptied,
            once=range_.is_first and _each_key_once(session, layout, living, found),
            sweep_before=max(range_.sweep, after + 1 if after else 0),
            ends=tuple((f.file.key_min, f.file.key_max) for f in living),
            count=sum(f.file.rows for f in living),
            first=offsets_of(living)[0],
            by_offset=session.takes_by_offset,
        )


@contextmanager
def _soft_delete(
    range_: TableRange, session: SqlSession, evolutions: Sequence[Evolution], standing: Standing
) -> Iterator[Folding]:
    (evolution,) = evolutions
    layout = ColumnLayout.of(evolution, shapes_over_time(range_.files)).with_constants(range_.member)
    layout = replace(layout.ending_by(range_.mode.ending_columns), purges=range_.purges)
    living = range_.of(evolution)
    truncates = changes.truncates(session, living)
    # A dropped table's rows are gone, and they had other columns.
    after = offsets_of(living)[0] - 1 if evolution.fresh else 0
    emptied = evolution.fresh or range_.is_first

    def lives(changes_: str) -> str:
        ended = statement.is_ended("", layout.ended_names)
        return f"(SELECT * FROM {standing(layout, changes_)} WHERE NOT {ended})"  # noqa: S608  quoted

    purged = _purges(session, range_) if range_.purges else nullcontext(None)
    with (
        purged as purges,
        changes.ending_view(session, layout, living, after, None if emptied else lives, truncates, purges) as found,
    ):
        yield Folding(
            layout,
            found.name,
            found.masks,
            empty=range_.is_first,
            emptied=emptied,
            once=range_.is_first and not truncates and _each_key_once(session, layout, living, found),
            sweep_before=after + 1 if evolution.fresh else 0,
            ends=tuple((f.file.key_min, f.file.key_max) for f in living),
            count=sum(f.file.rows for f in living),
            first=offsets_of(living)[0],
            ending=Ending(range_.sweep, min(truncates, default=0)),
            by_offset=session.takes_by_offset,
        )


@contextmanager
def _purges(session: SqlSession, range_: TableRange) -> Iterator[str]:
    """Yield the name of a view of the transactions whose deletes are not marked: columns `a` and `z`, their first and
    last offsets, and `keeps`, whether the rows stay unmarked (otherwise they are removed)."""
    if not range_.transactions:
        raise InvariantViolated(f"merging {range_.table}: its segments do not have the origins of transactions")
    removing, keeping = range_.policy.purge_origins, range_.policy.kept_purges
    origins = ", ".join(map(text_sql, (*removing, *keeping)))
    keeps = f"g IN ({', '.join(map(text_sql, keeping))})" if keeping else "false"
    names = [session.transactions(range_.transactions, ["first_offset AS a", "last_offset AS z", "origin AS g"])]
    try:
        names.append(session.view("purges", f"SELECT a, z, {keeps} AS keeps FROM {names[0]} WHERE g IN ({origins})"))  # noqa: S608  quoted
        yield names[-1]
    finally:
        session.drop(names)


@contextmanager
def _append(
    range_: TableRange, session: SqlSession, evolutions: Sequence[Evolution], standing: Standing
) -> Iterator[Folding]:
    target, shapes = evolutions[-1].target, shapes_over_time(range_.files)
    layouts = [
        (append_mode.layout_of(target, e, shapes).with_constants(range_.member), range_.of(e)) for e in evolutions
    ]
    with changes.every(session, layouts) as name:
        yield append_mode.Appending(
            layouts[-1][0],
            name,
            frozenset(),
            empty=range_.is_first,
            emptied=False,
            count=sum(f.file.rows for f in range_.files),
            first=offsets_of(range_.files)[0],
        )


_MODES: Mapping[Mode, Callable[..., AbstractContextManager[Folding]]] = {
    "current": _current,
    "soft_delete": _soft_delete,
    "append": _append,
    "history": histories.folding,
}


def _each_key_once(session: SqlSession, layout: ColumnLayout, files: Sequence[InputFile], found: changes.View) -> bool:
    """Return whether the changes are whole rows with unique keys, as after a backfill. Usually the manifests prove or
    exclude this; if they do not, the keys in the log are checked."""
    target = layout.target
    if not target.key or not all(f.ops and f.ops.keys() <= {"c", "r"} and not f.file.partial for f in files):
        return False
    first = target.columns[layout.key[0]].type
    if statement.each_key_once(first, [f.file.key_runs for f in files]):
        return True
    return not session.rows(statement.repeated_keys(target, found.name))
