"""Contracts of tables, through a whole pipeline: what a table shows, what stops it, and what is kept out of it."""

from __future__ import annotations

import sys
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest
from pydantic import ValidationError
from tests.support.docs.pages import DOCS, first_of
from tests.support.log.hand_log import HandLog
from tests.support.merge.histories import make_table
from tests.unit.rehearsal.test_played import ORDERS, settings

from cdcflow import local, wiring
from cdcflow.errors import InvariantViolated
from cdcflow.model.table import TableId
from cdcflow.rehearsal.scratch import ScratchPipeline
from cdcflow.spark.sql import StatementTable
from cdcflow.tables.job.explanation import explain
from cdcflow.tables.local.row_changes import RowChanges
from cdcflow.tables.merge.contract import ColumnPromise, ContractBroken, ContractResult
from cdcflow.tables.merge.modes import CURRENT
from cdcflow.tables.merge.policy import Mode, Policies, TablePolicy
from cdcflow.testing import pipeline
from cdcflow.wiring.type_names import column_type

FORMATS = pytest.mark.parametrize("format_", ["delta", "iceberg"])
BEFORE = {"public.orders": [{"id": 1, "customer": "Ada", "amount": "1.00"}]}
QUARANTINE = "public.orders__quarantine"


def promised(column: str = "amount", format_: str = "delta", mode: str = "current", **promise: Any) -> Any:
    merge = {"format": format_, "tables": {"mode": mode}}
    return settings(contracts={"public.orders": {column: promise}}, merge=merge)


def insert(*rows: dict[str, Any]) -> dict[str, Any]:
    return {"insert": {"public.orders": list(rows)}}


def update(**row: Any) -> dict[str, Any]:
    return {"update": {"public.orders": [row]}}


def rows(*amounts: tuple[int, str]) -> dict[str, Any]:
    return {"public.orders": [{"id": id_, "amount": amount} for id_, amount in amounts]}


@FORMATS
def test_table_that_stops_shows_no_such_row_and_continues_once_the_source_is_corrected(format_: str) -> None:
    """The remedy of the message is followed to the letter; the other table continues."""
    other = {"public.other": {"columns": {"id": "integer"}, "key": ["id"]}}
    reason = "amount: check; the first one is at offset 3"
    added = {"insert": {"public.other": [{"id": 1}]}}
    pipeline.check(
        promised(check="amount >= 0", format_=format_),
        tables={**ORDERS, **other},
        before=BEFORE,
        changes=[added],
        expected={**rows((1, "1.00")), "public.other": [{"id": 1}]},
        then=[
            {
                "changes": [insert({"id": 2, "amount": "-1"}, {"id": 3, "amount": "3"}), update(id=1, amount="2")],
                "excluded": {"public.orders": reason},
                "tables": {"public.other": [{"id": 1}]},
            },
            {"changes": [update(id=2, amount="0")], "tables": rows((1, "2.00"), (2, "0.00"), (3, "3.00"))},
        ],
    )


@pytest.mark.spread(2)
@FORMATS
@pytest.mark.parametrize("mode", ["current", "soft_delete"])
def test_quarantined_row_is_not_in_the_table_and_returns_when_it_is_corrected(format_: str, mode: str) -> None:
    """An older version would be a row that the source does not have; so it goes, too."""
    pipeline.check(
        promised(check="amount >= 0", on_violation="quarantine", format_=format_, mode=mode),
        tables=ORDERS,
        before=BEFORE,
        changes=[insert({"id": 2, "customer": "Bob", "amount": "-5"}, {"id": 3, "amount": "3"})],
        expected={
            **rows((1, "1.00"), (3, "3.00")),
            QUARANTINE: [{"_offset": 2, "_reason": "amount: check"}],
        },
        then=[
            {
                "changes": [update(id=1, amount="-2")],
                "tables": {
                    **rows((3, "3.00")),
                    QUARANTINE: [{"_offset": o, "_reason": "amount: check"} for o in (2, 4)],
                },
            },
            {
                "changes": [update(id=1, amount="7"), update(id=2, amount="8")],
                "tables": rows((1, "7"), (2, "8"), (3, "3")),
            },
        ],
    )


def test_row_that_is_corrected_in_the_same_range_breaks_nothing() -> None:
    """The table never showed it."""
    changes = [insert({"id": 2, "amount": "-5"}), update(id=2, amount="5")]
    pipeline.check(
        promised(check="amount >= 0"), tables=ORDERS, before=BEFORE, changes=changes, expected=rows((1, "1"), (2, "5"))
    )


@pytest.mark.parametrize("mode", ["append", "history"])
def test_each_change_counts_where_the_table_has_each(mode: str) -> None:
    """A correction does not undo the row that a reader would see; a delete has no values."""
    gone = {"delete": {"public.orders": [{"id": 1}]}} if mode == "append" else update(id=1, amount="2")
    seen = [{"id": 1, "_op": op} for op in "rd"] if mode == "append" else [{"id": 1, "amount": 2}]
    wrong = [insert({"id": 2, "amount": "-5"}), update(id=2, amount="5")]
    pipeline.check(
        promised(check="amount >= 0", not_null=True, mode=mode),
        tables=ORDERS,
        before=BEFORE,
        changes=[gone],
        expected={"public.orders": seen},
        then=[
            {"changes": wrong, "excluded": {"public.orders": "1 rows break amount: check"}},
            {"excluded": {"public.orders": "of the log\n  change contracts.'public.orders'.amount"}},
        ],
    )


def test_null_breaks_not_null_and_passes_a_condition() -> None:
    null = insert({"id": 2, "customer": "Bob"})
    case: dict[str, Any] = {"tables": ORDERS, "before": BEFORE, "changes": [null]}
    pipeline.check(promised(not_null=True), **case, excluded={"public.orders": "1 rows break amount: not_null"})
    pipeline.check(promised(check="amount > 0"), **case, expected={"public.orders": [{"id": 1}, {"id": 2}]})


def test_value_that_the_log_does_not_repeat_is_that_of_the_table() -> None:
    """Unchanged is not NULL: an update without the large value keeps it."""
    change = {"where": {"id": 1}, "set": {"amount": "2"}, "unchanged": ["customer"]}
    pipeline.check(
        promised("customer", not_null=True, check="customer <> '' AND amount < 3"),
        tables=ORDERS,
        before=BEFORE,
        changes=[{"update": {"public.orders": [change]}}],
        expected={"public.orders": [{"id": 1, "customer": "Ada", "amount": "2.00"}]},
        then=[{"changes": [update(id=1, amount="3")], "excluded": {"public.orders": "customer: check"}}],
    )


def test_warning_leaves_the_row_in_the_table() -> None:
    pipeline.check(
        promised(check="amount >= 0", on_violation="warn"),
        tables=ORDERS,
        before=BEFORE,
        changes=[insert({"id": 2, "amount": "-5"})],
        expected=rows((1, "1"), (2, "-5")),
    )


def test_type_is_promised_before_the_table_follows_its_source() -> None:
    """A reader's program fails at another type, not at another value."""
    pipeline.check(promised(type="numeric(12, 2)"), tables=ORDERS, before=BEFORE, expected=rows((1, "1")))
    wrong = "column amount is decimal(12,2), and decimal(10,2) is promised"
    pipeline.check(promised(type="decimal(10,2)"), tables=ORDERS, before=BEFORE, excluded={"public.orders": wrong})
    pipeline.check(
        promised("id", type="integer"),
        tables=ORDERS,
        before=BEFORE,
        expected=rows((1, "1")),
        then=[
            {
                "changes": [{"alter": {"public.orders": {"type": {"id": "bigint"}}}}, insert({"id": 2})],
                "excluded": {"public.orders": "column id is bigint, and integer is promised"},
            }
        ],
    )


def test_condition_is_data_and_never_code() -> None:
    """Who may write settings of contracts may not read files, call functions with effects, or end the statement. What
    else conditions may not have: `tests/unit/tables/test_conditions.py`."""
    words = "condition for amount cannot be used: it calls read_text(), which conditions do not support"
    check = "read_text('/etc/passwd') = ''"
    pipeline.check(promised(check=check), tables=ORDERS, before=BEFORE, excluded={"public.orders": words})


def test_condition_that_fails_is_named_without_a_value() -> None:
    """Another column's condition is right; the text of a row may be a secret."""
    contract = {"id": {"check": "id > 0"}, "customer": {"check": "CAST(customer AS integer) > 0"}}
    words = "condition for customer cannot be used: it failed (ConversionException)"
    given = settings(contracts={"public.orders": contract})
    pipeline.check(given, tables=ORDERS, before=BEFORE, excluded={"public.orders": words})


@pytest.mark.parametrize(
    "check",
    [
        "amount >= 0 -- and a comment",
        "customer IN ('Ada', 'it''s) OR (1=1') AND amount BETWEEN 0 AND 2",
        "length(trim(customer)) > 0 AND customer LIKE 'A%' AND note IS NULL",
        "CASE WHEN customer = 'Ada' THEN CAST(amount AS integer) = 1 ELSE false END",
        "\"amount\" * 2 >= amount AND NOT starts_with(lower(customer), 'b')",
    ],
)
def test_condition_may_use_columns_values_and_functions_of_them(check: str) -> None:
    pipeline.check(promised(check=check), tables=ORDERS, before=BEFORE, expected=rows((1, "1")))


def test_example_of_the_page_passes(tmp_path: Path) -> None:
    """The page shows a test that a reader can run."""
    for kind, name in (("yaml", "cdcflow.yaml"), ("yml", "orders.yaml")):
        (tmp_path / name).write_text(first_of(DOCS / "contracts.md", kind))
    pipeline.check_file(tmp_path / "cdcflow.yaml", tmp_path / "orders.yaml")


@FORMATS
def test_merge_that_dies_after_its_quarantine_writes_no_row_twice(
    format_: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The two commits are separate; a second record would count a row twice."""
    deaths: list[int] = []
    check = RowChanges._rows_to_write

    def die_once(self: Any, given: pa.Table) -> pa.Table:
        found = check(self, given)
        if len(found) < len(given) and not deaths:
            deaths.append(1)
            raise InvariantViolated("killed by the test")
        return found

    monkeypatch.setattr(RowChanges, "_rows_to_write", die_once)
    pipeline.check(
        promised(check="amount >= 0", on_violation="quarantine", format_=format_),
        tables=ORDERS,
        before=BEFORE,
        changes=[insert({"id": 2, "amount": "-5"})],
        excluded={"public.orders": "killed by the test"},
        then=[
            {
                "changes": [insert({"id": 3, "amount": "-6"})],
                "tables": {**rows((1, "1")), QUARANTINE: [{"_offset": 2}, {"_offset": 3}]},
            }
        ],
    )
    assert deaths


@pytest.mark.parametrize("mode", ["current", "soft_delete", "append", "history"])
def test_rows_from_before_the_contract_are_not_checked(tmp_path: Path, mode: Mode) -> None:
    """A contract for new rows must be possible while old ones break it, also if their file is written again."""
    log, orders = HandLog(tmp_path / "log", has_transactions=True), make_table("orders", id="int64", amount="int32")
    log.state(orders)
    log.segment([(orders, "c", {"id": 1, "amount": -1}), (orders, "c", {"id": 2, "amount": 1})])
    policy = TablePolicy(mode=mode)
    local.merge(log.root, tmp_path / "tables", policies=Policies(policy))
    log.segment([(orders, "u", {"id": 2, "amount": 2})])
    contracts = {str(orders.id): (ColumnPromise("amount", check="amount > 0"),)}
    report = local.merge(log.root, tmp_path / "tables", policies=Policies(policy, contracts=contracts))
    assert report.tables[0].left_out is None
    assert set(local.read_cut(tmp_path / "tables")["public.orders"]["id"].to_pylist()) == {1, 2}


def test_spark_without_duckdb_refuses_a_table_with_a_contract(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table that is merged without its check would look like one that was checked."""
    contract, there = (ColumnPromise("id", not_null=True),), Mock()
    monkeypatch.delitem(sys.modules, "cdcflow.tables.local.contract_rules", raising=False)
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(ContractBroken, match="in the Python, duckdb is not installed"):
        StatementTable.check_rows(there, TableId("public", "orders"), contract, CURRENT, Mock(), ContractResult(), {})


@pytest.mark.parametrize(
    ("contracts", "words"),
    [
        ({"orders": {"id": {"not_null": True}}}, "must be the name of one table"),
        ({"public.orders": {"id": {}}}, "promises nothing"),
        ({"public.orders": {"id": {"not_null": True, "on_violation": "skip"}}}, "on_violation"),
        ({"derived.totals": {"id": {"not_null": True}}}, "a derived table, whose rows no contract checks"),
    ],
)
def test_contract_that_would_not_be_checked_is_refused(contracts: dict[str, Any], words: str) -> None:
    """A promise without a check is worse than none."""
    derive = {"totals": {"key": ["id"], "sql": "SELECT id FROM public.orders"}}
    with pytest.raises(ValidationError, match=words):
        settings(contracts=contracts, merge={"derive": derive})


ROUTED = {"public.orders": "shop.sales"}


@pytest.mark.parametrize("mode_under", ["public.orders", "shop.sales"])
@pytest.mark.parametrize("contract_under", ["public.orders", "shop.sales"])
def test_contract_and_mode_of_a_routed_table_count_under_whichever_name_each_has(
    mode_under: str, contract_under: str
) -> None:
    """Neither hides the other."""
    promise = {"amount": {"check": "amount >= 0", "on_violation": "quarantine"}}
    tables = {"routes": ROUTED, "each": {mode_under: {"mode": "soft_delete"}}}
    pipeline.check(
        settings(contracts={contract_under: promise}, merge={"tables": tables}),
        tables=ORDERS,
        before=BEFORE,
        changes=[insert({"id": 2, "amount": "-5"}), {"delete": {"public.orders": [{"id": 1}]}}],
        expected={"shop.sales": [{"id": 1, "_is_deleted": True}], QUARANTINE: [{"_reason": "amount: check"}]},
    )


@pytest.mark.parametrize(
    ("promise", "reason"),
    [
        ({"shard": {"check": "shard <> '2'"}}, "1 rows break shard: check"),
        ({"shard": {"type": "int"}}, "column shard is string, and int is promised"),
    ],
)
def test_contract_of_many_tables_in_one_may_be_about_the_column_that_distinguishes_them(
    promise: dict[str, Any], reason: str
) -> None:
    """The remedy names the setting by its name in the file."""
    shard = {"columns": {"id": "integer"}, "key": ["id"]}
    merge = {"tables": {"routes": {r"shard_(?P<shard>\d+)\.orders": "shop.orders"}}}
    pipeline.check(
        settings(contracts={"shop.orders": promise}, merge=merge, source={"tables": ["shard_2.*"]}),
        tables={"shard_2.orders": shard},
        before={"shard_2.orders": [{"id": 1}]},
        excluded={"shard_2.orders": reason},
        then=[{"excluded": {"shard_2.orders": "change contracts.'shop.orders'.shard in the settings"}}],
    )


def test_table_that_is_excluded_from_the_first_cut_is_a_failure_with_its_reason() -> None:
    """A contract has the names of columns that the table has in the warehouse."""
    renamed = {"public.orders": {"columns": {"amount": {"rename": "total"}}}}
    given = settings(tables=renamed, contracts={"public.orders": {"amount": {"not_null": True}}})
    with pytest.raises(AssertionError, match="contract for column amount, and no such column"):
        pipeline.check(given, tables=ORDERS, before=BEFORE, expected={"public.orders": [{"id": 1}]})


def test_explanation_of_a_row_in_quarantine_does_not_call_it_a_row_of_the_table(tmp_path: Path) -> None:
    table = TableId("public", "orders")
    given = promised(check="amount >= 0", on_violation="quarantine")
    pipeline_ = ScratchPipeline(given, tmp_path, [table])
    kinds = {"id": "integer", "customer": "text", "amount": "numeric(12,2)"}
    types = {name: column_type(given, table, name, kind) for name, kind in kinds.items()}
    pipeline_.database.create(table, types, ("id",))
    transaction = pipeline_.database.begin()
    for id_, amount in ((1, "1.00"), (2, "-1.00")):
        transaction.insert(table, {**dict.fromkeys(types), "id": id_, "amount": Decimal(amount)})
    transaction.commit()
    pipeline_.run(lambda: None)
    config = pipeline_.config
    found = {
        key: explain(
            wiring.log_reader(config),
            wiring.reading_engine(config).cuts(),
            "public.orders",
            key=[key],
            is_kept_out=partial(wiring.is_in_quarantine, config),
        ).row_state
        for key in ("1", "2")
    }
    assert found == {"1": "in the table", "2": "in quarantine"}


@pytest.mark.parametrize("routed", [False, True])
def test_table_derived_from_one_that_its_contract_stops_is_excluded_for_that(routed: bool) -> None:
    other = {"public.other": {"columns": {"id": "integer"}, "key": ["id"]}}
    name = "shop.sales" if routed else "public.orders"
    derive = {"totals": {"key": ["customer"], "sql": f"SELECT customer, count(*) AS n FROM {name} GROUP BY customer"}}
    merge = {"derive": derive, "tables": {"routes": ROUTED if routed else {}}}
    pipeline.check(
        settings(contracts={name: {"amount": {"check": "amount > 5"}}}, merge=merge),
        tables={**ORDERS, **other},
        before={**BEFORE, "public.other": [{"id": 1}]},
        excluded={
            "public.orders": "1 rows break amount: check",
            "derived.totals": f"its input {name} is not in this cut\n  see why {name} is not",
        },
        expected={"public.other": [{"id": 1}]},
    )


def test_route_to_the_name_of_a_derived_table_is_refused() -> None:
    derive = {"totals": {"key": ["id"], "sql": "SELECT id FROM public.other"}}
    with pytest.raises(ValidationError, match=r"has derived.totals, which merge.derive computes"):
        settings(merge={"derive": derive, "tables": {"routes": {"public.orders": "derived.totals"}}})
