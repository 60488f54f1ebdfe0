"""The same MySQL rows, read by Debezium's snapshot and by cdcflow's backfill, are published as the same values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.servers.kafka import KafkaBroker
from tests.servers.mysql import MySQLDatabase, MySQLServer
from tests.support.kafka.topics import committed
from tests.support.publish import debezium
from tests.support.publish.captured_rows import Capturing
from tests.support.publish.every_type import parsed

from cdcflow import wiring
from cdcflow.config import Config

pytestmark = pytest.mark.mysql

COLUMNS = {
    "ti": ("tinyint", "-128", "127"),
    "tiu": ("tinyint unsigned", "255", "0"),
    "si": ("smallint", "-32768", "32767"),
    "siu": ("smallint unsigned", "65535", "0"),
    "mi": ("mediumint", "-8388608", "8388607"),
    "miu": ("mediumint unsigned", "16777215", "0"),
    "i": ("int", "-2147483648", "2147483647"),
    "iu": ("int unsigned", "4294967295", "0"),
    "bi": ("bigint", "-9223372036854775808", "9223372036854775807"),
    "biu": ("bigint unsigned", "9223372036854775807", "0"),
    "f": ("float", "1.5", "-0.25"),
    "d": ("double", "1e300", "0.1"),
    "n": ("decimal(10,2)", "-12345678.90", "0.01"),
    "w": ("decimal(65,30)", "12345678901234567890.123456789012345678901234567890", "-0.000000000000000000000000000001"),
    "nu": ("decimal(10,2) unsigned", "12345678.90", "0.01"),
    "zf": ("int(5) zerofill", "7", "4294967295"),
    "fu": ("float unsigned", "1.5", "0.25"),
    "dmd": ("double(10,3)", "1.5", "-0.25"),
    "b1": ("bit(1)", "b'1'", "b'0'"),
    "b12": ("bit(12)", "b'100000000101'", "b'000000000001'"),
    "day": ("date", "'1000-01-01'", "'9999-12-31'"),
    "dt": ("datetime", "'1000-01-01 00:00:01'", "'9999-12-31 23:59:59'"),
    "dt3": ("datetime(3)", "'2024-02-29 23:59:59.999'", "'1969-12-31 23:59:59.001'"),
    "dt6": ("datetime(6)", "'2024-02-29 23:59:59.999999'", "'1969-12-31 23:59:59.000001'"),
    "ts": ("timestamp NULL", "'2024-02-29 23:59:59'", "'1970-01-01 00:00:01'"),
    "ts6": ("timestamp(6) NULL", "'2024-02-29 23:59:59.000001'", "'2038-01-19 03:14:07.999999'"),
    "tm": ("time", "'838:59:59'", "'-838:59:59'"),
    "tm6": ("time(6)", "'23:59:59.999999'", "'-00:00:00.000001'"),
    "y": ("year", "2155", "1901"),
    "c": ("char(5)", "'ab'", "''"),
    "v": ("varchar(20)", "'Zoë \U0001f600'", "'a b'"),
    "tx": ("longtext", "'text'", "''"),
    "vb": ("varbinary(5)", "x'00ff'", "x''"),
    "bl": ("blob", "x'deadbeef'", "x'00'"),
    "e": ("enum('a','it''s')", "'it''s'", "'a'"),
    "s": ("set('x','y')", "'x,y'", "''"),
    "j": ("json", "'[1, null, 1.5]'", "'null'"),
    "g": ("geometry", "ST_GeomFromText('LINESTRING(0 0, 1 1)', 4326)", "ST_GeomFromText('POINT(1 2)')"),
    "ls": ("linestring", "ST_GeomFromText('LINESTRING(0 0, 1 1)')", "ST_GeomFromText('LINESTRING(2 1, 3 1)')"),
}
OTHER = {
    "p": ("point", "ST_GeomFromText('POINT(1 2)')", "ST_GeomFromText('POINT(-1 0.5)', 4326)"),
    "fmd": ("float(7,3)", "1.5", "-0.25"),
}
"""Types with a different schema here, because the log does not distinguish them: docs/debezium.md lists them."""
MODES: dict[str, dict[str, str]] = {"default": {}, "precise": {"bigint.unsigned.handling.mode": "precise"}}


@pytest.mark.parametrize("mode", ["default", pytest.param("precise", marks=pytest.mark.long)])
def test_every_type_is_debeziums(mysql_servers: Any, broker: KafkaBroker, tmp_path: Path, mode: str) -> None:
    """MySQL's connector says some types by other names than PostgreSQL's; each must be met."""
    server: MySQLServer = mysql_servers("mysql")
    database = server.create_database("published")
    try:
        ours, theirs = _told(database, broker, tmp_path, mode)
    finally:
        database.drop()
    assert len(ours) == 3
    found = []
    for mine, witness in zip(ours, theirs, strict=True):
        assert mine[0]["payload"] == witness[0]["payload"]
        rows = [event["payload"]["after"] for event in (mine[1], witness[1])]
        fields = [{f["field"]: f for f in event["schema"]["fields"][1]["fields"]} for event in (mine[1], witness[1])]
        for both in (rows, fields):
            assert list(both[0]) == list(both[1])
            found += [
                f"{n}: {both[0][n]!r} {both[1][n]!r}" for n in both[0] if n not in OTHER and both[0][n] != both[1][n]
            ]
        assert [n for n in OTHER if fields[0][n] == fields[1][n]] == [], "they are equal by now"
        blocks = [[f for f in event["schema"]["fields"] if f["field"] == "source"] for event in (mine[1], witness[1])]
        if blocks[0] != blocks[1]:
            found.append(f"source: {blocks}")
    assert not found, "\n".join(found)


def _told(database: MySQLDatabase, broker: KafkaBroker, folder: Path, mode: str) -> tuple[list[Any], list[Any]]:
    columns = COLUMNS | OTHER
    listed = ", ".join(f"{name} {kind}" for name, (kind, _, _) in columns.items())
    with database.session(autocommit=True) as session, session.cursor() as cursor:
        cursor.execute("SET NAMES utf8mb4")
        cursor.execute("SET time_zone = '+00:00'")
        cursor.execute(f"CREATE TABLE v (id int PRIMARY KEY, {listed}) CHARACTER SET utf8mb4")
        cursor.execute("CREATE TABLE zz_finished (id int PRIMARY KEY)")
        for number in (1, 2):
            cursor.execute(f"INSERT INTO v VALUES ({number}, {', '.join(c[number] for c in columns.values())})")
        cursor.execute("INSERT INTO v (id) VALUES (3)")
        cursor.execute("INSERT INTO zz_finished VALUES (1)")
    name = database.name
    ours = {option.replace(".", "_"): value for option, value in MODES[mode].items()}
    settings = {
        "source": {
            "kind": "mysql", "url": database.url, "tables": [f"{name}.*"], "tls": {"mode": "off"}, "fence": "read-only"
        },
        "log": {"path": str(folder / "log")},
        "publish": {"kafka": {"brokers": broker.address, "topic_prefix": mode, "format": "json-schema", **ours}},
    }  # fmt: skip
    config = Config.model_validate(settings)
    with Capturing(config) as capture:
        capture.until(f"{name}.zz_finished", 1)
        capture.until(f"{name}.v", 3)
    wiring.publisher(config, lambda event, fields: None).run(once=True)
    options = {
        "connector.class": "io.debezium.connector.mysql.MySqlConnector",
        "database.hostname": "127.0.0.1",
        "database.port": str(database.server.port),
        "database.user": "root",
        "database.password": "",
        "database.server.id": "5401",
        "database.ssl.mode": "disabled",
        "topic.prefix": mode,
        "database.include.list": name,
        "table.include.list": f"{name}.v,{name}.zz_finished",
        "snapshot.mode": "initial",
        **MODES[mode],
        "include.schema.changes": "false",
        "schema.history.internal": "io.debezium.storage.file.history.FileSchemaHistory",
        "schema.history.internal.file.filename": str(folder / "history.dat"),
    }
    theirs = [
        e[1:] for e in debezium.events(options, f"{mode}.{name}.zz_finished", folder) if e[0] == f"{mode}.{name}.v"
    ]
    told = [(parsed(m.key), parsed(m.value)) for m in committed(broker.address, f"{mode}.{name}.v")]
    return told, theirs
