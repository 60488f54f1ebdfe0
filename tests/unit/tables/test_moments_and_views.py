"""Which cut shows a point in time, and the SQL that shows it to users without cdcflow."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from cdcflow.errors import ConfigurationError
from cdcflow.tables.cut import Cut, CutTable, ListedCut, newest_of_each
from cdcflow.tables.job import views
from cdcflow.tables.job.moments import AsOf, latest_cut_at
from cdcflow.tables.paths import Warehouse

HOUR = 3_600_000_000


def listed(*positions: str) -> list[ListedCut]:
    """Cuts 10, 20, …, an hour of commits each."""
    return [
        ListedCut(10 * n, 100 * n, position, n * HOUR, n * HOUR + 1, 2) for n, position in enumerate(positions, start=1)
    ]


LSNS = listed("00000000/00000009", "00000000/000000FF", "00000001/00000000")
BINLOGS = listed("binlog.000002:900;u:1-5", "binlog.000010:4;u:1-9", "binlog.000010:77;u:1-12")


@pytest.mark.parametrize(
    ("cuts", "as_of", "expected"),
    [
        (LSNS, 10, 10),
        (LSNS, 19, 10),
        (LSNS, "20", 20),
        (LSNS, 10**9, 30),
        (LSNS, "0/9", 10),
        (LSNS, "0/FE", 10),
        (LSNS, "0/ff", 20),
        (LSNS, "FFFFFFFF/0", 30),
        (BINLOGS, "binlog.000009:5000", 10),
        (BINLOGS, "binlog.000010:76", 20),
        (BINLOGS, "binlog.000010:77;u:1-12", 30),
        (LSNS, "1970-01-01T01:59:59.999999Z", 10),
        (LSNS, "1970-01-01 02:00:00", 20),
        (LSNS, "1970-01-01T03:00:00+01:00", 20),
        (LSNS, datetime(1970, 1, 1, 3, tzinfo=timezone(timedelta(hours=1))), 20),
        (LSNS, datetime(2026, 1, 1), 30),
    ],
)
def test_latest_cut_at_or_before_a_point_in_time_is_taken(cuts: list[ListedCut], as_of: AsOf, expected: int) -> None:
    """A cut one step too late shows what had not happened yet; compared as text, file 9 would follow file 10."""
    assert latest_cut_at(cuts, as_of, "w").cut == expected


@pytest.mark.parametrize(
    ("cuts", "as_of", "said"),
    [
        (LSNS, 9, "the oldest cut that is kept is 10, at position 00000000/00000009"),
        (LSNS, "0/8", "the oldest cut that is kept is 10"),
        (LSNS, "1970-01-01", "committed by 1970-01-01T01:00:00"),
        ([], 5, "no cut was published"),
        (LSNS, "binlog.000002:4", "positions of another log"),
        (BINLOGS, "mysql-bin.000010:5", "positions of another log"),
        (listed("binlog.000005:9", "binlog.000001:4"), "binlog.000002:4", "do not increase"),
        (LSNS, "yesterday", "neither the number of a cut nor a position nor a time"),
        (BINLOGS, "3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5", "neither"),
    ],
)
def test_unresolvable_point_in_time_is_refused(cuts: list[ListedCut], as_of: AsOf, said: str) -> None:
    """After a failover the same text names another position; a guess would silently show the wrong one."""
    with pytest.raises(ConfigurationError, match=said):
        latest_cut_at(cuts, as_of, "w")


def test_of_a_cut_that_was_published_twice_the_last_one_counts() -> None:
    """The first lacks the second's target."""
    first, second = (ListedCut(7, 1, "p", 1, published, tables) for published, tables in ((5, 1), (9, 2)))
    assert newest_of_each([second, ListedCut(6, 1, "p", 1, 20, 1), first]) == [ListedCut(6, 1, "p", 1, 20, 1), second]


def table(path: str, version: int = 3, complete: bool = True, tag: str = "") -> CutTable:
    return CutTable(path, version, complete, tag=tag)


def test_sql_names_a_version_of_each_table_and_what_has_none() -> None:
    """Names from the source can contain whatever SQL or a comment ends with."""
    tables = {
        "public.orders": table("public/orders"),
        "public.Orders": table("public/Orders"),
        "odd.a`b;\nDROP": table("odd/a~60b~3B~0ADROP", 4),
        "public.new": table("public/new", complete=False),
    }
    cut = Cut(7, "log", 90, "0/1", 5, tables, {"public.gone": "it cannot follow;\nrun this;\n"})
    text = views.spark_sql(cut, Warehouse(Path("/srv/ware house")), "delta")
    assert text == (
        "-- cut 7: every table as of offset 90, committed by 1970-01-01T00:00:00.000005+00:00\n"
        "-- public.new is not here: not all of its rows were read at that cut\n"
        "-- public.orders is not here: Spark takes its name for that of another table, which differs in case only\n"
        "-- public.gone is not here: it cannot follow; run this\n"
        "SET spark.databricks.delta.vacuum.enforceTimeTravelWithinDeletedFileRetentionDuration = false;\n"
        "CREATE OR REPLACE TEMPORARY VIEW `odd.a``b; DROP` AS"
        " SELECT * FROM delta.`/srv/ware house/odd/a~60b~3B~0ADROP` VERSION AS OF 4;\n"
        "CREATE OR REPLACE TEMPORARY VIEW `public.Orders` AS"
        " SELECT * FROM delta.`/srv/ware house/public/Orders` VERSION AS OF 3;\n"
    )
    first, *others = (one for one in text.split(";\n") if one.strip())
    assert "\nSET spark" in first
    assert all(one.startswith("CREATE OR REPLACE TEMPORARY VIEW") for one in others), "each is a statement"


def test_sql_of_iceberg_tables_uses_tags() -> None:
    """A snapshot id means nothing to a user; a table without rows has no snapshot."""
    tables = {
        "public.orders": table("public/orders", tag="cdcflow_cut_5"),
        "a.empty": table("a/empty", 0),
        "a.old": table("a/old", 2),
    }
    text = views.spark_sql(Cut(7, "log", 90, "0/1", 5, tables), Warehouse(Path("/w")), "iceberg")
    assert "FROM `public`.`orders` VERSION AS OF 'cdcflow_cut_5';" in text
    assert "FROM `a`.`empty` WHERE false;" in text
    assert "-- a.old is not here: an older cdcflow published it" in text
    assert datetime.fromtimestamp(0, UTC).isoformat()[:10] in text
