"""A comparison as text: the verdict for each table, and the rows that differ with their history in the log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from cdcflow.model.table import TableId, word
from cdcflow.reports.parts import Part, TextTable
from cdcflow.reports.readable import number, plain
from cdcflow.tables.merge.refusals import rebuilt

if TYPE_CHECKING:
    from cdcflow.tables.job.derived_tables import DerivedReport
    from cdcflow.tables.verify.report import Report, RowDifference, TableReport
    from cdcflow.targets.comparison import TargetComparison


def comparison_parts(report: Report) -> Iterator[Part]:
    """What was compared and what differs."""
    if report.tables:
        columns = ("table", "against", "verdict", "rows", "differ", "by", "took")
        yield TextTable(columns, [_row(table) for table in report.tables], 3)
    for table in report.tables:
        yield from _lines(table)
    if report.tables and report.is_clean:
        last = report.tables[-1]
        yield f"source and copy agree through {last.position.partition(';')[0]} (offset {last.offset})"


def _row(table: TableReport) -> tuple[object, ...]:
    differ = number(table.different) if table.verdict != "not compared" else "-"
    return (
        table.table,
        table.against,
        table.verdict,
        number(table.rows),
        differ,
        table.by,
        f"{table.seconds:.1f} s",
    )


def _lines(table: TableReport) -> list[str]:
    found = []
    if table.reason:
        found.append(f"{table.table} was not compared: {table.reason}")
    found += [f"{table.table}: column {column} was not compared: {why}" for column, why in table.left_out.items()]
    if table.missing_columns:
        found.append(_what_brings_columns(table))
    if table.by == "rows" and table.read_why and table.verdict != "not compared":
        found.append(f"{table.table}: all rows were read: {table.read_why}")
    if table.unsettled:
        found.append(f"{table.table}: {table.unsettled} rows changed each time they were read; verify again later")
    for one in table.differences:
        found += _difference(table.table, one)
    if table.different > len(table.differences):
        found.append(f"{table.table}: {table.different - len(table.differences)} more rows differ")
    if any(one.what == "doubled" and one.key for one in table.differences):
        found.append(f"  a row that exists more than once: {rebuilt(TableId(*table.table.split('.', 1)))}")
    elif table.different:
        found.append(f"  run `cdcflow repair {word(table.table)}` to repair them")
    return found


def _what_brings_columns(table: TableReport) -> str:
    columns, backfill = ", ".join(table.missing_columns), f"cdcflow backfill {word(table.table)}"
    if table.shape_key:
        return (
            f"  the daemon now reads the table's shape again, which brings {columns}: verify again after the"
            f" next merge, or run `{backfill}`, which reads its rows again, too"
        )
    return f"  the log has no values of {columns}: run `{backfill}`, which reads the table's shape and its rows again"


def _difference(table: str, one: RowDifference) -> list[str]:
    key = ", ".join(f"{name}={value!r}" for name, value in one.key.items()) or "a row"
    words = {
        "missing": "is missing in the copy",
        "extra": "is only in the copy",
        "doubled": f"is {one.times[1]} times in the copy, {one.times[0]} times in the source",
        "different": f"differs in {', '.join(one.columns)}",
    }
    lines = [f"{table}: {key} {words[one.what]}"]
    shown: Sequence[str] = one.columns or tuple(one.source or one.copy or ())
    for name in shown:
        there = "-" if one.source is None else repr(one.source[name])
        here = "-" if one.copy is None else repr(one.copy[name])
        lines.append(f"    {name}: source {there}, copy {here}")
    return lines + [
        f"    log: offset {change.offset}, {change.op}, transaction {change.transaction}, {change.position}"
        for change in one.history
    ]


def derived_parts(found: Sequence[DerivedReport]) -> Iterator[Part]:
    """The derived tables, and whether they equal what their queries give."""
    if not found:
        yield "merge.derive has no table."
        return
    rows = [(o.table, o.how, o.why or ("equal" if o.is_equal else "different"), o.lacks, o.more) for o in found]
    yield TextTable(("table", "computed", "verdict", "lacks", "more"), rows, 3)


def target_parts(found: Sequence[TargetComparison]) -> Iterator[Part]:
    """The tables of targets, and whether they equal the log."""
    rows = [(o.target, o.table, o.verdict, *map(number, (o.rows, o.lacks, o.more))) for o in found]
    yield TextTable(("target", "table", "verdict", "rows", "lacks", "more"), rows, 3)
    for one in found:
        name = f"{one.target}: {one.table or 'all tables'}"
        if one.not_compared:
            yield plain(f"{name}: not compared: {', '.join(one.not_compared)}")
        if one.reason or one.remedy:
            yield plain(f"{name}: " + "; ".join(filter(None, (one.reason, one.remedy))))
