"""What a version of a table contains: cuts, segments and transactions, and the origin of each value of a row.

cut 41 ── version 6          offsets up to 4989
cut 52 ── version 7          new in it: offsets 4990 to 5006
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdcflow.errors import ConfigurationError, HistoryLost
from cdcflow.log.read.log_reader import LogReader
from cdcflow.model.change import DELETE, TRUNCATE
from cdcflow.model.keytexts import are_equal, scalar_of
from cdcflow.model.table import OFFSET, OP, UNCHANGED, Table, TableId
from cdcflow.tables.cut import Cut, CutTable
from cdcflow.tables.paths import table_at
from cdcflow.tables.port import Cuts

TRANSACTIONS_MAX = 20
"""At most this many transactions are listed, the latest ones."""

STEP = 250_000
"""A row's changes are searched for in steps of this many rows of the log, from the latest backwards."""


IsKeptOut = Callable[[TableId, int], bool]
"""Returns whether the contract of a captured table keeps a row out of the table, given the offset of its latest
change."""


@dataclass(frozen=True, slots=True)
class ExplainedTransaction:
    """A transaction of the source, or a chunk of a backfill (`kind` "read"). Times are microseconds since 1970 UTC."""

    number: int
    first_offset: int
    last_offset: int
    position: str
    kind: str
    xid: int
    commit_ts: int


@dataclass(frozen=True, slots=True)
class Origin:
    """The change that gave a column of a row its value. `value` is that value as text; `None` for NULL."""

    column: str
    value: str | None
    op: str
    transaction: ExplainedTransaction
    offset: int


@dataclass(frozen=True, slots=True)
class Explained:
    """A version of a table: everything up to `offset`, which is `position` in the source's log.

    `cuts` are the published cuts that show this version. `before` is the version in the cut before them (`None`: this
    version is the first known), and `first` the first offset that is new in this version. `count` transactions changed
    this table between `first` and `offset`; `transactions` are the latest of them, and `segments` contain them.

    `row`: for each column of a row, the change that gave its value. `row_state` describes how much of that row's
    history is known; `unknown`: columns whose value is older than the oldest change of the row that the log has.
    """

    table: str
    version: int
    cuts: tuple[int, ...]
    offset: int
    position: str
    commit_clock: int
    before: int | None
    first: int
    changes: int
    count: int
    transactions: tuple[ExplainedTransaction, ...]
    segments: tuple[str, ...] = ()
    row: tuple[Origin, ...] = ()
    row_state: str = ""
    unknown: tuple[str, ...] = ()


def explain(
    log: LogReader,
    cuts: Cuts,
    name: str,
    version: int | None = None,
    key: Sequence[str] | None = None,
    segments: Sequence[tuple[int, int]] = (),
    is_kept_out: IsKeptOut = lambda table, offset: False,
    log_id: str = "",
) -> Explained:
    """Return what a version of a table contains, and the origin of a row's values. `version` `None`: the latest one
    that a cut shows.

    `key`: the texts of the row's key columns. `segments`: the first and last offsets of the log's sealed segments.
    `log_id`: the id of the log, if the table has rows of several logs.

    Raises:
        ConfigurationError: no kept cut shows the table or the version, or `key` does not have as many columns as the
            table's key.
    """
    shown, before = _showing_cuts(cuts, name, version, log_id)
    newest, entry = shown[-1], shown[-1].tables[name]
    tables = {one.source for one in replace(newest, tables={name: entry}).by_source().tables.values()}
    first = 1 if before is None else before.offset + 1
    headers, changes = _news(log, tables, first, newest.offset)
    found = Explained(
        table=name,
        version=entry.version,
        cuts=tuple(cut.cut for cut in shown),
        offset=newest.offset,
        position=newest.position,
        commit_clock=newest.commit_clock,
        before=None if before is None else before.tables[name].version,
        first=first,
        changes=changes,
        count=0 if headers is None else headers.num_rows,
        transactions=()
        if headers is None
        else tuple(_transactions(headers.slice(max(0, len(headers) - TRANSACTIONS_MAX)))),
        segments=tuple(f"{a}-{b}" for a, b in segments if b >= first and a <= newest.offset),
    )
    if key is None:
        return found
    table, key = _member(entry, key)
    return _with_row(found, log, table, key, is_kept_out)


def _member(entry: CutTable, key: Sequence[str]) -> tuple[TableId, Sequence[str]]:
    """Return the captured table that a row of a table in a cut belongs to, and the row's key in that captured table. If
    the table has members, the last columns of `key` tell which one."""
    for member in entry.members.values():
        own, told = key[: len(key) - len(member.key)], key[len(key) - len(member.key) :]
        if tuple(told) == tuple(member.key.values()):
            return table_at(member.source), own
    if not entry.members:
        return entry.source, key
    columns = ", ".join(next(iter(entry.members.values())).key)
    raise ConfigurationError(
        f"explaining a row of {entry.source}: no table that is merged into it has these values of {columns}",
        remedy=f"name the row's own key, and then {columns}: "
        + "; ".join(f"{source} has {', '.join(member.key.values())}" for source, member in entry.members.items()),
        runbook="settings",
    )


def _showing_cuts(cuts: Cuts, name: str, version: int | None, log_id: str) -> tuple[list[Cut], Cut | None]:
    """Return the kept cuts that show this version of a table, and the latest earlier cut that shows a different one."""
    shown: list[Cut] = []
    for listed in reversed(cuts.list_cuts()):
        cut = cuts.cut_by_number(listed.cut)
        if cut is None or name not in cut.tables:
            continue
        cut = replace(cut.part_with(name, log_id), cut=cut.cut)  # offsets of the table's own log
        there = cut.tables[name].version
        if version is None:
            version = there
        if there == version:
            shown.append(cut)
        elif shown:
            return shown[::-1], cut
    if not shown:
        what = f"table {name}" if version is None else f"version {version} of table {name}"
        raise ConfigurationError(
            f"explaining {what}: no kept cut shows it",
            remedy="`cdcflow cuts` lists the kept cuts; merge.keep determines how long they are kept",
            runbook="no-cut",
        )
    return shown[::-1], None


def _news(log: LogReader, tables: Collection[TableId], first: int, last: int) -> tuple[pa.Table | None, int]:
    """Return the headers of the transactions that changed these tables in a range of offsets, and the number of
    changes."""
    try:
        offsets = [rows.column(OFFSET).to_numpy() for _, _, rows in log.read_rows(first, last, set(tables))]
        headers = list(log.read_transactions(first, last))
    except HistoryLost:
        return None, 0
    if not offsets or not headers:
        return None, 0
    touched, listed = np.sort(np.concatenate(offsets)), pa.concat_tables(headers)
    begins, ends = (listed.column(name).to_numpy() for name in ("first_offset", "last_offset"))
    hit = np.searchsorted(touched, ends, side="right") > np.searchsorted(touched, begins, side="left")
    return listed.filter(pa.array(hit)), len(touched)


def _transactions(headers: pa.Table) -> Iterator[ExplainedTransaction]:
    names = ["number", "first_offset", "last_offset", "position", "kind", "xid"]
    stamps = headers.column("commit_ts").cast(pa.int64()).to_pylist()
    for values, stamp in zip(headers.select(names).to_pylist(), stamps, strict=True):
        yield ExplainedTransaction(**values, commit_ts=stamp)


# ── a row ───────────────────────────────────────────────────────────────────────────────────────────────────


def _with_row(
    found: Explained, log: LogReader, table: TableId, key: Sequence[str], is_kept_out: IsKeptOut
) -> Explained:
    origins: dict[str, Origin] = {}
    columns: dict[str, None] = {}
    state = "the log has no change of it"
    for shape, row in _changes_back(log, table, key, found.offset):
        op = row[OP]
        if op in (DELETE, TRUNCATE):
            if not columns:
                state = "deleted"
                origins["(row)"] = _origin(log, "(row)", None, row)
            break
        if not columns:
            state = "in quarantine" if is_kept_out(table, int(row[OFFSET])) else "in the table"
            columns = dict.fromkeys(c.name for c in shape.columns)
        left = set(row[UNCHANGED] or ())
        for column in columns:
            if column in row and column not in left and column not in origins:
                origins[column] = _origin(log, column, row[column], row)
        if not left or len(origins) == len(columns):
            break
    unknown = tuple(column for column in columns if column not in origins)
    return replace(found, row=tuple(origins.values()), row_state=state, unknown=unknown)


def _origin(log: LogReader, column: str, value: object, row: Mapping[str, Any]) -> Origin:
    offset = int(row[OFFSET])
    [transaction] = [t for batch in log.read_transactions(offset, offset) for t in _transactions(batch)][:1]
    return Origin(column, None if value is None else str(value), str(row[OP]), transaction, offset)


def _changes_back(
    log: LogReader, table: TableId, key: Sequence[str], last: int
) -> Iterator[tuple[Table, dict[str, Any]]]:
    """Yield the changes of a row and the truncates of its table, latest first, as far back as the log reaches."""
    high = last
    while high > 0:
        low = max(1, high - STEP + 1)
        try:
            parts = list(log.read_rows(low, high, {table}))
        except HistoryLost:
            return
        hits: list[tuple[Table, dict[str, Any]]] = []
        for shape, _, rows in parts:
            names = shape.key_columns
            if len(names) != len(key):
                raise ConfigurationError(
                    f"explaining a row of {table}: its key has {len(names)} columns ({', '.join(names)}),"
                    f" {len(key)} were named",
                    remedy="name one value for each of them, with commas",
                    runbook="settings",
                )
            wanted = [scalar_of(shape, name, text) for name, text in zip(names, key, strict=True)]
            its = are_equal([rows.column(name) for name in names], wanted)
            these = rows.filter(pc.or_(pc.equal(rows.column(OP), TRUNCATE), its))
            hits += [(shape, row) for row in these.to_pylist()]
        yield from sorted(hits, key=lambda hit: int(hit[1][OFFSET]), reverse=True)
        high = low - 1
