"""A range without the rows that a check keeps out (`merge.checked_rows`, which Spark uses) leaves the same table as a
check of the rows that are written, in every mode."""

from __future__ import annotations

import os
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.log.hand_log import HandLog
from tests.support.merge.contracts import random_contracts, rows_of
from tests.support.merge.histories import make_world, write_round

from cdcflow import local
from cdcflow.model.table import OFFSET, TableId
from cdcflow.tables.local.contract_check import ContractCheck
from cdcflow.tables.local.contract_rules import NUMBER, ContractRules, any_of
from cdcflow.tables.local.tables import FileTable
from cdcflow.tables.merge import checked_rows
from cdcflow.tables.merge.contract import quarantine_of
from cdcflow.tables.merge.policy import Mode
from cdcflow.tables.merge.statement import Folding

SEED = int(os.environ.get("CDCFLOW_CHECKED_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)


def check_rows(self: FileTable[Any], *given: Any) -> None:
    self.__dict__["checks"] = ContractCheck(*given)


def fold(self: FileTable[Any], folding: Folding, metadata: Mapping[str, Any], app: str, version: int) -> None:
    """As `spark.contract_check` does."""
    checks: ContractCheck = self.__dict__["checks"]
    name = self.session.take("there", self.rows())
    rows = self.session.arrow(checked_rows.rows_to_write(folding, name, broadcast=False))
    rows = rows.cast(pa.schema([self.schema.field(column) for column in rows.column_names]))
    rules = ContractRules.of(checks._table, checks._contract, checks._mode, self.session.parse, rows.column_names)
    found = rules.broken_rows(self.session, rows, folding.first)
    numbers = rules.judge(rules.count(found), checks._result)
    if numbers:
        chosen = found.filter(any_of(found, numbers))
        broken = rows.take(chosen.column(NUMBER))
        checks._write(broken, rules.reasons(chosen, numbers), app)
        target = folding.layout.target
        parts = {f"c{i}": broken.column(target.columns[i].name) for i in checked_rows.identity_positions(folding)}
        kept_out = self.session.take("kept_out", pa.table({"o": broken.column(OFFSET), **parts}))
        folding = checked_rows.without_rows(folding, kept_out)
    self._changes.forget()
    self._changes.fold(folding, metadata, app, version)


@pytest.mark.spread(1)
@pytest.mark.parametrize("mode", ["current", "soft_delete", "append", "history"])
def test_both_checks_keep_out_the_same_rows(tmp_path: Path, mode: Mode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Partial rows, key changes, truncates, columns that change, tables without a key."""
    chance = random.Random(f"{SEED} {mode}")
    world, policies = make_world(chance.randrange(10**6), 30), random_contracts(chance, mode)
    log = HandLog(tmp_path / "log", has_transactions=True)
    for round_ in range(4):
        write_round(world, log, round_)
        report = local.merge(log.root, tmp_path / "right", policies=policies)
        with monkeypatch.context() as patch:
            patch.setattr(FileTable, "check_rows", check_rows)
            patch.setattr(FileTable, "fold", fold)
            other = local.merge(log.root, tmp_path / "other", policies=policies)
        told = [[(t.name, t.left_out, t.warned, t.quarantined) for t in one.tables] for one in (report, other)]
        assert told[0] == told[1], (SEED, round_)
        for name in world.tables:
            for table in (TableId("public", name), quarantine_of(TableId("public", name))):
                found, expected = (rows_of(tmp_path / place, "delta", table) for place in ("other", "right"))
                assert found == expected, (SEED, round_, str(table))
