"""The second opinion on real servers: it agrees on every type and kind of row event, and its exclusions are needed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from tests.servers.mysql import Flavor, MySQLDatabase
from tests.support.mysql.controlled_source import MakeMySQLCapture
from tests.support.mysql.second_opinions import differences, sampling_all

from cdcflow.sources.mysql import opinion_exclusions
from cdcflow.sources.mysql.opinion_exclusions import EXCLUSIONS

pytestmark = pytest.mark.mysql

TYPES: dict[str, tuple[str, ...]] = {
    "tinyint": ("-128", "127", "0"),
    "tinyint unsigned": ("255", "128"),
    "smallint": ("-32768", "32767"),
    "smallint unsigned": ("65535",),
    "mediumint": ("-8388608", "8388607", "-1"),
    "mediumint unsigned": ("16777215",),
    "int": ("-2147483648", "-1"),
    "int unsigned": ("4294967295",),
    "bigint": ("-9223372036854775808",),
    "bigint unsigned": ("18446744073709551615",),
    "float": ("0.1", "-3.4e38", "-0e0"),
    "double": ("0.1", "-2.2250738585072014e-308", "-0e0"),
    "decimal(65,30)": ("-99999999999999999999999999999999999.5", "0.000000000000000000000000000001"),
    "decimal(5,5)": ("-0.12345", "0.00001"),
    "decimal(3,0)": ("-999", "5"),
    "decimal(18,9)": ("-123456789.123456789", "-0.000000001"),
    "decimal(20,7)": ("-5.0000001", "1234567890123.7654321"),
    "bit(1)": ("1", "0"),
    "bit(9)": ("257", "0"),
    "bit(64)": ("18446744073709551615", "1"),
    "year": ("1901", "2155"),
    "date": ("'1000-01-01'", "'9999-12-31'"),
    "time": ("'-838:59:59'", "'-00:00:01'", "'838:59:59'"),
    **{f"time({n})": ("'838:59:58.999999'", "'00:00:00.123456'") for n in range(1, 7)},
    **{f"datetime({n})": ("'2000-02-29 12:34:56.789012'", "'1000-01-01'", "'9999-12-31 23:59:59'") for n in range(7)},
    **{f"timestamp({n}) NULL": ("'1970-01-01 00:00:01'", "'2020-01-01 00:00:00.987654'") for n in range(7)},
    "char(10)": ("'abc'", "''"),
    "char(255)": ("repeat('ü', 255)", "'x'"),
    "varchar(300)": ("'abc  '", "'😀'"),
    "varchar(20) character set latin1": ("'äöü€'", "''"),
    "varchar(21) character set gbk": ("'汉字'", "''"),
    "varchar(22) character set cp1251": ("'Жук'", "''"),
    "mediumtext": ("repeat('y', 70000)", "''"),
    "binary(10)": ("x'0102'", "x''", "x'00000100'"),
    "varbinary(10)": ("x'0100'", "x''"),
    "blob": ("x'00ff'", "x''"),
    "enum('a','b','ü')": ("'ü'", "'a'"),
    "enum('a','b') character set latin1": ("'b'",),
    "set('a','b','ü')": ("'a,ü'", "''", "'b'"),
    "json": (
        """'{"b": 1, "a": [1, 2.5, null, 1e-7, true, -1, 70000, 5000000000, "ü", {}, []]}'""",
        "'1.0'",
        "'[-0.0, 18446744073709551615, 1.5e300]'",
        "json_object(repeat('k', 300), repeat('v', 70000))",
    ),
    "geometry": ("ST_GeomFromText('POINT(1 2)', 4326)", "ST_GeomFromText('LINESTRING(0 0, 1 1.5)')"),
}
JSON = f"c{list(TYPES).index('json')}"
OPAQUE = """json_object('d', cast('2020-01-01' as date), 't', cast('12:00:00' as time),
 'n', cast(1.10 as decimal(10,2)),
 'b', cast('x' as binary), 'dt', cast('2020-01-01 00:00:00.5' as datetime(6)))"""
"""MySQL's documents have values of types that JSON does not have."""


def wide_table(database: MySQLDatabase) -> None:
    columns = ", ".join(f"c{number} {kind}" for number, kind in enumerate(TYPES))
    database.execute(f"CREATE TABLE t (id int PRIMARY KEY, w int, {columns}) CHARACTER SET utf8mb4 ROW_FORMAT=DYNAMIC")
    database.execute(f"CREATE TABLE nokey (w int, {columns}) CHARACTER SET utf8mb4 ROW_FORMAT=DYNAMIC")


def write_everything(database: MySQLDatabase, *settings: str, keyless: bool = False) -> None:
    """Rows with each value, updated in a small column and in a document, moved to another key, and deleted."""
    lists = list(TYPES.values())
    statements = ["SET NAMES utf8mb4", "SET time_zone = '+00:00'", *settings]
    for number in range(max(map(len, lists))):
        values = ", ".join(values[number % len(values)] for values in lists)
        statements.append(f"INSERT INTO t VALUES ({number}, 1, {values}), ({number + 100}, NULL, {values})")
        statements += [f"INSERT INTO nokey VALUES (1, {values})"] * keyless
    statements += [
        f"INSERT INTO t (id, {JSON}) VALUES (50, '[1, 2, 3]')",
        f"UPDATE t SET {JSON} = JSON_SET({JSON}, '$[1]', 7) WHERE id = 50",
        "UPDATE t SET w = w + 1, c0 = NULL",
        "UPDATE t SET id = id + 1000 WHERE id < 100",
        *["UPDATE nokey SET w = 2", "DELETE FROM nokey"] * keyless,
        "DELETE FROM t",
    ]
    with database.session(autocommit=True) as session, session.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


@contextlib.contextmanager
def compressed_log(database: MySQLDatabase) -> Iterator[None]:
    """MariaDB compresses row events one by one."""
    server = database.server
    server.execute("SET GLOBAL log_bin_compress = ON", "SET GLOBAL log_bin_compress_min_len = 10")
    try:
        yield
    finally:
        server.execute("SET GLOBAL log_bin_compress = OFF")


def test_both_decoders_agree_on_every_type_and_kind_of_event(
    mysql_database: MySQLDatabase, make_capture: MakeMySQLCapture, flavor: Flavor
) -> None:
    """M01, M02, M08, M43: whole rows, partial rows, compressed rows; a mistake in any would be a false alarm."""
    for table in ("t (id int PRIMARY KEY, w int", "nokey (w int"):
        columns = ", ".join(f"c{number} {kind}" for number, kind in enumerate(TYPES))
        mysql_database.execute(f"CREATE TABLE {table}, {columns}) CHARACTER SET utf8mb4")
    capture = make_capture(mysql_database, tables_without_key="whole")
    samples = sampling_all(capture)
    capture.prepare()
    write_everything(mysql_database, keyless=True)
    write_everything(mysql_database, "SET binlog_row_image = 'NOBLOB'")
    write_everything(mysql_database, "SET binlog_row_image = 'MINIMAL'")
    if flavor == "mysql":
        mysql_database.execute(f"INSERT INTO t (id, {JSON}) VALUES (77, {OPAQUE})")
        write_everything(mysql_database, "SET binlog_transaction_compression = ON", keyless=True)
        write_everything(mysql_database, "SET binlog_row_value_options = 'PARTIAL_JSON'")
    else:
        with compressed_log(mysql_database):
            write_everything(mysql_database, keyless=True)
    assert capture.changes("t")
    assert {sample.event[4] for sample in samples.kept} == ({23, 24, 25} if flavor == "mariadb" else {30, 31, 32, 39})
    assert differences(samples, flavor) == []


# ── what it is known to get wrong ──────────────────────────────────────────────────────────────────────────────

Wrong = dict[str, tuple[str, str, dict[str, str]]]
WRONG: Wrong = {
    "`time(1)`": ("time(2)", "'-00:00:00.10'", {}),
    "`year`": ("year", "'0000'", {}),
    "`date`, ": ("date", "'0000-00-00'", {"zero_dates": "text"}),
    "text in armscii8": ("varchar(9) character set utf16", "'aé'", {}),
    "text in latin1": ("varchar(9) character set latin1", "x'81'", {}),
    "`enum` and `set`": ("enum('ä') character set latin1", "'ä'", {}),
}
"""A column's type, a value of it, and settings, by how the exclusion begins."""
OF_MYSQL: Wrong = {"`json`": ("json", "json_object('t', cast('25:00:00' as time))", {})}
OF_MARIADB: Wrong = {"`uuid`": ("inet6", "'::1'", {})}


def without(excluded: str) -> tuple[opinion_exclusions.Exclusion, ...]:
    """The exclusions but for the one that begins so."""
    left = tuple(one for one in EXCLUSIONS if not one.about.startswith(excluded))
    assert len(left) == len(EXCLUSIONS) - 1
    return left


def test_each_exclusion_is_needed(
    mysql_database: MySQLDatabase, make_capture: MakeMySQLCapture, flavor: Flavor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N04, N05, N10, N11, N15: the library still gets these values wrong; one that it does not is to be compared."""
    wrong = WRONG | (OF_MARIADB if flavor == "mariadb" else OF_MYSQL)
    for number, (kind, _, _) in enumerate(wrong.values()):
        mysql_database.execute(f"CREATE TABLE t{number} (id int PRIMARY KEY, v {kind})")
    columns = {
        f"{mysql_database.name}.t{n}.v": next(iter(s.values())) for n, (_, _, s) in enumerate(wrong.values()) if s
    }
    capture = make_capture(mysql_database, columns=columns)
    samples = sampling_all(capture)
    capture.prepare()
    for number, (_, value, _) in enumerate(wrong.values()):
        mysql_database.execute("SET sql_mode = ''", f"INSERT INTO t{number} VALUES (1, {value})")
    capture.changes("t0")
    assert len(samples.kept) == len(wrong)
    assert differences(samples, flavor) == []
    for number, excluded in enumerate(wrong):
        monkeypatch.setattr(opinion_exclusions, "EXCLUSIONS", without(excluded))
        assert [found.table.name for found in differences(samples, flavor)] == [f"t{number}"], excluded
