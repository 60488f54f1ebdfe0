"""Bring the tables of a target to the end of the log, each change exactly once.

A table's place is stored by the target together with its rows, so it is always known which changes were applied: after
any end, the next delivery continues at the place. The place has the offset up to which changes are applied, and the
facts that the table depended on at that offset:

    log      the id of the log
    offset   every change up to this one is in the target
    floor    rows without a change since this offset are not in the table (a finished backfill moves it)
    shape    columns and key

If floor or shape differ now, if the next changes have expired, or if they cannot be expressed by key, the whole table
is applied again in one change. Otherwise it is the last change of each key. A row whose last change did not send all of
its columns (TOAST, MINIMAL) is completed from the fold of the log at the same offset.

A table is delivered only while the log has every row of it, and no change of it was lost.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from cdcflow.errors import CdcflowError, ConfigurationError, InvariantViolated, SinkUnavailable, SourceUnavailable
from cdcflow.log.fold.completeness import ACTIVE, TableBackfill
from cdcflow.log.query.log import ChangeLog
from cdcflow.model.table import OFFSET, Table, TableId, word
from cdcflow.sources.engine.selection import Selection
from cdcflow.targets.port import Overtaken, TableChange, TargetTables
from cdcflow.targets.reduction import net_changes

QUIET_NOTED = 1 << 16
"""After how many offsets without a change of a table its place is stored again, so that it does not expire."""


@dataclass(frozen=True, slots=True)
class TablePlace:
    """How far a table of a target is."""

    log: str
    offset: int
    floor: int
    shape: str

    def __str__(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def of(cls, text: str) -> TablePlace:
        """Parse a place.

        Raises:
            ConfigurationError: the text is not a place.
        """
        try:
            return cls(**json.loads(text))
        except (ValueError, TypeError):
            raise ConfigurationError(
                "the target has a place that cdcflow did not write",
                remedy="remove the table and its place from the target: it is delivered again",
                runbook="other-log",
            ) from None


@dataclass(frozen=True, slots=True)
class TableDelivery:
    """The result of a delivery for one table. `problem`: why nothing was delivered, and `remedy`: what to do; "" if it
    was delivered. `waits`: it is delivered later without a remedy. `is_whole`: all rows were applied."""

    table: str
    offset: int
    rows: int = 0
    deleted: int = 0
    is_whole: bool = False
    problem: str = ""
    remedy: str = ""
    waits: bool = False

    def to_json(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class DeliveryReport:
    """The result of a delivery: the offset up to which it delivered, and the tables with something new or a problem."""

    offset: int
    tables: tuple[TableDelivery, ...]

    @property
    def stops(self) -> tuple[TableDelivery, ...]:
        """The tables that need an operator."""
        return tuple(one for one in self.tables if one.problem and not one.waits)

    @property
    def pending(self) -> tuple[TableDelivery, ...]:
        """The tables whose rows are not all in the log yet."""
        return tuple(one for one in self.tables if one.waits)


class TargetDelivery:
    """Delivers a log to one target. `settle` makes the readable part of the log durable."""

    def __init__(
        self, log: ChangeLog, log_id: str, target: TargetTables, selection: Selection, settle: Callable[[], None]
    ) -> None:
        self._log = log
        self._log_id = log_id
        self._target = target
        self._selection = selection
        self._settle = settle

    def deliver(self, watch: Callable[[TableId], None] = lambda table: None) -> DeliveryReport:
        """Bring each selected table to the end of the log. `watch` gets each table before it is delivered.

        Raises:
            SinkUnavailable: the target or the log does not answer.
        """
        end = self._log.now().offset
        self._settle()
        places = self._target.places()
        tables = [table for table in sorted(self._log.rows.shapes()) if self._selection.selects(table)]
        found = []
        for table in tables:
            watch(table)
            if (one := self._deliver_table(table, end, places)) is not None:
                found.append(one)
        return DeliveryReport(end, tuple(found))

    def _deliver_table(self, table: TableId, end: int, places: Mapping[TableId, str]) -> TableDelivery | None:
        try:
            change = self._change(table, end, places.get(table))
            if change is None:
                return None
            if isinstance(change, TableDelivery):
                return change
            self._target.apply(change)
        except (SinkUnavailable, SourceUnavailable):
            raise
        except Overtaken:
            return TableDelivery(
                str(table),
                end,
                problem="another process has changed it in the target just before",
                remedy="if this is so again and again, deliver to the target from one machine only: "
                "start `cdcflow run` on the others with --no-deliver, or end `cdcflow deliver` there",
            )
        except CdcflowError as error:
            return TableDelivery(str(table), end, problem=str(error).split("\n")[0], remedy=error.remedy or "")
        except Exception as error:  # noqa: BLE001  a plug-in's; its text may hold a row's values
            return TableDelivery(
                str(table),
                end,
                problem=f"the target raised {type(error).__name__}",
                remedy="report this to the authors of its package",
            )
        return TableDelivery(str(table), end, change.rows.num_rows, change.deleted.num_rows, change.is_whole)

    def _change(self, table: TableId, end: int, stored: str | None) -> TableChange | TableDelivery | None:
        """Return the table's next change; `None` if nothing is new."""
        known = self._log.known
        standing = known.standing(table, end)
        state = TableBackfill.of(standing.entry)
        if state.in_doubt:
            return TableDelivery(
                str(table),
                end,
                problem="changes of it were lost, and no comparison has shown since that it is right",
                remedy=f"run `cdcflow repair {word(table)}`",
            )
        if not standing.is_whole:
            return TableDelivery(
                str(table),
                end,
                problem="; ".join(standing.notes),
                remedy=f"wait for its backfill, or run `cdcflow backfill {word(table)}`",
                waits=state.state in ACTIVE,
            )
        _, shape = known.shapes(table, end)
        place = TablePlace(self._log_id, end, standing.since, _digest(shape))
        before = None if stored is None else self._check_place(TablePlace.of(stored), end)
        if before is None or not self._continues(before, place):
            return self._whole(shape, stored, place)
        if before.offset == end:
            return None
        parts = ((of, rows) for of, _, rows in self._log.reader.read_rows(before.offset + 1, end, (table,)))
        return self._difference(shape, parts, stored, before, place)

    def _check_place(self, before: TablePlace, end: int) -> TablePlace:
        if before.log != self._log_id:
            raise ConfigurationError(
                f"the target has this table from another log ({before.log})",
                remedy="deliver this log to another target, or remove the table and its place from this one",
                runbook="other-log",
            )
        if before.offset > end:
            raise ConfigurationError(
                f"the target is at offset {before.offset}, and the log ends at offset {end}, so it is an older copy",
                remedy="restore the newer log, or remove the table and its place from the target",
                runbook="other-log",
            )
        return before

    def _continues(self, before: TablePlace, place: TablePlace) -> bool:
        is_same = (before.floor, before.shape) == (place.floor, place.shape)
        return is_same and before.offset >= self._log.known.first_offset - 1

    def _difference(
        self, shape: Table, parts: Any, stored: str | None, before: TablePlace, place: TablePlace
    ) -> TableChange | None:
        net = net_changes(parts, shape) if shape.key else None
        if net is None:
            if not shape.key and not self._has_changes(shape.id, before, place):
                return None
            return self._whole(shape, stored, place)
        if not net.rows.num_rows and not net.deleted.num_rows and place.offset - before.offset < QUIET_NOTED:
            return None
        rows = net.rows
        if len(net.incomplete):
            is_incomplete = pc.is_in(rows.column(OFFSET), value_set=net.incomplete)
            rows = pa.concat_tables(
                [rows.filter(pc.invert(is_incomplete)), self._complete_rows(shape, place, net.incomplete)]
            )
        return TableChange(shape, rows.select(shape.row_schema.names), net.deleted, False, stored, str(place))

    def _has_changes(self, table: TableId, before: TablePlace, place: TablePlace) -> bool:
        rows = self._log.reader.read_rows(before.offset + 1, place.offset, (table,))
        return any(part.num_rows for _, _, part in rows) or place.offset - before.offset >= QUIET_NOTED

    def _complete_rows(self, shape: Table, place: TablePlace, offsets: pa.ChunkedArray) -> pa.Table:
        """Return the rows, with all columns, whose last changes have these offsets."""
        _, rows = self._log.fold_table(str(shape.id), place.offset)
        found = rows.filter(pc.is_in(rows.column(OFFSET), value_set=offsets))
        if found.num_rows != len(offsets):
            raise InvariantViolated(
                f"delivering {shape.id}: the log has {found.num_rows} of {len(offsets)} rows that must be completed",
                remedy="run `cdcflow log check`",
                runbook="log-damaged",
            )
        return found

    def _whole(self, shape: Table, stored: str | None, place: TablePlace) -> TableChange:
        shape, rows = self._log.fold_table(str(shape.id), place.offset)
        keys = pa.schema([shape.row_schema.field(name) for name in shape.key]).empty_table()
        return TableChange(shape, rows.select(shape.row_schema.names), keys, True, stored, str(place))


def _digest(shape: Table) -> str:
    return hashlib.sha256(json.dumps(shape.to_json(), sort_keys=True).encode()).hexdigest()[:16]
