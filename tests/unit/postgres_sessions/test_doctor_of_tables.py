"""What doctor finds about tables: columns that are not published, kinds that have no changes themselves."""

from __future__ import annotations

import pytest

from cdcflow.model.table import TableId
from cdcflow.sources.postgres.catalog_entries import CatalogTable, Relid
from cdcflow.sources.postgres.columns import Attribute
from cdcflow.sources.postgres.doctor import _cautions, _ignored_findings

INT4 = 23


def _column(number: int, name: str, generated: str = "") -> Attribute:
    return Attribute(number, name, INT4, -1, "integer", not_null=True, generated=generated, dropped=False, missing=None)


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        (
            170000,
            [
                "generated columns are not captured: stored (PostgreSQL before 18 does not publish them)",
                "generated columns are not captured: virtual (no PostgreSQL publishes virtual columns)",
            ],
        ),
        (180000, ["generated columns are not captured: virtual (no PostgreSQL publishes virtual columns)"]),
    ],
)
def test_a_generated_column_is_reported_with_the_releases_that_publish_it(version: int, expected: list[str]) -> None:
    columns = (_column(1, "id"), _column(2, "stored", "s"), _column(3, "virtual", "v"))
    table = CatalogTable(Relid(1, TableId("shop", "orders")), columns, (1,), ())
    assert [finding.text for finding in _cautions(table, {}, version)] == expected


def test_partitions_and_views_have_one_line_and_other_kinds_one_each() -> None:
    ignored = [
        *(f"shop.part_{number} is a partition: its root is captured" for number in range(40)),
        "shop.v is a view: capture its tables",
        "shop.f is a foreign table: capture it at its server",
    ]
    counted = "40 partitions (through their roots), 1 views (through the tables that they read)"
    assert [(finding.level, finding.text) for finding in _ignored_findings(ignored)] == [
        ("ok", f"not captured by themselves: {counted}"),
        ("warning", "not captured: shop.f is a foreign table: capture it at its server"),
    ]
