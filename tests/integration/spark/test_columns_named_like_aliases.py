"""Tables with columns named like the aliases in cdcflow's own statements, merged by Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.servers.postgres import PostgresServer
from tests.support.polling import wait_for
from tests.support.verify.compared_shop import ComparedShop
from tests.support.verify.named_tables import SYSTEM_COLUMNS, Named
from tests.support.verify.sql_names import names

from cdcflow import wiring
from cdcflow.config import FileLog, load
from cdcflow.errors import ConfigurationError
from cdcflow.spark import merge, read_cut
from cdcflow.tables.formats import FORMATS

pytestmark = [pytest.mark.spark, pytest.mark.long]


def test_columns_may_have_the_names_of_aliases(spark: Any, own_postgres: PostgresServer, tmp_path: Path) -> None:
    """Spark resolves aliases, columns of a file and functions in its own order."""
    columns = tuple(name for name in names() if name not in SYSTEM_COLUMNS)
    with ComparedShop.on_postgres(own_postgres.create_database("named"), tmp_path) as shop:
        named = Named(shop, '"', columns, 30)
        named.create()
        shop.start(*named.keys)
        for again in (False, True):
            if again:
                named.change()
            for table_format in FORMATS:
                assert_merged(spark, named, table_format)
        found = shop.verify("--against", "tables", code=0)
        assert {t["rows"] for t in found.values()} == {5}


def assert_merged(spark: Any, named: Named, table_format: str) -> None:
    config = load(named.shop.file)
    assert isinstance(config.log, FileLog)
    path = config.log.path
    warehouse = named.shop.folder / ("warehouse" if table_format == "delta" else table_format)
    wanted = {table: named.rows(table) for table in named.current}

    def merged() -> dict[str, Any]:
        report = merge(
            spark,
            path,
            warehouse,
            table_format=table_format,
            policies=wiring.policies(config),
        )
        assert all(table.left_out is None for table in report.tables)
        try:
            cut = read_cut(spark, warehouse)
        except ConfigurationError:  # nothing is sealed yet
            return {}
        rows = {t: cut[f"{named.shop.schema}.{t}"].toArrow() for t in wanted if f"{named.shop.schema}.{t}" in cut}
        return {table: named.rows_of(table, arrow) for table, arrow in rows.items()}

    wait_for(merged, lambda found: found == wanted, "the rows of all tables", patience_s=300)
