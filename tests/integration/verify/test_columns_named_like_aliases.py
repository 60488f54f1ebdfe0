"""Tables whose columns are named like the aliases in cdcflow's own statements, from the source to the tables."""

from __future__ import annotations

import pytest
from tests.support.verify.compared_shop import ComparedShop
from tests.support.verify.named_tables import SYSTEM_COLUMNS, Named
from tests.support.verify.sql_names import names

from cdcflow import local
from cdcflow.capture.ports.source import Sampled
from cdcflow.config import load
from cdcflow.model.table import TableId
from cdcflow.tables.verify import buckets
from cdcflow.wiring.captures import open_source


def digests(named: Named) -> dict[str, str]:
    """What each table's sample is, as the canary takes it."""
    source = open_source(load(named.shop.file))
    assert isinstance(source, Sampled)
    try:
        found = {t: source.sample(TableId(named.shop.schema, t), key) for t, key in named.keys.items()}
    finally:
        source.close()
    assert all(found.values())
    return {table: sample.digest for table, sample in found.items() if sample is not None}


@pytest.fixture(autouse=True)
def small_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the servers digest even these few rows."""
    monkeypatch.setattr(buckets, "BUCKET_ROWS", 1)


def assert_captured_and_merged(named: Named) -> None:
    """Its rows and changes are in the log, in the tables and in the live view; they are compared, and sampled."""
    shop = named.shop
    named.create()
    shop.start(*named.keys)
    shop.merge_until(next(iter(named.keys)), lambda rows: rows.num_rows == 5)
    before = digests(named)
    named.change()
    assert all(before[table] != digest for table, digest in digests(named).items())
    found = shop.verify("--against", "both", code=0)
    assert len(found) == 2 * len(named.keys)
    for name, table in found.items():
        assert table["rows"] == 5, (name, table)
    shop.stop()
    shop.merge()
    cut = local.read_cut(shop.folder / "warehouse")
    for table in named.current:
        assert named.rows_of(table, cut[f"{shop.schema}.{table}"]) == named.rows(table), table


def test_columns_of_postgres_may_have_the_names_of_aliases(one_shop: ComparedShop) -> None:
    """A column `t` was taken for the row `t`: a NULL in it ended the daemon at each start."""
    columns = tuple(name for name in names() if name not in SYSTEM_COLUMNS)
    assert_captured_and_merged(Named(one_shop, '"', columns, 30))


@pytest.mark.long
@pytest.mark.mysql
def test_columns_of_mysql_and_mariadb_may_have_the_names_of_aliases(mysql_shop: ComparedShop) -> None:
    """The other dialects, whose servers look aliases up in another order."""
    assert_captured_and_merged(Named(mysql_shop, "`", names(), 15))
