"""The first merge of a table: rows of a backfill are appended without checking their keys, and no row appears twice."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.log.hand_log import HandLog

from cdcflow.log.files.layout import Layout
from cdcflow.model.table import Table
from cdcflow.spark import job
from cdcflow.spark.job import MergeReport
from cdcflow.tables.formats import FORMATS
from cdcflow.tables.merge import statement
from cdcflow.tables.paths import table_path

pytestmark = pytest.mark.spark

Merge = Callable[..., MergeReport]
Rows = Iterable[tuple[Any, str]]


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often a merge searched for duplicate keys (`repeated_keys`), and appended without reducing (`rows_once`)."""
    found: Counter[str] = Counter()

    def counted(name: str) -> Callable[..., str]:
        right = getattr(statement, name)

        def says(*given: Any, **more: Any) -> str:
            found[name] += 1
            sql: str = right(*given, **more)
            return sql

        return says

    for name in ("repeated_keys", "rows_once"):
        monkeypatch.setattr(statement, name, counted(name))
    return found


@pytest.fixture
def rows_in(spark: Any, sql_of: Callable[[Table], str]) -> Callable[[Table], list[tuple[Any, ...]]]:
    def rows(table: Table) -> list[tuple[Any, ...]]:
        return sorted(tuple(row) for row in spark.table(sql_of(table)).select("id", "v").collect())

    return rows


def written(log: HandLog, table: Table, *segments: Sequence[tuple[str, Rows]]) -> None:
    """Segments of changes: an op, and the key and value of each row."""
    log.state(table)
    for segment in segments:
        log.segment([(table, op, {"id": key, "v": value}) for op, rows in segment for key, value in rows])


def keyed(keys: Iterable[Any], value: str = "old") -> list[tuple[Any, str]]:
    return [(key, value) for key in keys]


def backfilled() -> list[list[tuple[str, Rows]]]:
    """Chunks of two ranges in turn, over three segments; a row that was inserted in the meantime."""
    chunks = [keyed([*range(a, a + 10), *range(1000 + a, 1010 + a)]) for a in range(0, 60, 10)]
    return [
        [("r", chunks[0]), ("r", chunks[1])],
        [("r", chunks[2]), ("c", [(5000, "new")]), ("r", chunks[3])],
        [("r", chunks[4]), ("r", chunks[5])],
    ]


def wanted() -> list[tuple[Any, str]]:
    return sorted(row for segment in backfilled() for _, rows in segment for row in rows)


@pytest.mark.spread(1)
def test_rows_of_a_backfill_are_appended_without_a_check_of_their_keys(
    hand_log: HandLog,
    warehouse: Path,
    merge: Merge,
    make_table: Callable[..., Table],
    said: Counter[str],
    rows_in: Callable[[Table], list[tuple[Any, ...]]],
) -> None:
    """Grouping all keys took a third of a first load of ten million rows."""
    table = make_table(id="int64", v="string")
    written(hand_log, table, *backfilled())
    assert merge(hand_log.root, warehouse).published
    assert said == {"rows_once": 1}
    assert rows_in(table) == wanted()


@pytest.mark.spread(1)
def test_log_that_was_compacted_in_between_is_appended_as_well(
    hand_log: HandLog,
    warehouse: Path,
    merge: Merge,
    make_table: Callable[..., Table],
    said: Counter[str],
    rows_in: Callable[[Table], list[tuple[Any, ...]]],
) -> None:
    """A merge may come a month after the backfill."""
    table = make_table(id="int64", v="string")
    written(hand_log, table, *backfilled())
    hand_log.compact(2)
    assert len(Layout(hand_log.root).segment_offsets()) == 2
    assert merge(hand_log.root, warehouse).published
    assert said == {"rows_once": 1}
    assert rows_in(table) == wanted()


KEYS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "int8": (pa.int8(), [-128, -1, 127]),
    "uint64": (pa.uint64(), [9, 10, 2**64 - 1]),
    "date32": (pa.date32(), [date(1, 1, 1), date(2020, 2, 29), date(9999, 12, 31)]),
    "timestamp": (pa.timestamp("us"), [datetime(2020, 1, 31, 0, 0, 0, n) for n in (0, 1, 10)]),
}


@pytest.mark.spread(1)
@pytest.mark.parametrize("type_", KEYS)
def test_keys_of_every_plain_order_are_known_apart(
    hand_log: HandLog,
    warehouse: Path,
    merge: Merge,
    make_table: Callable[..., Table],
    said: Counter[str],
    rows_in: Callable[[Table], list[tuple[Any, ...]]],
    type_: str,
) -> None:
    """The text in the manifest is Arrow's, and its order is not the text's."""
    arrow, keys = KEYS[type_]
    table = make_table(id=arrow, v="string")
    written(hand_log, table, [("r", keyed(keys[:2]))], [("r", keyed(keys[2:]))])
    assert merge(hand_log.root, warehouse).published
    assert said == {"rows_once": 1}
    assert rows_in(table) == keyed(keys)


TWICE: dict[str, list[list[tuple[str, Rows]]]] = {
    "the last key of a file and the first of the next": [[("r", keyed([1, 2, 3]))], [("r", keyed([3, 4], "new"))]],
    "inside one file": [[("r", keyed([1, 2, 3])), ("c", [(2, "new")])]],
    "a chunk that was read again": [[("r", keyed(range(50)))], [("r", keyed(range(40, 60), "new"))]],
    "a table that was read again": [[("r", keyed(range(50)))], [("r", keyed(range(50), "new"))]],
    "both readings in one file": [[("r", keyed(range(50))), ("r", keyed(range(50), "new"))]],
    "a key in a hole of another file": [[("r", keyed([1, 9]))], [("r", keyed([4, 5]))], [("c", [(4, "new")])]],
}


@pytest.mark.spread(2)
@pytest.mark.parametrize("case", TWICE)
def test_duplicate_key_is_reduced(
    hand_log: HandLog,
    warehouse: Path,
    merge: Merge,
    make_table: Callable[..., Table],
    said: Counter[str],
    rows_in: Callable[[Table], list[tuple[Any, ...]]],
    case: str,
) -> None:
    """Manifests prove nothing in this case: the keys are checked, and the latest value of each is kept."""
    table = make_table(id="int64", v="string")
    written(hand_log, table, *TWICE[case])
    assert merge(hand_log.root, warehouse).published
    assert said == {"repeated_keys": 1}
    newest = {key: value for segment in TWICE[case] for _, rows in segment for key, value in rows}
    assert rows_in(table) == sorted(newest.items())


def of_version_2(root: Path) -> None:
    """The manifests as an older cdcflow wrote them."""
    layout = Layout(root)
    for bounds in layout.segment_offsets():
        path = layout.segment(*bounds) / "segment.json"
        value = json.loads(path.read_text())
        for file in value["files"]:
            del file["key_runs"]
        del value["stands_for"], value["seams"]
        path.write_text(json.dumps({**value, "version": 2}))


@pytest.mark.spread(1)
@pytest.mark.parametrize("key", ["int64", "string"])
def test_keys_are_checked_where_manifests_do_not_describe_them(
    hand_log: HandLog,
    warehouse: Path,
    merge: Merge,
    make_table: Callable[..., Table],
    said: Counter[str],
    rows_in: Callable[[Table], list[tuple[Any, ...]]],
    key: str,
) -> None:
    """Of an older cdcflow's segments, and of texts: one query over all of them, and no reduction if it finds none."""
    table = make_table(id=key, v="string")
    keys = [str(n) if key == "string" else n for n in range(20, 40)]
    written(hand_log, table, [("r", keyed(keys[:12]))], [("r", keyed(keys[12:]))])
    if key == "int64":
        of_version_2(hand_log.root)
    assert merge(hand_log.root, warehouse).published
    assert said == {"repeated_keys": 1, "rows_once": 1}
    assert rows_in(table) == keyed(keys)


@pytest.mark.spread(1)
def test_only_a_file_s_rows_in_the_range_are_read(
    hand_log: HandLog,
    warehouse: Path,
    merge: Merge,
    make_table: Callable[..., Table],
    said: Counter[str],
    rows_in: Callable[[Table], list[tuple[Any, ...]]],
) -> None:
    """Where a backfill restarted in the middle of a segment; a subset of distinct rows is distinct."""
    table = make_table(id="int64", v="string")
    hand_log.state(table, generation=2, since=3)
    hand_log.segment([(table, "r", {"id": n, "v": "old"}) for n in (7, 8, 1, 2, 3)])
    hand_log.segment([(table, "r", {"id": n, "v": "old"}) for n in (4, 5)])
    assert merge(hand_log.root, warehouse).published
    assert said == {"rows_once": 1}
    assert rows_in(table) == keyed([1, 2, 3, 4, 5])


@pytest.mark.spread(1)
def test_rows_of_a_table_that_is_gone_prove_nothing_and_disprove_nothing(
    hand_log: HandLog,
    warehouse: Path,
    merge: Merge,
    make_table: Callable[..., Table],
    said: Counter[str],
    rows_in: Callable[[Table], list[tuple[Any, ...]]],
) -> None:
    """A table that was dropped and recreated has the same keys as before."""
    before = make_table(id="int64", v="string")
    after = make_table(id="int64", v="string", incarnation=2)
    hand_log.state(after)
    hand_log.segment([(before, "r", {"id": n, "v": "old"}) for n in (1, 2)])
    hand_log.segment([(after, "r", {"id": n, "v": "new"}) for n in (1, 2)])
    assert merge(hand_log.root, warehouse).published
    assert said == {"rows_once": 1}
    assert rows_in(after) == keyed([1, 2], "new")


@pytest.mark.spread(1)
@pytest.mark.parametrize("table_format", FORMATS)
def test_a_file_has_row_groups_for_several_readers(
    spark: Any, hand_log: HandLog, warehouse: Path, make_table: Callable[..., Table], table_format: str
) -> None:
    """One row group is read by one core, however many there are. The file has 48 MB before compression."""
    table = make_table(id="int64", v="string")
    chance = random.Random(7)
    written(hand_log, table, [("r", [(n, chance.randbytes(80_000).hex()) for n in range(300)])])
    assert job.merge(spark, hand_log.root, warehouse, table_format=table_format).published
    files = [pq.ParquetFile(path).metadata for path in warehouse.joinpath(*table_path(table.id)).rglob("*.parquet")]
    assert sum(file.num_rows for file in files) == 300
    assert max(file.num_row_groups for file in files) > 1
