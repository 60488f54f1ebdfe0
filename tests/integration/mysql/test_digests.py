"""The digest of a row, computed by the server and by DuckDB over the row that a chunk returns: for every type."""

from __future__ import annotations

from typing import Any

import pymysql
import pytest
from tests.integration.mysql.test_same_value_on_both_paths import (
    BYTES,
    DECIMALS,
    DOCUMENTS,
    MOMENTS,
    NUMBERS,
    TEXTS,
    TIMES,
    Lab,
)
from tests.servers.mysql import MySQLDatabase
from tests.support.values.digests import buckets_of, here, with_other_key

from cdcflow.capture.ports.comparison import NoText
from cdcflow.model.digest import Buckets, Hash
from cdcflow.sources.mysql.digests import MySQLDigests
from cdcflow.sources.mysql.tables import DescribedTable
from cdcflow.sources.mysql.types.columns import Policy

pytestmark = pytest.mark.mysql

VALUES: dict[str, tuple[Any, ...]] = {
    **NUMBERS,
    **DECIMALS,
    **{kind: tuple(text for text, _ in pairs) for kind, pairs in MOMENTS.items()},
    **TIMES,
    **TEXTS,
    **BYTES,
    "json": DOCUMENTS,
    "varchar(9) character set latin1 collate latin1_swedish_ci": ("a|b", "É"),
    "varchar(99) collate utf8mb4_bin": ('it\'s "so|so"\\', "\n\t\0", "NULL"),
    "text character set ascii": ("plain",),
    "float": (1.5,),
    "date /* early */": ("0001-01-01", "1582-10-10", "1900-02-28"),
    "datetime(6) /* early */": ("0001-01-01 00:00:00.000001", "1582-10-10 01:02:03.5"),
}
SETS = ("ucs2", "utf16", "utf32", "sjis", "cp932", "eucjpms", "gbk", "big5", "euckr", "koi8r", "swe7", "geostd8")


OF_MARIADB: dict[str, tuple[Any, ...]] = {"year(2)": (1901, 2001, 1970, 1900)}


def has_none(kind: str) -> bool:
    """Whether values of the type have no text that is the same everywhere: their tables are read."""
    return kind.startswith(("double", "float")) or kind.endswith(SETS)


class Digests:
    """A table with a column of each type, and one row for each of its values, the others NULL."""

    def __init__(
        self, database: MySQLDatabase, values: dict[str, tuple[Any, ...]], policy: Policy | None = None
    ) -> None:
        self.lab = Lab(database, list(values))
        for name, each in zip(self.lab.names, values.values(), strict=True):
            for value in each:
                if isinstance(value, bytes):
                    self.lab.insert(name, value.hex(), "unhex(%s)")
                else:
                    self.lab.insert(name, value)
        self.policy = policy or Policy()
        self.rows = self.lab.both(self.policy)
        self.described: DescribedTable = self.lab.described(self.policy)[1]
        with self.lab.connection.cursor() as cursor:
            try:
                cursor.execute("SELECT MD5('')")
            except pymysql.Error:
                self.hash: Hash = "sha256"
            else:
                self.hash = "md5"

    def buckets(self, *names: str) -> Buckets:
        return buckets_of(self.described.table, *names, hash_=self.hash)

    def there(self, buckets: Buckets) -> dict[int, tuple[int, int]]:
        with self.lab.connection.cursor() as cursor:
            cursor.execute(MySQLDigests(self.described, buckets).sums("t"))
            return {row[0]: (row[1], int(row[2])) for row in cursor.fetchall()}

    def here(self, buckets: Buckets) -> dict[int, tuple[int, int]]:
        return here(self.described.table, self.rows, buckets)


@pytest.mark.spread(1)
def test_server_digests_every_type_as_duckdb_does(mysql_database: MySQLDatabase) -> None:
    """A text that differs would make a table that agrees be read as a whole, each time."""
    values = VALUES if mysql_database.server.flavor == "mysql" else VALUES | OF_MARIADB
    table = Digests(mysql_database, values)
    wrong, none, good = [], [], []
    for name, kind in zip(table.lab.names, values, strict=True):
        buckets = table.buckets(name)
        try:
            found = table.there(buckets)
        except NoText as why:
            none += [kind for column in why.columns if column == name]
            continue
        good.append(name)
        key = with_other_key(buckets, name, "id")
        if found != table.here(buckets) or table.there(key) != table.here(key):
            wrong.append(kind)
    assert not wrong
    assert none == [kind for kind in values if has_none(kind)]
    # All of them in one row, whatever their character sets and collations are.
    assert table.there(table.buckets(*good)) == table.here(table.buckets(*good))
    table.lab.close()


def test_columns_that_are_never_null(mysql_database: MySQLDatabase) -> None:
    """Their texts are concatenated another way."""
    database = mysql_database
    lab = Lab(database, ["int"])
    columns = "a varchar(9) NOT NULL, b int NOT NULL, c date NOT NULL"
    lab.execute(f"CREATE TABLE n (id bigint PRIMARY KEY, {columns}) CHARSET utf8mb4")
    lab.execute("INSERT INTO n VALUES (-9223372036854775808, '', 0, '2024-02-29')")
    lab.execute("INSERT INTO n VALUES (9223372036854775807, 'é|', -1, '1969-12-31')")
    lab.table = type(lab.table)(database.name, "n")
    rows = lab.both()
    described = lab.described(Policy())[1]
    buckets = buckets_of(described.table, "a", "b", "c", hash_="sha256")
    with lab.connection.cursor() as cursor:
        cursor.execute(MySQLDigests(described, buckets).sums("n"))
        found = {row[0]: (row[1], int(row[2])) for row in cursor.fetchall()}
    assert found == here(described.table, rows, buckets)
    lab.close()


@pytest.mark.spread(1)
def test_dates_in_no_calendar_are_those_of_no_other_day(mysql_database: MySQLDatabase) -> None:
    """N02: for TO_DAYS the 31st of February is the 3rd of March, which the copy may have in its place."""
    values: tuple[Any, ...] = ("0000-00-00", "2001-02-31", "2001-03-03", "2000-00-01")
    kinds = {"date": values, "datetime(3)": values, "timestamp": ("0000-00-00", "2001-03-03")}
    null, text = Policy(zero_dates="null"), Policy(zero_dates="text")
    table = Digests(mysql_database, kinds, null)
    kept = [table.here(table.buckets(name)) for name in table.lab.names]
    assert [table.there(table.buckets(name)) for name in table.lab.names] == kept
    table.rows, table.described = table.lab.both(text), table.lab.described(text)[1]
    for name in table.lab.names:
        assert table.there(table.buckets(name)) == table.here(table.buckets(name))
    table.described = table.lab.described(Policy())[1]  # stop: no copy has such a day
    for name, then, odd in zip(table.lab.names, kept, ({1, 2, 4}, {5, 6, 8}, {9}), strict=True):
        found = table.there(table.buckets(name))
        assert {number for number in found if found[number] != then[number]} == odd
    table.lab.close()


def test_every_byte_of_latin1(mysql_database: MySQLDatabase) -> None:
    """cdcflow decodes the bytes that Windows leaves undefined as the server does."""
    lab = Lab(mysql_database, ["char(1) character set latin1"])
    for byte in range(256):
        lab.insert("c0", f"{byte:02x}", "CONVERT(unhex(%s) USING latin1)")
    rows, described = lab.both(), lab.described(Policy())[1]
    buckets = buckets_of(described.table, "c0", hash_="sha256")
    with lab.connection.cursor() as cursor:
        cursor.execute(MySQLDigests(described, buckets).sums("t"))
        found = {row[0]: (row[1], int(row[2])) for row in cursor.fetchall()}
    assert len(found) == 256
    assert found == here(described.table, rows, buckets)
    lab.close()


def test_text_that_a_policy_changes_is_read(mysql_database: MySQLDatabase) -> None:
    table = Digests(mysql_database, {"varchar(9)": ("a",)}, Policy(bad_text="replace"))
    with pytest.raises(NoText, match="bad_text"):
        table.there(table.buckets("c0"))
    table.lab.close()
