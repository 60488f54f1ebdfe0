"""Which table an operator most likely meant."""

from __future__ import annotations

import pytest

from cdcflow.model.suggestions import did_you_mean

TABLES = ("public.orders", "public.order_lines", "sales.Customers", "archive.orders")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("public.order", "did you mean public.orders? "),
        ("PUBLIC.ORDERS", "did you mean public.orders? "),
        ("orders", "did you mean archive.orders or public.orders? "),
        ("sales.customers", "did you mean sales.Customers? "),
        ("public.ordres", "did you mean public.orders? "),
        ("inventory.bins", ""),
        ("", ""),
    ],
)
def test_the_nearest_table_is_named(name: str, expected: str) -> None:
    """A remedy that lists a thousand tables does not help with one wrong letter."""
    assert did_you_mean(name, TABLES) == expected
