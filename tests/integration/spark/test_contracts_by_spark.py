"""Contracts of tables that Spark merges: what the local engine would write is written, and nothing else."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest
from tests.support.log.hand_log import HandLog
from tests.support.merge.contracts import random_contracts, rows_of
from tests.support.merge.histories import make_table, make_world, write_round

from cdcflow import local
from cdcflow.errors import InvariantViolated
from cdcflow.model.table import TableId
from cdcflow.spark import contract_check, job
from cdcflow.spark.contract_check import SparkContractCheck
from cdcflow.spark.runtime.sessions import FAST_DELTA
from cdcflow.tables.formats import FORMATS
from cdcflow.tables.merge import checked_rows
from cdcflow.tables.merge.contract import ColumnPromise, ContractBroken, OnViolation, quarantine_of
from cdcflow.tables.merge.policy import Mode, Policies, TablePolicy

pytestmark = pytest.mark.spark

SEED = int(os.environ.get("CDCFLOW_CONTRACT_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)
ORDERS = make_table("orders", id="int64", customer="string", amount="int32")
QUARANTINE = str(quarantine_of(ORDERS.id))


def promised(on_violation: OnViolation = "quarantine", mode: Mode = "current", check: str = "amount >= 0") -> Policies:
    promise = ColumnPromise("amount", check=check, on_violation=on_violation, setting=str(ORDERS.id))
    return Policies(TablePolicy(mode=mode), contracts={str(ORDERS.id): (promise,)})


def order(id_: int, amount: int | None, customer: str = "Ada") -> dict[str, Any]:
    return {"id": id_, "customer": customer, "amount": amount}


@pytest.mark.spread(1)
@pytest.mark.parametrize("table_format", FORMATS)
def test_row_that_breaks_its_contract_is_in_quarantine_until_it_is_corrected(
    spark: Any, hand_log: HandLog, warehouse: Path, table_format: str, tmp_path: Path
) -> None:
    """A condition means the same whatever merges the table, and its quarantine has the same rows."""
    hand_log.state(ORDERS)
    steps = [
        [("c", order(1, 5)), ("c", order(2, -3)), ("c", order(3, None))],
        [("u", order(1, -1)), ("u", order(3, 7, "Bob"))],
        [("u", order(1, 8)), ("u", order(2, 2)), ("d", {"id": 3})],
    ]
    ids = [[1, 3], [3], [1, 2]]
    other = tmp_path / "by the local engine"
    for changes, there in zip(steps, ids, strict=True):
        hand_log.segment([(ORDERS, op, values) for op, values in changes])
        given: dict[str, Any] = {"table_format": table_format, "policies": promised()}
        reports = job.merge(spark, hand_log.root, warehouse, **given), local.merge(hand_log.root, other, **given)
        assert [report.tables[0].quarantined for report in reports] == [1 - (there == [1, 2])] * 2
        for table in (ORDERS.id, quarantine_of(ORDERS.id)):
            found, expected = (rows_of(place, table_format, table) for place in (warehouse, other))
            assert found == expected
        assert sorted(local.read_cut(warehouse)[str(ORDERS.id)]["id"].to_pylist()) == there


WAYS: dict[str, tuple[Mode, ...]] = {
    "delta": ("current", "soft_delete", "append", "history"),
    "delta by statements": ("current", "soft_delete"),
    "iceberg": ("current", "append", "history"),
}


@pytest.mark.long
@pytest.mark.timeout(3600)  # each round merges all tables with both engines: 2 to 15 minutes on a busy machine
@pytest.mark.parametrize(("way", "mode"), [(way, mode) for way, modes in WAYS.items() for mode in modes])
def test_both_engines_write_and_keep_out_the_same_rows_of_random_histories(
    spark: Any, tmp_path: Path, way: str, mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Partial rows, key changes, truncates, columns that change: a row whose values the table has is checked with
    these. Whatever way Spark commits: marked rows, a MERGE, an append."""
    seed = f"{SEED} {way} {mode}"
    chance = random.Random(seed)
    world, table_format = make_world(chance.randrange(10**6), 25), way.split()[0]
    policies = random_contracts(chance, mode)
    log = HandLog(tmp_path / "log", has_transactions=True)
    places = {name: tmp_path / name for name in ("spark", "local")}
    before = spark.conf.get(FAST_DELTA, "true")
    spark.conf.set(FAST_DELTA, str(way == "delta").lower())
    try:
        for round_ in range(4):
            write_round(world, log, round_)
            given: dict[str, Any] = {"table_format": table_format, "policies": policies}
            reports = {
                "spark": job.merge(spark, log.root, places["spark"], **given),
                "local": local.merge(log.root, places["local"], **given),
            }
            told = {
                name: [(t.name, t.left_out, t.warned, t.quarantined) for t in report.tables]
                for name, report in reports.items()
            }
            assert told["spark"] == told["local"], (seed, round_)
            for name in world.tables:
                table = TableId("public", name)
                for one in (table, quarantine_of(table)):
                    found, expected = (rows_of(places[by], table_format, one) for by in ("spark", "local"))
                    assert found == expected, (seed, round_, str(one))
    finally:
        spark.conf.set(FAST_DELTA, before)


@pytest.mark.long
@pytest.mark.parametrize("table_format", FORMATS)
@pytest.mark.parametrize("is_before", [True, False], ids=["before the quarantine", "after it"])
def test_merge_that_dies_before_its_commit_writes_no_row_of_quarantine_twice(
    spark: Any, hand_log: HandLog, warehouse: Path, table_format: str, is_before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The two commits are separate. The reverse order could lose a row."""
    hand_log.state(ORDERS)
    hand_log.segment([(ORDERS, "c", order(1, 5)), (ORDERS, "c", order(2, -5))])
    given: dict[str, Any] = {"table_format": table_format, "policies": promised()}

    def die(*_: Any, **__: Any) -> None:
        raise InvariantViolated("killed by the test")

    with monkeypatch.context() as patch:
        patch.setattr(*((SparkContractCheck, "_write", die) if is_before else (checked_rows, "without_rows", die)))
        with pytest.raises(InvariantViolated, match="killed by the test"):
            job.merge(spark, hand_log.root, warehouse, **given)
    hand_log.segment([(ORDERS, "u", order(1, -6))])
    assert job.merge(spark, hand_log.root, warehouse, **given).tables[0].left_out is None
    assert len(rows_of(warehouse, table_format, quarantine_of(ORDERS.id))) == 2
    assert rows_of(warehouse, table_format, ORDERS.id) == []


@pytest.mark.long
def test_stop_and_warning_have_the_words_of_the_local_engine(spark: Any, hand_log: HandLog, warehouse: Path) -> None:
    """The message leads to the row's change, and has no value of it."""
    hand_log.state(ORDERS)
    hand_log.segment([(ORDERS, "c", order(1, 5)), (ORDERS, "c", order(2, -3)), (ORDERS, "c", order(3, -4))])
    with pytest.raises(ContractBroken, match=r"2 rows break amount: check; the first one is at offset 2 of the log"):
        job.merge(spark, hand_log.root, warehouse, policies=promised("stop"))
    with pytest.raises(ContractBroken, match=r"condition for amount cannot be used: it failed \(ConversionEx\w+\)\n"):
        job.merge(spark, hand_log.root, warehouse, policies=promised(check="CAST(customer AS integer) > 0"))
    with pytest.raises(ContractBroken, match="there is no column amounts; did you mean amount"):
        job.merge(spark, hand_log.root, warehouse, policies=promised(check="amounts > 0"))
    report = job.merge(spark, hand_log.root, warehouse, policies=promised("warn"))
    assert report.tables[0].warned == {"amount: check": 2}


@pytest.mark.long
def test_executors_without_duckdb_are_named(
    spark: Any, hand_log: HandLog, warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table that is merged without its check would look like one that was checked."""
    hand_log.state(ORDERS)
    hand_log.segment([(ORDERS, "c", order(1, 5))])
    monkeypatch.setattr(contract_check, "_CountTask", _LackingTask)
    with pytest.raises(ContractBroken, match="in the Python of Spark's executors, duckdb_of_no_one is not installed"):
        job.merge(spark, hand_log.root, warehouse, policies=promised())


class _LackingTask:
    def __init__(self, *_: Any) -> None:
        pass

    def __call__(self, batches: Any) -> Any:
        import duckdb_of_no_one  # type: ignore[import-not-found]  # noqa: F401

        yield from batches
