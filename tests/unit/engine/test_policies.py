"""Which tables are read again because a setting for values changed, and which are not."""

from __future__ import annotations

import pyarrow as pa
import pytest

from cdcflow.model.table import Column, Table, TableId
from cdcflow.model.types import ColumnType
from cdcflow.sources.engine.policies import (
    ColumnPolicy,
    Policies,
    by_table,
    from_json,
    otherwise,
    reread,
    tables_to_reread,
    to_json,
)

DATE = ColumnType("date", pa.date32())
ORDERS = Table(TableId("shop", "orders"), 1, (Column("id", 1, DATE), Column("due", 2, DATE)), ("id",))
ITEMS = Table(TableId("shop", "items"), 2, (Column("id", 1, DATE),), ("id",))


def before(**kept: ColumnPolicy) -> Policies:
    numbers = {"id": 1, "due": 2}
    return {ORDERS.id: {numbers[name]: one for name, one in kept.items()}}


@pytest.mark.parametrize(
    ("then", "now"),
    [
        (ColumnPolicy(special="null"), ColumnPolicy(special="clamp")),
        (ColumnPolicy(special="null"), ColumnPolicy()),
        (ColumnPolicy(special="replace"), ColumnPolicy()),
        (ColumnPolicy(), ColumnPolicy("text")),
        (ColumnPolicy("text"), ColumnPolicy()),
        (ColumnPolicy("text"), ColumnPolicy("decimal128(10, 2)")),
    ],
)
def test_rows_that_the_old_setting_converted_differently_are_read_again(then: ColumnPolicy, now: ColumnPolicy) -> None:
    """A NULL that replaces infinity stays in the log until the row is read again."""
    assert reread(before(due=then), {ORDERS: {2: now}}) == {ORDERS.id: f"due: {then} → {now}"}


@pytest.mark.parametrize("now", [ColumnPolicy(special="null"), ColumnPolicy(special="clamp"), ColumnPolicy()])
def test_policy_that_replaces_stop_needs_nothing_read_again(now: ColumnPolicy) -> None:
    """Setting clamp after a stop must not cost reading a whole table: no such value has reached the log."""
    assert reread(before(due=ColumnPolicy()), {ORDERS: {2: now}}) == {}


def test_column_that_was_added_since_is_no_reason() -> None:
    """The general setting applied to its rows; where a setting names the column, it was kept plainly."""
    assert reread(before(), {ORDERS: {2: ColumnPolicy("text")}}) == {}
    assert reread(before(), {ORDERS: {2: ColumnPolicy("text", by_name=True)}}) == {ORDERS.id: "due: stop → as text"}


def test_column_that_is_gone_is_no_reason_and_one_that_is_plain_again_is() -> None:
    """Only existing columns are compared, including those that no setting concerns any longer."""
    old: Policies = {ORDERS.id: {9: ColumnPolicy(special="null")}}
    assert reread(old, {ORDERS: {}}) == {}
    assert reread(before(due=ColumnPolicy("text")), {ORDERS: {}}) == {ORDERS.id: "due: as text → stop"}


def test_table_that_is_new_or_of_an_older_log_is_not_compared() -> None:
    """A new table is read anyway; a log of an earlier cdcflow does not record how values were kept."""
    assert reread(before(due=ColumnPolicy("text")), {ITEMS: {1: ColumnPolicy(special="null")}}) == {}
    assert reread(None, {ORDERS: {2: ColumnPolicy("text")}}) == {}


def test_tables_to_read_again_are_reported_once() -> None:
    """The next start compares with what this one stores; until the request is durable, the capture remembers it."""
    now = {ORDERS: {2: ColumnPolicy()}, ITEMS: {}}
    assert tables_to_reread(before(due=ColumnPolicy(special="null")), now).tables == {ORDERS.id}
    assert not tables_to_reread(by_table(now), now)


def test_policies_are_read_back_unchanged() -> None:
    """Names with quotes and dots."""
    policies: Policies = {TableId('a"b', "c.d"): {3: ColumnPolicy("text", "clamp")}, ORDERS.id: {}}
    assert from_json(to_json(policies)) == policies


@pytest.mark.parametrize("now", [{2: ColumnPolicy(special="clamp")}, {2: ColumnPolicy("text", by_name=True)}, {}])
def test_any_other_setting_is_a_reason_to_try_a_reading_that_failed(now: dict[int, ColumnPolicy]) -> None:
    """Also for a table that is not read again: the value that stopped it may be allowed now."""
    old = before(due=ColumnPolicy("text") if not now else ColumnPolicy())
    assert otherwise(old, {ORDERS: now, ITEMS: {1: ColumnPolicy("text")}}).keys() == {ORDERS.id}
    assert tables_to_reread(old, {ORDERS: now}).retried == {ORDERS.id}
    assert not tables_to_reread(by_table({ORDERS: now}), {ORDERS: now})
    assert otherwise(None, {ORDERS: now}) == otherwise(before(), {ORDERS: {}}) == {}
