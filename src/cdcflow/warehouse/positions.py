"""Where each table of a warehouse is, and what it needs of the log: by its own commits and the newest published cut."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import structlog

from cdcflow.errors import CdcflowError, ConfigurationError, HistoryLost, SinkUnavailable
from cdcflow.merge import statement
from cdcflow.merge.evolution import evolve
from cdcflow.merge.format import Format
from cdcflow.merge.modes import CURRENT, ModeRules
from cdcflow.merge.policy import DEFAULTS, Policies
from cdcflow.merge.refusals import CannotFollow
from cdcflow.merge.standing import Backfill
from cdcflow.model.position import Checkpoint
from cdcflow.model.table import Table, TableId, word
from cdcflow.warehouse.attaching import Attached, lacks_base
from cdcflow.warehouse.cut import Cut, CutTable
from cdcflow.warehouse.paths import Warehouse
from cdcflow.warehouse.port import CurrentTable, Snapshot
from cdcflow.warehouse.ranges import TableRange, grouped
from cdcflow.warehouse.segments import (
    InputFile,
    Range,
    backfills,
    began_as,
    offsets_of,
    sealed,
    shapes_of,
    without_rows,
)

_log = structlog.get_logger()


class Positions:
    """What the newest published cut and a log say of the tables of a warehouse.

    `log` is what is merged now of `whole`, which are all sealed segments; `newest`: see `segments.backfills`.
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
        """
        Raises:
            ConfigurationError: the published cut is another log's, or ahead of this one.
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
        self._there: dict[TableId, Snapshot | None] = {}
        self._replaced: set[TableId] = set()
        self._check_log()

    def _check_log(self) -> None:
        before = self._published
        if before is None:
            return
        if before.log_id != self._log.log_id:
            others = ", ".join(part.name for part in before.logs.values())
            raise ConfigurationError(
                f"merging {self._log.layout.name} into {self._warehouse}: its tables come from another log "
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
                remedy="merge the newest log, or merge into another warehouse",
                runbook="other-log",
            )

    @property
    def backfilled(self) -> frozenset[str]:
        """Names of the tables of which the log says how far their backfill is."""
        return frozenset(self._backfills)

    @property
    def without_rows(self) -> frozenset[TableId]:
        """Captured tables of which no row was read; changes of them may be in the log."""
        return frozenset(self._without_rows)

    def empty_shape(self, table: TableId) -> Table | None:
        """What a table looks like that has no row in the log; None: it may have had some, which have expired."""
        floor = self.backfill(table).floor
        shape = None if self.backfill(table).needs_base else self._without_rows.get(table)
        known = shape is not None and (self._whole.reaches(0) or (floor is not None and self._whole.has(floor)))
        return shape if known else None

    def is_removed(self, table: TableId) -> bool:
        """Whether a table that is not there was taken away by somebody, and does not come back: nobody captures it,
        and its newest change was in a cut already."""
        published = self._published
        return (
            self.backfill(table).state == "forgotten"
            and published is not None
            and not self._log.files(table, published.cut)
        )

    def is_new(self, table: TableId, before: Snapshot | None) -> bool:
        """Whether a table is not there, or was only begun: nothing of ours is whole in it, and no cut knows it."""
        if before is None:
            return True
        published = self._published
        is_known = self.entry(table) is not None or (published is not None and str(table) in published.left_out)
        return not is_known and not before.transactions.get(self.app(table))

    def history_lost(self, table: TableId) -> HistoryLost:
        """The error of a table that is to be made anew and has no row in the log."""
        return lacks_base(table) if self.backfill(table).needs_base else self._whole.history_lost(table, 0)

    def see(self, table: TableId, found: Snapshot | None, there: CurrentTable | None = None) -> None:
        """A table's snapshot, as it was just looked at. `there`: where its older versions are looked at."""
        self._there[table] = found
        shown = None if self._published is None else self._published.tables.get(str(table))
        if found is not None and shown is not None and there is not None and shown.id in ("", found.id):
            is_kept = found.version >= shown.version and self._is_kept(found, shown, there)
            (self._replaced.discard if is_kept else self._replaced.add)(table)

    def _is_kept(self, found: Snapshot, shown: CutTable, there: CurrentTable) -> bool:
        """Whether the version that the published cut shows is what the table has under that number."""
        commit = found.commit if found.version == shown.version else there.commit_of(shown.version)
        return not shown.commit or not commit or commit == shown.commit

    def seen(self, table: TableId) -> Snapshot | None:
        """The snapshot that was looked at last; None: there is no table, or nobody looked."""
        return self._there.get(table)

    def entry(self, table: TableId) -> CutTable | None:
        """The table in the latest published cut; None if that was another table in the same folder, or a version that
        it no longer has: one put back from a copy, or without its last commit, is what its own commits tell."""
        if table in self._replaced:
            return None
        found = None if self._published is None else self._published.tables.get(str(table))
        there = self._there.get(table)
        return None if found is not None and there is not None and found.id not in ("", there.id) else found

    def backfill(self, table: TableId) -> Backfill:
        return Backfill.of(self._backfills.get(str(table), {}))

    def swept(self, table: TableId) -> int:
        if table in self._there and self._there[table] is None:
            return 0  # it is made anew; what the cut tells of is gone
        entry = self.entry(table)
        return 0 if entry is None else entry.generation

    def sweep_due(self, table: TableId) -> int:
        """The offset before which rows go that nothing touched since; 0: none is to go."""
        known = self.backfill(table)
        floor = known.floor or 0 if known.finished > self.swept(table) else 0
        # Its base came after what an older backfill has read.
        return floor if floor >= self._attached_at(table) else 0

    def _attached_at(self, table: TableId) -> int:
        there = self._there.get(table)
        attached = None if there is None else Attached.of(there.properties)
        return 0 if attached is None else attached.since

    def standing(self, table: TableId, there: Snapshot) -> tuple[bool, str]:
        """Whether a table that is there has every row, and what is said of it."""
        known, attached = self.backfill(table), Attached.of(there.properties)
        begun = int(there.properties.get(statement.BEGUN_PROPERTY, "0"))
        base = "" if attached is None else attached.base
        return known.is_whole(begun, base), known.state_of(begun, base)

    def swept_by(self, range_: TableRange, since: int) -> TableRange:
        """The range with what backfills make of rows that they did not find. `since`: the offset before which nothing
        is needed of the log (0: none)."""
        mode, backfill = range_.mode, self.backfill(range_.table)
        if mode.keeps_changes:
            return range_
        # Where the range begins behind something, nothing of before it is known to live.
        sweep = max(self.sweep_due(range_.table), since if range_.before is not None else 0)
        begun = 0
        if mode.ends is not None:
            if sweep or not backfill.is_done:
                begun = backfill.since
            elif backfill.gap is not None:
                begun = backfill.gap[0]  # what was inserted since was gone before
        return replace(range_, sweep=sweep, since=begun, gap=backfill.gap)

    def app(self, table: TableId) -> str:
        return f"cdcflow/{self._log.log_id}/{table}"

    def position(self, there: CurrentTable, table: TableId, before: Snapshot | None) -> int:
        """The cut that the table has: what its own commits say, or the published cut if none has come since.

        One can have come that is older: of a merge that stood still in the middle of its commit. Such a commit undoes
        what it was overtaken by, and what has come since it is merged again.
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
            raise ConfigurationError(
                f"merging {self._log.layout.name} into table {table} of {self._warehouse}: that table was not "
                f"merged from table {table} of this log",
                remedy="merge into another warehouse, or move the table's folder away",
                runbook="other-log",
            )
        done = before.transactions.get(ours, 0)
        if not done and self._was_empty(there, table, before):
            done = 0 if self._published is None else self._published.cut
        # A table that nothing was ever merged into is none that a cut was published of, whatever its version.
        if done and entry is not None and self._published is not None and before.version >= entry.version:
            then = done if before.version == entry.version else there.transactions_of(entry.version).get(ours, done)
            if then == done:
                done = max(done, self._published.cut)
            elif done < self._published.cut:
                _log.warning("an older merge has committed after a newer one", table=str(table), cut=done)
        if done > self._last_cut:
            now = sealed(self._log.layout, self._log.checkpoint.next_offset - 1).newest
            if now is not None and now.last_cut >= done:
                raise overtaken(table, done, self._last_cut)
            raise ConfigurationError(
                f"merging {self._log.layout.name} into {table}: the log ends at cut {self._last_cut},"
                f" the table already has cut {done}, so this is an older copy of the log",
                remedy="merge the newest log, or merge into another warehouse",
                runbook="other-log",
            )
        return done

    def _was_empty(self, there: CurrentTable, table: TableId, before: Snapshot) -> bool:
        """Whether the published cut shows it without a row, as it was made, and nothing has come into it since."""
        entry = self.entry(table)
        if entry is None or entry.id != before.id or before.version < entry.version:
            return False
        return before.version == entry.version or not there.transactions_of(entry.version).get(self.app(table))

    def source(self, table: TableId) -> dict[str, str]:
        return {"log": self._log.log_id, "schema": table.schema, "name": table.name}

    def start(
        self, there: CurrentTable, table: TableId, before: Snapshot | None, mode: ModeRules = CURRENT
    ) -> tuple[int, int]:
        """The cut behind which a table is to be merged, and the offset before which nothing is needed (0: none).

        Raises:
            CannotFollow: it is to be made, and the log holds a change of shape that no table follows.
            HistoryLost: the log does not reach back to where the table is.
        """
        start = self.position(there, table, before)
        if before is None or not (start or self.app(table) in before.transactions):
            return start, self.beginning(table, mode)
        return start, self.behind(table, start, mode)

    def behind(self, table: TableId, start: int, mode: ModeRules = CURRENT) -> int:
        """The offset before which nothing is needed of the log for a table that is at a cut (0: all behind the cut is).

        Raises:
            HistoryLost: the log does not reach back to it.
        """
        if start >= self._cut or self._log.reaches(start):
            return 0
        if mode.keeps_changes:
            raise self._log.changes_lost(table, start)
        floor = self.backfill(table).floor
        if floor is not None and self._log.has(floor):
            return floor  # everything was read since, so what lies between is not needed
        raise self._log.history_lost(table, start)

    def beginning(self, table: TableId, mode: ModeRules = CURRENT) -> int:
        """The offset from which on a table is folded that has no rows yet, as whole as the log allows.

        Raises:
            CannotFollow, HistoryLost: as `start` does.
        """
        known = Backfill.of(self._newest_backfills.get(str(table), {}))
        if known.needs_base:
            raise lacks_base(table)
        if not self._whole.files(table, 0):
            return 0  # it was made without a row
        refused: CdcflowError = self._whole.history_lost(table, 0)
        beginnings = known.beginnings()
        if mode.keeps_changes or mode.ends is not None:
            beginnings = (self._whole.beginning, *beginnings)
        for offset in beginnings:
            if not (self._whole.reaches(0) or self._whole.has(offset)):
                continue
            files = self._whole.files(table, 0)
            # At least one row, of which the table learns its columns; the sweep takes it.
            since = min(offset, offsets_of(files)[1]) if files else offset
            try:
                self._follow(table, self._whole.files(table, 0, since), mode)
            except CannotFollow as error:
                newest = shapes_of(files)[-1]  # of a shape that no table can have it says so itself
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
        """Whether a table follows the shapes of these files. CannotFollow: it does not."""
        target, new_versions = None, self._policies.of(str(table)).keeps_versions
        for group in grouped(shapes_of(files), mode):
            began = began_as(files, group[-1].incarnation)
            found = evolve(target, group, format_=self._rules, mode=mode, new_versions=new_versions, began=began)
            target = found.target


def overtaken(table: TableId, came_to: int, cut: int) -> SinkUnavailable:
    """The error of a merge whose table another merge has brought further."""
    return SinkUnavailable(
        f"merging into {table}: another merge brought it to cut {came_to} while this one merged cut {cut}",
        remedy="nothing is lost; merge again",
        runbook="busy",
    )
