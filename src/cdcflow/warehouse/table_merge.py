"""The merge of one table: its range of the log, in as few commits as it takes."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from cdcflow.merge import statement
from cdcflow.merge.evolution import Evolution, evolve
from cdcflow.merge.target import Target
from cdcflow.model.table import Table
from cdcflow.warehouse.port import CurrentTable, Engine
from cdcflow.warehouse.positions import Positions
from cdcflow.warehouse.ranges import TableRange
from cdcflow.warehouse.segments import Range, offsets_of


class TableMerge:
    """One table, one range. `origin` is what each commit tells besides."""

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
        """`since`: the offset before which nothing is needed of the log (0: none)."""
        self._log = log
        self._cut = log.checkpoint.cut
        self._positions = positions
        self._engine = engine
        self._there = there
        self._since = since
        self._origin = origin
        table, before = range_.table, range_.before
        # Where the range begins behind something, nothing of before it is known to live.
        self._range = replace(range_, sweep=max(positions.sweep_due(table), since if before is not None else 0))
        self._app = positions.app(table)

    @property
    def sweeps(self) -> bool:
        """Rows may be there that a backfill did not find."""
        return self._range.sweep > 0

    def sweep(self) -> None:
        """Nothing new, but a backfill is done: remove what it did not find."""
        generation = self._positions.backfill(self._range.table).finished
        self._there.sweep(self._range.sweep, self._metadata(), f"{self._app}/sweep", generation)

    def make_empty(self, shape: Table) -> None:
        """Make a table of which the log has no row yet."""
        target = evolve(None, [shape], format_=self._engine.rules).target
        source = json.dumps(self._positions.source(self._range.table), separators=(",", ":"))
        self._make(target, source, 0)

    def run(self) -> None:
        """Bring the range into the table."""
        layout = self._log.layout
        with tempfile.TemporaryDirectory(
            prefix="cdcflow-merge-", dir=None if layout.store is None else layout.store.room
        ) as room:
            files = self._engine.located(layout, self._range.files, Path(room))
            self._range = replace(self._range, files=files)
            self._merge()

    def _merge(self) -> None:
        evolution = self._range.evolution(self._engine.rules)
        self._evolve(evolution)
        with self._range.folding(self._there.session, evolution, self._there.standing) as folding:
            self._there.fold(folding, self._metadata(), self._app, self._cut)

    def _evolve(self, evolution: Evolution) -> None:
        """Bring the table into the shape that the range needs."""
        table, before = self._range.table, self._range.before
        if evolution.before is None:
            source = json.dumps(self._positions.source(table), separators=(",", ":"))
            self._make(evolution.target, source, self._since)
        elif before is not None and not before.transactions.get(self._app):
            self._there.begin(self._since, self._metadata())
        for act in evolution.acts():
            once = statement.transaction(act, evolution.target.incarnation)
            app = f"{self._app}/{once}" if once else ""
            self._there.follow(act, self._metadata(), app, 1 if once else 0)

    def _make(self, target: Target, source: str, begun: int) -> None:
        wide = self._range.policy.readable == "wide"
        self._there.make(target, source, begun, self._metadata(), wide=wide)

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
