"""The view of changes that a merge reduces: Parquet files of several shapes, under the names of
`tables.merge.reduce`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from cdcflow.model.change import TRUNCATE
from cdcflow.model.table import OFFSET, OP, TRANSACTION
from cdcflow.tables.job.spans import spans_of
from cdcflow.tables.merge import moves, soft_delete
from cdcflow.tables.merge.reduce import ColumnLayout, Mask, projection
from cdcflow.tables.port import SqlSession
from cdcflow.tables.segments import InputFile


@dataclass(frozen=True, slots=True)
class View:
    """A temporary view of changes, and the sets of columns that they leave unchanged."""

    name: str
    masks: frozenset[Mask]


class _NamedViews:
    """Creates views in a session and records their names."""

    def __init__(self, session: SqlSession) -> None:
        self._session = session
        self.names: list[str] = []

    def read(
        self, what: str, files: Sequence[InputFile], version: int, layout: ColumnLayout, where: str, *, moved: bool
    ) -> str:
        columns = projection(layout, version, moved=moved)
        name = self._session.read(what, files, layout.shapes[version], where, columns, moved=moved)
        return self._register(name)

    def view(self, what: str, sql: str) -> str:
        return self._register(self._session.view(what, sql))

    def keep(self, what: str, sql: str) -> str:
        return self._register(self._session.keep(what, sql))

    def _register(self, name: str) -> str:
        self.names.append(name)
        return name


def last_truncate(session: SqlSession, files: Sequence[InputFile]) -> int:
    """Return the offset of the latest truncate; 0 if there is none."""
    return max(truncates(session, files), default=0)


def truncates(session: SqlSession, files: Sequence[InputFile]) -> dict[int, int]:
    """Return the truncates in files of one incarnation: for the offset of each, the index of the span that it is in."""
    spans = spans_of(files)
    found: dict[int, int] = {}
    for shape in {f.shape for f in files if f.ops.get(TRUNCATE)}:
        own = [f for f in files if f.shape == shape and f.ops.get(TRUNCATE)]
        # A compacted file may contain a truncate from before the range.
        after = max(f.after for f in own)
        where = f"{OP} = '{TRUNCATE}' AND {OFFSET} > {after}"
        name = session.read("truncates", own, shape, where, [f"{OFFSET} AS o"], moved=False)
        for (offset,) in session.rows(f"SELECT o FROM {name}"):  # noqa: S608  cdcflow's own
            found[int(offset)] = next(n for n, span in enumerate(spans) if span.has(shape, int(offset)))
        session.drop([name])
    return found


def truncates_by_transaction(session: SqlSession, files: Sequence[InputFile]) -> list[tuple[int, int]]:
    """Return the last truncate of each transaction that has one: its offset and the transaction's number."""
    found: dict[int, int] = {}
    for shape in {f.shape for f in files if f.ops.get(TRUNCATE)}:
        own = [f for f in files if f.shape == shape and f.ops.get(TRUNCATE)]
        where = f"{OP} = '{TRUNCATE}' AND {OFFSET} > {max(f.after for f in own)}"
        columns = [f"{OFFSET} AS o", f"{TRANSACTION} AS n"]
        name = session.read("truncates", own, shape, where, columns, moved=False)
        for number, offset in session.rows(f"SELECT n, max(o) FROM {name} GROUP BY n"):  # noqa: S608  cdcflow's own
            found[int(number)] = max(found.get(int(number), 0), int(offset))
        session.drop([name])
    return sorted((offset, number) for number, offset in found.items())


@contextmanager
def view(
    session: SqlSession,
    layout: ColumnLayout,
    files: Sequence[InputFile],
    after: int,
    standing: Callable[[str], str] | None,
    truncates: Sequence[int] = (),
) -> Iterator[View]:
    """Yield a view of the changes after offset `after`, with key changes completed.

    `standing` returns the SQL name of the table's rows (see `CurrentTable.standing`); `None`: the table has no earlier
    rows. `truncates`: offsets after `after` at which all rows were removed.
    """
    views = _NamedViews(session)
    try:
        yield _completed_view(session, views, layout, files, after, standing, truncates=truncates)
    finally:
        session.drop(views.names)


@contextmanager
def ending_view(
    session: SqlSession,
    layout: ColumnLayout,
    files: Sequence[InputFile],
    after: int,
    standing: Callable[[str], str] | None,
    truncated: Mapping[int, int],
    purges: str | None = None,
) -> Iterator[View]:
    """Yield the same as `view`, for a table that keeps deleted rows (see `tables.merge.soft_delete`). `truncated`: the
    result of `truncates`; `purges`: the view of the transactions whose deletes remove rows."""
    views = _NamedViews(session)
    try:
        found = _completed_view(session, views, layout, files, after, standing, truncated)
        if not truncated and all(f.ops and "d" not in f.ops for f in files):
            yield View(views.view("living", soft_delete.living(layout, found.name)), found.masks)
        else:
            # It sorts all changes by key, and a session that takes values by offset reads it more than once.
            make = views.keep if session.takes_by_offset else views.view
            every_ = found.name
            if purges is not None:
                every_ = views.view("purged", soft_delete.with_purges(every_, purges, truncated))
            name = make("marked", soft_delete.changes_with_end(layout, every_))
            yield View(name, found.masks | {mask for mask in soft_delete.masks(layout) if mask})
    finally:
        session.drop(views.names)


@contextmanager
def every(session: SqlSession, parts: Sequence[tuple[ColumnLayout, Sequence[InputFile]]]) -> Iterator[str]:
    """Yield the name of one view of all changes, truncates included, in files of several layouts of one table."""
    views = _NamedViews(session)
    try:
        read = [
            views.read(
                "changes",
                own,
                version,
                layout,
                f"{OFFSET} > {max(f.after for f in own)}{span.and_in_sql()}",
                moved=False,
            )
            for layout, files in parts
            for version, span in enumerate(spans_of(files))
            if (own := span.of(files))
        ]
        yield views.view("every", " UNION ALL ".join(f"SELECT * FROM {name}" for name in read))  # noqa: S608  cdcflow's own
    finally:
        session.drop(views.names)


def _completed_view(
    session: SqlSession,
    views: _NamedViews,
    layout: ColumnLayout,
    files: Sequence[InputFile],
    after: int,
    standing: Callable[[str], str] | None,
    truncated: Mapping[int, int] | None = None,
    truncates: Sequence[int] = (),
) -> View:
    moved = any(f.file.moved and f.file.partial for f in files)
    parts = []
    spans = spans_of(files)
    for version, span in enumerate(spans):
        own = [f for f in span.of(files) if f.file.last_offset > after]
        if own:
            # Only the oldest segment of a range can begin before it, and then no other row is as old.
            begin = max(after, *(f.after for f in own))
            where = f"{OFFSET} > {begin} AND {OP} <> '{TRUNCATE}'{span.and_in_sql()}"
            parts.append(views.read("changes", own, version, layout, where, moved=moved))
    if not parts:
        # The range ends with a truncate: no row is left, but the table must still be emptied.
        parts = [views.read("changes", spans[-1].of(files), len(spans) - 1, layout, "false", moved=moved)]
    name = parts[0]
    if len(parts) > 1:
        name = views.view("changes", " UNION ALL ".join(f"SELECT * FROM {part}" for part in parts))  # noqa: S608  cdcflow's own
    if truncated:
        name = views.view("changes", soft_delete.with_truncates(layout, name, truncated, moved=moved))
    masks: frozenset[Mask] = frozenset()
    if any(f.file.partial for f in files):
        masks = _masks(session, name)
    if moved and masks:
        session.hold(name)  # each step of following key changes reads it
        table = None if standing is None else standing(name)
        name = _complete_moves(session, views, layout, masks, name, table, truncates)
        masks = _masks(session, name)
    return View(name, masks)


def _complete_moves(
    session: SqlSession,
    views: _NamedViews,
    layout: ColumnLayout,
    masks: frozenset[Mask],
    changes: str,
    table: str | None,
    truncates: Sequence[int],
) -> str:
    """Create a view in which changes of keys are complete, and return its name. A row whose key changed gets the values
    of the columns that the change left unchanged from the row with its earlier key (see `tables.merge.moves`)."""
    columns = sorted(frozenset[int]().union(*masks))
    moved = views.keep("moves", moves.moves(layout, changes))
    ended = views.view("ended", moves.ended_lives(layout, changes, moved, truncates))
    by_offset = session.takes_by_offset
    lives = views.view("lives", moves.lives(layout, columns, changes, moved, truncates, by_offset=by_offset))
    known = views.keep("known", moves.first_round(layout, columns, ended, lives, table))
    # No LIMIT: with it Spark would search one partition after the other.
    while session.rows(f"SELECT 1 FROM {known} HAVING count(parent) > 0"):  # noqa: S608  cdcflow's own
        known = views.keep("known", moves.next_round(columns, known))
    return views.view("completed", moves.changes_with_moves(layout, columns, changes, known))


def _masks(session: SqlSession, name: str) -> frozenset[Mask]:
    """Return the distinct sets of unchanged columns in a view, as positions; no values are read."""
    rows = session.rows(f"SELECT DISTINCT m FROM {name} WHERE op <> 'd' AND m IS NOT NULL")  # noqa: S608  cdcflow's own
    return frozenset(frozenset(m) for (m,) in rows)
