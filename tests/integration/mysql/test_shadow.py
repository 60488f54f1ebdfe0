"""The shadow check on MySQL and MariaDB: many types, while writers keep writing, and with a faulty decoder."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.servers.mysql import Flavor, MySQLDatabase
from tests.support.capture.shadow_checks import checks, differences, until_checked, until_different
from tests.support.capture.watched_capture import Watched
from tests.support.capture.wrong_decoder import make_wrong, wrong_in
from tests.support.polling import AtIntervals

from cdcflow.sources.mysql import chunks, decoders, ranges, row_events
from cdcflow.sources.mysql.rows import DecodedRows
from cdcflow.sources.mysql.stream import BinlogStream

pytestmark = pytest.mark.mysql

TYPES = {
    "t1": ("tinyint", "-128", "127"),
    "u8": ("bigint unsigned", "0", "18446744073709551615"),
    "f4": ("float", "0.1", "-3.4e38"),
    "f8": ("double", "0.1", "-2.2250738585072014e-308"),
    "n": ("decimal(65,30)", "-99999999999999999999999999999999999.5", "0"),
    "b": ("bit(9)", "257", "0"),
    "y": ("year", "1901", "2155"),
    "d": ("date", "'1000-01-01'", "'9999-12-31'"),
    "dt": ("datetime(6)", "'2000-02-29 12:34:56.789012'", "'1000-01-01'"),
    "ts": ("timestamp(3) NULL", "'1970-01-01 00:00:01'", "'2038-01-19 03:14:07.999'"),
    "ti": ("time(6)", "'-838:59:58.999999'", "'-00:00:00.000001'"),
    "c": ("char(10)", "'abc'", "''"),
    "v": ("varchar(300)", "'abc  '", "'😀'"),
    "l": ("varchar(20) character set latin1", "'äöü€'", "''"),
    "tx": ("mediumtext", "repeat('y', 70000)", "''"),
    "bi": ("binary(10)", "x'0102'", "x''"),
    "bl": ("blob", "x'00ff'", "x''"),
    "e": ("enum('a','b','ü')", "'ü'", "'a'"),
    "s": ("set('a','b','ü')", "'a,ü'", "''"),
    "j": ("json", """'{"b": 1, "a": [1, 2.5, null, 1e-7]}'""", "'[]'"),
}


def watched(folder: Path, database: MySQLDatabase, flavor: Flavor, fence: str = "marks") -> Watched:
    source = {
        "kind": flavor,
        "url": database.url,
        "tables": [f"{database.name}.*"],
        "fence": fence,
        "tls": {"mode": "off"},
    }
    return Watched(folder, source, shadow_every="10ms", freshness_every="1h")


@pytest.mark.spread(1)
@pytest.mark.parametrize("fence", ["marks", "read-only"])
def test_rows_of_many_types_are_checked_and_no_type_is_blamed(
    flavor: Flavor, mysql_database: MySQLDatabase, tmp_path: Path, fence: str
) -> None:
    """Each row changes by itself, so it is the one that is read: from a row image, and from a SELECT."""
    columns = ", ".join(f"{name} {spec[0]}" for name, spec in TYPES.items())
    mysql_database.execute(f"CREATE TABLE t (k varchar(20), id int, changes int, {columns}, PRIMARY KEY (k, id))")
    rows = [
        ", ".join(spec[1] for spec in TYPES.values()),
        ", ".join(spec[2] for spec in TYPES.values()),
        ", ".join("NULL" for _ in TYPES),
    ]
    with watched(tmp_path, mysql_database, flavor, fence) as on:
        on.until(lambda s: {t["state"] for t in s.get("tables", {}).values()} == {"done"}, "the backfill")
        for id_, values in enumerate(rows):
            mysql_database.execute(f"INSERT INTO t VALUES ('Zoë', {id_}, 0, {values})")
            before = checks({"counts": on.capture.counts()})
            change = f"UPDATE t SET changes = changes + 1 WHERE id = {id_}"
            until_checked(on, partial(mysql_database.execute, change), before + 2)
    assert on.error is None
    assert differences(on) == []


@pytest.mark.spread(1)
def test_nothing_is_blamed_while_writers_continue(
    flavor: Flavor, mysql_database: MySQLDatabase, tmp_path: Path
) -> None:
    """Updates, deletes, key changes, truncates, statements that fill rows and rolled back transactions."""
    mysql_database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v varchar(40), f double)", "CREATE TABLE u (id int PRIMARY KEY, v int)"
    )
    acts: tuple[tuple[str, ...], ...] = (
        ("REPLACE INTO t VALUES (1, 'a', rand()), (2, 'b', rand()), (3, 'c', rand())",),
        ("UPDATE t SET f = rand() WHERE id <= 2",),
        ("INSERT INTO u VALUES (1, 1), (2, 2) ON DUPLICATE KEY UPDATE v = v + 1",),
        ("UPDATE t SET id = -id WHERE id = 3",),
        ("DELETE FROM t WHERE id = -3",),
        ("START TRANSACTION", "UPDATE t SET v = 'no'", "ROLLBACK"),
        ("UPDATE u SET v = v + 1",),
        ("ALTER TABLE u ADD COLUMN w int DEFAULT 7",),
        ("UPDATE t SET v = concat(left(v, 30), 'x') WHERE id = 1",),
        ("ALTER TABLE u DROP COLUMN w",),
        ("TRUNCATE TABLE u",),
    )
    with watched(tmp_path, mysql_database, flavor) as on:
        on.until(lambda s: {t["state"] for t in s.get("tables", {}).values()} == {"done"}, "the backfill")
        for act in acts * 10:
            mysql_database.execute(*act)
        until_checked(on, partial(mysql_database.execute, "UPDATE t SET f = f + 1 WHERE id = 2"), 21)
    assert on.error is None
    assert differences(on) == []


def test_a_decoder_that_errs_is_found(
    flavor: Flavor, mysql_database: MySQLDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A time that is off by an hour is as plausible as the right one."""
    mysql_database.execute("CREATE TABLE t (id int PRIMARY KEY, v int, at datetime)")
    mysql_database.execute("INSERT INTO t VALUES (1, 1, '2026-01-01 12:00:00')")
    table = f"{mysql_database.name}.t"

    def an_hour(values: pa.Array) -> pa.Array:
        return pa.array([None if v is None else v + 3_600_000_000 for v in values.cast(pa.int64()).to_pylist()]).cast(
            values.type
        )

    with watched(tmp_path, mysql_database, flavor) as on:
        on.until(lambda s: s["tables"].get(table, {}).get("state") == "done", "the backfill")
        mysql_database.execute("UPDATE t SET v = 2")
        on.until(checks, "a check of what is right")
        assert differences(on) == []
        make_wrong(monkeypatch, BinlogStream, wrong_in("at", an_hour))
        found = until_different(on, partial(mysql_database.execute, "UPDATE t SET v = v + 1"), table)
        page = on.metrics(found)
    assert page["cdcflow_shadow_differences_total"] >= 1
    assert (differences(on)[0]["table"], differences(on)[0]["columns"]) == (table, "at")
    assert "12:00" not in str(differences(on)) + str(found["tables"])
    assert on.error is None


MISUNDERSTOOD_FROM = 1_000_000


def opinions(on: Watched) -> list[dict[str, object]]:
    return [fields for fields in differences(on) if fields.get("by") == "mysql-replication"]


def test_a_type_that_is_misunderstood_everywhere_is_found_by_another_library(
    flavor: Flavor, mysql_database: MySQLDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream and the read by key agree on a time that is an hour off; only another project's decoder detects it."""
    mysql_database.execute("CREATE TABLE t (id int PRIMARY KEY, v int, at datetime)")
    mysql_database.execute("INSERT INTO t VALUES (1, 1, '2026-01-01 12:00:00')")
    table = f"{mysql_database.name}.t"

    def is_checked(status: dict[str, Any]) -> bool:
        change()
        return bool(status["counts"]["shadow_events"] and checks(status))

    def is_found(status: dict[str, Any]) -> bool:
        change_again()
        return bool(opinions(on) and checks(status) > checked + 2)

    change, change_again = (AtIntervals(partial(mysql_database.execute, "UPDATE t SET v = v + 1")) for _ in "12")
    misunderstand_datetime(monkeypatch)
    with watched(tmp_path, mysql_database, flavor) as on:
        on.until(lambda s: s["tables"].get(table, {}).get("state") == "done", "the backfill")
        checked = checks(on.until(is_checked, "checks of what is right"))
        assert differences(on) == []
        mysql_database.execute(f"UPDATE t SET v = {MISUNDERSTOOD_FROM}")
        on.until(is_found, "the difference")
        found = on.until(lambda s: s["tables"][table].get("shadow_difference"), "the status")
        page = on.metrics(found)
    assert opinions(on) == differences(on), "a read by key finds nothing"
    assert page["cdcflow_shadow_differences_total"] >= 1
    assert page["cdcflow_shadow_events_total"] >= 2
    assert (opinions(on)[0]["table"], opinions(on)[0]["columns"]) == (table, "at")
    assert "mysql-replication" in found["tables"][table]["shadow_difference"]
    assert "12:00" not in str(differences(on)) + str(found["tables"])
    assert on.error is None


def misunderstand_datetime(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have rows of the stream and of result sets show the DATETIME `at` an hour late, where `v` has at least a given
    value.
    """

    def late(rows: pa.RecordBatch) -> pa.RecordBatch:
        at = rows.schema.get_field_index("at")
        if at < 0 or rows.schema.field(at).type != pa.timestamp("us"):
            return rows
        moved = pc.add(rows.column(at), pa.scalar(3_600_000_000, pa.duration("us")))
        moved = pc.if_else(pc.less(rows.column("v"), MISUNDERSTOOD_FROM), rows.column(at), moved)
        return rows.set_column(at, rows.schema.field(at), moved)

    stream, result = decoders.changes, decoders.decode

    def changes(*given: Any, **options: Any) -> DecodedRows:
        found = stream(*given, **options)
        return replace(found, rows=late(found.rows))

    monkeypatch.setattr(row_events, "changes", changes)
    for module in (chunks, ranges):
        monkeypatch.setattr(module, "decode", lambda *given, **options: late(result(*given, **options)))
