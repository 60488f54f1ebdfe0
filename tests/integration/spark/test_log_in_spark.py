"""The log by Spark, as a data source and as a plan, against the rows that a reader without Spark returns.

Each history has its own seed: `CDCFLOW_HISTORY_SEED=<seed> CDCFLOW_HISTORIES=1` runs one alone.
"""

from __future__ import annotations

import json
import os
import pickle
import random
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from time import sleep
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import EqualTo, GreaterThan, GreaterThanOrEqual, In, LessThan, LessThanOrEqual
from pyspark.sql.types import StructType
from tests.support.docs.pages import python_of
from tests.support.log import feed_histories
from tests.support.log.feed_histories import NEW
from tests.support.log.hand_log import HandLog, time_of
from tests.support.merge.histories import make_table
from tests.support.tables.histories import Histories

from cdcflow.errors import ConfigurationError, HistoryLost
from cdcflow.log.files.layout import Layout
from cdcflow.log.read.feed import NotInFeed
from cdcflow.log.read.reader import read_rows
from cdcflow.model.table import Table, TableId
from cdcflow.spark import read_log, register
from cdcflow.spark.log_source import change_log, log_options, log_pruning
from cdcflow.tables.job.log_ranges import files_between

pytestmark = pytest.mark.spark

SEED = int(os.environ.get("CDCFLOW_HISTORY_SEED", "0")) or random.SystemRandom().randrange(1, 10**8)
ALONE = int(os.environ.get("CDCFLOW_HISTORIES", "0"))

PAGE = Path(__file__).parents[3] / "docs" / "log.md"

Read = Callable[..., list[dict[str, Any]]]
"""read(log folder, "schema.table", from_offset=3, …): the rows, by offset."""


@pytest.fixture(scope="module", autouse=True)
def _registered(spark: Any) -> None:
    register(spark)


def by_source(spark: Any, root: Path, table: str, **options: Any) -> Any:
    """The data source, with options in the words of `read_log`."""
    reader = spark.read.format("cdcflow").option("log", str(root)).option("table", table)
    for name, value in options.items():
        reader = reader.option(_camel(name), str(value))
    return reader.load()


def _camel(name: str) -> str:
    return re.sub(r"_(.)", lambda found: found[1].upper(), name)


@pytest.fixture(params=["source", "plan"])
def read(request: pytest.FixtureRequest, spark: Any) -> Read:
    """Each way in turn; of the source what its processes do, in this process, which is much quicker."""

    def by_plan(root: Path, table: str, **options: Any) -> list[dict[str, Any]]:
        return in_order(read_log(spark, root, table, **options))

    return by_plan if request.param == "plan" else here


def in_order(frame: Any) -> list[dict[str, Any]]:
    return ordered(frame.toArrow().to_pylist())


def here(root: Path, table: str, **options: Any) -> list[dict[str, Any]]:
    """What the data source's processes do, in this one."""
    given = {"log": str(root), "table": table} | {_camel(name): str(value) for name, value in options.items()}
    source = change_log.ChangeLogSource(given)
    schema: Any = StructType.fromDDL(source.schema())
    reader = source.reader(schema)
    parts = [pickle.loads(pickle.dumps(part)) for part in reader.partitions()]  # noqa: S301  our own
    batches: list[Any] = [batch for part in parts for batch in reader.read(part)]
    return ordered(row for batch in batches for row in batch.to_pylist())


def ordered(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: (row["_offset"], row.get("_change_type") == "update_postimage"))


# ── what it must be, in plain Python ────────────────────────────────────────────────────────────────────────


def plain(root: Path, table: TableId, first: int, last: int) -> list[dict[str, Any]]:
    """The rows that the log has, in the columns of the latest shape."""
    parts = list(read_rows(root, first, last, {table}))
    if not parts:
        return []
    shapes = list(dict.fromkeys(shape for shape, _, _ in parts))
    _, newest = max((rows.column("_offset")[-1].as_py(), shape) for shape, _, rows in parts)
    return [_brought(row, shape, newest, shapes) for shape, _, rows in parts for row in rows.to_pylist()]


def _brought(row: Mapping[str, Any], shape: Table, newest: Table, shapes: list[Table]) -> dict[str, Any]:
    names: dict[str, str] = {}
    for column in newest.columns:
        for own in shape.columns:
            is_same = own.number == column.number
            if shape.incarnation != newest.incarnation:
                is_same = own.name.lower() == column.name.lower()
            if is_same:
                names[own.name] = column.name
    found = {name: row[name] for name in ("_offset", "_txn", "_commit_ts", "_op")}
    for column in newest.columns:
        own_name = next((own for own, now in names.items() if now == column.name), None)
        found[column.name] = row[own_name] if own_name else None
        if own_name is None and row["_op"] in "cur":
            found[column.name] = _default(column.name, newest, shapes)
    left = [names[name] for name in row["_unchanged"] or () if name in names]
    before = row["_before"]
    if before is not None:
        before = {names[n]: v for n, v in before.items() if n in names}
        before = {f.name: before.get(f.name) for f in newest.before_type}
    return found | {"_unchanged": left or None, "_before": before}


def _default(name: str, newest: Table, shapes: list[Table]) -> Any:
    """The value that the source gave to existing rows when the column was added."""
    [number] = [c.number for c in newest.columns if c.name == name]
    for shape in shapes:
        for column in shape.columns:
            if column.number == number if shape.incarnation == newest.incarnation else column.name == name:
                if column.missing is None:
                    return None
                if pa.types.is_boolean(column.type.arrow):
                    return column.missing == "true"
                return pa.array([column.missing]).cast(column.type.arrow)[0].as_py()
    return None


def followed(read: Callable[..., list[dict[str, Any]]], first: int, last: int) -> Iterator[tuple[int, int, Any]]:
    """A range, parted as the errors say to the letter: the parts, and what was read of each."""
    try:
        yield first, last, read(from_offset=first, to_offset=last)
    except Exception as error:  # the data source's are Spark's
        parts = re.search(r"read up to offset (\d+), and from offset (\d+),", str(error))
        if parts is None:
            raise
        low, high = int(parts[1]), int(parts[2])
        if not first <= low < high <= last:
            raise
        yield from followed(read, first, low)
        yield from followed(read, high, last)


def check_histories(read: Read, seed: int, count: int, rounds: int, folder: Path) -> None:
    made = Histories(range(seed, seed + count), HandLog(folder / "log"))
    for _ in range(rounds):
        made.write_round()
    root, end = made.log.root, made.log.next_offset - 1
    there = {t.id for t, _ in made.log.written}
    for history in made.listed:
        if history.id not in there:
            continue
        chance = random.Random(history.seed)
        first = chance.randint(1, end)
        last = chance.randint(first, end)
        for low, high in ((1, end), (first, last)):
            for a, b, rows in followed(lambda **ends: read(root, str(history.id), **ends), low, high):  # noqa: B023
                expected = plain(root, history.id, a, b)
                assert rows == expected, f"CDCFLOW_HISTORY_SEED={history.seed} CDCFLOW_HISTORIES=1, {a} to {b}"


# ── tests ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spread(1)
def test_log_of_histories_equals_a_plain_read(read: Read, tmp_path: Path) -> None:
    """Renamed, dropped, added and widened columns, recreated tables, compaction; where a range has no common columns
    the test follows the error's remedy to the letter.
    """
    check_histories(read, SEED, ALONE or 4, 3, tmp_path)


def test_log_of_a_history_through_spark_equals_a_plain_read(spark: Any, tmp_path: Path) -> None:
    """The same by the data source, in Spark's own processes."""
    check_histories(lambda *of, **ends: in_order(by_source(spark, *of, **ends)), SEED, 1, 2, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("part", range(8))
def test_log_of_many_histories_equals_a_plain_read(read: Read, part: int, tmp_path: Path) -> None:
    """The same, many of them."""
    check_histories(read, SEED + 1000 * part, 12, 4, tmp_path)


def feed_log(log: HandLog, seed: int, count: int, segments: int) -> list[dict[str, Any]]:
    """A log with a history of whole old rows, and what its feed says."""
    steps = list(feed_histories.history(random.Random(seed), count))
    size = -(-count // segments)
    for at in range(0, count, size):
        log.segment([step for step, _ in steps[at : at + size]])
    log.compact(2)
    return [row for _, says in steps for row in says]


def test_feed_equals_the_fold(read: Read, hand_log: HandLog) -> None:
    """Pre- and postimages, values that changes do not contain, and two shapes."""
    check_feed(lambda root, table: read(root, table, shape="feed"), hand_log)


def test_feed_through_spark_equals_the_fold(spark: Any, hand_log: HandLog) -> None:
    """The same by the data source, in Spark's own processes."""
    check_feed(lambda root, table: in_order(by_source(spark, root, table, shape="feed")), hand_log)


def check_feed(read: Read, log: HandLog) -> None:
    expected = feed_log(log, SEED, 90, 4)
    shown = read(log.root, str(NEW.id))
    for row in shown:
        del row["_commit_timestamp"]
    assert shown == expected, f"CDCFLOW_HISTORY_SEED={SEED}"


def test_feed_stops_at_changes_that_it_cannot_represent_and_the_remedies_work(read: Read, hand_log: HandLog) -> None:
    """A NULL that means nothing, and rows that were removed without being logged, would be wrong in every copy."""
    table = make_table("orders", id="int64", a="int64", b="int64")
    hand_log.segment([(table, "c", {"id": 1, "a": 1, "b": 1}), (table, "u", {"id": 1, "a": 2, "_unchanged": ["b"]})])
    hand_log.segment([(table, "c", {"id": 2, "a": 1, "b": 1}), (table, "t", {}), (table, "r", {"id": 3})])

    def feed(**more: Any) -> list[tuple[str, Any]]:
        return [(row["_change_type"], row["id"]) for row in read(hand_log.root, "public.orders", shape="feed", **more)]

    with pytest.raises(NotInFeed, match=r"public\.orders.* offset 2, .*\n.* up to offset 1, and from offset 3 on"):
        feed()
    assert read(hand_log.root, "public.orders")[1]["_unchanged"] == ["b"]
    assert feed(to_offset=1) == [("insert", 1)]
    with pytest.raises(NotInFeed, match=r"at offset 4 the table was emptied.*\n.* up to offset 3, .* from offset 5;"):
        feed(from_offset=3)
    assert feed(from_offset=3, to_offset=3) == [("insert", 2)]
    assert feed(from_offset=5) == [("insert", 3)]
    assert feed(from_offset=3, truncates="row") == [("insert", 2), ("truncate", None), ("insert", 3)]


def test_range_without_common_columns_is_refused_with_the_offset_where_to_part_it(
    read: Read, hand_log: HandLog
) -> None:
    """A type that does not hold the old values, and for a feed another table of the same name; a narrower type is held
    by the wider one."""
    numbers, texts = (make_table("orders", id="int64", a=kind) for kind in ("int64", "string"))
    again = make_table("orders", incarnation=2, id="int64", a="string")
    narrow = make_table("orders", incarnation=2, id="int32", a="string")
    hand_log.segment([(numbers, "c", {"id": 1, "a": 1}), (texts, "c", {"id": 2, "a": "x"})])
    hand_log.segment([(again, "c", {"id": 2**40, "a": "y"})])
    hand_log.segment([(narrow, "c", {"id": 4, "a": "z"})])

    def parts(**shape: str) -> list[tuple[int, int, list[Any]]]:
        found = followed(lambda **ends: read(hand_log.root, "public.orders", **shape, **ends), 1, 4)
        return [(first, last, [row["a"] for row in rows]) for first, last, rows in found]

    with pytest.raises(ConfigurationError, match="column a was bigint and is string later"):
        read(hand_log.root, "public.orders")
    assert parts() == [(1, 1, [1]), (2, 4, ["x", "y", "z"])]
    with pytest.raises(ConfigurationError, match="dropped and recreated"):
        read(hand_log.root, "public.orders", shape="feed", from_offset=2)
    assert parts(shape="feed") == [(1, 1, [1]), (2, 2, ["x"]), (3, 4, ["y", "z"])]


def test_names_that_a_reader_cannot_have_twice_are_refused(read: Read, hand_log: HandLog) -> None:
    """One of two columns would be shown under the name of both."""
    feeds, cases = make_table("feeds", id="int64", _change_type="string"), make_table("cases", id="int64", ID="int64")
    hand_log.segment([(feeds, "c", {"id": 1, "_change_type": "x"}), (cases, "c", {"id": 2, "ID": 3})])
    with pytest.raises(ConfigurationError, match="itself has columns called _change_type\n  read it with shape log"):
        read(hand_log.root, "public.feeds", shape="feed")
    assert read(hand_log.root, "public.feeds")[0]["_change_type"] == "x"
    with pytest.raises(ConfigurationError, match="only in the case of their names"):
        read(hand_log.root, "public.cases")


def test_every_type_has_the_same_values_as_in_a_merge(spark: Any, hand_log: HandLog) -> None:
    """The data source converts in Arrow, the plan in SQL by the merge's rules."""
    types: dict[str, Any] = {
        "id": pa.int64(),
        "tiny": pa.uint8(),
        "word": pa.uint32(),
        "large": pa.uint64(),
        "exact": pa.decimal128(20, 4),
        "wide": pa.decimal256(50, 12),
        "clock": pa.time64("us"),
        "span": pa.duration("us"),
        "day": pa.date32(),
        "local": pa.timestamp("us"),
        "zoned": pa.timestamp("us", tz="UTC"),
        "fixed": pa.binary(2),
        "label": pa.dictionary(pa.int32(), pa.string()),
        "words": pa.list_(pa.field("element", pa.string())),
        "clocks": pa.list_(pa.field("element", pa.time64("us"))),
        "pair": pa.struct([("x", pa.int32()), ("y", pa.string())]),
    }
    table = make_table("kinds", **types)
    some = {
        "id": 1,
        "tiny": 255,
        "word": 2**32 - 1,
        "large": 2**64 - 1,
        "exact": Decimal("-1.5000"),
        "wide": Decimal("-0.000000000001"),
        "clock": time(3, 4, 5, 6),
        "span": -timedelta(hours=100, microseconds=1),
        "day": date(1, 1, 1),
        "local": datetime(2024, 1, 1, 1, 2, 3, 4),
        "zoned": datetime(2024, 1, 1, tzinfo=UTC),
        "fixed": b"\0\xff",
        "label": "x",
        "words": ["a", None, ""],
        "clocks": [time(0), None],
        "pair": {"x": 1, "y": None},
    }
    hand_log.segment([(table, "c", some), (table, "c", {"id": 2}), (table, "c", some | {"id": 3, "words": []})])
    plan, source = (by(spark, hand_log.root, str(table.id)) for by in (read_log, by_source))
    assert plan.schema.simpleString() == source.schema.simpleString()
    assert in_order(source) == in_order(plan)
    shown = in_order(source)[0]
    assert (shown["wide"], shown["clock"], shown["span"]) == (
        "-0.000000000001",
        "03:04:05.000006",
        "-100:00:00.000001",
    )
    assert (shown["large"], shown["tiny"], shown["clocks"]) == (2**64 - 1, 255, ["00:00:00.000000", None])


def test_range_may_be_named_by_cut_position_and_time(spark: Any, tmp_path: Path) -> None:
    """Which ends are inclusive: offsets and times are; a cut and a position are points between transactions."""
    log = HandLog(tmp_path / "log", has_transactions=True)
    table = make_table("orders", id="int64")
    for number in range(4):
        log.segment([(table, "c", {"id": 2 * number + n}) for n in (1, 2)])

    def offsets(**ends: Any) -> list[int]:
        return [row["_offset"] for row in in_order(read_log(spark, log.root, "public.orders", **ends))]

    assert offsets(from_offset=3, to_offset=5) == [3, 4, 5]
    assert offsets(from_cut=1, to_cut=3) == [3, 4, 5, 6]
    assert offsets(from_position="0/2", to_position="0/5") == [3, 4, 5]
    assert offsets(from_time=time_of(3), to_time=time_of(5).isoformat()) == [3, 4, 5]
    assert offsets(from_time=time_of(3) + timedelta(microseconds=1), to_time=time_of(5)) == [4, 5]
    assert offsets(from_offset=9) == offsets(from_time=time_of(8) + timedelta(microseconds=1)) == []
    for ends, said in (
        ({"to_offset": 9}, "sealed up to offset 8\n  name that offset"),
        ({"from_offset": 10}, "sealed up to offset 8\n  name offset 9"),
        ({"to_cut": 5}, "sealed up to cut 4"),
        ({"to_time": time_of(99)}, "name an earlier time"),
        ({"from_time": time_of(9)}, "or offset 9, at which the next row comes"),
        ({"from_offset": 1, "from_cut": 1}, "name one of them"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            offsets(**ends)
    shown = by_source(spark, log.root, "public.orders", from_time=time_of(3).isoformat(), to_cut=3)
    assert [row["_offset"] for row in in_order(shown)] == [3, 4, 5, 6]


def told_source() -> type[change_log.ChangeLogSource]:
    """Spark's processes can load a class that is defined in a function without importing a module of these tests."""

    class Told(change_log.ChangeLogSource):
        """The same source; its planning process writes down of how many files the tasks read."""

        def reader(self, schema: Any) -> Any:
            made = super().reader(schema)
            own = made.partitions

            def partitions() -> Any:
                found = own()
                files = [
                    piece.file.path for part in found if isinstance(part, log_pruning.Pieces) for piece in part.pieces
                ]
                Path(self.options["log"]).with_name("planned.json").write_text(json.dumps(files))
                return found

            made.partitions = partitions  # type: ignore[method-assign]
            return made

    return Told


def test_filters_keep_files_unread(spark: Any, hand_log: HandLog) -> None:
    """The cost of reading one key does not grow with the log."""
    table = make_table("orders", id="int64")
    for number in range(4):
        hand_log.segment([(table, "c", {"id": 10 * number + n}) for n in range(10)])
    spark.dataSource.register(told_source())
    try:
        for where, expected, files in (
            ("_offset > 35 AND _op = 'c'", 5, 1),
            ("id IN (15, 35)", 2, 2),
            ("_commit_ts >= timestamp'2100-01-01'", 0, 0),
        ):
            assert len(by_source(spark, hand_log.root, "public.orders").where(where).collect()) == expected, where
            assert len(json.loads(hand_log.root.with_name("planned.json").read_text())) == files, where
    finally:
        register(spark)


def test_filters_exclude_no_file_that_may_have_a_row(hand_log: HandLog) -> None:
    """Each supported filter, on both sides of its edge, and values of other kinds, which prune nothing."""
    table = make_table("orders", id="int64")
    hand_log.segment([(table, "c", {"id": n}) for n in range(10, 20)])
    [file] = files_between(Layout(hand_log.root), table.id, 1, 10)
    name = ("id",)
    for one, expected in (
        (EqualTo(name, 10), True),
        (EqualTo(name, 9), False),
        (EqualTo(name, Decimal("9.5")), True),
        (In(name, (9, 20)), False),
        (In(name, (9, 19)), True),
        (GreaterThan(name, 19), True),  # not worth an edge
        (GreaterThan(name, 20), False),
        (GreaterThanOrEqual(name, 20), False),
        (LessThan(name, 9), False),
        (LessThanOrEqual(name, 10), True),
        (EqualTo(("note",), 9), True),
        (EqualTo(("id", "x"), 9), True),
    ):
        assert log_pruning.may_have(file, table, [one]) == expected, one
    offset = ("_offset",)
    assert log_pruning.narrow_range(1, 10, [GreaterThan(offset, 3), LessThan(offset, 7)]) == (4, 6)
    assert log_pruning.narrow_range(1, 10, [GreaterThanOrEqual(offset, 3), LessThanOrEqual(offset, 7)]) == (3, 7)
    assert log_pruning.narrow_range(1, 10, [EqualTo(offset, 5), GreaterThan(name, 7)]) == (5, 5)


def test_compaction_between_planning_and_reading_fails_no_query(spark: Any, hand_log: HandLog) -> None:
    """A query may be planned, wait for its turn, and read when the segments are others."""
    table = make_table("orders", id="int64")
    for number in range(4):
        hand_log.segment([(table, "c", {"id": 2 * number + n}) for n in (1, 2)])
    options = log_options.Options(str(hand_log.root), None, "public.orders")
    plan = log_options.plan_query(Layout(hand_log.root), options)
    schema = by_source(spark, hand_log.root, "public.orders").schema
    reader = change_log.ChangeLogReader(plan, lambda options: Layout(Path(str(options.log))), schema)
    tasks = reader.partitions()
    hand_log.compact(3)
    found = [row["id"] for task in tasks for batch in reader.read(task) for row in batch.to_pylist()]
    assert found == list(range(1, 9))
    assert [row["id"] for task in reader.partitions() for b in reader.read(task) for row in b.to_pylist()] == found


def test_expired_beginning_names_the_first_offset_left(read: Read, hand_log: HandLog) -> None:
    """Read from where the log begins now, it would show some changes as all there were."""
    table = make_table("orders", id="int64")
    for number in range(3):
        hand_log.segment([(table, "c", {"id": number})])
    expire(hand_log, 1)
    with pytest.raises(HistoryLost, match="first one left is 2"):
        read(hand_log.root, "public.orders", from_offset=1)
    assert [row["id"] for row in read(hand_log.root, "public.orders", from_offset=2)] == [1, 2]
    assert [row["id"] for row in read(hand_log.root, "public.orders")] == [1, 2]


def expire(log: HandLog, count: int) -> None:
    """Expire the oldest segments, as retention does."""
    layout = Layout(log.root)
    gone, (first, _) = layout.segment_offsets()[:count], layout.segment_offsets()[count]
    layout.log_json.write_text(json.dumps(json.loads(layout.log_json.read_text()) | {"first_offset": first}))
    for bounds in gone:
        shutil.rmtree(layout.segment(*bounds))


@pytest.mark.long
def test_each_block_of_the_page_runs(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A page whose one-liners fail costs more trust than no page."""
    log, orders = (
        HandLog(tmp_path / "cdcflow-log", has_transactions=True),
        make_table("orders", id="int64", note="string"),
    )
    log.segment([(orders, "r", {"id": n, "note": f"n{n}"}) for n in range(1, 4)])
    log.segment([(orders, "u", {"id": 2, "note": "new"}), (orders, "d", {"id": 3})])
    monkeypatch.chdir(tmp_path)
    found = python_of(PAGE, spark=None, section="With Spark")
    names: dict[str, Any] = {"spark": spark}
    assert len(found) == 4
    for block in found:
        own = block.replace("spark = session()\n", "")  # a second one would be another Java
        exec(compile(own, str(PAGE), "exec"), names)  # noqa: S102  our own page
    assert names["changes"].count() == names["feed"].count() == 5
    assert [row["_offset"] for row in in_order(names["since"])] == [4, 5]
    assert names["counted"] == {"d": 1, "r": 3, "u": 1}
    assert {row["id"]: row["note"] for row in spark.read.parquet(str(tmp_path / "copy")).collect()} == {
        1: "n1",
        2: "new",
        3: None,
    }


def test_options_that_mean_nothing_are_refused(hand_log: HandLog) -> None:
    """A misspelt bound would read everything."""
    hand_log.segment([(make_table("orders", id="int64"), "c", {"id": 1})])
    for given, said in (
        ({"table": "public.orders", "formOffset": "1"}, "no option formoffset"),
        ({"table": "public.order"}, "name one of: public.orders"),
        ({}, "set the option table"),
        ({"table": "public.orders", "fromOffset": "one"}, "whole number"),
        ({"table": "public.orders", "shape": "cdf"}, "log or feed"),
        ({"table": "public.orders", "log": "cdcflow-log"}, "name the whole path"),
        ({"table": "public.orders", "config": "x.yaml"}, "named, or twice"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            change_log.ChangeLogSource({"log": str(hand_log.root), **given}).schema()


# ── streams ─────────────────────────────────────────────────────────────────────────────────────────────────


class Killed(Exception):
    """What ends a query in the middle of a batch."""


@pytest.mark.long
def test_stream_that_is_killed_in_a_batch_reads_the_same_batch_again(
    spark: Any, hand_log: HandLog, tmp_path: Path
) -> None:
    """Each row once: bounded batches, concurrent compaction, a query that dies between batch and checkpoint, one that
    continues after expired segments; and an expired one that reports it.
    """
    table = make_table("orders", id="int64")
    for number in range(4):
        hand_log.segment([(table, "c", {"id": 3 * number + n}) for n in (1, 2, 3)])
    batches: dict[int, list[int]] = {}
    tries: list[tuple[int, list[int]]] = []

    def run(until: int, *, die_at: int | None = None, **options: Any) -> Any:
        def taken(frame: Any, number: int) -> None:
            found = [row["_offset"] for row in in_order(frame)]
            tries.append((number, found))
            batches[number] = found
            if number == die_at:
                raise Killed
            if sum(map(len, batches.values())) >= until:
                done.append(number)

        done: list[int] = []
        options |= {"log": str(hand_log.root), "table": "public.orders", "fromOffset": 1}
        stream = spark.readStream.format("cdcflow").options(**options)
        query = (
            stream.load()
            .writeStream.foreachBatch(taken)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(processingTime="50 milliseconds")
            .start()
        )
        while query.isActive and not done:
            sleep(0.05)
        error = None if query.isActive else query.exception()
        query.stop()
        return error

    assert "Killed" in str(run(99, die_at=0, maxOffsetsPerTrigger=4))
    hand_log.compact(3)  # segments that the batch that died had read, and later ones
    run(12, maxOffsetsPerTrigger=4)
    assert tries == [(0, [1, 2, 3]), (0, [1, 2, 3]), (1, list(range(4, 10))), (2, [10, 11, 12])]  # segments come whole
    expire(hand_log, 1)
    hand_log.segment([(table, "c", {"id": 13})])
    run(13)  # the rows that it needs exist, the offset where it began does not
    assert batches[3] == [13]
    hand_log.segment([(table, "c", {"id": 14})])
    hand_log.segment([(table, "c", {"id": 15})])
    expire(hand_log, len(Layout(hand_log.root).segment_offsets()) - 1)
    said = str(run(99))
    assert "HistoryLost" in said
    assert "first one left is 15" in said


@pytest.mark.long
def test_stream_of_a_feed_continues_after_a_truncate(spark: Any, hand_log: HandLog, tmp_path: Path) -> None:
    """The stream stops there; it continues with its checkpoint and another option, or with a new one after the
    truncate.
    """
    table = make_table("orders", id="int64")
    hand_log.segment([(table, "c", {"id": 1}), (table, "t", {}), (table, "c", {"id": 2})])

    def run(checkpoint: str, **options: Any) -> list[str]:
        found: list[str] = []
        options |= {"log": str(hand_log.root), "table": "public.orders", "shape": "feed"}
        writer = (
            spark.readStream.format("cdcflow")
            .options(**options)
            .load()
            .writeStream.foreachBatch(lambda frame, _: found.extend(row["_change_type"] for row in in_order(frame)))
        )
        writer = writer.option("checkpointLocation", str(tmp_path / checkpoint)).trigger(availableNow=True)
        writer.start().awaitTermination()
        return found

    with pytest.raises(Exception, match="at offset 2 the table was emptied"):
        run("one")
    assert run("one", truncates="row") == ["insert", "truncate", "insert"]
    assert run("another", fromOffset=3) == ["insert"]


@pytest.mark.long
def test_stream_continues_in_new_columns_with_its_checkpoint(spark: Any, hand_log: HandLog, tmp_path: Path) -> None:
    """The remedy is to load it again, with the same checkpoint. A query keeps the columns with which it began."""
    old, new = make_table("orders", id="int64"), make_table("orders", id="int64", note="string")
    hand_log.segment([(old, "c", {"id": 1})])
    found: list[dict[str, Any]] = []

    def start() -> Any:
        stream = spark.readStream.format("cdcflow").options(log=str(hand_log.root), table="public.orders").load()
        writer = stream.writeStream.foreachBatch(lambda frame, _: found.extend(in_order(frame)))
        return writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()

    query = start()
    while not found and query.isActive:
        sleep(0.05)
    hand_log.segment([(new, "c", {"id": 2, "note": "n"})])
    with pytest.raises(Exception, match="load the stream again and start it with the same checkpoint"):
        query.awaitTermination(30)
    query = start()
    while len(found) < 2 and query.isActive:
        sleep(0.05)
    query.stop()
    assert [(row["id"], row.get("note")) for row in found] == [(1, None), (2, "n")]
