"""What the reader finds that was written from the format page alone (`page_reader`), compared with what was written.

`pytest --every-log` has it read the logs of all other tests, too.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.servers.disks import Unsynced
from tests.support.log.backfill_histories import write_backfills
from tests.support.log.hand_log import HandLog
from tests.support.log.page_reader import frames_of, log_rows, table_rows
from tests.support.merge.histories import make_table

import cdcflow
from cdcflow.config import Seal
from cdcflow.model.change import reads
from cdcflow.model.position import Position, SourceIdentity
from cdcflow.sinks.files.log import FileLog
from cdcflow.testing.sinks import COMMIT_TS, ORDERS, ORDERS_WIDER, PRODUCTS, Writer, changes, orders, transactions


@pytest.fixture
def written(tmp_path: Path) -> Iterator[tuple[Path, list[dict[str, object]]]]:
    """A log with segments, a closed journal and a hot one, spools and files, two shapes; and its rows, by offset."""
    log = FileLog.open(tmp_path / "log", SourceIdentity("postgres", "1", "shop"), Seal(), layer=Unsynced())
    log.file_bytes_min = 1
    writer = Writer.of(log)
    expected: list[dict[str, object]] = []

    def story() -> None:
        wide = changes(ORDERS_WIDER, [{"id": i, "note": "x" * i} for i in range(40)], list(range(0, 80, 2)))
        tags = changes(PRODUCTS, [{"id": i, "tags": ["a", None], "_op": "u"} for i in range(40)], list(range(1, 80, 2)))
        first = writer.checkpoint.next_offset
        writer.put(orders(1, 2), transactions([5, 6], [30, 80], wide, tags))
        expected.extend({"_offset": first + i, "id": i + 1} for i in range(2))
        expected.extend({"_offset": first + 2 + i, "id": i // 2} for i in range(80))
        pieces = [
            ([changes(ORDERS, [{"id": 1}, {"id": 2}, {"id": 3}])], np.array([7, 8, 7], np.uint64)),
            ([changes(PRODUCTS, [{"id": 4}], [1]), changes(ORDERS, [{"id": 5}], [0])], None),
        ]
        writer.put(writer.write_spool(9, pieces, [8], rows=4))
        expected.extend({"_offset": first + 82 + i, "id": key} for i, key in enumerate((1, 3, 5, 4)))
        chunk = pa.RecordBatch.from_pydict({"id": [7, 8], "note": ["a", "b"]}, ORDERS.row_schema)
        writer.put(reads(ORDERS, [chunk], Position("0/7"), COMMIT_TS))
        expected.extend({"_offset": first + 86 + i, "id": key} for i, key in enumerate((7, 8)))

    story()
    log.roll()
    log.seal_pending()
    story()
    log.roll()
    story()
    writer.append(orders(99))
    log._write()
    yield tmp_path / "log", expected
    log.close()


def test_reader_written_from_the_page_finds_every_row(written: tuple[Path, list[dict[str, object]]]) -> None:
    """A user who keeps the log for years must be able to read it without cdcflow."""
    root, expected = written
    rows = log_rows(root)
    assert [{"_offset": offset, "id": row["id"]} for offset, _, row in rows] == expected
    assert [row["_txn"] for _, _, row in rows[:3]] == [1, 1, 2]
    assert rows[3][2]["tags"] == ["a", None]
    assert {name for _, name, _ in rows} == {ORDERS.id.name, PRODUCTS.id.name}


def test_rows_after_the_last_cut_are_not_read(written: tuple[Path, list[dict[str, object]]]) -> None:
    """The story appends a row that no cut covers; it is in the file and must not be seen."""
    root, expected = written
    newest = max((root / "journal").glob("*.journal"))
    kinds = [kind for _, kind, _ in frames_of(newest.read_bytes())[1]]
    assert kinds[-1] == 2
    assert log_rows(root)[-1][0] == expected[-1]["_offset"]


KEPT_BY = ("reading", "done", "cancelled")


@pytest.mark.parametrize("state", KEPT_BY)
def test_rows_that_a_second_backfill_does_not_find_are_removed_once_it_is_done(tmp_path: Path, state: str) -> None:
    """Row 2 was deleted unseen. A reader that took it away while the table is read again would lose row 3, too."""
    items = make_table("items", id="int64", a="string", b="string")
    log = HandLog(tmp_path / "log", has_transactions=True)
    log.state(items)
    log.segment([(items, "r", {"id": n, "a": "a", "b": f"b{n}"}) for n in (1, 2, 3, 4)])
    changed = {"id": 4, "a": "new", "b": None, "_unchanged": ["b"]}
    moved = {"id": 5, "a": "k", "b": None, "_unchanged": ["b"], "_before": {"id": 4}}
    log.segment([(items, "u", changed), (items, "d", {"id": 4}), (items, "c", moved)])
    log.state(items, state, generation=2, since=log.next_offset, whole_since=1)
    found = (1, 3, 5) if state == "done" else (1,)
    log.segment([(items, "r", {"id": n, "a": "again", "b": f"b{n}"}) for n in found])
    rows = table_rows(log.root, "public", "items")
    expected = cdcflow.open(log.root).current("public.items").to_pylist()
    assert sorted(rows.values(), key=lambda row: row["id"]) == sorted(expected, key=lambda row: row["id"])
    assert sorted(rows) == ([(1,), (3,), (5,)] if state == "done" else [(1,), (2,), (3,), (5,)])


def test_the_fold_of_the_page_is_the_logs_own_over_random_histories(tmp_path: Path) -> None:
    """Backfills that begin, end, are cancelled and restart, with concurrent changes and deletes."""
    seed, items = random.SystemRandom().randrange(10**6), make_table("items", id="int64", v="int32")
    compared = 0
    for number in range(seed, seed + 24):
        log = HandLog(tmp_path / str(number) / "log", has_transactions=True)
        log.root.parent.mkdir(exist_ok=True)
        write_backfills(log, items, random.Random(number), range(5), "cudd")
        asked = cdcflow.open(log.root)
        if not asked.lacks("public.items", asked.now().offset):
            rows = list(table_rows(log.root, "public", "items").values())
            assert sorted(rows, key=str) == sorted(_columns(asked), key=str), f"seed {number}"
            compared += 1
    assert compared, f"seed {seed}"


def _columns(asked: Any) -> list[dict[str, Any]]:
    """The rows that cdcflow finds, with the columns in the order that a log's file has."""
    return [
        {"_offset": row["_offset"], "id": row["id"], "v": row["v"]} for row in asked.current("public.items").to_pylist()
    ]
