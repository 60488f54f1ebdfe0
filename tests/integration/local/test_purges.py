"""Deletes that remove rows, or leave them unmarked, where others mark them: `purges` of mode soft_delete."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.log.hand_log import HandLog
from tests.support.tables.purged_histories import ARCHIVE, ORDERS, PURGING, first_difference, rows_of

from cdcflow import local, wiring
from cdcflow.config import load
from cdcflow.errors import ConfigurationError
from cdcflow.tables.job.reports import MergeReport
from cdcflow.tables.merge import reduce, statement
from cdcflow.tables.merge.modes import DELETED
from cdcflow.tables.merge.policy import Policies, TablePolicy


@pytest.mark.parametrize("seed", [1, *(pytest.param(n, marks=pytest.mark.long) for n in range(2, 40))])
def test_purged_rows_are_gone_and_deleted_ones_are_kept(
    tmp_path: Path, merge: Callable[..., MergeReport], seed: int
) -> None:
    """An archive job's deletes must not empty the copy, and what a person has a right to must leave it."""
    assert first_difference(tmp_path, seed, merge) == ""


FAULTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "a purge only marks": lambda patch: patch.setattr(reduce, "_purged_sql", lambda layout: "false"),
    "a backfill marks what a purge kept": lambda patch: patch.setattr(
        reduce, "_swept_sql", lambda layout, values, sweep_before: f"o < {sweep_before}"
    ),
    "a kept row counts as one of the source": lambda patch: patch.setattr(
        statement, "is_ended", lambda of, ended, right=statement.is_ended: right(of, ended[:1])
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_fault_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """A comparison that cannot fail proves nothing."""
    FAULTS[fault](monkeypatch)
    assert any(first_difference(tmp_path / str(seed), seed, local.merge) for seed in range(1, 9))


def test_table_that_was_created_without_the_column_is_refused_and_both_remedies_work(
    tmp_path: Path, merge: Callable[..., MergeReport]
) -> None:
    """What was marked before cannot be distinguished, so the table is not changed silently; the printed setting keeps
    it, and a rebuilt table has the column."""
    log, warehouse = HandLog(tmp_path / "log", has_transactions=True), tmp_path / "warehouse"
    log.state(ORDERS)
    log.segment([(ORDERS, "c", {"id": n, "doc": "a", "n": n}) for n in (1, 2)])
    merge(log.root, warehouse, policies=Policies(TablePolicy(mode="soft_delete")))
    log.segment([(ORDERS, "d", {"id": 1, "_origin": ARCHIVE})])
    with pytest.raises(ConfigurationError) as caught:
        merge(log.root, warehouse, policies=PURGING)
    printed = re.search(r"merge\.tables\.each: (\{.*\})\)", str(caught.value))
    assert printed is not None
    settings = tmp_path / "cdcflow.yaml"
    settings.write_text(
        "source: {kind: postgres, url: 'postgresql://a@localhost/shop'}\nlog: {path: log}\n"
        f"merge: {{tables: {{mode: soft_delete, purges: {{{ARCHIVE}: keep}}, each: {printed[1]}}}}}\n"
    )
    merge(log.root, warehouse, policies=wiring.policies(load(settings)))
    shown = local.read_cut(warehouse)["public.orders"].to_pylist()
    assert {row["id"]: row[DELETED] for row in shown} == {1: True, 2: False}
    (warehouse / "public" / "orders").rename(tmp_path / "away")
    log.state(ORDERS, generation=2, since=log.next_offset)
    log.segment([(ORDERS, "r", {"id": 2, "doc": "a", "n": 2})])
    log.segment([(ORDERS, "d", {"id": 2, "_origin": ARCHIVE})])
    merge(log.root, warehouse, policies=PURGING)
    assert rows_of(local.read_cut(warehouse)) == {2: ("a", 2, False, True)}
    merge(log.root, warehouse, policies=Policies(TablePolicy(mode="soft_delete")))  # it keeps the column
