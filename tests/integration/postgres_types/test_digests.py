"""The digest of a row, computed by the server and by DuckDB over the row that a chunk returns: for every type."""

from __future__ import annotations

import pytest
from tests.integration.postgres_types.test_same_value_on_every_path import KINDS, _has_xml
from tests.support.postgres.wire import Lab
from tests.support.values.digests import buckets_of, by_bucket, here, with_other_key

from cdcflow.capture.ports.comparison import NoText
from cdcflow.model.digest import Buckets
from cdcflow.sources.postgres.copy import decode_copy
from cdcflow.sources.postgres.digests import SUMS, PostgresDigests
from cdcflow.sources.postgres.types import DescribedTable, Policy

pytestmark = pytest.mark.postgres

NONE = {
    *("float4", "float8", "interval", "interval_of_most_hours"),
    *("int4_array", "text_array", "bytea_array", "numeric_array", "date_array", "box_array", "enum_array"),
    *("delimited_array", "domain_array", "composite_array"),
}
"""Types whose values have no text that is the same everywhere: their tables are read."""


def there(lab: Lab, described: DescribedTable, buckets: Buckets, *, is_utf8: bool = True) -> dict[int, tuple[int, int]]:
    query = PostgresDigests(described, buckets, is_utf8=is_utf8).sums(f"{described.table.id.name} AS t")
    with lab.connection.cursor() as cursor, cursor.copy(f"COPY ({query}) TO STDOUT (FORMAT binary)".encode()) as copy:
        return by_bucket(decode_copy([bytes(piece) for piece in copy], SUMS))


@pytest.mark.spread(1)
def test_server_digests_every_type_as_duckdb_does(lab: Lab) -> None:
    """A text that differs would make a table that agrees be read as a whole, each time."""
    extensions = {row[0] for row in lab.execute("SELECT name FROM pg_available_extensions")}
    kinds = {n: k for n, k in KINDS.items() if lab.version >= k.since and k.extension in {"", *extensions}}
    if not _has_xml(lab):
        del kinds["xml"]
    wrong: list[str] = []
    none: set[str] = set()
    for name, kind in kinds.items():
        if kind.extension:
            lab.execute(f"CREATE EXTENSION {kind.extension} SCHEMA public")
        if kind.setup:
            lab.execute(kind.setup)
        lab.execute(f"CREATE TABLE t_{name} (id int PRIMARY KEY, v {kind.type_text})")
        values = ", ".join(f"({i}, {v})" for i, v in enumerate((*kind.values, "NULL")))
        lab.execute(f"INSERT INTO t_{name} VALUES {values}")
        described = lab.described(f"t_{name}")
        buckets = buckets_of(described.table, "v")
        try:
            found = there(lab, described, buckets)
        except NoText as why:
            none.update(name for column in why.columns if column == "v")
            continue
        rows = lab.copied(f"t_{name}", "ORDER BY id")
        assert len(found) == len(kind.values) + 1
        if found != here(described.table, rows, buckets):
            wrong.append(name)
            continue
        if name not in ("char",):  # a key that is no number: its text is the bucket's
            other = with_other_key(buckets, "v", "id")
            assert there(lab, described, other) == here(described.table, rows, other), name
    assert not wrong
    assert none == NONE & kinds.keys()


def test_a_wide_row_has_one_text(lab: Lab) -> None:
    """A function takes a hundred arguments at most, and a table may have 1600 columns."""
    columns = [f"c{n}" for n in range(300)]
    lab.execute(f"CREATE TABLE wide (id int PRIMARY KEY, {', '.join(f'{c} text' for c in columns)})")
    lab.execute("INSERT INTO wide (id, c0, c77, c299) VALUES (1, 'a|b', NULL, ''), (2, '', 'é', '3:x|')")
    described = lab.described("wide")
    buckets = buckets_of(described.table, *columns)
    assert there(lab, described, buckets) == here(described.table, lab.copied("wide"), buckets)


def test_sums_do_not_overflow_and_two_equal_errors_do_not_cancel(lab: Lab) -> None:
    """A sum of digests is beyond 64 bits after 16 rows; an exclusive or of two equal digests is that of none."""
    lab.execute("CREATE TABLE t (id int PRIMARY KEY, v int NOT NULL)")
    lab.execute("INSERT INTO t SELECT i, 7 FROM generate_series(1, 20000) i")
    described = lab.described("t")
    # The key is not among the digest's columns: all rows have the same digest, and one bucket.
    buckets = Buckets((("v", "int"),), ("v",), 1)
    ((number, (rows, total)),) = there(lab, described, buckets).items()
    assert (number, rows) == (0, 20_000)
    assert total > 1 << 64 or total % 20_000 == 0
    assert here(described.table, lab.copied("t"), buckets) == {0: (rows, total)}
    lab.execute("INSERT INTO t VALUES (30001, 7), (30002, 7)")
    assert there(lab, described, buckets) == {0: (rows + 2, total // rows * (rows + 2))}


@pytest.mark.parametrize("value", ["'infinity'", "'-infinity'"])
@pytest.mark.parametrize("kind", ["date", "timestamp", "timestamptz"])
def test_what_no_copy_can_have_is_not_an_error_and_not_null(lab: Lab, kind: str, value: str) -> None:
    """A server's error would end the verification of a table that only has to be read."""
    lab.execute(f"CREATE TABLE t (id int PRIMARY KEY, v {kind})")
    lab.execute(f"INSERT INTO t VALUES (1, {value}), (2, NULL)")
    described = lab.described("t")
    found = there(lab, described, buckets_of(described.table, "v"))
    with_null = buckets_of(described.table, "v")
    lab.execute("UPDATE t SET v = NULL")
    assert found[1] != there(lab, described, with_null)[1]


@pytest.mark.parametrize("special", ["null", "clamp"])
def test_values_that_a_policy_changes_are_read(lab: Lab, special: str) -> None:
    lab.execute("CREATE TABLE t (id int PRIMARY KEY, v date)")
    lab.policy = Policy(special)  # type: ignore[arg-type]  # one of its literals
    described = lab.described("t")
    with pytest.raises(NoText, match=special):
        there(lab, described, buckets_of(described.table, "v"))


def test_text_of_another_encoding_is_read(lab: Lab) -> None:
    """Its bytes at the server are others, and so is their hash."""
    lab.execute("CREATE TABLE t (id int PRIMARY KEY, v text, n int)")
    described = lab.described("t")
    with pytest.raises(NoText, match="UTF8"):
        there(lab, described, buckets_of(described.table, "v"), is_utf8=False)
    assert there(lab, described, buckets_of(described.table, "n"), is_utf8=False) == {}


def test_column_whose_type_differs_in_the_copy_is_read(lab: Lab) -> None:
    lab.execute("CREATE TABLE t (id int PRIMARY KEY, v int)")
    described = lab.described("t")
    there(lab, described, Buckets((("id", "int"), ("v", "bigint")), ("id",), 16))
    with pytest.raises(NoText, match="decimal"):
        there(lab, described, Buckets((("id", "int"), ("v", "decimal(12,2)")), ("id",), 16))


def test_rows_of_some_buckets_only(lab: Lab) -> None:
    lab.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    lab.execute("INSERT INTO t SELECT i, i FROM generate_series(-50, 50) i")
    described = lab.described("t")
    for key in (("id",), ("v",)):
        buckets = Buckets((("id", "int"), ("v", "string")), key, 16)
        rows = 0
        for number, (count, _) in there(lab, described, buckets).items():
            condition = PostgresDigests(described, buckets.among([number]), is_utf8=True).among()
            assert lab.execute(f"SELECT count(*) FROM t WHERE {condition}") == [(count,)]
            rows += count
        assert rows == 101
