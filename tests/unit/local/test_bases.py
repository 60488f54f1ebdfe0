"""Rows that were loaded another way, read as the columns of a table: exactly, or not at all."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable as ForeignTable
from deltalake import write_deltalake

from cdcflow.errors import ConfigurationError
from cdcflow.tables.formats.delta import RULES
from cdcflow.tables.local.bases import Base, fit_base, is_exact, open_base
from cdcflow.tables.local.delta import DeltaTables
from cdcflow.tables.local.scan import RowMarks
from cdcflow.tables.merge.target import Target, TargetColumn

ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int32()), "name": ["a", "b", None]})


def target(**types: str) -> Target:
    columns = tuple(TargetColumn(name, n, type_) for n, (name, type_) in enumerate(types.items(), 1))
    return Target(1, (columns[0].name,), columns)


def all_of(base: Base, wanted: Target) -> pa.Table:
    found = fit_base(base, wanted, "attaching t")
    return pa.concat_tables(list(found.parts([c.name for c in wanted.columns], "attaching t")))


@pytest.mark.parametrize(
    ("there", "wanted", "exact"),
    [
        (pa.int32(), pa.int64(), True),
        (pa.int64(), pa.int32(), False),
        (pa.uint32(), pa.int32(), False),
        (pa.uint32(), pa.int64(), True),
        (pa.int64(), pa.decimal128(20, 0), True),
        (pa.int64(), pa.decimal128(20, 2), False),
        (pa.decimal128(10, 2), pa.decimal128(12, 4), True),
        (pa.decimal128(10, 2), pa.decimal128(10, 1), False),
        (pa.decimal128(10, 2), pa.decimal128(11, 4), False),
        (pa.float32(), pa.float64(), True),
        (pa.float64(), pa.float32(), False),
        (pa.int32(), pa.float64(), False),
        (pa.bool_(), pa.int8(), False),
        (pa.large_string(), pa.string(), True),
        (pa.dictionary(pa.int32(), pa.string()), pa.string(), True),
        (pa.int32(), pa.string(), False),
        (pa.binary(16), pa.binary(), True),
        (pa.string(), pa.binary(), False),
        (pa.timestamp("us"), pa.timestamp("us", "UTC"), False),
        (pa.timestamp("us", "UTC"), pa.timestamp("us"), False),
        (pa.timestamp("ns", "Europe/Berlin"), pa.timestamp("us", "UTC"), True),
        (pa.date32(), pa.timestamp("us"), False),
        (pa.string(), pa.date32(), False),
        (pa.large_list(pa.int32()), pa.list_(pa.int64()), True),
        (pa.list_(pa.int64()), pa.list_(pa.int32()), False),
        (pa.null(), pa.date32(), True),
    ],
)
def test_type_is_accepted_only_where_no_value_can_become_another(
    there: pa.DataType, wanted: pa.DataType, exact: bool
) -> None:
    """A guessed value would be reported as a difference, or worse, would hide one."""
    assert is_exact(there, wanted) is exact


def test_columns_that_do_not_fit_are_all_named(tmp_path: Path) -> None:
    """One run reports everything that must be loaded differently."""
    pq.write_table(ROWS, tmp_path / "rows.parquet")
    base = open_base(str(tmp_path / "rows.parquet"), None)
    with pytest.raises(ConfigurationError) as raised:
        fit_base(base, target(id="bigint", name="int", at="timestamp"), "attaching t")
    assert "name is string, and int in the table; at is missing" in str(raised.value)
    found = fit_base(base, target(id="bigint"), "attaching t")
    assert found.left_out == ("name",)


def test_keys_are_counted_and_not_shown(tmp_path: Path) -> None:
    """A duplicate row would stay duplicate: a merge changes both."""
    more = pa.table({"id": pa.array([1, 2, 2, None, None], pa.int32()), "name": ["secret"] * 5})
    pq.write_table(pa.concat_tables([ROWS, more]), tmp_path / "rows.parquet")
    found = fit_base(open_base(str(tmp_path), None), target(id="int", name="string"), "attaching t")
    with pytest.raises(ConfigurationError) as raised:
        found.check_keys(["id"], "attaching t")
    assert "2 rows have NULL in their key and 2 keys exist more than once (id)" in str(raised.value)
    assert "secret" not in str(raised.value)


def test_a_key_may_be_named_like_the_count(tmp_path: Path) -> None:
    """`n` was summed for the number of rows, and duplicate keys passed."""
    pq.write_table(pa.table({"n": [1, 1, 2], "k0": [5, 5, 6]}), tmp_path / "rows.parquet")
    found = fit_base(open_base(str(tmp_path), None), target(n="bigint", k0="bigint"), "attaching t")
    with pytest.raises(ConfigurationError, match="1 keys exist more than once"):
        found.check_keys(["n", "k0"], "attaching t")


def test_a_value_that_does_not_fit_is_refused_and_not_shown(tmp_path: Path) -> None:
    """Nanoseconds may be whole microseconds, and may not."""
    values = pa.array([0, 1_000, 1_234_567], pa.timestamp("ns"))
    pq.write_table(pa.table({"id": [1, 2, 3], "at": values}), tmp_path / "rows.parquet", version="2.6")
    with pytest.raises(ConfigurationError) as raised:
        all_of(open_base(str(tmp_path), None), target(id="bigint", at="timestamp_ntz"))
    assert "column at has values that timestamp[us] does not hold" in str(raised.value)
    assert "234" not in str(raised.value)


def test_sparks_old_timestamps_are_utc(tmp_path: Path) -> None:
    """They have no time zone in the file, and are of UTC."""
    at = pa.array([datetime(2026, 1, 31, 12, tzinfo=UTC)] * 3, pa.timestamp("us", "UTC"))
    rows = ROWS.append_column("at", at)
    pq.write_table(rows, tmp_path / "rows.parquet", use_deprecated_int96_timestamps=True)
    base = open_base(str(tmp_path), None)
    assert (
        all_of(base, target(id="int", name="string", at="timestamp"))
        .column("at")
        .cast(at.type)
        .equals(pa.chunked_array([at]))
    )
    with pytest.raises(ConfigurationError, match="at is timestamp"):
        fit_base(base, target(id="int", at="timestamp_ntz"), "attaching t")


def test_folders_of_parquet_have_one_schema(tmp_path: Path) -> None:
    """A column that some files lack would be NULL for no reason."""
    pq.write_table(ROWS, tmp_path / "1.parquet")
    pq.write_table(ROWS.drop_columns(["name"]), tmp_path / "2.parquet")
    with pytest.raises(ConfigurationError, match="do not have the same columns: name"):
        open_base(str(tmp_path), None)


def test_unusable_base_is_refused_with_the_reason(tmp_path: Path) -> None:
    """Each with what to do instead."""
    pq.write_table(ROWS, tmp_path / "rows.parquet")
    (tmp_path / "empty").mkdir()
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "rows.csv").write_text("1,a")
    (tmp_path / "iceberg" / "metadata").mkdir(parents=True)
    for place, as_of, said in [
        ("s3://bucket/rows", None, "only files of this machine and of buckets"),
        (str(tmp_path / "nothing"), None, "there is nothing of that name"),
        (str(tmp_path / "rows.parquet"), "3", "only a Delta table has versions"),
        (str(tmp_path / "empty"), None, "it has no Parquet file"),
        (str(tmp_path / "text"), None, "files that are not Parquet"),
        (str(tmp_path / "iceberg"), None, "Iceberg tables are not read"),
    ]:
        with pytest.raises(ConfigurationError, match=said):
            open_base(place, as_of)


def test_versions_of_a_delta_table_are_read_by_number_and_by_time(tmp_path: Path) -> None:
    """The base is what was loaded, and not what the table became since."""
    place = str(tmp_path / "t")
    write_deltalake(place, ROWS, partition_by=["name"])
    write_deltalake(place, ROWS.slice(0, 1), mode="overwrite")
    wanted = target(id="int", name="string")
    first = datetime.fromtimestamp(ForeignTable(place).history()[-1]["timestamp"] / 1000, UTC)
    assert len(all_of(open_base(place, None), wanted)) == 1
    assert len(all_of(open_base(place, "0"), wanted)) == 3
    assert len(all_of(open_base(place, (first + timedelta(microseconds=1)).isoformat()), wanted)) == 3
    for wrong, said in [("7", "cannot be read as of 7"), ("2026-01-31T12:00:00", "neither a version nor a time")]:
        with pytest.raises(ConfigurationError, match=said):
            open_base(place, wrong)


def test_rows_that_a_delta_table_marks_as_deleted_are_not_read(tmp_path: Path) -> None:
    """As Spark's DELETE leaves them, and cdcflow's own merges."""
    with closing(DeltaTables(tmp_path, None).table(("shop", "items"))) as made:
        made.create(ROWS.schema, {}, {}, RULES)
        made.snapshot()
        made.append(ROWS, {}, "", 0, 10)
        made.snapshot()
        [file] = made.files()
        made.replace([], None, {}, "", 0, [(file, RowMarks(np.array([1])))])
    base = open_base(str(tmp_path / "shop" / "items"), None)
    assert all_of(base, target(id="int", name="string")).column("id").to_pylist() == [1, 3]
    assert all_of(open_base(str(tmp_path / "shop" / "items"), "1"), target(id="int")).num_rows == 3
