"""The examples of docs/merge.md for Spark Connect, against a real Spark Connect server."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.connect.session import SparkSession as ConnectSession
from tests.servers.connect import ConnectServer
from tests.support.log.hand_log import HandLog
from tests.support.merge.histories import make_table

from cdcflow.errors import ConfigurationError
from cdcflow.spark import job, merge_stream, published_cut, read_cut, read_live

pytestmark = pytest.mark.spark

PAGE = Path(__file__).parents[3] / "docs" / "merge.md"


@pytest.fixture(scope="module")
def remote() -> Iterator[Any]:
    """A session of a client: it has no JVM."""
    with ConnectServer() as server:
        session = ConnectSession.builder.remote(server.url).create()
        yield session
        session.stop()


def statements(warehouse: Path) -> list[str]:
    """The page's SQL, with the place of this warehouse."""
    (block,) = re.findall(r"## Spark Connect\n.*?```sql\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return [one.strip().replace("/srv/warehouse", str(warehouse)) for one in block.split(";") if one.strip()]


@pytest.mark.long
def test_sql_of_the_docs_reads_the_latest_rows_and_those_of_the_latest_cut(
    spark: Any, remote: Any, hand_log: HandLog, warehouse: Path
) -> None:
    """Readers that have only Spark Connect copy it."""
    orders = make_table("orders", id="int64", item="string")
    hand_log.state(orders)
    hand_log.segment([(orders, "c", {"id": n, "item": f"item {n}"}) for n in (1, 2)])
    job.merge(spark, hand_log.root, warehouse)
    hand_log.segment([(orders, "u", {"id": 1, "item": "pen"})])
    job.merge(spark, hand_log.root, warehouse)
    newest, cut, at_version = statements(warehouse)
    spark.sql(f"{newest.replace('SELECT *', 'DELETE')} WHERE id = 2")
    assert [(row.id, row.item) for row in remote.sql(newest).collect()] == [(1, "pen")]
    ((number, version),) = remote.sql(cut).collect()
    assert number == published_cut(spark, warehouse).cut == 2
    as_then = remote.sql(at_version.replace("OF 12", f"OF {version}")).collect()
    assert sorted((row.id, row.item) for row in as_then) == [(1, "pen"), (2, "item 2")]


@pytest.mark.parametrize(
    "ask",
    [
        pytest.param(lambda spark, log, place: job.merge(spark, log, place), id="merge"),
        pytest.param(
            lambda spark, log, place: merge_stream(spark, log, place, checkpoint=log / "c"), id="merge_stream"
        ),
        pytest.param(lambda spark, log, place: read_cut(spark, place), id="read_cut"),
        pytest.param(lambda spark, log, place: read_live(spark, log, place), id="read_live"),
        pytest.param(lambda spark, log, place: published_cut(spark, place), id="published_cut"),
    ],
)
@pytest.mark.spread(1)
def test_function_that_needs_the_driver_refuses_the_session_with_an_error_that_names_it(
    remote: Any, hand_log: HandLog, warehouse: Path, ask: Callable[..., object]
) -> None:
    """It would fail far inside, at the first word to the JVM."""
    hand_log.segment([(make_table("orders", id="int64"), "c", {"id": 1})])
    with pytest.raises(ConfigurationError, match=r"a Spark Connect session(?s:.*)spark-submit"):
        ask(remote, hand_log.root, warehouse)
    assert not warehouse.exists()
