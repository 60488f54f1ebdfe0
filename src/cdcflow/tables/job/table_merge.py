"""The merge of one table: apply its range of the log in as few commits as possible."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from cdcflow.model.file_layout import FileLayout
from cdcflow.model.sqltypes import name_sql
from cdcflow.model.table import Table
from cdcflow.tables.job import histories
from cdcflow.tables.job.foldings import folding
from cdcflow.tables.job.positions import Positions, overtaken
from cdcflow.tables.job.ranges import TableRange, group_shapes
from cdcflow.tables.job.spans import shapes_over_time
from cdcflow.tables.merge import statement, versions
from cdcflow.tables.merge.contract import ContractResult, check_columns, quarantine_of
from cdcflow.tables.merge.evolution import Evolution, evolve
from cdcflow.tables.merge.file_layouts import RecordedLayout, decide_layout
from cdcflow.tables.merge.target import Target
from cdcflow.tables.paths import table_path
from cdcflow.tables.port import CurrentTable, Engine, TableSnapshot
from cdcflow.tables.segments import InputFile, Range, offsets_of


class TableMerge:
    """The merge of one range into one table. `origin`: further metadata that each commit records."""

    def __init__(
        self,
        log: Range,
        positions: Positions,
        engine: Engine,
        there: CurrentTable,
        range_: TableRange,
        since: int,
        origin: Mapping[str, object],
    ) -> None:
        """`since`: nothing before this offset of the log is needed (0: no limit)."""
        self._log = log
        self._cut = log.checkpoint.cut
        self._positions = positions
        self._engine = engine
        self._there = there
        self._since = since
        self._origin = origin
        self._range = positions.swept_by(range_, since)
        self._app = positions.app(range_.table)
        self.contract = ContractResult()
        """The result of the check of the table's contract, so far."""

    @property
    def sweeps(self) -> bool:
        """Whether a sweep is due: the table may have rows that a finished backfill did not find."""
        return self._range.sweep > 0

    def sweep(self) -> None:
        """Remove the rows that a finished backfill did not find, for a table without new changes in the log."""
        generation = self._positions.backfill(self._range.table).finished_generation
        mode, before = self._range.mode, self._range.sweep
        assigned = ""
        if mode.ends is not None:
            set_ = versions.sweep_assignments(mode.ends, before, self._moment(before))
            assigned = ", ".join(f"{name_sql(name)} = {value}" for name, value in set_.items())
        app = f"{self._app}/sweep"
        self._there.sweep(before, self._metadata(), app, generation, mode.ending_columns, assigned)

    def _moment(self, offset: int) -> tuple[str, int] | None:
        """Return the position and time of the transaction with an offset."""
        with self._room() as room:
            files = self._engine.readable_files(self._log.layout, self._log.transactions([], [offset]), room)
            return histories.moment(self._there.session, files, offset)

    def make_empty(self, shape: Table) -> None:
        """Create a table that has no row in the log yet."""
        mode = self._range.mode
        target = evolve(None, [shape], format_=self._engine.rules, mode=mode).target
        source = json.dumps(self._positions.source(self._range.table), separators=(",", ":"))
        layout = self._layout(target)
        self._make(target, source, 0)
        if layout is not None:
            self._arrange(layout)

    def run(self) -> None:
        """Merge the range into the table."""
        range_, layout = self._range, self._log.layout
        with self._room() as room:
            files = self._engine.readable_files(layout, range_.files, room)
            transactions: list[InputFile] = []
            if range_.mode.ends is not None or range_.purges:
                asked = [offset for offset in (range_.since, range_.sweep) if offset]
                transactions = self._engine.readable_files(layout, self._log.transactions(range_.files, asked), room)
            self._range = replace(range_, files=files, transactions=transactions)
            if range_.mode.in_turn:
                self._merge_in_turn()
            else:
                self._merge()

    @contextmanager
    def _room(self) -> Iterator[Path]:
        """Yield a temporary folder for fetched files."""
        store = self._log.layout.store
        with tempfile.TemporaryDirectory(prefix="cdcflow-merge-", dir=None if store is None else store.room) as room:
            yield Path(room)

    def _check_contract(self, evolution: Evolution) -> None:
        """Check that the table keeps its contract in its next shape, and make the engine check the next rows."""
        contract, table = self._range.policy.contract, self._range.table
        if not contract:
            return
        types = {column.name: column.type for column in evolution.target.columns}
        for column, what in check_columns(table, contract, dict.fromkeys(self._range.member, "string") | types).items():
            self.contract.warned[f"{column}: {what}"] = 1
        path = table_path(quarantine_of(table))
        self._there.check_rows(
            table, contract, self._range.mode, lambda: self._engine.table(path), self.contract, self._metadata()
        )

    def _merge_in_turn(self) -> None:
        """Merge each incarnation of the source table in a separate commit; the rows of a dropped incarnation stay."""
        whole = self._range
        groups = group_shapes(shapes_over_time(whole.files), whole.mode)
        for shapes in groups:
            files = [f for f in whole.files if f.shape.incarnation == shapes[0].incarnation]
            is_last = shapes is groups[-1]
            app = self._app if is_last else f"{self._app}/until/{offsets_of(files)[1]}"
            before = self._range.before
            if before is not None and before.transactions.get(app) and not is_last:
                continue  # an interrupted merge has done this already
            self._range = replace(self._range, files=files, sweep=whole.sweep if is_last else 0)
            evolution = self._range.evolution(before, shapes, self._engine.rules)
            self._check_contract(evolution)
            self._evolve(evolution, arranges=is_last)
            with folding(self._range, self._there.session, [evolution], self._there.standing) as found:
                self._there.fold(found, self._metadata(), app, self._cut if is_last else 1)
            if not is_last:
                self._range = replace(self._range, before=self._looked_at_again())
        self._range = replace(whole, before=self._range.before)

    def _merge(self) -> None:
        there, evolutions = self._range.before, list[Evolution]()
        groups = group_shapes(shapes_over_time(self._range.files), self._range.mode)
        for shapes in groups:
            if evolutions:
                there = self._looked_at_again()
            evolutions.append(self._range.evolution(there, shapes, self._engine.rules))
            self._check_contract(evolutions[-1])
            self._evolve(evolutions[-1], arranges=shapes is groups[-1])
        with folding(self._range, self._there.session, evolutions, self._there.standing) as found:
            self._there.fold(found, self._metadata(), self._app, self._cut)

    def _looked_at_again(self) -> TableSnapshot | None:
        """Return the table's snapshot after an evolution, from which the next evolution starts. Raise an error if
        another merge has added rows."""
        found, before = self._there.snapshot(), self._range.before
        came_to = 0 if found is None else found.transactions.get(self._app, 0)
        if came_to != (0 if before is None else before.transactions.get(self._app, 0)):
            raise overtaken(self._range.table, came_to, self._cut)
        return found

    def _evolve(self, evolution: Evolution, *, arranges: bool) -> None:
        """Bring the table into the shape that the range needs. `arranges`: also give its files the
        configured layout."""
        table, before = self._range.table, self._range.before
        layout = self._layout(evolution.target) if arranges else None
        if evolution.before is None:
            source = json.dumps(self._positions.source(table), separators=(",", ":"))
            self._make(evolution.target, source, self._since)
        elif before is not None and self._app not in before.transactions:
            self._there.begin(self._since, self._metadata())
        for act in evolution.acts():
            once = statement.transaction(act, evolution.target.incarnation)
            app = f"{self._app}/{once}" if once else ""
            self._there.follow(act, self._metadata(), app, 1 if once else 0)
        if layout is not None:
            self._arrange(layout)

    def _layout(self, target: Target) -> FileLayout | None:
        """Return the layout that new files of the table get; `None`: they keep the current one.

        Raises:
            CannotFollow: the table cannot have the configured layout.
        """
        before, range_ = self._range.before, self._range
        return decide_layout(
            range_.policy,
            {} if before is None else before.properties,
            () if before is None else before.columns,
            target,
            range_.mode,
            self._engine.rules,
            range_.table,
        )

    def _arrange(self, layout: FileLayout) -> None:
        found = self._looked_at_again()
        ids = {c.name: c.id for c in (() if found is None else found.columns)}
        recorded = RecordedLayout(layout, {name: ids[name] for name in layout.columns})
        self._there.arrange(layout, recorded.to_json(), self._metadata())

    def _make(self, target: Target, source: str, begun: int) -> None:
        wide = self._range.policy.readable == "wide"
        self._there.make(target, source, begun, self._metadata(), self._range.mode, wide=wide)

    def _metadata(self) -> dict[str, object]:
        first, last = offsets_of(self._range.files)
        return {
            "log": self._log.log_id,
            "table": str(self._range.table),
            "cut": self._cut,
            "offsets": [first, last],
            "generation": self._positions.backfill(self._range.table).generation if self._range.sweep else 0,
            **self._origin,
        }
