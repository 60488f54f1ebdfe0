"""Derived tables: computed from the tables of a cut after these were merged, and published with them.

    tables of the log ──▶ cut, not yet published ──▶ derived tables, inputs first ──▶ the cut with them ──▶ published

A derived table is in a cut only if it shows the result of its query for the versions of its inputs in the same cut. If
it cannot be computed, it is excluded from the cut, with the reason, and the other tables are published.

In the table of cuts a derived table has the state `DERIVED`, and the reason of an excluded one begins with `EXCLUDED`.
Everything that follows the log (`Positions`, the live view, retention) uses the cut without its derived tables.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from contextlib import closing
from dataclasses import dataclass, replace

import structlog

from cdcflow.errors import CdcflowError
from cdcflow.model.table import TableId
from cdcflow.tables.cut import Cut, CutTable
from cdcflow.tables.formats import tag_of
from cdcflow.tables.job.engines import Engines
from cdcflow.tables.job.failures import kinds, table_failed
from cdcflow.tables.job.reports import MergeProgress, TableMergeReport, Watch, ignore_progress
from cdcflow.tables.merge.policy import DerivedQuery
from cdcflow.tables.merge.refusals import CannotFollow
from cdcflow.tables.paths import Warehouse, table_at, table_path
from cdcflow.tables.port import DerivedVersion, Deriver, Failure, HandOver

DERIVED = "derived"
"""The state in a cut of a table that is derived from others."""

EXCLUDED = "derived table "
"""The beginning of the reason for each derived table that is excluded from a cut."""

CONFLICTS_MAX = 5
"""How often a table is computed again after another process committed to it."""

_log = structlog.get_logger()


def without_derived(cut: Cut | None) -> Cut | None:
    """Return a cut without its derived tables: the part that follows the log."""
    if cut is None or not (any(map(is_derived, cut.tables.values())) or any(map(_is_reason, cut.left_out.values()))):
        return cut
    tables = {name: table for name, table in cut.tables.items() if not is_derived(table)}
    left_out = {name: why for name, why in cut.left_out.items() if not _is_reason(why)}
    return replace(cut, tables=tables, left_out=left_out)


def is_derived(table: CutTable) -> bool:
    return table.state == DERIVED


def _is_reason(why: str) -> bool:
    return why.startswith(EXCLUDED)


def inputs_of(
    deriver: Deriver,
    queries: Mapping[str, DerivedQuery],
    captured: Mapping[str, CutTable],
    excluded: Collection[str] = (),
) -> tuple[dict[str, tuple[str, ...]], dict[str, CdcflowError | HandOver]]:
    """Return the inputs of each derived table, with each table after its inputs, and the errors of the tables that
    cannot be computed. `captured`: the tables that are not derived; `excluded`: those among them that the cut does not
    have."""
    known = {name: _pair(derived_id(name)) for name in excluded}
    known |= {name: _pair(table_at(table.path)) for name, table in captured.items()}
    known |= {name: _pair(derived_id(name)) for name in queries if name not in captured}
    found: dict[str, tuple[str, ...]] = {}
    refused: dict[str, CdcflowError | HandOver] = {}
    for name, query in queries.items():
        try:
            found[name] = deriver.inputs(query, known)
        except CdcflowError as error:
            refused[name] = error
    ordered: dict[str, tuple[str, ...]] = {}
    waiting = dict(found)
    while ready := [n for n, inputs in waiting.items() if not any(i in waiting for i in inputs)]:
        ordered |= {name: waiting.pop(name) for name in ready}
    for name in waiting:
        refused[name] = CannotFollow(f"its inputs are derived from itself ({', '.join(waiting)})")
    return ordered, refused


def derived_id(name: str) -> TableId:
    """Return the id of the derived table with this name."""
    schema, _, table = name.partition(".")
    return TableId(schema, table)


def _pair(table: TableId) -> tuple[str, str]:
    return table.schema, table.name


@dataclass(slots=True)
class Derivation:
    """The derived tables of one merge. `published`: the latest published cut, with the derived tables that it shows.
    `watch` is called before each derived table is computed."""

    engines: Engines
    warehouse: Warehouse
    queries: Mapping[str, DerivedQuery]
    published: Cut | None
    watch: Watch = ignore_progress

    def derive(self, cut: Cut) -> tuple[Cut, tuple[TableMergeReport, ...]]:
        """Return the cut with its derived tables, and a report of each."""
        tables, left_out = dict(cut.tables), dict(cut.left_out)
        queries = {}
        for name, query in self.queries.items():
            if name in tables or name in left_out:
                _log.error("derived table has the name of a captured one", table=name)
            else:
                queries[name] = query
        if not queries:
            return cut, ()
        ordered: dict[str, tuple[str, ...]] = {}
        try:
            deriver = self.engines.first.deriver()
            ordered, refused = inputs_of(deriver, queries, tables, left_out)
        except CannotFollow as none:
            refused = dict.fromkeys(queries, none)
        reports = []
        for number, (name, inputs) in enumerate(ordered.items(), 1):
            began = time.monotonic()
            self.watch(MergeProgress(name, number, len(ordered)))
            try:
                found = self._compute(deriver, name, inputs, tables, cut.cut)
            except (CdcflowError, HandOver) as reason:
                refused[name] = reason
                continue
            path = "/".join(table_path(derived_id(name)))
            tag = tag_of(self.engines.first.rules.name, cut.cut)
            tables[name] = CutTable(path, found.version, True, 0, found.id, DERIVED, tag, found.commit)
            shown = self._entry(name)
            if shown is not None and (shown.id, shown.version, shown.commit) == (found.id, found.version, found.commit):
                tables[name] = shown
            reports.append(_report(name, found, time.monotonic() - began))
        for name, why in refused.items():
            told = CannotFollow(f"{EXCLUDED}{name}: {why}", runbook="derived-table")
            left_out[name] = told.with_section
            _log.error("table not in the cut", table=name, reason=told.with_section)
            reports.append(TableMergeReport(name, 0, 0, False, 0.0, left_out=told.with_section))
        return replace(cut, tables=tables, left_out=left_out), tuple(reports)

    def _entry(self, name: str) -> CutTable | None:
        shown = None if self.published is None else self.published.tables.get(name)
        return shown if shown is not None and is_derived(shown) else None

    def _compute(
        self, deriver: Deriver, name: str, inputs: tuple[str, ...], tables: Mapping[str, CutTable], cut: int
    ) -> DerivedVersion:
        """Compute one derived table.

        Raises:
            CdcflowError: it cannot be computed; the error concerns this table alone.
        """
        if missing := [one for one in inputs if one not in tables]:
            raise CannotFollow(
                f"its input {', '.join(missing)} is not in this cut", remedy=f"see why {missing[0]} is not"
            )
        if partial := [one for one in inputs if not tables[one].complete]:
            raise CannotFollow(
                f"not every row of its input {', '.join(partial)} has been read yet",
                remedy="wait until its backfill is done; the next merge computes this table",
            )
        before = {} if self.published is None else self.published.tables
        known = {one: before[one] for one in inputs if one in before}
        given = {one: tables[one] for one in inputs}
        engine = self.engines.first
        for _ in range(CONFLICTS_MAX):
            try:
                found = deriver.derive(name, self.queries[name], given, known, self._entry(name), cut)
                with closing(engine.table(table_path(derived_id(name)))) as there:
                    there.pin(found.version, cut)
                    there.sync(None if (shown := self._entry(name)) is None else shown.version)
            except (CdcflowError, HandOver):
                raise
            except Exception as error:
                if engine.is_conflict(error):
                    continue
                # Whatever it is, the captured tables are published without this one.
                failure = engine.failure(error) or Failure("fault", kinds(error))
                place = self.warehouse.location_of(table_path(derived_id(name)))
                raise table_failed(name, engine.name, failure, place) from error
            return found
        raise CannotFollow(
            f"another process changed the table during each of {CONFLICTS_MAX} tries",
            remedy="nothing is lost; merge again",
        )


@dataclass(frozen=True, slots=True)
class DerivedReport:
    """A derived table of the latest cut. `how`: "by" and the columns whose values tell which rows a change concerns, or
    "whole" and the reason why it is always computed whole. `why`: why the cut does not have the table, or why it cannot
    be compared ("": neither).

    `lacks`, `more`: if it was compared, how many rows it lacks and how many extra ones it has, compared with the result
    of its query.
    """

    table: str
    how: str = ""
    why: str = ""
    lacks: int = 0
    more: int = 0

    @property
    def is_equal(self) -> bool:
        return not (self.why or self.lacks or self.more)


def report_derived(
    deriver: Deriver, cut: Cut | None, queries: Mapping[str, DerivedQuery], *, compares: bool
) -> tuple[DerivedReport, ...]:
    """Return a report of each derived table: those of `queries`, and the others that the cut has or excludes.
    `cut`: the latest published one. `compares`: compute each table from its inputs in the cut, and compare the result
    with it."""
    tables, left_out = ({}, {}) if cut is None else (cut.tables, cut.left_out)
    inputs = {name: table for name, table in tables.items() if not is_derived(table) or name not in queries}
    excluded = [name for name, why in left_out.items() if not _is_reason(why) or name not in queries]
    ordered, refused = inputs_of(deriver, queries, inputs, excluded)
    found = [DerivedReport(name, why=str(why)) for name, why in refused.items()]
    found += [DerivedReport(name, why=_NO_QUERY) for name, table in inputs.items() if is_derived(table)]
    found += [DerivedReport(name, why=_NO_QUERY) for name in excluded if _is_reason(left_out[name])]
    for name, read in ordered.items():
        if missing := [one for one in read if one not in tables]:
            found.append(DerivedReport(name, why=f"the latest cut has no table {', '.join(missing)}"))
            continue
        given = {one: tables[one] for one in read}
        try:
            how = deriver.explain(queries[name], given)
            if name not in tables or not is_derived(tables[name]):
                found.append(DerivedReport(name, how, left_out.get(name, _UNSEEN)))
                continue
            lacks, more = deriver.differences(queries[name], given, tables[name]) if compares else (0, 0)
            found.append(DerivedReport(name, how, "", lacks, more))
        except (CdcflowError, HandOver) as error:
            found.append(DerivedReport(name, why=str(error)))
    return tuple(sorted(found, key=lambda one: one.table))


_NO_QUERY = "not compared: its query is in a settings file that was not given; name that file, too (-c)"
_UNSEEN = "the latest cut was published without it; run `cdcflow merge`"


def _report(name: str, found: DerivedVersion, seconds: float) -> TableMergeReport:
    changes = found.units or 0
    if found.units is None or changes:
        how = "whole" if found.units is None else "by key"
        _log.info("table derived", table=name, how=how, units=changes, reason=found.why, seconds=round(seconds, 2))
    return TableMergeReport(name, changes, found.version, True, seconds, state=DERIVED)
