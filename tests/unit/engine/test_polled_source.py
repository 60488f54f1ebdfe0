"""A source that polls: faults of its poller, and what the ledger keeps and forgets."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from tests.support.polling import wait_until

from cdcflow.capture.interleave.messages import Chunk, Committed
from cdcflow.capture.ports.findings import Finding
from cdcflow.config.sources import SourceSettings
from cdcflow.errors import ConfigurationError
from cdcflow.model.change import KeySet, Run
from cdcflow.model.position import Checkpoint, Epoch, Token
from cdcflow.model.table import TableId
from cdcflow.sources.polled import Item, PolledSource, ledger
from cdcflow.testing.sources import LOG_ID, refuse_spool

ITEMS = TableId("public", "items")


class Listed:
    """A poller whose items are in memory."""

    name = "listed"

    def __init__(self) -> None:
        self.contents: dict[str, pa.Table] = {}
        self.error: Exception | None = None

    def items(self) -> Sequence[Item]:
        if self.error is not None:
            raise self.error
        return [self._item(name, content) for name, content in self.contents.items()]

    def _item(self, name: str, content: pa.Table) -> Item:
        def read(types: Mapping[str, pa.DataType]) -> pa.Table:
            return content

        return Item(ITEMS, name, str(id(content)), read, key=("id",))

    def doctor(self) -> Iterable[Finding]:
        return ()


@pytest.fixture
def listed() -> Listed:
    return Listed()


@pytest.fixture
def source(listed: Listed, tmp_path: Path) -> PolledSource:
    return PolledSource(SourceSettings(kind="listed"), listed, tmp_path / "ledger", poll_every_s=0.02)


def content(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64())})


def begin(source: PolledSource) -> Checkpoint:
    return source.prepare(Checkpoint(epoch=Epoch(1)), LOG_ID).checkpoint


def files(folder: Path) -> set[str]:
    return {path.name for path in (folder / "ledger" / "rows").iterdir()}


def test_fault_of_a_poller_ends_the_stream(source: PolledSource, listed: Listed) -> None:
    """A thread that ends silently would look like a source where nothing happens."""
    stream = source.stream(begin(source), refuse_spool)
    listed.error = ZeroDivisionError("of the poller")

    def fails() -> bool:
        try:
            stream.poll()
        except ZeroDivisionError:
            return True
        return False

    wait_until(fails, "the poller's error")
    source.close()


def test_acknowledged_records_are_deleted_and_contents_stay(
    source: PolledSource, listed: Listed, tmp_path: Path
) -> None:
    """A ledger that only grows would fill the disk; what the next difference needs must stay."""
    listed.contents = {"a": content(1)}
    checkpoint = begin(source)
    for n in range(2, 6):
        listed.contents = {"a": content(*range(n))}
        source.poll_now()
    before = files(tmp_path)
    stream = source.stream(checkpoint, refuse_spool)
    events = [event for event in stream.poll() if isinstance(event, Committed)]
    assert len(events) == 4
    stream.acknowledge(events[-1].run.last_position)
    stream.close()
    (left,) = files(tmp_path)
    assert left in before
    source.close()


def test_file_that_a_crash_left_is_deleted_later(
    source: PolledSource, listed: Listed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was written, and its record was not. A file of the last hour may be another process's."""
    listed.contents = {"a": content(1)}
    begin(source)
    source.close()
    (tmp_path / "ledger" / "rows" / "left.arrow").write_bytes(b"")
    source.status(None)
    source.close()
    assert "left.arrow" in files(tmp_path)
    monkeypatch.setattr(ledger, "ORPHAN_AGE_S", -1.0)
    source.status(None)
    assert "left.arrow" not in files(tmp_path)
    assert len(files(tmp_path)) == 2, "the content and its record"
    source.close()


def test_two_processes_poll_one_after_the_other(source: PolledSource, listed: Listed, tmp_path: Path) -> None:
    """Both would record the same change."""
    begin(source)
    listed.contents = {str(n): content(n) for n in range(20)}
    others = [
        PolledSource(SourceSettings(kind="listed"), listed, tmp_path / "ledger", poll_every_s=0.02) for _ in range(4)
    ]
    threads = [threading.Thread(target=one.poll_now) for one in others]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert int(source.status(None).details["end"]) == 20
    for one in (source, *others):
        one.close()


def test_tables_of_a_start_are_those_that_its_stream_delivers(
    source: PolledSource, listed: Listed, tmp_path: Path
) -> None:
    """A table that another process found in between would be taken for captured, and its changes would be missing."""
    begin(source)
    listed.contents = {"a": content(1)}
    other = PolledSource(SourceSettings(kind="listed"), listed, tmp_path / "ledger")
    other.poll_now()
    assert source.tables() == []
    assert [table.id for table in source.tables()] == [ITEMS], "the next check finds it"
    for one in (source, other):
        one.close()


def test_repair_begins_with_deletes_of_rows_that_do_not_exist(source: PolledSource, listed: Listed) -> None:
    """The source's answer decides, not the log's."""
    listed.contents = {"a": content(1, 2), "b": content(2, 3)}
    begin(source)
    chunks = source.chunks()
    plan = chunks.plan(ITEMS, 1)
    keys = KeySet(content(2, 3, 9))
    read = chunks.read_chunk(
        Chunk(ITEMS, 1, 1, plan.plan, None, 1, Token("1/1/low"), kind="keys", keys=keys, repairs=True)
    )
    assert read.deleted == 1
    assert read.run is not None
    assert read.run.rows == 3, "a row that two items have is read once"
    source.close()


def test_ledger_of_a_newer_version_is_refused(source: PolledSource, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its records might mean something else."""
    begin(source)
    source.close()
    monkeypatch.setattr(ledger, "VERSION", 0)
    with pytest.raises(ConfigurationError, match="has version 1, and this cdcflow reads 0"):
        source.status(None)


def test_many_items_are_read_in_several_chunks_each_once(source: PolledSource, listed: Listed) -> None:
    """The cursor is the last item's name: an item that is skipped would be swept away as deleted."""
    listed.contents = {f"{n:02}": content(n) for n in range(25)}
    begin(source)
    chunks = source.chunks()
    plan = chunks.plan(ITEMS, 1)
    ids: list[int] = []
    after, exhausted, number = None, False, 0
    while not exhausted:
        number += 1
        read = chunks.read_chunk(Chunk(ITEMS, 1, number, plan.plan, after, 7, Token("1/1/low")))
        assert isinstance(read.run, Run)
        ids += [n for batch in read.run.batches for n in batch.rows.column("id").to_pylist()]
        assert read.units_done == len(ids)
        after, exhausted = read.reached, read.exhausted
    assert (ids, number, plan.units) == (list(range(25)), 4, 25)
    source.close()


def test_chunk_has_no_more_rows_than_it_may_and_at_least_one_item(source: PolledSource, listed: Listed) -> None:
    """A limit on rows holds over items; one that has more is read alone."""
    listed.contents = {"a": content(1, 2), "b": content(*range(3, 9)), "c": content(9)}
    begin(source)
    chunks = source.chunks()
    plan = chunks.plan(ITEMS, 1)
    sizes, after = [], None
    for number in range(1, 4):
        read = chunks.read_chunk(Chunk(ITEMS, 1, number, plan.plan, after, 10, Token("1/1/low"), rows_max=3))
        assert read.run is not None
        sizes.append(read.run.rows)
        after = read.reached
    assert sizes == [2, 6, 1]
    source.close()


def test_poll_without_a_change_costs_the_same_however_many_items_there_are(
    source: PolledSource, listed: Listed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder has a hundred thousand files, and is polled every few seconds."""
    asked: list[str] = []
    ask = ledger.Ledger._ask

    def count(self: ledger.Ledger, sql: str, *values: object) -> object:
        asked.append(sql)
        return ask(self, sql, *values)

    monkeypatch.setattr(ledger.Ledger, "_ask", count)
    costs = []
    for items in (2, 20):
        listed.contents |= {str(n): content(n) for n in range(len(listed.contents), items)}
        source.poll_now()
        asked.clear()
        source.poll_now()
        costs.append(len(asked))
    assert costs[0] == costs[1] > 0
    source.close()
