"""Merges without Spark: random histories against the fold, killed, concurrent, and from the command line."""

from __future__ import annotations

import itertools
import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.log.hand_log import HandLog
from tests.support.merge.histories import World, assert_as_folded, make_table, make_world, write_round

from cdcflow.errors import ConfigurationError, SinkUnavailable
from cdcflow.log.files.layout import Layout
from cdcflow.model.table import Table
from cdcflow.tables.formats import FORMATS, format_for, format_in
from cdcflow.tables.job import job
from cdcflow.tables.job.engines import Engines
from cdcflow.tables.job.lease import folder_lease
from cdcflow.tables.job.positions import Positions
from cdcflow.tables.job.reports import MergeReport
from cdcflow.tables.local import file_rewrites, table_files
from cdcflow.tables.local.delta import DeltaTable
from cdcflow.tables.local.deltalog import DeltaLog, File
from cdcflow.tables.local.engine import LocalEngine
from cdcflow.tables.local.iceberg import IcebergTable
from cdcflow.tables.local.recently_used import RecentlyUsed
from cdcflow.tables.local.scan import ScannedFile
from cdcflow.tables.local.tables import FileTable
from cdcflow.tables.merge.refusals import CannotFollow
from cdcflow.tables.paths import table_path

SEED = int(os.environ.get("CDCFLOW_LOCAL_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)
HISTORIES = int(os.environ.get("CDCFLOW_LOCAL_HISTORIES", "150"))


Merge = Callable[..., MergeReport]

COMMITS: list[tuple[Any, str]] = [(IcebergTable, "create"), (IcebergTable, "_changing"), (DeltaLog, "commit")]
"""Where each commit begins."""


def engine(warehouse: Path) -> LocalEngine:
    return LocalEngine(warehouse, format_in(warehouse) or "delta")


@contextmanager
def read(warehouse: Path, table: Table) -> Iterator[FileTable[Any]]:
    there = engine(warehouse).table(table_path(table.id))
    assert there.snapshot() is not None
    yield there
    there.close()


def rows_of(warehouse: Path, table: Table) -> list[dict[str, Any]]:
    with read(warehouse, table) as there:
        found = there.rows().drop_columns(["_offset", "_missing"])
        if len(found) > 1:
            found = found.sort_by(found.column_names[0])
        rows: list[dict[str, Any]] = found.to_pylist()
        return rows


def folded(world: World, warehouse: Path, told: str) -> None:
    """Check that every table equals the fold."""

    def actual(table: Table) -> list[Any]:
        with read(warehouse, table) as there:
            found: list[Any] = there.rows().to_pylist()
            return found

    assert_as_folded(world, actual, told)


@pytest.mark.spread(2)
@pytest.mark.parametrize("number", range(2))
def test_merges_at_random_cuts_give_what_the_fold_gives(
    merge: Merge,
    hand_log: HandLog,
    warehouse: Path,
    monkeypatch: pytest.MonkeyPatch,
    commits: Counter[str],
    number: int,
) -> None:
    """Hundreds of histories in three tables, whose rows are marked or whose files are written again. A failure prints
    the seed; `CDCFLOW_LOCAL_SEED=<seed>` replays it."""
    if number:
        monkeypatch.setattr(file_rewrites, "TINY_BYTES", 0)
        monkeypatch.setattr(file_rewrites, "DEAD_SHARE_MAX", 0.9)
    world = make_world(SEED + number, HISTORIES)
    for round_ in range(3):
        write_round(world, hand_log, round_)
        assert merge(hand_log.root, warehouse).published
        folded(world, warehouse, f"seed {SEED}, round {round_}")
    if HISTORIES >= 100:
        assert {how for how in commits if commits[how]} >= ({"marked", "marked again"} if number else {"written again"})


@pytest.mark.spread(1)
def test_a_merge_cut_off_before_any_commit_is_finished_by_the_next(
    merge: Merge, hand_log: HandLog, warehouse: Path, monkeypatch: pytest.MonkeyPatch, commits: Counter[str]
) -> None:
    """G10: whatever was already committed, the rows equal the fold's, and each appears once. Marks that were written
    before a commit that never happened are ignored.
    """
    monkeypatch.setattr(job, "TABLES_AT_ONCE", 1)
    monkeypatch.setattr(file_rewrites, "TINY_BYTES", 0)
    monkeypatch.setattr(file_rewrites, "DEAD_SHARE_MAX", 0.9)
    left = 0

    def counted(right: Callable[..., Any]) -> Callable[..., Any]:
        def dying(*given: Any, **more: Any) -> Any:
            nonlocal left
            if not left:
                raise KeyboardInterrupt
            left -= 1
            return right(*given, **more)

        return dying

    for of, method in COMMITS:
        monkeypatch.setattr(of, method, counted(getattr(of, method)))
    world = make_world(SEED, 10)
    deaths = 0
    for round_ in range(6):
        write_round(world, hand_log, round_)
        for allowed in itertools.count():
            left = allowed  # a run repeats what may be repeated before it gets to new work
            try:
                report = merge(hand_log.root, warehouse)
            except KeyboardInterrupt:
                deaths += 1
            else:
                break
        assert report.cut == hand_log.cut
        folded(world, warehouse, f"seed {SEED}, round {round_}")
    assert deaths > 6
    assert commits["marked"]


def test_two_merges_at_once_do_nothing_twice(
    format_name: str, merge: Merge, hand_log: HandLog, warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G13: the lock saves work only. Without it the second to commit meets the first one's snapshot, and checks again:
    also where both append to an empty table, which Iceberg itself would allow.
    """
    warehouse.mkdir()
    monkeypatch.setattr(LocalEngine, "lease", lambda _: nullcontext())
    orders = make_table("orders", id="int64", v="int32")
    hand_log.state(orders)
    written = IcebergTable if format_name == "iceberg" else DeltaTable
    right = written.replace
    beaten = 0

    def replace(table: Any, *given: Any) -> None:
        nonlocal beaten
        if beaten < hand_log.cut:
            beaten = hand_log.cut
            merge(hand_log.root, warehouse)  # the other one comes first
        right(table, *given)

    monkeypatch.setattr(written, "replace", replace)
    for values in ({"id": 1, "v": 1}, {"id": 2, "v": 2}):
        hand_log.segment([(orders, "c", values)])
        with pytest.raises(SinkUnavailable, match="another merge has published one in the meantime"):
            merge(hand_log.root, warehouse)
    assert beaten == 2
    assert rows_of(warehouse, orders) == [{"id": 1, "v": 1}, {"id": 2, "v": 2}]


def test_values_come_through_exactly(merge: Merge, hand_log: HandLog, warehouse: Path) -> None:
    """What DuckDB reads and gives back must be what was written, at the ends of each type's range too."""
    values = make_table(
        "values",
        id="int64",
        tiny=pa.int8(),
        word=pa.uint16(),
        wide=pa.uint64(),
        price=pa.decimal128(38, 9),
        tags=pa.list_(pa.string()),
        grid=pa.list_(pa.list_(pa.decimal128(10, 2))),
        at=pa.timestamp("us", "UTC"),
        seen=pa.timestamp("us"),
        day=pa.date32(),
        raw=pa.binary(),
        hash=pa.binary(4),
        yes=pa.bool_(),
        ratio=pa.float64(),
        clock=pa.duration("us"),
        text="string",
        mood=pa.dictionary(pa.int32(), pa.string()),
    )
    moment = datetime(9999, 12, 31, 23, 59, 59, 999999)
    full: dict[str, Any] = {
        "id": -(2**63),
        "tiny": -128,
        "word": 65535,
        "wide": 2**64 - 1,
        "price": Decimal("-99999999999999999999999999999.999999999"),
        "tags": ["x", None, ""],
        "grid": [[Decimal("1.20"), None], [], None],
        "at": moment.replace(tzinfo=UTC),
        "seen": datetime(1, 1, 1),
        "day": date(1, 1, 1),
        "raw": b"\x00\xff",
        "hash": b"abcd",
        "yes": False,
        "ratio": 5e-324,
        "clock": -timedelta(hours=838, microseconds=1),
        "text": "a\x00b 'c' \\ \U0001f600",
        "mood": "ok",
    }
    empty = dict.fromkeys(full) | {"id": 2}
    told = full | {"clock": "-838:00:00.000001", "wide": Decimal(2**64 - 1)}
    hand_log.state(values)
    hand_log.segment([(values, "c", full), (values, "c", full | {"id": 1})])
    merge(hand_log.root, warehouse)
    hand_log.segment([(values, "u", empty | {"id": 1}), (values, "c", empty)])
    merge(hand_log.root, warehouse)
    assert rows_of(warehouse, values) == [told, empty | {"id": 1}, empty]


KEYS: dict[str, tuple[Any, list[Any]]] = {
    "instants": (pa.timestamp("us", "UTC"), [datetime(2024, 1, 1, tzinfo=UTC), datetime(1890, 5, 5, 3, 4, 5, 6, UTC)]),
    "moments": (pa.timestamp("us"), [datetime(2024, 1, 1), datetime(1, 1, 1)]),
    "days": (pa.date32(), [date(2024, 1, 1), date(1, 1, 1)]),
    "bytes": (pa.binary(), [b"\0\xff", b""]),
    "prices": (pa.decimal128(20, 3), [Decimal("1.5"), Decimal(-3)]),
    "answers": (pa.bool_(), [True, False]),
    "texts": (pa.string(), ["\u00e4'\\", "\u00df" * 40]),
    "clocks": (pa.time64("us"), [time(1, 2, 3), time(0)]),
    "wide": (pa.uint64(), [2**64 - 1, 0]),
    "lists": (pa.list_(pa.int32()), [[1, None], []]),
}


@pytest.mark.spread(1)
def test_keys_of_each_type_find_their_rows(merge: Merge, hand_log: HandLog, warehouse: Path) -> None:
    """A row whose key is not found again would appear twice, once with its old values."""
    tables = {name: make_table(name, key=("k",), k=type_, v="int32") for name, (type_, _) in KEYS.items()}
    for table in tables.values():
        hand_log.state(table)
    for number, op in enumerate("cuu"):
        hand_log.segment([(tables[n], op, {"k": k, "v": number}) for n, (_, keys) in KEYS.items() for k in keys])
        assert not [t.left_out for t in merge(hand_log.root, warehouse).tables if t.left_out]
    hand_log.segment([(tables[name], "d", {"k": keys[0]}) for name, (_, keys) in KEYS.items()])
    merge(hand_log.root, warehouse)
    told = {name: keys[1] for name, (_, keys) in KEYS.items()} | {"clocks": "00:00:00.000000", "wide": Decimal(0)}
    assert {name: rows_of(warehouse, table) for name, table in tables.items()} == {
        name: [{"k": key, "v": 2}] for name, key in told.items()
    }


def test_only_files_with_changed_rows_are_replaced(merge: Merge, hand_log: HandLog, warehouse: Path) -> None:
    """The cost of a cycle is that of its changes: by the bounds of keys in the manifests, and by what the statement
    did.
    """
    orders = make_table("orders", id="string", v="int32")
    hand_log.state(orders)
    for first in ("a", "b", "c"):
        hand_log.segment([(orders, "c", {"id": f"{first}{n}", "v": 0}) for n in range(3)])
        merge(hand_log.root, warehouse)

    def files() -> set[str]:
        with read(warehouse, orders) as there:
            return {file.path if isinstance(file, File) else file.file.file_path for file in there.files()}

    before = files()
    hand_log.segment([(orders, "u", {"id": "b2", "v": 1}), (orders, "d", {"id": "c9"})])
    (report,) = merge(hand_log.root, warehouse).tables
    assert (len(before), len(before & files()), len(files())) == (3, 2, 3)
    assert report.engine == "local"
    assert {"id": "b2", "v": 1} in rows_of(warehouse, orders)


def test_deleted_rows_are_marked_in_their_file_until_most_of_it_is_dead(
    merge: Merge, hand_log: HandLog, warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cost of a cycle grows with its changes, not with the table; and files that are mostly dead slow no reader
    down.
    """
    monkeypatch.setattr(file_rewrites, "TINY_BYTES", 0)
    orders = make_table("orders", id="int64", v="int32")
    hand_log.state(orders)
    hand_log.segment([(orders, "c", {"id": n, "v": 0}) for n in range(30)])
    merge(hand_log.root, warehouse)
    expected = dict.fromkeys(range(30), 0)

    def parts() -> dict[str, tuple[int, int]]:
        """By file name, how many rows each file has, and how many of these are deleted."""
        with read(warehouse, orders) as there:
            found = {}
            for file in there.files():
                with there.open_file(file) as rows:
                    found[file.path if isinstance(file, File) else file.file.file_path] = (
                        len(rows),
                        len(rows.deleted_rows),
                    )
            return found

    ((first, _),) = parts().items()
    seen = []
    for ids in ([3, 29, 5], [5, 6, 7, 4], [0, 28], [9, 10, 11]):
        hand_log.segment([*((orders, "u", {"id": n, "v": n}) for n in ids[1:]), (orders, "d", {"id": ids[0]})])
        (report,) = merge(hand_log.root, warehouse).tables
        assert not report.edits
        expected |= {n: n for n in ids[1:]}
        del expected[ids[0]]
        assert rows_of(warehouse, orders) == [{"id": n, "v": v} for n, v in sorted(expected.items())]
        seen.append(parts().get(first))
        with read(warehouse, orders) as there:
            if isinstance(there, IcebergTable):  # one delete file for all marked files, since they are small
                newest = there._table.current_snapshot()
                assert newest is not None
                assert newest.summary is not None
                deletes = {delete.file_path for file in there.files() for delete in file.delete_files}
                assert len(deletes) <= 1
                assert newest.summary["total-delete-files"] == str(len(deletes))
    assert seen == [(30, 3), (30, 6), (30, 8), None]
    assert sum(count - gone for count, gone in parts().values()) == len(expected)


def test_rows_later_than_a_change_stay_unchanged(
    merge: Merge, hand_log: HandLog, warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G08: a range that is merged again, after a merge by another process, changes nothing. Only the keys of such rows
    were read, so none of them may be written.
    """
    monkeypatch.setattr(file_rewrites, "TINY_BYTES", 0)
    orders = make_table("orders", id="int64", v="int32")
    hand_log.state(orders)
    hand_log.segment([(orders, "c", {"id": n, "v": 0}) for n in range(30)])
    merge(hand_log.root, warehouse)
    hand_log.segment([(orders, "u", {"id": 7, "v": 1}), (orders, "d", {"id": 8}), (orders, "u", {"id": 9, "v": 2})])
    merge(hand_log.root, warehouse)
    before = rows_of(warehouse, orders)
    monkeypatch.setattr(Positions, "position", lambda *_: 1)
    for of in (IcebergTable, DeltaTable):
        monkeypatch.setattr(of, "has", lambda *_: False)
    (report,) = merge(hand_log.root, warehouse).tables
    assert report.changes == 3
    assert rows_of(warehouse, orders) == before
    assert {"id": 7, "v": 1} in before


def test_merge_reads_only_keys_and_unchanged_values_of_a_table(
    merge: Merge, hand_log: HandLog, warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table's other columns are most of its bytes."""
    monkeypatch.setattr(file_rewrites, "TINY_BYTES", 0)
    monkeypatch.setattr(table_files, "WRITTEN", RecentlyUsed(0))
    orders = make_table("orders", id="int64", v="int32", doc="string")
    hand_log.state(orders)
    hand_log.segment([(orders, "c", {"id": n, "v": 0, "doc": f"d{n}"}) for n in range(30)])
    merge(hand_log.root, warehouse)
    columns: list[set[str]] = []
    right = ScannedFile.read

    def read_columns(rows: ScannedFile, groups: Any, names: Any) -> Any:
        columns.append(set(names))
        return right(rows, groups, names)

    monkeypatch.setattr(ScannedFile, "read", read_columns)
    hand_log.segment([(orders, "u", {"id": 3, "v": 1, "doc": "d"})])
    merge(hand_log.root, warehouse)
    assert columns == [{"id"}, {"id", "_offset"}]
    columns.clear()
    hand_log.segment([(orders, "u", {"id": 4, "v": 1, "_unchanged": ["doc"]})])
    merge(hand_log.root, warehouse)
    assert set().union(*columns) == {"id", "_offset", "doc", "_missing"}
    monkeypatch.undo()
    assert rows_of(warehouse, orders)[3:6] == [
        {"id": 3, "v": 1, "doc": "d"},
        {"id": 4, "v": 1, "doc": "d4"},
        {"id": 5, "v": 0, "doc": "d5"},
    ]


def test_many_small_files_become_one(
    merge: Merge, hand_log: HandLog, warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A source that only inserts would leave one file per cycle, indefinitely. An older cut shows what it did."""
    monkeypatch.setattr(file_rewrites, "SMALL_FILES_MAX", 3)
    orders = make_table("orders", id="int64", v="int32")
    hand_log.state(orders)
    files = []
    for number in range(9):
        hand_log.segment([(orders, "c", {"id": number, "v": 0})])
        (report,) = merge(hand_log.root, warehouse).tables
        assert not report.edits
        with read(warehouse, orders) as there:
            files.append(len(there.files()))
    assert files == [1, 2, 3, 4, 1, 2, 3, 4, 1]
    assert rows_of(warehouse, orders) == [{"id": number, "v": 0} for number in range(9)]
    with read(warehouse, orders) as there:
        if isinstance(there, IcebergTable):
            early = there._table.scan(snapshot_id=there._table.refs()["cdcflow_cut_3"].snapshot_id).to_arrow()
            assert sorted(early["id"].to_pylist()) == [0, 1, 2]


class Other(LocalEngine):
    """The engine that merges what the first does not support, in Spark's role."""

    name = "other"

    def declines(self, *_: Any) -> None:
        return None


def test_table_that_an_engine_cannot_merge_goes_to_the_other_one_or_is_skipped_with_a_remedy(
    format_name: str, merge: Merge, hand_log: HandLog, warehouse: Path
) -> None:
    """A table is never half merged, nor does one table hold the cut back."""
    orders, small = make_table("orders", id="int64", v="int32"), make_table("small", id="int64")
    floats = make_table("floats", key=("f",), f="float64")
    hand_log.segment([*((orders, "c", {"id": n, "v": 0}) for n in range(20)), (small, "c", {"id": 1})])
    begun: list[Any] = []

    def other() -> LocalEngine:
        begun.append(1)
        return Other(warehouse, format_name)

    engines = Engines(LocalEngine(warehouse, format_name, changes_max=10), other)
    report = job.merge(engines, hand_log.root, warehouse)
    assert {t.name: t.engine for t in report.tables} == {"public.orders": "other", "public.small": "local"}
    assert report.published
    hand_log.segment([(orders, "u", {"id": 1, "v": 1}), (floats, "c", {"f": 0.5})])
    report = job.merge(Engines(LocalEngine(warehouse, format_name, bytes_max=10), other), hand_log.root, warehouse)
    assert {t.name: t.engine for t in report.tables if t.engine} == {"public.orders": "other", "public.floats": "other"}
    assert len(begun) == 2, "Spark would be started once for all tables of a process"
    assert len(rows_of(warehouse, orders)) == 20

    hand_log.segment([(orders, "u", {"id": 2, "v": 2}), (floats, "c", {"f": 1.5})])
    report = merge(hand_log.root, warehouse)
    (left_out,) = (t for t in report.tables if t.left_out)
    assert left_out.name == "public.floats"
    assert "floating-point" in (left_out.left_out or "")
    assert "set merge.engine to auto" in (left_out.left_out or "")
    assert (left_out.left_out or "").endswith("read more: cdcflow explain-error table-not-followed")
    assert {"id": 2, "v": 2} in rows_of(warehouse, orders)
    # The remedy, to the letter: with another engine the table is merged, and nothing is lost.
    job.merge(Engines(engine(warehouse), other), hand_log.root, warehouse)
    assert rows_of(warehouse, floats) == [{"f": 0.5}, {"f": 1.5}]


def test_what_a_range_reads_of_a_table_is_bounded_not_the_table(
    format_name: str, hand_log: HandLog, warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few keys of a large table are no reason to start Spark."""
    monkeypatch.setattr(file_rewrites, "TINY_BYTES", 0)
    monkeypatch.setattr(table_files, "WRITTEN", RecentlyUsed(0))
    orders = make_table("orders", id="int64", doc="string")
    hand_log.state(orders)
    hand_log.segment([(orders, "c", {"id": n, "doc": os.urandom(2000).hex()}) for n in range(200)])
    engines = Engines(LocalEngine(warehouse, format_name, bytes_max=20_000))
    job.merge(engines, hand_log.root, warehouse)
    hand_log.segment([(orders, "u", {"id": 7, "doc": "x"})])
    (report,) = job.merge(engines, hand_log.root, warehouse).tables
    assert (report.engine, report.left_out) == ("local", None)
    assert rows_of(warehouse, orders)[7] == {"id": 7, "doc": "x"}
    hand_log.segment([(orders, "u", {"id": 8, "_unchanged": ["doc"]})])
    with pytest.raises(CannotFollow, match="of its files would have to be read"):
        job.merge(engines, hand_log.root, warehouse)


def test_table_that_is_moved_away_is_rebuilt_and_cuts_report_it(
    format_name: str, merge: Merge, hand_log: HandLog, warehouse: Path
) -> None:
    """The remedy of many messages: move the folder away; the log still has everything."""
    orders = make_table("orders", id="int64", v="int32")
    hand_log.state(orders)
    hand_log.segment([(orders, "c", {"id": 1, "v": 1})])
    merge(hand_log.root, warehouse)
    (warehouse / "public" / "orders").rename(warehouse.parent / "away")
    merge(hand_log.root, warehouse)
    assert rows_of(warehouse, orders) == [{"id": 1, "v": 1}]
    other = next(name for name in FORMATS if name != format_name)
    with pytest.raises(ConfigurationError, match=rf"{format_name} tables, and merge\.format says {other}"):
        format_for(warehouse, other)


def test_latest_cut_is_known_by_its_commit_and_by_its_row(
    merge: Merge, hand_log: HandLog, warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit by another program (a compaction of the table of cuts, say) may be the latest."""
    orders, floats = make_table("orders", id="int64"), make_table("floats", key=("f",), f="float64")
    hand_log.state(orders)
    for number in range(2):
        hand_log.segment([(orders, "c", {"id": number}), (floats, "c", {"f": 0.5})])
        merge(hand_log.root, warehouse)
    told = engine(warehouse).cuts().newest()
    assert told is not None
    assert (told.cut, set(told.tables), set(told.left_out)) == (2, {str(orders.id)}, {str(floats.id)})
    for of in (IcebergTable, DeltaTable):
        monkeypatch.setattr(of, "newest_commit", lambda _: None)
    assert engine(warehouse).cuts().newest() == told


NO_SPARK = """
import sys
sys.modules.update(dict.fromkeys(["pyspark", "delta", "py4j"]))  # an import of any of them fails
from cdcflow.cli.app import main
sys.argv = ["cdcflow", *sys.argv[1:]]
main()
"""

SETTINGS = """
source:
  kind: postgres
  url: postgresql://nobody@127.0.0.1/shop
log:
  path: ./log
merge:
  engine: local
  format: iceberg
  warehouse: "./ware house%20"
"""


def test_command_merges_where_there_is_neither_spark_nor_java(hand_log: HandLog, warehouse: Path) -> None:
    orders = make_table("orders", id="int64", v="int32")
    hand_log.state(orders)
    hand_log.segment([(orders, "c", {"id": 1, "v": 1})])
    (hand_log.root.parent / "cdcflow.yaml").write_text(SETTINGS)
    environment = {name: text for name, text in os.environ.items() if name != "JAVA_HOME"}
    for published in (True, False):
        done = subprocess.run(
            [sys.executable, "-c", NO_SPARK, "merge", "--once", "--json"],
            cwd=hand_log.root.parent,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        report = json.loads(done.stdout)
        assert report["published"] is published
        assert report["tables"][0]["engine"] == ("local" if published else "")
    assert rows_of(warehouse, orders) == [{"id": 1, "v": 1}]


def test_a_change_of_a_small_table_does_not_write_the_table_again(
    merge: Merge, hand_log: HandLog, warehouse: Path
) -> None:
    """The files that it replaces stay until maintenance removes them: a table of 1 MB that is merged each 30 s left 16
    GB a week.
    """
    orders = make_table("orders", id="int64", note="string")
    chance = random.Random(1)
    hand_log.state(orders)
    hand_log.segment([(orders, "c", {"id": n, "note": chance.randbytes(40).hex()}) for n in range(6000)])
    merge(hand_log.root, warehouse)

    def size() -> int:
        return sum(file.stat().st_size for file in warehouse.joinpath("public", "orders").rglob("*.parquet"))

    first = size()
    assert first > 256 << 10
    for n in range(4):
        hand_log.segment([(orders, "u", {"id": chance.randrange(6000), "note": f"{n}"})])
        merge(hand_log.root, warehouse)
    assert size() - first < first / 8


def test_a_lock_is_named(merge: Merge, hand_log: HandLog, warehouse: Path) -> None:
    orders = make_table("orders", id="int64")
    hand_log.segment([(orders, "c", {"id": 1})])
    with (
        folder_lease(warehouse),
        pytest.raises(SinkUnavailable, match=r"another merge works there \(process \d+ on .+, since 20"),
    ):
        merge(hand_log.root, warehouse)


def test_a_merge_opens_the_manifests_of_new_segments_only(
    merge: Merge, hand_log: HandLog, warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cost of a merge does not grow with the age of the log; tables without changes are still checked."""
    orders, quiet = make_table("orders", id="int64", v="int32"), make_table("quiet.one", schema="odd/_x~", id="int64")
    hand_log.state(orders)
    hand_log.state(quiet)
    hand_log.segment([(quiet, "c", {"id": 1})])
    opened: list[tuple[int, int]] = []
    right = Layout.manifest

    def manifest(layout: Layout, first: int, last: int) -> Any:
        opened.append((first, last))
        return right(layout, first, last)

    monkeypatch.setattr(Layout, "manifest", manifest)
    monkeypatch.setattr(job, "TABLES_AT_ONCE", 1)
    counted = []
    for segments in (3, 30, 1, 1):
        for _ in range(segments):
            hand_log.segment([(orders, "c", {"id": hand_log.next_offset, "v": 1})])
        opened.clear()
        report = merge(hand_log.root, warehouse)
        assert {t.name: t.changes for t in report.tables} == {
            str(orders.id): segments,
            str(quiet.id): 1 if segments == 3 else 0,
        }
        counted.append(len(opened))
        assert len(opened) == len(set(opened)), "each once"
    # The new ones, the one before them, and the log's first.
    assert counted == [4, 32, 3, 3]
    assert len(rows_of(warehouse, orders)) == 35
    (warehouse / "public" / "orders").rename(warehouse.parent / "away")
    opened.clear()
    merge(hand_log.root, warehouse)
    assert len(opened) == 36, "a rebuilt table needs all of them"
    assert len(rows_of(warehouse, orders)) == 35
