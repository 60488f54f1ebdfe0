"""Which tables are read again because a setting for values changed, and which are not."""

from __future__ import annotations

import pyarrow as pa
import pytest

from cdcflow.model.rereading import pending, retried, without
from cdcflow.model.table import Column, Table, TableId
from cdcflow.model.types import ColumnType
from cdcflow.sources.engine.policies import Kept, Policies, from_json, noted, otherwise, reread, to_json

DATE = ColumnType("date", pa.date32())
ORDERS = Table(TableId("shop", "orders"), 1, (Column("id", 1, DATE), Column("due", 2, DATE)), ("id",))
ITEMS = Table(TableId("shop", "items"), 2, (Column("id", 1, DATE),), ("id",))


def before(**kept: Kept) -> dict[str, str]:
    numbers = {"id": 1, "due": 2}
    return {"policies": to_json({ORDERS.id: {numbers[name]: one for name, one in kept.items()}})}


@pytest.mark.parametrize(
    ("then", "now"),
    [
        (Kept(special="null"), Kept(special="clamp")),
        (Kept(special="null"), Kept()),
        (Kept(special="replace"), Kept()),
        (Kept(), Kept("text")),
        (Kept("text"), Kept()),
        (Kept("text"), Kept("decimal128(10, 2)")),
    ],
)
def test_rows_that_the_old_setting_converted_differently_are_read_again(then: Kept, now: Kept) -> None:
    """A NULL that replaces infinity stays in the log until the row is read again."""
    assert reread(before(due=then), {ORDERS: {2: now}}) == {ORDERS.id: f"due: {then} → {now}"}


@pytest.mark.parametrize("now", [Kept(special="null"), Kept(special="clamp"), Kept()])
def test_what_stopped_before_left_nothing_to_read_again(now: Kept) -> None:
    """Setting clamp after a stop must not cost reading a whole table: no such value has reached the log."""
    assert reread(before(due=Kept()), {ORDERS: {2: now}}) == {}


def test_column_that_was_added_since_is_no_reason() -> None:
    """The general setting applied to its rows; where a setting names the column, it was kept plainly."""
    assert reread(before(), {ORDERS: {2: Kept("text")}}) == {}
    assert reread(before(), {ORDERS: {2: Kept("text", by_name=True)}}) == {ORDERS.id: "due: stop → as text"}


def test_column_that_is_gone_is_no_reason_and_one_that_is_plain_again_is() -> None:
    """Only existing columns are compared, including those that no setting concerns any longer."""
    old = {"policies": to_json({ORDERS.id: {9: Kept(special="null")}})}
    assert reread(old, {ORDERS: {}}) == {}
    assert reread(before(due=Kept("text")), {ORDERS: {}}) == {ORDERS.id: "due: as text → stop"}


def test_table_that_is_new_or_of_an_older_log_is_not_compared() -> None:
    """A new table is read anyway; a log of an earlier cdcflow does not record how values were kept."""
    assert reread(before(due=Kept("text")), {ITEMS: {1: Kept(special="null")}}) == {}
    assert reread({}, {ORDERS: {2: Kept("text")}}) == {}


def test_order_stays_until_it_is_taken_out() -> None:
    """A crash between the checkpoint with the new settings and the cut that requests the reading must not lose the
    request."""
    first = noted(before(due=Kept(special="null")), {ORDERS: {2: Kept()}, ITEMS: {}})
    assert pending(first) == {ORDERS.id}
    second = noted(first, {ORDERS: {2: Kept()}, ITEMS: {}})
    assert second == first
    assert pending(noted(without(second), {ORDERS: {2: Kept()}})) == frozenset()


def test_request_for_an_excluded_table_is_removed_with_it() -> None:
    """It is no longer captured, and is read again if it ever is captured again."""
    first = noted(before(due=Kept(special="null")), {ORDERS: {2: Kept()}})
    assert pending(noted(first, {ITEMS: {}})) == frozenset()


def test_policies_are_read_back_unchanged() -> None:
    """Names with quotes and dots."""
    policies: Policies = {TableId('a"b', "c.d"): {3: Kept("text", "clamp")}, ORDERS.id: {}}
    assert from_json(to_json(policies)) == policies


@pytest.mark.parametrize("now", [{2: Kept(special="clamp")}, {2: Kept("text", by_name=True)}, {}])
def test_any_other_setting_is_a_reason_to_try_a_reading_that_failed(now: dict[int, Kept]) -> None:
    """Also for a table that is not read again: the value that stopped it may be allowed now. It is reported until it
    is requested."""
    old = before(due=Kept("text") if not now else Kept())
    assert otherwise(old, {ORDERS: now, ITEMS: {1: Kept("text")}}).keys() == {ORDERS.id}
    first = noted(old, {ORDERS: now})
    assert retried(first) == {ORDERS.id}
    assert retried(noted(first, {ORDERS: now})) == {ORDERS.id}
    assert retried(noted(without(first), {ORDERS: now})) == frozenset()
    assert otherwise({}, {ORDERS: now}) == otherwise(before(), {ORDERS: {}}) == {}
