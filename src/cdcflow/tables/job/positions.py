"""The position of each table of a warehouse, and the part of the log that it needs, from its commits and the latest
published cut."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import structlog

from cdcflow.errors import CdcflowError, ConfigurationError, HistoryLost, SinkUnavailable
from cdcflow.log.fold.completeness import TableBackfill
from cdcflow.model.position import Checkpoint
from cdcflow.model.table import Table, TableId, word
from cdcflow.tables.cut import Cut, CutTable
from cdcflow.tables.job.attached_tables import Attached, lacks_base
from cdcflow.tables.job.ranges import TableRange, group_shapes
from cdcflow.tables.job.spans import shapes_over_time
from cdcflow.tables.merge import statement
from cdcflow.tables.merge.evolution import evolve
from cdcflow.tables.merge.format import Format
from cdcflow.tables.merge.modes import CURRENT, ModeRules
from cdcflow.tables.merge.policy import DEFAULTS, Policies
from cdcflow.tables.merge.refusals import CannotFollow
from cdcflow.tables.paths import Warehouse
from cdcflow.tables.port import CurrentTable, TableSnapshot
from cdcflow.tables.segments import (
    InputFile,
    Range,
    backfills,
    offsets_of,
    sealed_range,
    shapes_of,
    without_rows,
)

_log = structlog.get_logger()


class Positions:
    """What the latest published cut and a log record about the tables of a warehouse.

    `log` is the part that is merged now of `whole`, which has all sealed segments; `newest`: see `segments.backfills`.
    """

    def __init__(
        self,
        log: Range,
        whole: Range,
        newest: Checkpoint | None,
        published: Cut | None,
        warehouse: Warehouse,
        rules: Format,
        policies: Policies = DEFAULTS,
    ) -> None:
        """Check that the published cut belongs to this log.

        Raises:
            ConfigurationError: the cut is of another log, or ahead of this one.
        """
        self._log = log
        self._whole = whole
        self._published = published
        self._warehouse = warehouse
        self._rules = rules
        self._policies = policies
        self._cut = log.checkpoint.cut
        self._last_cut = whole.checkpoint.cut
        self._backfills = backfills(log, newest)
        self._newest_backfills = backfills(whole, newest)
        self._without_rows = without_rows(self._backfills)
        self._there: dict[TableId, TableSnapshot | None] = {}
        self._replaced: set[TableId] = set()
        self._check_log()

    def _check_log(self) -> None:
        before = self._published
        if before is None:
            return
        if before.log_id != self._log.log_id:
            others = ", ".join(part.name for part in before.logs.values())
            raise ConfigurationError(
                f"merging {self._log.layout.name} into {self._warehouse}: its tables belong to another log "
                f"({before.log_id}, this one is {self._log.log_id})",
                remedy=f"merge the logs of that warehouse together: `cdcflow merge` with -c for each of {others}"
                if others
                else "merge into another warehouse",
                runbook="other-log",
            )
        if before.cut > self._last_cut:
            raise ConfigurationError(
                f"merging {self._log.layout.name} into {self._warehouse}: the log ends at cut {self._last_cut},"
                f" the tables already have cut {before.cut}, so this is an older copy of the log",
                remedy="merge the latest log, or merge into another warehouse",
                runbook="other-log",
            )

    @property
    def backfilled_tables(self) -> frozenset[str]:
        """The names of the tables whose backfill progress the log records."""
        return frozenset(self._backfills)

    @property
    def without_rows(self) -> frozenset[TableId]:
        """The captured tables whose rows no backfill has read yet, or that have none; the log may have
        changes of them."""
        return frozenset(self._without_rows)

    def empty_shape(self, table: TableId) -> Table | None:
        """Return the shape of a table that never had a row in the log; `None` if it may have had rows that have
        expired."""
        floor = self.backfill(table).floor
        shape = None if self.backfill(table).needs_base else self._without_rows.get(table)
        known = shape is not None and (self._whole.reaches(0) or (floor is not None and self._whole.has(floor)))
        return shape if known else None

    def is_removed(self, table: TableId) -> bool:
        """Return whether an operator removed a missing table, so that it is not created again: it is no longer
        captured, and an earlier cut already had its latest change."""
        published = self._published
        return (
            self.backfill(table).state == "forgotten"
            and published is not None
            and not self._log.files(table, published.cut)
        )

    def is_new(self, table: TableId, before: TableSnapshot | None) -> bool:
        """Return whether a table has no complete merge: it does not exist, or its first merge only began, and no cut
        knows it."""
        if before is None:
            return True
        published = self._published
        is_known = self.entry(table) is not None or (published is not None and str(table) in published.left_out)
        return not is_known and not before.transactions.get(self.app(table))

    def history_lost(self, table: TableId) -> HistoryLost:
        """Return the error for a table that must be built from scratch and has no row in the log."""
        return lacks_base(table) if self.backfill(table).needs_base else self._whole.history_lost(table, 0)

    def see(self, table: TableId, found: TableSnapshot | None, there: CurrentTable | None = None) -> None:
        """Record a table's current snapshot. `there`: used to check its older versions."""
        self._there[table] = found
        shown = None if self._published is None else self._published.tables.get(str(table))
        if found is not None and shown is not None and there is not None and shown.id in ("", found.id):
            is_kept = found.version >= shown.version and self._is_kept(found, shown, there)
            (self._replaced.discard if is_kept else self._replaced.add)(table)

    def _is_kept(self, found: TableSnapshot, shown: CutTable, there: CurrentTable) -> bool:
        """Return whether the version number that the published cut shows still belongs to the same version of the
        table."""
        commit = found.commit if found.version == shown.version else there.commit_of(shown.version)
        return not shown.commit or not commit or commit == shown.commit

    def last_seen(self, table: TableId) -> TableSnapshot | None:
        """Return the last recorded snapshot; `None` if there is no table, or `see` was not called."""
        return self._there.get(table)

    def entry(self, table: TableId) -> CutTable | None:
        """Return the table's entry in the latest published cut.

        Return `None` if the entry is about a different table in the same folder, or about a version that the table no
        longer has. If a table was restored from a copy, or lost its last commit, only its own commits count.
        """
        if table in self._replaced:
            return None
        found = None if self._published is None else self._published.tables.get(str(table))
        there = self._there.get(table)
        return None if found is not None and there is not None and found.id not in ("", there.id) else found

    def backfill(self, table: TableId) -> TableBackfill:
        return TableBackfill.of(self._backfills.get(str(table), {}))

    def swept_generation(self, table: TableId) -> int:
        if table in self._there and self._there[table] is None:
            return 0  # it is created from scratch; what the cut records no longer exists
        entry = self.entry(table)
        return 0 if entry is None else entry.generation

    def sweep_due(self, table: TableId) -> int:
        """Return the offset of the sweep that is due: rows are removed whose last change is before it. 0 if no sweep is
        due."""
        known = self.backfill(table)
        floor = known.floor or 0 if known.finished_generation > self.swept_generation(table) else 0
        # Its base is newer than what an earlier backfill has read.
        return floor if floor >= self._attached_at(table) else 0

    def _attached_at(self, table: TableId) -> int:
        there = self._there.get(table)
        attached = None if there is None else Attached.of(there.properties)
        return 0 if attached is None else attached.since

    def standing(self, table: TableId, there: TableSnapshot) -> tuple[bool, str]:
        """Return whether an existing table has every row, and its state for reports."""
        known, attached = self.backfill(table), Attached.of(there.properties)
        begun = int(there.properties.get(statement.BEGUN_PROPERTY, "0"))
        base = "" if attached is None else attached.base
        return known.is_whole(begun, base), known.state_of(begun, base)

    def swept_by(self, range_: TableRange, since: int) -> TableRange:
        """Return the range with the offsets from which the effect of backfills on rows that they did not find follows.
        `since`: nothing before this offset of the log is needed (0: no limit)."""
        mode, backfill = range_.mode, self.backfill(range_.table)
        if mode.keeps_changes:
            return range_
        # If the range begins later than the table's position, earlier rows are not known to still exist.
        sweep = max(self.sweep_due(range_.table), since if range_.before is not None else 0)
        begun = 0
        if mode.ends is not None:
            if sweep or not backfill.is_done:
                begun = backfill.since
            elif backfill.gap is not None:
                begun = backfill.gap[0]  # a key inserted since then had no row before
        return replace(range_, sweep=sweep, since=begun, gap=backfill.gap)

    def app(self, table: TableId) -> str:
        return f"cdcflow/{self._log.log_id}/{table}"

    def position(self, there: CurrentTable, table: TableId, before: TableSnapshot | None) -> int:
        """Return the cut up to which a table is merged: the one in its own commits, or the published cut if they have
        none after it.

        The table's own commits can have an older cut if a merge hung in the middle of a commit and finished it late.
        Such a commit undoes the newer merge that overtook it, and the changes since its cut are merged again.
        """
        entry = self.entry(table)
        if before is None:
            return 0
        ours = self.app(table)
        strangers = [
            app
            for app in before.transactions
            if app.startswith("cdcflow/") and app != ours and not app.startswith(f"{ours}/")
        ]
        source = json.loads(before.properties.get(statement.IDENTITY_PROPERTY, "null"))
        if strangers or source != self.source(table):
            if _differ_in_case(source, self.source(table)):
                raise CannotFollow(
                    f"table {table} cannot be merged: the catalog does not distinguish its name from that of table"
                    f" {source['schema']}.{source['name']}",
                    remedy="rename one of the two at the source, or exclude it from the capture",
                )
            raise ConfigurationError(
                f"merging {self._log.layout.name} into table {table} of {self._warehouse}: that table was not "
                f"merged from table {table} of this log",
                remedy="merge into another warehouse, or move the table's folder away",
                runbook="other-log",
            )
        done = before.transactions.get(ours, 0)
        if not done and self._was_empty(there, table, before):
            done = 0 if self._published is None else self._published.cut
        # A table that nothing was ever merged into was not published in a cut, whatever its version.
        if done and entry is not None and self._published is not None and before.version >= entry.version:
            then = done if before.version == entry.version else there.transactions_of(entry.version).get(ours, done)
            if then == done:
                done = max(done, self._published.cut)
            elif done < self._published.cut:
                _log.warning("an older merge has committed after a newer one", table=str(table), cut=done)
        if done > self._last_cut:
            now = sealed_range(self._log.layout, self._log.checkpoint.next_offset - 1).newest
            if now is not None and now.last_cut >= done:
                raise overtaken(table, done, self._last_cut)
            raise ConfigurationError(
                f"merging {self._log.layout.name} into {table}: the log ends at cut {self._last_cut},"
                f" the table already has cut {done}, so this is an older copy of the log",
                remedy="merge the latest log, or merge into another warehouse",
                runbook="other-log",
            )
        return done

    def _was_empty(self, there: CurrentTable, table: TableId, before: TableSnapshot) -> bool:
        """Return whether the published cut shows the table as created without a row, and nothing was merged into it
        since."""
        entry = self.entry(table)
        if entry is None or entry.id != before.id or before.version < entry.version:
            return False
        return before.version == entry.version or not there.transactions_of(entry.version).get(self.app(table))

    def source(self, table: TableId) -> dict[str, str]:
        return {"log": self._log.log_id, "schema": table.schema, "name": table.name}

    def start(
        self, there: CurrentTable, table: TableId, before: TableSnapshot | None, mode: ModeRules = CURRENT
    ) -> tuple[int, int]:
        """Return the cut after which a table is to be merged, and the offset before which the log is not needed (0: no
        limit).

        Raises:
            CannotFollow: the table must be created, and the log has a change of shape that no table can follow.
            HistoryLost: the log does not reach back to the table's position.
        """
        start = self.position(there, table, before)
        if before is None or not (start or self.app(table) in before.transactions):
            return start, self.beginning(table, mode)
        return start, self.behind(table, start, mode)

    def behind(self, table: TableId, start: int, mode: ModeRules = CURRENT) -> int:
        """Return the offset before which a table at cut `start` needs nothing of the log (0: it needs everything after
        the cut).

        Raises:
            HistoryLost: the log does not reach back to the cut.
        """
        if start >= self._cut or self._log.reaches(start):
            return 0
        if mode.keeps_changes:
            raise self._log.changes_lost(table, start)
        floor = self.backfill(table).floor
        if floor is not None and self._log.has(floor):
            return floor  # everything was read after it, so the part before it is not needed
        raise self._log.history_lost(table, start)

    def beginning(self, table: TableId, mode: ModeRules = CURRENT) -> int:
        """Return the offset at which folding starts for a table that has no rows yet, chosen so that the table gets as
        complete as the log allows.

        Raises:
            CannotFollow, HistoryLost: as `start` does.
        """
        known = TableBackfill.of(self._newest_backfills.get(str(table), {}))
        if known.needs_base:
            raise lacks_base(table)
        if not self._whole.files(table, 0):
            return 0  # it was created without a row
        refused: CdcflowError = self._whole.history_lost(table, 0)
        beginnings = known.beginnings()
        if mode.keeps_changes or mode.ends is not None:
            beginnings = (self._whole.beginning, *beginnings)
        for offset in beginnings:
            if not (self._whole.reaches(0) or self._whole.has(offset)):
                continue
            files = self._whole.files(table, 0)
            # At least one row, from which the table learns its columns; the sweep removes it.
            since = min(offset, offsets_of(files)[1]) if files else offset
            try:
                self._follow(table, self._whole.files(table, 0, since), mode)
            except CannotFollow as error:
                newest = shapes_of(files)[-1]  # raises its own error if no table can have that shape
                self._follow(table, [f for f in files if f.shape == newest], mode)
                refused = CannotFollow(
                    f"{str(error).splitlines()[0]}, and the log's sealed segments have no later backfill",
                    remedy=f"run `cdcflow backfill {word(table)}`, and `cdcflow merge` once it is sealed"
                    " (log.seal.age_max)",
                )
            else:
                return since
        raise refused

    def _follow(self, table: TableId, files: Sequence[InputFile], mode: ModeRules) -> None:
        """Check that a table can follow the shapes of these files.

        Raises:
            CannotFollow: it cannot.
        """
        target, new_versions = None, self._policies.of(str(table)).keeps_versions
        for group in group_shapes(shapes_over_time(files), mode):
            found = evolve(target, group, format_=self._rules, mode=mode, new_versions=new_versions)
            target = found.target


def overtaken(table: TableId, came_to: int, cut: int) -> SinkUnavailable:
    """Return the error for a merge into a table that another merge has brought to a later cut. `came_to`: that later
    cut; `cut`: the one of this merge."""
    return SinkUnavailable(
        f"merging into {table}: another merge brought it to cut {came_to} while this one merged cut {cut}",
        remedy="nothing is lost; merge again",
        runbook="busy",
    )


def _differ_in_case(source: Any, ours: dict[str, str]) -> bool:
    """Return whether a table was merged from a table of the same log whose name differs only in upper and
    lower case."""
    if not isinstance(source, dict) or source == ours:
        return False
    return {name: str(value).casefold() for name, value in source.items()} == {
        name: value.casefold() for name, value in ours.items()
    }
