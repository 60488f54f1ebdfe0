"""One Parquet file of a segment: how its columns are stored, its row groups, and the hash of what was written."""

from __future__ import annotations

import hashlib
import io
import threading
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cdcflow.log.files import parquet
from cdcflow.log.files.parquet import SAMPLE_REPEATS, SAMPLE_ROWS, Parquet, TaskThread, columns_of

OFFSETS = pa.field("_offset", pa.int64(), nullable=False)


class Target:
    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.closed = 0

    def write(self, content: bytes) -> int:
        self.written.append(bytes(content))
        return len(content)

    def close(self) -> None:
        self.closed += 1

    @property
    def content(self) -> bytes:
        return b"".join(self.written)

    @property
    def metadata(self) -> Any:
        return pq.ParquetFile(io.BytesIO(self.content)).metadata


def batch(**columns: Any) -> pa.RecordBatch:
    count = max(len(values) for values in columns.values())
    arrays = {"_offset": pa.array(range(1, count + 1), pa.int64()), **{n: pa.array(v) for n, v in columns.items()}}
    schema = pa.schema([OFFSETS, *(pa.field(n, a.type) for n, a in arrays.items() if n != "_offset")])
    return pa.RecordBatch.from_arrays(list(arrays.values()), schema=schema)


def stored(rows: pa.RecordBatch, key: tuple[str, ...] = ()) -> dict[str, Any]:
    """Each column's entry in the file's metadata."""
    target = Target()
    file = Parquet("x.parquet", rows.schema, target, key)
    file.add(rows)
    assert file.close() == (len(target.content), hashlib.sha256(target.content).hexdigest())
    assert pq.read_table(io.BytesIO(target.content)).equals(pa.Table.from_batches([rows]))
    group = target.metadata.row_group(0)
    return {group.column(i).path_in_schema: group.column(i) for i in range(group.num_columns)}


STEPS = {
    "int": pa.array([1, 2, 3], pa.int32()),
    "day": pa.array([1, 2, 3], pa.date32()),
    "stamp": pa.array([1, 2, 3], pa.timestamp("us")),
    "zoned": pa.array([1, 2, 3], pa.timestamp("us", tz="UTC")),
    "time": pa.array([1, 2, 3], pa.time64("us")),
    "short": pa.array([Decimal(1), Decimal(2), Decimal(3)], pa.decimal128(18, 2)),
}
OTHERS = {
    "long": pa.array([Decimal(1), Decimal(2), Decimal(3)], pa.decimal128(19, 2)),
    "flag": pa.array([True, False, True]),
    "float": pa.array([1.5, 2.5, 3.5]),
    "text": pa.array(["a", "b", "c"]),
}


def test_numbers_are_stored_as_steps_and_everything_else_is_not() -> None:
    """docs/changelog-format.md specifies which: steps of numbers are small, and cost nothing."""
    columns = stored(batch(**STEPS, **OTHERS))
    steps = {name for name, column in columns.items() if "DELTA_BINARY_PACKED" in column.encodings}
    assert steps == {"_offset", *STEPS}
    assert {column.compression for column in columns.values()} == {"ZSTD"}
    assert columns["short"].physical_type == "INT64"
    assert columns["long"].physical_type == "FIXED_LEN_BYTE_ARRAY"
    assert not any("DICTIONARY" in e for c in columns.values() for e in c.encodings)


@pytest.mark.parametrize("kind", [pa.string(), pa.binary()])
@pytest.mark.parametrize(("different", "dictionary"), [(25, True), (26, False)])
def test_repeating_texts_get_a_dictionary(kind: pa.DataType, different: int, dictionary: bool) -> None:
    """As often as every fourth value of the first rows; only a sample of those is inspected."""
    assert SAMPLE_REPEATS == 4
    values = [f"v{i % different}" for i in range(100)]
    encodings = stored(batch(v=pa.array(values).cast(kind)))["v"].encodings
    assert any("DICTIONARY" in e for e in encodings) is dictionary


def test_only_the_first_rows_are_read() -> None:
    """Otherwise the whole of a large file would be read twice."""
    values = ["same"] * SAMPLE_ROWS + [f"v{i}" for i in range(9 * SAMPLE_ROWS)]
    assert any("DICTIONARY" in e for e in stored(batch(v=values))["v"].encodings)
    first = ["x", *["same"] * (SAMPLE_ROWS // 4 - 1), *[f"v{i}" for i in range(3 * SAMPLE_ROWS // 4)]]
    assert not any("DICTIONARY" in e for e in stored(batch(v=first))["v"].encodings)


def test_cdcflow_s_columns_with_few_values_always_have_a_dictionary() -> None:
    """Ops, and names of unchanged columns."""
    rows = batch(
        _op=["c", "u", "d"], _unchanged=pa.array([["a"], None, ["b"]], pa.list_(pa.field("element", pa.string())))
    )
    columns = stored(rows)
    for name in ("_op", "_unchanged.list.element"):
        assert any("DICTIONARY" in e for e in columns[name].encodings)


def test_files_are_compressed_by_zstd_s_quickest() -> None:
    """Higher levels cost the writer time and save a few bytes (docs/changelog-format.md)."""
    rows = pa.Table.from_batches([batch(v=[f"{i * 7919 % 3001} and {i % 13}" for i in range(SAMPLE_ROWS)])])

    def size(level: int) -> int:
        plain = io.BytesIO()
        steps = {"_offset": "DELTA_BINARY_PACKED"}
        settings = {"compression": "zstd", "use_dictionary": False, "write_statistics": True}
        pq.write_table(rows, plain, compression_level=level, column_encoding=steps, **settings)
        return len(plain.getvalue())

    target = Target()
    file = Parquet("x.parquet", rows.schema, target, ())
    file.add(rows.to_batches()[0])
    file.close()
    assert len(target.content) == size(1)
    assert size(1) not in (size(2), size(3))


def test_bounds_are_stored_of_what_readers_skip_by() -> None:
    """Offsets and the key; without a key of everything, which is the transactions' file."""
    rows = batch(a=[1, 2, 3], b=[1, 2, 3])
    assert [n for n, c in stored(rows, ("b",)).items() if c.statistics is not None] == ["_offset", "b"]
    assert [n for n, c in stored(rows).items() if c.statistics is not None] == ["_offset", "a", "b"]


def test_rows_go_out_in_groups_of_a_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader reads one group at a time; and gathered rows are counted until they are written."""
    monkeypatch.setattr(parquet, "GROUP_ROWS_MAX", 10)
    target = Target()
    ten, one = batch(a=list(range(10))), batch(a=[1])
    file = Parquet("x.parquet", ten.schema, target, ())
    assert (file.rows, file.gathered_bytes) == (0, 0)
    file.add(one)
    assert (file.rows, file.gathered_bytes) == (1, one.nbytes)
    file.add(ten)
    assert (file.rows, file.gathered_bytes) == (11, 0)
    file.add(ten)
    assert (file.rows, file.gathered_bytes) == (21, 0), "as many as a group may have"
    file.put()
    file.add(one)
    file.put()
    assert file.gathered_bytes == 0
    file.add(one)
    file.close()
    assert [target.metadata.row_group(i).num_rows for i in range(target.metadata.num_row_groups)] == [10, 1, 10, 1, 1]
    assert target.closed == 1


def test_a_file_without_rows_is_a_file() -> None:
    """There may be no transactions."""
    target = Target()
    schema = batch(a=[1]).schema
    assert Parquet("x.parquet", schema, target, ()).close()[0] == len(target.content)
    assert pq.read_table(io.BytesIO(target.content)).schema.equals(schema)


def test_abandoned_file_is_closed_and_nothing_more_is_written() -> None:
    """The disk may be full: that is why."""
    for rows in (0, 3):
        target = Target()
        given = batch(a=list(range(3)))
        file = Parquet("x.parquet", given.schema, target, ())
        if rows:
            file.add(given)
            file.put()
        written = len(target.content)
        file.give_up()
        assert (len(target.content), target.closed) == (written, 1)


def test_large_files_are_written_in_large_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each write waits for the interpreter; small ones are not worth a buffer."""
    pieces: dict[int, int] = {}
    given = batch(a=[f"{i:040d}x{i * 7919 % 1000}" for i in range(3000)])
    for limit in (given.nbytes - 1, given.nbytes):
        monkeypatch.setattr(parquet, "WRITTEN_BYTES", limit)
        target = Target()
        file = Parquet("x.parquet", given.schema, target, ())
        file.add(given)
        file.close()
        pieces[limit] = len(target.written)
    assert pieces[given.nbytes - 1] < pieces[given.nbytes]


# ── in the background ─────────────────────────────────────────────────────────────────────────────────────


def test_background_thread_runs_one_task_at_a_time_and_its_error_is_raised() -> None:
    """The error is raised when the next task is submitted, or on waiting."""
    encoder = TaskThread()
    encoder.wait()
    names: list[str] = []
    may_end = threading.Event()

    def waits() -> None:
        names.append(threading.current_thread().name)
        assert may_end.wait(30)

    encoder.do(waits)
    handing = threading.Thread(target=encoder.do, args=(lambda: names.append("second"),))
    handing.start()
    handing.join(0.05)
    assert handing.is_alive(), "the first one is under way"
    may_end.set()
    handing.join(30)
    encoder.wait()
    assert names == ["cdcflow-encode_0", "second"]

    def fails() -> None:
        raise OSError("no room")

    encoder.do(fails)
    with pytest.raises(OSError, match="no room"):
        encoder.wait()
    encoder.wait()
    encoder.do(fails)
    with pytest.raises(OSError, match="no room"):
        encoder.do(lambda: names.append("third"))
    assert names[-1] == "second"
    encoder.do(fails)
    encoder.close()
    TaskThread().close()


def test_closing_waits_for_the_write_under_way() -> None:
    """Otherwise the file would be closed while it is written."""
    encoder = TaskThread()
    ended: list[str] = []
    begun, may_end = threading.Event(), threading.Event()

    def waits() -> None:
        begun.set()
        assert may_end.wait(30)
        ended.append("work")

    encoder.do(waits)
    assert begun.wait(30)
    closing = threading.Thread(target=lambda: (encoder.close(), ended.append("closed")))  # type: ignore[func-returns-value]
    closing.start()
    closing.join(0.05)
    assert ended == []
    may_end.set()
    closing.join(30)
    assert ended == ["work", "closed"]


def test_file_written_in_the_background_is_the_same_file() -> None:
    """The thread writes the same bytes as the owner would have."""
    found = []
    for encoder in (None, TaskThread()):
        target = Target()
        given = batch(a=list(range(50)))
        file = Parquet("x.parquet", given.schema, target, ("a",), encoder)
        for _ in range(3):
            file.add(given)
            file.put()
        found.append((file.close(), file.rows, target.closed))
        if encoder is not None:
            encoder.close()
    assert found[0] == found[1]


def test_columns_of_a_file_are_read_in_the_requested_order(tmp_path: Path) -> None:
    path = tmp_path / "file.parquet"
    pq.write_table(pa.table({"a": [1], "b": [2], "c": [3]}), path)
    assert columns_of(path).column_names == ["a", "b", "c"]
    assert columns_of(path, ["c", "a"]).to_pydict() == {"c": [3], "a": [1]}
    with pytest.raises(KeyError):
        columns_of(path, ["d"])
    with pytest.raises(FileNotFoundError):
        columns_of(tmp_path / "gone.parquet")
