"""Files whose first reading takes only a few columns: which rows are found, and what is read for that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from cdcflow.tables.local import scan
from cdcflow.tables.local.scan import NONE, Numbers, ScannedFile

TABLE = pa.schema([("k", pa.int64()), ("v", pa.string()), ("late", pa.int32()), ("missing", pa.list_(pa.string()))])
HELD = pa.schema([("c1", pa.int64()), ("c2", pa.string()), ("c3", pa.int32()), ("c4", pa.list_(pa.string()))])


def opened(path: Path, count: int = 100, group: int = 10, gone: Numbers = NONE) -> ScannedFile:
    """A file whose keys count by two, in row groups of ten, written before the column `late` came."""
    rows = {"c1": pa.array(range(0, 2 * count, 2), pa.int32()), "c2": [f"v{n}" for n in range(count)]}
    pq.write_table(pa.table({**rows, "c4": pa.nulls(count, HELD.field("c4").type)}), path, row_group_size=group)
    return ScannedFile(pq.ParquetFile(path), TABLE, HELD, lambda: gone)


def among(*keys: int) -> Callable[[pa.Table], Numbers]:
    def pick(rows: pa.Table) -> Numbers:
        found: Numbers = np.flatnonzero(pc.is_in(rows.column("k"), pa.array(keys)).to_numpy())[::-1]
        return found

    return pick


@pytest.mark.parametrize("at_once", [1, 25, 1 << 20])
def test_rows_have_the_numbers_that_they_have_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    """Whichever row groups are skipped, and however many are read at a time."""
    monkeypatch.setattr(scan, "ROWS_AT_ONCE", at_once)
    with opened(tmp_path / "f") as rows:
        chosen = [rows.groups[n] for n in (2, 3, 7, 9)]
        found = rows.find(chosen, ["k"], among(0, 42, 78, 198, 199, 140))
        assert found.tolist() == [21, 39, 70, 99]
        taken = rows.take(found, ["v", "k", "late"])
    assert taken.to_pydict() == {"v": ["v21", "v39", "v70", "v99"], "k": [42, 78, 140, 198], "late": [None] * 4}
    assert taken.schema.types == [pa.string(), pa.int64(), pa.int32()]


def test_deleted_rows_are_not_found(tmp_path: Path) -> None:
    with opened(tmp_path / "f", gone=np.array([21, 30, 99])) as rows:
        assert rows.find(rows.groups, ["k"], among(42, 78, 198)).tolist() == [39]
        assert rows.find([], ["k"], among(42)).tolist() == []
        assert rows.lives.sum() == 97
        assert not rows.lives[[21, 30, 99]].any()
        assert rows.take(NONE, ["k"]).schema.types == [pa.int64()]


@pytest.mark.parametrize("slice_rows", [1, 7, 1 << 16])
@pytest.mark.parametrize("gone", [[], [0, 7, 99], range(100)])
def test_live_rows_are_read_without_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slice_rows: int, gone: Sequence[int]
) -> None:
    monkeypatch.setattr(scan, "SLICE_ROWS", slice_rows)
    left = [n for n in range(100) if n not in gone]
    with opened(tmp_path / "f", gone=np.array(gone, np.int64)) as rows:
        found, nothing = rows.living(["late", "v", "k", "missing"]), rows.living(["late"])
    nulls = [None] * len(left)
    assert found.to_pydict() == {
        "late": nulls,
        "v": [f"v{n}" for n in left],
        "k": [2 * n for n in left],
        "missing": nulls,
    }
    assert found.schema.types == [pa.int32(), pa.string(), pa.int64(), pa.list_(pa.string())]
    assert nothing.to_pydict() == {"late": nulls}


@pytest.mark.parametrize(
    ("type_", "values"),
    [
        (pa.int64(), [None, None]),
        (pa.list_(pa.string()), [[], []]),
        (pa.list_(pa.string()), [None, []]),
        (pa.struct([("a", pa.int32())]), [{"a": None}, None]),
    ],
)
def test_null_count_of_a_file_is_not_trusted(tmp_path: Path, type_: pa.DataType, values: list[Any]) -> None:
    """It counts lists without elements, too."""
    schema = pa.schema([("c", type_)])
    pq.write_table(pa.table([pa.array(values, type_)], schema=schema), tmp_path / "f")
    with ScannedFile(pq.ParquetFile(tmp_path / "f"), schema, schema, lambda: NONE) as rows:
        assert rows.is_null("c")
        assert rows.living(["c"]).column("c").to_pylist() == values


def test_each_row_group_reports_its_bounds(tmp_path: Path) -> None:
    with opened(tmp_path / "f", count=30) as rows:
        assert rows.ends("k") == [(0, 18), (20, 38), (40, 58)]
        assert rows.ends("v") == [("v0", "v9"), ("v10", "v19"), ("v20", "v29")]
        assert rows.ends("late") == [None] * 3


@pytest.mark.parametrize(
    ("held", "told"),
    [
        (pa.array([3, 1], pa.int16()), (1, 3)),
        (pa.array([3, 1], pa.date32()), (1, 3)),
        (pa.array([3, 1], pa.timestamp("us", "UTC")), (1, 3)),
        (pa.array([3, 1], pa.timestamp("ms")), None),
        (pa.array([3, 1], pa.float64()), None),
        (pa.array([b"a", b"b"]), None),
        (pa.array([b"\xc3", b"b"]).view(pa.string()), None),
        (pa.array([None, None], pa.int64()), None),
    ],
)
def test_bounds_are_reported_where_their_order_is_that_of_sql(tmp_path: Path, held: pa.Array, told: Any) -> None:
    """A text that was cut off in the middle of a character is not valid text."""
    pq.write_table(pa.table({"c": held}), tmp_path / "f")
    schema = pa.schema([("c", held.type)])
    with ScannedFile(pq.ParquetFile(tmp_path / "f"), schema, schema, lambda: NONE) as rows:
        assert rows.ends("c") == [told]


def test_a_scan_costs_the_columns_of_the_row_groups_that_it_reads(tmp_path: Path) -> None:
    with opened(tmp_path / "f") as rows:
        some, all_ = rows.size(rows.groups[:2], ["k"]), rows.size(rows.groups, ["k"])
        assert 0 < some < all_ < rows.size(rows.groups, ["k", "v"])
        assert rows.size(rows.groups, ["k", "late"]) == all_


@pytest.mark.parametrize(("held", "is_null"), [([None, None], True), ([None, ["a"]], False), ([["a"], ["b"]], False)])
def test_file_shows_whether_a_column_has_any_values(tmp_path: Path, held: list[Any], is_null: bool) -> None:
    type_ = pa.list_(pa.string())
    pq.write_table(pa.table({"c": pa.array(held, type_)}), tmp_path / "f", row_group_size=1)
    schema = pa.schema([("c", type_), ("other", type_)])
    with ScannedFile(pq.ParquetFile(tmp_path / "f"), schema, schema, lambda: NONE) as rows:
        assert rows.is_null("c") is is_null
        assert rows.is_null("other")
