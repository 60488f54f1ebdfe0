"""The tail of a log in files: everything once, whatever its writer does concurrently, and each byte read once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from cdcflow.log.format.framing import Frame
from cdcflow.log.format.journal import Decoder, Record
from cdcflow.log.read.reader import read_rows, read_transactions
from cdcflow.model.position import SourceIdentity
from cdcflow.model.table import OFFSET
from cdcflow.publish.file_tail import FileTail
from cdcflow.sinks.files.log import FileLog
from cdcflow.testing.sinks import ORDERS, ORDERS_WIDER, Writer, changes, orders, transactions

IDENTITY = SourceIdentity("postgres", "7301", "shop", "1")


class Shop:
    """A log that is written, rolled, sealed and left."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.number = 0
        self.open()

    def open(self) -> None:
        self.log = FileLog.open(self.path, IDENTITY)
        self.writer = Writer.of(self.log)

    def write(self) -> None:
        self.number += 1
        self.writer.put(orders(*range(self.number, self.number + 3), xid=self.number))

    def widen(self) -> None:
        self.writer.put(transactions([9], [1], changes(ORDERS_WIDER, [{"id": 90}])))

    def spool(self) -> None:
        pieces = [([changes(ORDERS, [{"id": 70}, {"id": 71}])], np.array([5, 6], np.uint64))]
        self.writer.put(self.writer.write_spool(7, pieces, [6], rows=1))

    def roll(self) -> None:
        self.log.roll()
        self.log.sync()

    def seal(self) -> None:
        self.log.roll()
        self.log.seal_pending()

    def kill(self) -> None:
        self.log._lease.release()
        self.open()

    def restart(self) -> None:
        self.log.close()
        self.open()


def told(tail: FileTail, first: int, rows_max: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    rows: list[dict[str, Any]] = []
    headers: list[dict[str, Any]] = []
    while (newest := tail.ready(first)) > first:
        group = pa.concat_tables(tail.transactions(first, first + min(rows_max, newest - first) - 1))
        last = group.column("last_offset")[-1].as_py()
        found = [row for _, _, part in tail.rows(first, last) for row in part.to_pylist()]
        assert len(found) == last - first + 1, "a group is whole"
        rows += sorted(found, key=lambda row: int(row[OFFSET]))
        headers += group.to_pylist()
        first = last + 1
    return rows, headers


STEPS: list[Callable[[Shop], None]] = [
    Shop.write,
    Shop.write,
    Shop.roll,
    Shop.write,
    Shop.spool,
    Shop.seal,
    Shop.write,
    Shop.kill,
    Shop.kill,
    Shop.widen,
    Shop.write,
    Shop.roll,
    Shop.roll,
    Shop.write,
    Shop.restart,
    Shop.write,
    Shop.seal,
    Shop.write,
]


@pytest.mark.spread(8)
@pytest.mark.parametrize("rows_max", [2, 1000])
@pytest.mark.parametrize(("held_bytes_max", "turn_s"), [(1, 0.5), (64 << 20, 0.5), (64 << 20, 0.0)])
@pytest.mark.parametrize("every", [1, 2, 5, 100])
def test_groups_are_the_log_whatever_its_writer_does(
    tmp_path: Path, rows_max: int, held_bytes_max: int, turn_s: float, every: int
) -> None:
    """Journals grow, are closed, become segments and are begun while a reader follows them (O07)."""
    shop = Shop(tmp_path / "log")
    tail = FileTail(tmp_path / "log", held_bytes_max, turn_s)
    rows: list[dict[str, Any]] = []
    headers: list[dict[str, Any]] = []
    for number, step in enumerate(STEPS, 1):
        step(shop)
        if number % every == 0 or number == len(STEPS):
            more = told(tail, int(rows[-1][OFFSET]) + 1 if rows else 1, rows_max)
            rows += more[0]
            headers += more[1]
    found = [row for _, _, part in read_rows(tmp_path / "log") for row in part.to_pylist()]
    assert rows == sorted(found, key=lambda row: int(row[OFFSET]))
    assert headers == [h for part in read_transactions(tmp_path / "log") for h in part.to_pylist()]
    shop.log.close()


def test_each_frame_of_a_journal_is_decoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A journal has up to 64 MiB, and is polled every few milliseconds."""
    shop = Shop(tmp_path / "log")
    tail = FileTail(tmp_path / "log")
    told(tail, 1, 1000)
    places: list[int] = []
    record = Decoder.record

    def counted(decoder: Decoder, frame: Frame) -> Record:
        places.append(frame.at)
        return record(decoder, frame)

    monkeypatch.setattr(Decoder, "record", counted)
    first = 1
    for _ in range(10):
        shop.write()
        first += len(told(tail, first, 1000)[0])
        told(tail, first, 1000)
    assert first == 31
    assert len(places) == len(set(places))
    shop.log.close()


def test_turn_ends_at_a_cut(tmp_path: Path) -> None:
    """The entries up to a cut are returned; the rest follows with the next poll."""
    shop = Shop(tmp_path / "log")
    for _ in range(5):
        shop.write()
    tail = FileTail(tmp_path / "log", turn_s=0.0)
    assert [tail.ready(1) for _ in range(6)] == [4, 7, 10, 13, 16, 16]
    shop.log.close()
