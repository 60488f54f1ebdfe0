"""Processes that read parts of chunks for a capture: lost, doubled, late, foreign, and the rows that they hold."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing.connection import Client
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cdcflow.capture.interleave.messages import Chunk
from cdcflow.capture.interleave.window import token
from cdcflow.capture.ports.part_readers import HeldPart, PartReader, PartRows
from cdcflow.errors import CdcflowError, ConfigurationError, InvariantViolated, SinkUnavailable, SourceUnavailable
from cdcflow.log.format.segment import SegmentFile
from cdcflow.model.position import Epoch
from cdcflow.model.table import COMMIT_TS, OFFSET, OP, TRANSACTION
from cdcflow.sinks.files.row_file import HeldFile
from cdcflow.sources.engine.errors import PasswordRefused
from cdcflow.spark.executors import chunk_reader_process, readers
from cdcflow.spark.executors.chunk_reader_process import Answer, Hello, Read, RequestReader, Write, serve
from cdcflow.spark.executors.readers import Processes
from cdcflow.testing.sinks import ORDERS

WITHIN_S = 30.0


class Gone(Exception):
    """A dialect's error for a table that was rewritten."""


@dataclass
class Numbers:
    """Implements `PartReader`: part n has n rows. Waits where the test sets it to."""

    go_on: threading.Event = field(default_factory=threading.Event)
    waits: bool = False
    closed: bool = False

    def read_part(self, chunk: Chunk, part: Any) -> PartRows:
        if self.waits:
            assert self.go_on.wait(WITHIN_S)
        if part == "rewritten":
            raise Gone
        if part == "secret":
            raise ValueError("a row with a secret in it")
        if isinstance(part, CdcflowError):
            raise part
        rows = pa.RecordBatch.from_pydict({"id": range(part), "note": ["n"] * part}, ORDERS.row_schema)
        return PartRows(f"told {part}", ORDERS, (rows,))

    def close(self) -> None:
        self.closed = True


def chunk(window: int = 1, epoch: int = 1) -> Chunk:
    return Chunk(ORDERS.id, 1, window, "{}", None, 10, token(Epoch(epoch), window, "low"))


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    with Processes(1, "127.0.0.1", tmp_path) as opened:
        yield opened


def begin(processes: Processes, source: PartReader, number: int = 0) -> threading.Thread:
    """A process, which here is a thread."""
    invitation = processes.invitation(partial(_same, source))
    there = len(processes._there)
    thread = threading.Thread(target=serve, args=(number, invitation), daemon=True)
    thread.start()
    with processes._turn:
        assert processes._turn.wait_for(lambda: len(processes._there) > there or number in processes._there, WITHIN_S)
    return thread


def _same(source: PartReader) -> PartReader:
    return source


def read(processes: Processes, part: Any, window: int = 1) -> HeldPart:
    return processes.read(chunk(window), part).result(WITHIN_S)


def test_a_part_is_read_and_its_rows_are_written_with_their_offsets(processes: Processes, tmp_path: Path) -> None:
    """The rows never pass through the capture: it has their number, and a file that it can name."""
    begin(processes, Numbers())
    processes.wait(WITHIN_S)
    part = read(processes, 5)
    assert (part.told, part.rows.rows) == ("told 5", 5)
    path = tmp_path / "0000000001-000001.parquet"
    file = HeldFile(path, part.rows, 100, 7, 1_700_000_000_000_000)
    entry = file.write_or_wait()
    found = pq.read_table(path)
    assert found.column(OFFSET).to_pylist() == list(range(100, 105))
    assert set(found.column(TRANSACTION).to_pylist()) == {7}
    assert set(found.column(OP).to_pylist()) == {"r"}
    assert found.column(COMMIT_TS).cast(pa.int64()).to_pylist() == [1_700_000_000_000_000] * 5
    assert found.schema.equals(ORDERS.log_schema)
    assert isinstance(entry, SegmentFile)
    assert (entry.rows, entry.bytes, entry.key_runs) == (5, path.stat().st_size, (("0", "4"),))
    assert not file.synced
    file.sync()
    assert file.synced


def test_rewritten_table_is_reported_as_one(processes: Processes) -> None:
    """The dialect's own error arrives, and the table is planned again."""
    begin(processes, Numbers())
    with pytest.raises(Gone):
        read(processes, "rewritten")
    assert read(processes, 2).rows.rows == 2, "and the process continues"


def test_an_error_of_a_source_keeps_its_kind_and_remedy(processes: Processes) -> None:
    """The machine decides by the kind of error whether a chunk is read again."""
    begin(processes, Numbers())
    with pytest.raises(ConfigurationError, match="no right") as refused:
        read(processes, ConfigurationError("no right", remedy="grant it", runbook="right-missing"))
    assert (refused.value.remedy, refused.value.runbook) == ("grant it", "right-missing")


def test_unforeseen_error_stops_without_a_value(processes: Processes) -> None:
    """S01: an unknown error's text may quote a row."""
    begin(processes, Numbers())
    with pytest.raises(InvariantViolated, match="ValueError") as stopped:
        read(processes, "secret")
    assert "secret" not in str(stopped.value)


# ── lost, doubled, late ─────────────────────────────────────────────────────────────────────────────────────


def stub(processes: Processes, number: int = 0) -> Any:
    """A process that the test controls."""
    invitation = processes.invitation(partial(_same, Numbers()))
    connection = Client(invitation.address, authkey=invitation.secret)
    connection.send(Hello(number))
    return connection


def test_a_process_that_dies_while_it_reads_has_the_chunk_read_again(processes: Processes) -> None:
    """SourceUnavailable makes the machine cancel the window."""
    first = stub(processes)
    asked = processes.read(chunk(), 3)
    assert isinstance(first.recv(), Read)
    first.close()
    with pytest.raises(SourceUnavailable, match=r"reading shop\.orders: the executor that read it is gone"):
        asked.result(WITHIN_S)
    assert processes.lost == 1
    begin(processes, Numbers())
    assert read(processes, 3, window=2).rows.rows == 3


def test_a_process_that_dies_with_its_rows_ends_the_attempt(processes: Processes, tmp_path: Path) -> None:
    """They already have their offsets: nothing after them may count."""
    first = stub(processes)
    asked = processes.read(chunk(), 3)
    request = first.recv()
    first.send(Answer(request.id, ("told", 3, 30, 0.1)))
    rows = asked.result(WITHIN_S).rows
    waits = rows.write(str(tmp_path / "a.parquet"), 1, 1, 0)
    assert isinstance(first.recv(), Write)
    first.close()
    with pytest.raises(SinkUnavailable, match="the executor that has them is gone"):
        waits()
    with pytest.raises(SinkUnavailable, match="the executor that has them is gone"):
        rows.write(str(tmp_path / "b.parquet"), 1, 1, 0)()


def test_of_two_with_one_number_the_newer_counts_and_the_older_is_too_late(processes: Processes) -> None:
    """Spark restarts a task that it considers lost, while that task still works."""
    slow = Numbers(waits=True)
    begin(processes, slow)
    asked = processes.read(chunk(), 3)
    newer = Numbers()
    begin(processes, newer)
    with pytest.raises(SourceUnavailable):
        asked.result(WITHIN_S)
    slow.go_on.set()
    assert read(processes, 4, window=2).rows.rows == 4
    assert len(processes._there) == 1


def test_answer_to_another_request_is_ignored(processes: Processes) -> None:
    """If it answered twice, the second answer would be taken for that to the next question."""
    twice = stub(processes)
    asked = processes.read(chunk(), 3)
    request = twice.recv()
    twice.send(Answer(request.id, ("told", 3, 30, 0.1)))
    twice.send(Answer(request.id, ("told", 99, 30, 0.1)))
    assert asked.result(WITHIN_S).rows.rows == 3
    with pytest.raises(SourceUnavailable):
        read(processes, 5)


def test_silent_process_is_lost(tmp_path: Path) -> None:
    """A machine that loses power does not close its connections."""
    with Processes(1, "127.0.0.1", tmp_path, lost_after_s=0.01) as processes:
        silent = stub(processes)
        with pytest.raises(SourceUnavailable):
            read(processes, 3)
        silent.close()


def test_reported_file_is_compared_with_the_real_one(processes: Processes, tmp_path: Path) -> None:
    """Another process's report proves nothing: a file that is missing, or has other rows, is not named."""
    liar = stub(processes)
    asked = processes.read(chunk(), 3)
    liar.send(Answer(liar.recv().id, ("told", 3, 30, 0.1)))
    rows = asked.result(WITHIN_S).rows
    for told in ({"bytes": 10}, {"bytes": 4, "rows": 2}, {"bytes": 4, "first_offset": 9, "last_offset": 11}):
        path = tmp_path / f"{len(told)}{told.get('rows')}.parquet"
        if told["bytes"] == 4:
            path.write_bytes(b"PAR1")
        file = HeldFile(path, rows, 1, 1, 0)
        entry = {"path": "", "rows": 3, "sha256": "", "first_offset": 1, "last_offset": 3, **told}
        liar.send(Answer(liar.recv().id, entry))
        with pytest.raises(SinkUnavailable, match="differs from what the process that wrote it reported"):
            file.write_or_wait()
        assert not file.synced


# ── processes that do not see the log's folder ──────────────────────────────────────────────────────────────


def away(processes: Processes) -> Processes:
    """One process has connected, which is a thread here."""
    seen = processes.invitation(partial(_same, Numbers()))
    elsewhere = replace(seen, probe=seen.probe.with_name("not here"))
    threading.Thread(target=serve, args=(0, elsewhere), daemon=True).start()
    processes.wait(WITHIN_S)
    return processes


def test_file_of_a_process_without_the_folder_is_sent_to_the_caller(
    processes: Processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is the same as one written by a process that sees the folder, also in many pieces, and is described
    alike."""
    monkeypatch.setattr(chunk_reader_process, "PIECE_BYTES", 1000)
    rows = read(away(processes), 500).rows
    path = tmp_path / "sent.parquet"
    entry = HeldFile(path, rows, 100, 7, 1_700_000_000_000_000).write_or_wait()
    assert (entry.rows, entry.bytes) == (500, path.stat().st_size)
    assert entry.bytes > 2000, "the file was sent in one piece"
    written = tmp_path / "log" / "sent.parquet"
    written.parent.mkdir()
    with Processes(1, "127.0.0.1", written.parent) as others:
        begin(others, Numbers())
        again = HeldFile(written, read(others, 500).rows, 100, 7, 1_700_000_000_000_000).write_or_wait()
    assert again == entry
    assert path.read_bytes() == written.read_bytes()


def test_a_file_is_durable_before_it_counts(
    processes: Processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L01: a capture that learns of the file may acknowledge its rows to the source."""
    synced: list[str] = []
    fsync = os.fsync

    def noted(number: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{number}"))
        fsync(number)

    monkeypatch.setattr(os, "fsync", noted)
    path = tmp_path / "a.parquet"
    HeldFile(path, read(away(processes), 5).rows, 1, 1, 0).write_or_wait()
    assert synced == [str(path)]


def test_file_that_cannot_be_written_is_reported_and_the_process_stays(processes: Processes, tmp_path: Path) -> None:
    """A full disk here does not concern the executor; what it still sends is not taken for its next answer."""
    away(processes)
    with pytest.raises(SinkUnavailable, match=r"writing rows of a chunk to .*No such file"):
        HeldFile(tmp_path / "no" / "a.parquet", read(processes, 5).rows, 1, 1, 0).write_or_wait()
    entry = HeldFile(tmp_path / "b.parquet", read(processes, 6, window=2).rows, 1, 1, 0).write_or_wait()
    assert (entry.rows, processes.lost) == (6, 0)


def test_file_that_is_changed_in_transit_does_not_count(processes: Processes, tmp_path: Path) -> None:
    """Its length is right, and its content would not be checked before the source has forgotten the rows."""
    sender = stub(processes)
    asked = processes.read(chunk(), 3)
    sender.send(Answer(sender.recv().id, ("told", 3, 30, 0.1)))
    file = HeldFile(tmp_path / "a.parquet", asked.result(WITHIN_S).rows, 1, 1, 0)
    sender.send(Answer(sender.recv().id, {"bytes": 4, "sha256": hashlib.sha256(b"PAR1").hexdigest()}, follows=4))
    with chunk_reader_process.bare(sender) as stream:
        stream.sendall(b"PAR2")
    with pytest.raises(SinkUnavailable, match="it was changed on its way"):
        file.write_or_wait()
    sender.close()


def test_a_process_that_dies_or_falls_silent_within_a_file_ends_the_attempt(tmp_path: Path) -> None:
    """An incomplete file remains that no journal names."""
    for ends in (True, False):
        with Processes(1, "127.0.0.1", tmp_path, lost_after_s=WITHIN_S if ends else 0.2) as processes:
            sender = stub(processes)
            asked = processes.read(chunk(), 3)
            sender.send(Answer(sender.recv().id, ("told", 3, 30, 0.1)))
            file = HeldFile(tmp_path / f"{ends}.parquet", asked.result(WITHIN_S).rows, 1, 1, 0)
            sender.send(Answer(sender.recv().id, {"bytes": 2000}, follows=2000))
            with chunk_reader_process.bare(sender) as stream:
                stream.sendall(bytes(1000))
            if ends:
                sender.close()
            with pytest.raises(SinkUnavailable, match="the executor that has them is gone"):
                file.write_or_wait()
            assert processes.lost == 1
            sender.close()


# ── which processes are connected ────────────────────────────────────────────────────────────────────────────────


def test_stranger_gets_no_request(processes: Processes) -> None:
    """S12: what a stranger sends would be unpickled."""
    invitation = processes.invitation(partial(_same, Numbers()))
    with pytest.raises(Exception, match=r"digest|rejected|EOF|reset"):
        Client(invitation.address, authkey=b"guessed")
    assert not processes._there
    begin(processes, Numbers())
    assert read(processes, 1).rows.rows == 1


def test_an_invitation_does_not_show_its_secrets(processes: Processes) -> None:
    """S03: it is sent with a function, and a log line shows what it is given."""
    invitation = processes.invitation(partial(_same, Numbers()))
    assert "secret" not in repr(invitation)
    assert "open_reader" not in repr(invitation)


def test_absence_of_executors_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster without a free core would have the capture wait indefinitely."""
    monkeypatch.setattr(readers, "ABSENT_S", 0.01)
    with Processes(1, "127.0.0.1", tmp_path) as processes:
        with pytest.raises(SourceUnavailable, match="no executor has begun to read"):
            processes.wait(0.01)
        with pytest.raises(SourceUnavailable, match="is gone"):
            read(processes, 1)
        processes.fail(ConfigurationError("they cannot load cdcflow"))
        with pytest.raises(ConfigurationError, match="cannot load"):
            read(processes, 1)


def test_processes_end_with_the_capture(tmp_path: Path) -> None:
    """Otherwise a Spark task would hold its core indefinitely."""
    source = Numbers()
    with Processes(1, "127.0.0.1", tmp_path) as processes:
        thread = begin(processes, source)
    thread.join(WITHIN_S)
    assert not thread.is_alive()
    assert source.closed


# ── what is kept ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("windows", "kept"), [((1, 2), [1, 2]), ((1, 2, 3), [2, 3]), ((1, 2, 5), [3])])
def test_rows_without_a_request_are_dropped_with_the_window_after_the_next(
    windows: tuple[int, ...], kept: list[int]
) -> None:
    """A cancelled window sends no message, and an executor's memory is bounded all the same."""
    reader = RequestReader(Numbers())
    for number, window in enumerate(windows, 1):
        reader.answer(Read(number, chunk(window), 2))
    assert sorted(reader.held) == kept


def test_rows_of_an_earlier_attempt_are_dropped_at_once() -> None:
    """Its windows count from one again."""
    reader = RequestReader(Numbers())
    reader.answer(Read(1, chunk(9, epoch=1), 2))
    reader.answer(Read(2, chunk(1, epoch=2), 2))
    assert list(reader.held) == [2]


def test_rows_are_written_once(tmp_path: Path) -> None:
    """A name that is taken belongs to another process's file."""
    reader = RequestReader(Numbers())
    reader.answer(Read(1, chunk(), 2))
    (tmp_path / "taken").write_bytes(b"")
    assert isinstance(reader.answer(Write(2, 1, tmp_path / "taken", 1, 1, 0)).error, SinkUnavailable)
    assert isinstance(reader.answer(Write(3, 1, tmp_path / "other", 1, 1, 0)).error, SinkUnavailable)
    assert not (tmp_path / "other").exists()


def test_process_whose_password_is_refused_ends_and_the_next_one_reads(processes: Processes) -> None:
    """A token has expired: the process has no other, and one that starts now gets the current one."""
    expired = Numbers()
    thread = begin(processes, expired)
    with pytest.raises(PasswordRefused, match="is refused"):
        processes.read(chunk(), PasswordRefused("the password of cdc is refused")).result(WITHIN_S)
    thread.join(WITHIN_S)
    assert expired.closed
    assert processes.lost == 1
    begin(processes, Numbers())
    assert processes.read(chunk(), 3).result(WITHIN_S).told == "told 3"
