"""Which table of the warehouse gets the rows of a captured table, from the settings."""

from __future__ import annotations

import pytest

from cdcflow.model.routes import Destination, Routes, TableRoute
from cdcflow.model.table import TableId

SHARDS = r"shard_(?P<shard>\d+)\.orders"
TENANTS = r"t(?P<tenant>\w+)\.(?P<name>.+)"


@pytest.mark.parametrize(
    ("routes", "table", "target", "key"),
    [
        ({"public.orders": "shop.sold"}, ("public", "orders"), ("shop", "sold"), {}),
        ({"public.orders": "shop.sold"}, ("public", "ordersx"), ("public", "ordersx"), {}),
        ({"a.b.c": "x.y"}, ("a", "b.c"), ("x", "y"), {}),
        ({"publicXorders": "shop.sold"}, ("public", "orders"), ("public", "orders"), {}),
        ({"public.orders": "shop.sold"}, ("publicX", "orders"), ("publicX", "orders"), {}),
        ({SHARDS: "shop.orders"}, ("shard_12", "orders"), ("shop", "orders"), {"shard": "12"}),
        ({SHARDS: "shop.orders"}, ("shard_1", "orders_old"), ("shard_1", "orders_old"), {}),
        ({TENANTS: "shop.{name}"}, ("t7", "a.b{x}"), ("shop", "a.b{x}"), {"tenant": "7"}),
        ({r"(?P<s>\w+)_(?:\d+)\.t": "{s}.t"}, ("x_1", "t"), ("x", "t"), {}),
        ({"public.orders": "shop.a.b"}, ("public", "orders"), ("shop", "a.b"), {}),
        ({"shard_1.orders": "shop.first", SHARDS: "shop.orders"}, ("shard_1", "orders"), ("shop", "first"), {}),
    ],
)
def test_table_goes_where_the_first_route_that_matches_says(
    routes: dict[str, str], table: tuple[str, str], target: tuple[str, str], key: dict[str, str]
) -> None:
    """A name is data: what a group matched cannot change which part of the target it is in."""
    for route in Routes.of(routes).listed:
        route.check()
    assert Routes.of(routes).destination(TableId(*table)) == Destination(TableId(*target), key)


@pytest.mark.parametrize(
    ("pattern", "name", "why"),
    [
        (r"shard_(\d+)\.orders", "shop.orders", "a group without a name"),
        (r"shard_(?P<shard>\d+\.orders", "shop.orders", "not a regular expression"),
        (SHARDS, "orders", "schema.table"),
        (SHARDS, ".orders", "schema.table"),
        (SHARDS, "shop.", "schema.table"),
        (SHARDS, "shop.{table}", "has no group table: it has shard"),
        (r"(?P<_s>\d+)\.orders", "shop.orders", "cannot begin with _"),
    ],
)
def test_route_that_means_nothing_is_refused(pattern: str, name: str, why: str) -> None:
    """A mistake in a pattern would otherwise lose rows, or show as a table in the wrong place."""
    with pytest.raises(ValueError, match=why):
        TableRoute(pattern, name).check()
