"""The mode `history`: turn a range of changes into versions of rows, with the data read from the log and the table."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from cdcflow.model.change import DELETE, READ
from cdcflow.model.sqltypes import name_sql
from cdcflow.model.table import MISSING
from cdcflow.tables.job import changes
from cdcflow.tables.job.ranges import TableRange
from cdcflow.tables.job.spans import shapes_over_time, spans_of
from cdcflow.tables.merge import history
from cdcflow.tables.merge.evolution import Evolution
from cdcflow.tables.merge.history_columns import OffsetNames
from cdcflow.tables.merge.reduce import ColumnLayout, Mask, families, only_with
from cdcflow.tables.merge.versions import Versions, layout_of
from cdcflow.tables.port import SqlSession
from cdcflow.tables.segments import InputFile, offsets_of

TRANSACTION_COLUMNS = (
    "number AS n",
    "first_offset AS begin",
    "last_offset AS last",
    "position AS p",
    "commit_clock AS t",
    "kind = 'read' AS k",
)


@contextmanager
def folding(
    range_: TableRange, session: SqlSession, evolutions: Sequence[Evolution], standing: Callable[..., str]
) -> Iterator[Versions]:
    """Yield the folding for the mode `history` (see `foldings`)."""
    (evolution,) = evolutions
    names = range_.mode.ends or OffsetNames()
    layout = ColumnLayout.of(evolution, shapes_over_time(range_.files)).with_constants(range_.member)
    layout = replace(layout, stamped=True)
    living = range_.of(evolution)
    truncates = changes.truncates_by_transaction(session, living)
    made_again = offsets_of(living)[0] if evolution.fresh and not range_.is_first else 0
    whole = bool(truncates or range_.sweep or made_again)
    views: list[str] = []

    def stands(name: str) -> str:
        rows = standing(layout, name, whole=whole)
        only = only_with(range_.member)
        return f"(SELECT * FROM {rows} WHERE {only})" if only else rows  # noqa: S608  quoted

    def lives(name: str) -> str:
        return f"(SELECT * FROM {stands(name)} WHERE {range_.mode.open_only})"  # noqa: S608  quoted

    completed_from = None if range_.is_first or evolution.fresh else lives
    with changes.view(session, layout, living, 0, completed_from, [o for o, _ in truncates]) as found:
        try:
            transactions = _transactions(session, range_.transactions, views)
            asked = {o for o, _ in truncates} | {o for o in (made_again, range_.since, range_.sweep) if o}
            made_of = history.RangeFacts(
                found.name,
                transactions,
                _moments(session, transactions, asked, views) if asked else None,
                None if range_.is_first else stands(found.name),
                _ends_of_segments(living),
                has_reads=_has_reads(session, living, transactions),
                truncates=truncates,
                since=range_.since,
                gap=range_.gap,
                swept=range_.sweep,
                made_again=made_again,
                added=_default_offsets(layout, evolution, living),
            )
            if session.sorts_each_window and made_of.may_be_alone:
                made_of = replace(made_of, alone=not session.rows(history.crowded_transactions(layout, found.name)))
            partial = found.masks | _missing(session, layout, names, made_of)
            kinds = families(layout, partial)
            views.append(session.keep("versions", history.versions(layout, kinds, names, made_of)))
            yield Versions(
                layout_of(layout, names),
                views[-1],
                _masks(session, views[-1]) if partial or not all(k.always for k in kinds) else frozenset(),
                empty=range_.is_first,
                emptied=False,
                ends=() if whole else tuple((f.file.key_min, f.file.key_max) for f in living),
                count=2 * sum(f.file.rows for f in living),
                first=offsets_of(living)[0],
            )
        finally:
            session.drop(views)


def moment(session: SqlSession, transactions: Sequence[InputFile], offset: int) -> tuple[str, int] | None:
    """Return the position and time (microseconds since 1970) of the transaction with an offset; `None` if the log no
    longer has it."""
    views: list[str] = []
    try:
        name = _moments(session, _transactions(session, transactions, views), {offset}, views)
        found = session.rows(f"SELECT p, unix_micros(t) FROM {name}")  # noqa: S608  cdcflow's own
    finally:
        session.drop(views)
    return (str(found[0][0]), int(found[0][1])) if found else None


def _transactions(session: SqlSession, files: Sequence[InputFile], views: list[str]) -> str:
    if files:
        views.append(session.transactions(files, TRANSACTION_COLUMNS))
    else:  # a log without transactions
        nothing = "CAST(NULL AS bigint) AS n, CAST(NULL AS bigint) AS begin, CAST(NULL AS bigint) AS last"
        nothing += ", CAST(NULL AS string) AS p, CAST(NULL AS timestamp) AS t, CAST(NULL AS boolean) AS k"
        views.append(session.view("transactions", f"SELECT * FROM (SELECT {nothing}) WHERE n IS NOT NULL"))  # noqa: S608
    return views[-1]


def _has_reads(session: SqlSession, files: Sequence[InputFile], transactions: str) -> bool:
    """Return whether there may be rows of a backfill or deletes of a repair; the transactions of both have the same
    kind."""
    if any(f.ops.get(READ) for f in files):
        return True
    if not any(f.ops.get(DELETE) for f in files):
        return False
    return bool(session.rows(f"SELECT n FROM {transactions} WHERE k LIMIT 1"))  # noqa: S608  cdcflow's own


def _moments(session: SqlSession, transactions: str, offsets: Collection[int], views: list[str]) -> str:
    """Create a view of the position and time of each offset, taken from its transaction, and return its name. An offset
    that no row has, as when a backfill that found no row began there, gets those of the latest transaction before it.
    """
    listed = " UNION ALL ".join(f"SELECT CAST({o} AS bigint) AS o" for o in sorted(offsets))
    newest = "max_by(x.p, x.begin) AS p, max_by(x.t, x.begin) AS t"
    sql = f"SELECT q.o, {newest} FROM ({listed}) q JOIN {transactions} x ON x.begin <= q.o GROUP BY q.o"  # noqa: S608
    views.append(session.keep("moments", sql))
    return views[-1]


def _ends_of_segments(files: Sequence[InputFile]) -> list[int]:
    """Return the last offsets, as originally sealed, of the segments with rows that were read or deleted, sorted.

    An offset belongs to the segment with the smallest of these ends that is not less than the offset. An offset of a
    segment without such rows is attributed to a later segment, which is harmless.
    """
    segments = {f.segment.first_offset: f.segment for f in files if f.ops.get(READ) or f.ops.get(DELETE)}
    return sorted(end for s in segments.values() for end in (*(o for _, o in s.seams), s.last_offset))


def _default_offsets(layout: ColumnLayout, evolution: Evolution, files: Sequence[InputFile]) -> dict[int, int]:
    """Return the columns with a default that this range introduces, by position, each with the offset of the first row
    that has the column."""
    known = {c.number for c in evolution.before.columns if not c.added} if evolution.before is not None else set[int]()
    numbers = [{c.number for c in shape.columns} for shape in layout.numbered]
    found = {}
    for i, column in enumerate(layout.target.columns):
        having = [span for span, own in zip(spans_of(files), numbers, strict=True) if column.number in own]
        # A merge that died may have added it. If older rows of the range lack it, the range introduced it anyway.
        lacks = evolution.before is not None and not evolution.fresh and column.number not in known
        if column.number in evolution.defaults and (lacks or layout.early(i)) and having:
            found[i] = having[0].first
    return found


def _missing(
    session: SqlSession, layout: ColumnLayout, names: OffsetNames, range_: history.RangeFacts
) -> frozenset[Mask]:
    """Return the sets of columns, as positions, whose values are unknown in open versions of rows; each distinct set
    once."""
    if range_.standing is None:
        return frozenset()
    at = {column.name: i for i, column in enumerate(layout.target.columns)}
    where = f"{MISSING} IS NOT NULL AND {name_sql(names.end)} IS NULL"
    rows = session.rows(f"SELECT DISTINCT {MISSING} FROM {range_.standing} WHERE {where}")  # noqa: S608  quoted
    return frozenset(frozenset(at[name] for name in missing if name in at) for (missing,) in rows)


def _masks(session: SqlSession, name: str) -> frozenset[Mask]:
    rows = session.rows(f"SELECT DISTINCT m FROM {name} WHERE m IS NOT NULL")  # noqa: S608  cdcflow's own
    return frozenset(frozenset(m) for (m,) in rows)
