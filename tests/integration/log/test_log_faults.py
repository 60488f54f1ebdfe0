"""The file sink when the disk, the operator or another process does something to it."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from tests.servers.disks import Failing, Unsynced

from cdcflow.cli import failure
from cdcflow.config import Seal
from cdcflow.errors import (
    CdcflowError,
    ConfigurationError,
    HistoryLost,
    InvariantViolated,
    SinkUnavailable,
    SyncFailed,
)
from cdcflow.log.disk.layer import FileLayer
from cdcflow.log.read.reader import check, list_segments, newest_checkpoint, read_rows, read_transactions, table_shapes
from cdcflow.model.position import Checkpoint, SourceIdentity
from cdcflow.model.table import OFFSET, Column
from cdcflow.model.types import ColumnType
from cdcflow.sinks.files import log as files
from cdcflow.sinks.files.log import FileLog
from cdcflow.testing.sinks import ORDERS, ORDERS_WIDER, Writer, changes, orders, transactions

IDENTITY = SourceIdentity("postgres", "7301", "shop", "1")


def opened(path: Path, layer: FileLayer | None = None) -> Writer:
    return Writer.of(FileLog.open(path, IDENTITY, Seal(), layer=layer or Unsynced()))


def log_of(writer: Writer) -> FileLog:
    assert isinstance(writer.log, FileLog)
    return writer.log


def killed(writer: Writer) -> None:
    log_of(writer)._lease.release()


def offsets(path: Path) -> list[int]:
    return sorted(o for _, _, rows in read_rows(path) for o in rows.column(OFFSET).to_pylist())


def ids(path: Path) -> list[int]:
    return [i for _, _, rows in read_rows(path) for i in rows.column("id").to_pylist()]


# ── the disk ────────────────────────────────────────────────────────────────────────────────────────────────


def test_full_disk_stops_clean_and_capture_resumes_when_there_is_room(tmp_path: Path) -> None:
    """A full disk is a passing failure, not the end of a log: any write may be the one that fails (L08)."""
    full = [0]

    def no_room(call: str, _: Path) -> OSError | None:
        full[0] -= 1
        return OSError(errno.ENOSPC, "No space left on device") if full[0] == 0 and "fsync" not in call else None

    expected: list[int] = []
    messages: list[str] = []
    for after in range(1, 90):
        disk = Failing(no_room)
        full[0] = 0
        acknowledged = len(expected)
        try:
            writer = opened(tmp_path / "log", disk)
            expected = list(range(1, writer.checkpoint.next_offset))
            assert len(expected) >= acknowledged
            full[0] = after
            for _ in range(3):
                writer.put(orders(writer.checkpoint.next_offset))
                expected.append(len(expected) + 1)
            spooled = writer.write_spool(
                7, [([changes(ORDERS, [{"id": writer.checkpoint.next_offset}])], None)], [], rows=1
            )
            writer.put(spooled)
            expected.append(len(expected) + 1)
            log_of(writer).roll()
            log_of(writer).seal_pending()
        except SinkUnavailable as error:
            messages.append(str(error))
        finally:
            full[0] = 0
            log_of(writer).close()
    assert len(messages) > 40
    assert all("No space left" in m and "make room" in m for m in messages)
    assert ids(tmp_path / "log") == expected
    assert check(tmp_path / "log", deep=True).faults == ()


def test_full_disk_leaves_no_unfinished_tail(tmp_path: Path) -> None:
    """The half-written frame goes at once: it is room, and it is not data (hard cases L08, L09)."""
    broken = [False]

    def fails(call: str, path: Path) -> OSError | None:
        return OSError(errno.ENOSPC, "full") if broken[0] and call == "write" and path.suffix == ".journal" else None

    disk = Failing(fails)
    writer = opened(tmp_path / "log", disk)
    writer.put(orders(1))
    journal = next((tmp_path / "log" / "journal").iterdir())
    size = journal.stat().st_size
    disk.bytes_per_write_max = 100
    writer.append(orders(2))
    disk.fails = lambda call, path: _after(disk, call, path, 3)
    writer.cut()
    with pytest.raises(SinkUnavailable):
        writer.log.sync()
    assert journal.stat().st_size == size
    with pytest.raises(SinkUnavailable):
        writer.log.sync()
    writer.log.close()
    assert opened(tmp_path / "log").checkpoint.cut == 1


def _after(disk: Failing, call: str, path: Path, count: int) -> OSError | None:
    disk.calls += 0 if call != "write" else 1000
    return OSError(errno.ENOSPC, "full") if disk.calls > 1000 * count else None


@pytest.mark.parametrize(
    "where", ["log", ".journal", ".spool", "spool", ".parquet", "segment.json", ".tmp", "segments"]
)
def test_failed_fsync_is_final(tmp_path: Path, where: str) -> None:
    """After a failed fsync the page cache is wrong, and a second try would succeed without the data (hard case L07)."""
    armed = [False]

    def fails(call: str, path: Path) -> OSError | None:
        hit = call in ("fsync", "fsync_dir") and (path.name == where or path.name.endswith(where))
        return OSError(errno.EIO, "Input/output error") if armed[0] and hit else None

    writer = opened(tmp_path / "log", Failing(fails))
    writer.put(orders(1))
    armed[0] = True

    def everything() -> None:
        writer.put(writer.write_spool(7, [([changes(ORDERS, [{"id": 2}])], None)], [], rows=1))
        log_of(writer).roll()
        log_of(writer).seal_pending()

    with pytest.raises(SyncFailed, match="syncing") as failed:
        everything()
    assert failure.exit_code(failed.value) == 74, "the service manager would not start it again"
    armed[0] = False
    for late in (lambda: writer.put(orders(3)), writer.log.sync, log_of(writer).seal_pending):
        with pytest.raises(SyncFailed, match="after an error"):
            late()
    writer.log.close()
    # What can be read after a failed sync may not be on the disk: the next start must not count and acknowledge it.
    assert ids(tmp_path / "log") == ([1] if where in (".journal", ".spool", "spool") else [1, 2])


def test_failed_fsync_of_what_a_start_recovers_is_for_an_operator(tmp_path: Path) -> None:
    """A killed process leaves whole cuts that were never synced. If that sync fails at the next start, the start after
    it would find that all is well, and acknowledge what is on no disk (hard case L07).
    """
    writer = opened(tmp_path / "log")
    writer.put(orders(1))
    shutil.copytree(tmp_path / "log", tmp_path / "killed")
    writer.log.close()

    def fails(call: str, path: Path) -> OSError | None:
        return OSError(errno.EIO, "Input/output error") if call == "fsync" and path.suffix == ".journal" else None

    with pytest.raises(InvariantViolated, match="syncing") as failed:
        opened(tmp_path / "killed", Failing(fails))
    assert failure.exit_code(failed.value) == 70, "the service manager would start it again"
    remedy = re.search(r"copy (\S+) to a new file under the same name", str(failed.value))
    assert remedy is not None
    shutil.copyfile(remedy[1], tmp_path / "new")
    (tmp_path / "new").replace(remedy[1])
    opened(tmp_path / "killed").log.close()
    assert ids(tmp_path / "killed") == [1]


def test_short_writes_are_finished(tmp_path: Path) -> None:
    """The system may take any part of a write (hard case L09)."""
    writer = opened(tmp_path / "log", Failing(bytes_per_write_max=13))
    writer.put(orders(1, 2), writer.write_spool(7, [([changes(ORDERS, [{"id": 3}])], None)], [], rows=1))
    log_of(writer).roll()
    writer.put(orders(4))
    writer.log.close()
    assert ids(tmp_path / "log") == [1, 2, 3, 4]
    assert check(tmp_path / "log", deep=True).faults == ()


@pytest.mark.parametrize(("code", "kind"), [(errno.EROFS, ConfigurationError), (errno.EIO, SinkUnavailable)])
def test_other_write_errors_have_their_kind(tmp_path: Path, code: int, kind: type[CdcflowError]) -> None:
    """A disk that became read-only needs an operator; retrying indefinitely would hide it (hard cases L25, O08)."""
    armed = [False]
    writer = opened(tmp_path / "log", Failing(lambda *_: OSError(code, os.strerror(code)) if armed[0] else None))
    writer.put(orders(1))
    writer.append(orders(2))
    writer.cut()
    armed[0] = True
    with pytest.raises(kind):
        writer.log.sync()
    armed[0] = False
    writer.log.close()
    assert ids(tmp_path / "log") == [1]


# ── what is on it ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("field", ["kind", "system_id", "database"])
def test_log_of_another_source_is_refused(tmp_path: Path, field: str) -> None:
    """State of one database used for another skips or repeats everything (hard case O04)."""
    opened(tmp_path / "log").log.close()
    with pytest.raises(ConfigurationError, match="belongs to"):
        FileLog.open(tmp_path / "log", replace(IDENTITY, **{field: "another"}))
    opened(tmp_path / "log").log.close()


def test_other_timeline_is_refused_until_an_operator_accepts_it(tmp_path: Path) -> None:
    """A restore to a point in time has the same names and less history (hard case P43)."""
    opened(tmp_path / "log").log.close()
    other = replace(IDENTITY, timeline="2")
    with pytest.raises(HistoryLost, match="timeline"):
        FileLog.open(tmp_path / "log", other)
    FileLog.open(tmp_path / "log", other, accept_timeline=True).close()
    FileLog.open(tmp_path / "log", other).close()


def segments_of(path: Path, count: int) -> list[Path]:
    writer = opened(path)
    for number in range(count):
        writer.put(orders(number))
        log_of(writer).roll()
        log_of(writer).seal_pending()
    writer.put(orders(99))
    killed(writer)
    return sorted((path / "segments").iterdir())


def remove_middle_segment(root: Path, segments: list[Path]) -> None:
    shutil.rmtree(segments[1])


def remove_newest_segment(root: Path, segments: list[Path]) -> None:
    shutil.rmtree(segments[-1])


def remove_journal(root: Path, segments: list[Path]) -> None:
    next((root / "journal").iterdir()).unlink()


def remove_manifest(root: Path, segments: list[Path]) -> None:
    (segments[-1] / "segment.json").unlink()


def rewrite_manifest(root: Path, segments: list[Path]) -> None:
    manifest = segments[0] / "segment.json"
    manifest.write_text(manifest.read_text() + " ")


def remove_log_json(root: Path, segments: list[Path]) -> None:
    (root / "log.json").unlink()


def take_from_another_log(root: Path, segments: list[Path]) -> None:
    other = segments_of(root.parent / "other", 3)
    shutil.rmtree(segments[-1])
    shutil.copytree(other[-1], segments[-1])


@pytest.mark.parametrize(
    "damage",
    [
        remove_middle_segment,
        remove_newest_segment,
        remove_journal,
        remove_manifest,
        rewrite_manifest,
        remove_log_json,
        take_from_another_log,
    ],
)
def test_missing_or_foreign_parts_stop_the_start(tmp_path: Path, damage: Callable[[Path, list[Path]], None]) -> None:
    """A position once readable is readable or refused with an error that names it, never skipped (hard cases
    L05, L21).
    """
    root = tmp_path / "log"
    damage(root, segments_of(root, 3))
    with pytest.raises(InvariantViolated, match=str(root)):
        opened(root)


def test_column_that_parquet_cannot_hold_is_refused_before_it_is_in_the_log(tmp_path: Path) -> None:
    """Found at sealing it would be too late: the source no longer has those rows."""
    column = Column("due", 3, ColumnType("interval", pa.month_day_nano_interval()))
    table = replace(ORDERS, columns=(*ORDERS.columns, column))
    writer = opened(tmp_path / "log")
    with pytest.raises(ConfigurationError, match=r"shop\.orders.*column due"):
        writer.append(transactions([1], [1], changes(table, [{"id": 1}])))
    writer.log.close()
    assert opened(tmp_path / "log").checkpoint.next_offset == 1


def test_names_in_files_cannot_lead_out_of_the_log(tmp_path: Path) -> None:
    """A crafted manifest must not make the merge read, or a clean-up remove, files elsewhere (L28, S11)."""
    root = tmp_path / "log"
    [segment] = segments_of(root, 1)
    manifest = segment / "segment.json"
    for path in ("../../../secret.parquet", "/etc/passwd", ".."):
        value = json.loads(manifest.read_text())
        value["files"][1]["path"] = path
        manifest.write_text(json.dumps(value))
        for read in (lambda: list(read_rows(root)), lambda: list_segments(root), lambda: opened(root)):
            with pytest.raises(InvariantViolated, match="points outside"):
                read()


@pytest.mark.parametrize(
    ("name", "version", "which"),
    [
        ("log.json", 9, "newer"),
        ("log.json", 1, "older"),
        ("schemas.json", 9, "newer"),
        ("segments/*/segment.json", 9, "newer"),
        ("segments/*/segment.json", 1, "older"),
    ],
)
def test_other_formats_are_refused_with_an_error_that_names_them(
    tmp_path: Path, name: str, version: int, which: str
) -> None:
    """No program may write on what it does not understand, after a downgrade or an upgrade (hard cases L24, O06)."""
    root = tmp_path / "log"
    segments_of(root, 1)
    path = next(root.glob(name))
    written = re.sub(r'"version": [124]\b(?=,?\n( "|}))', f'"version": {version}', path.read_text())
    assert written != path.read_text()
    path.write_text(written)
    with pytest.raises(ConfigurationError, match=f"{name.rpartition('/')[2]}.*{which}"):
        opened(root)


def test_check_names_what_was_changed(tmp_path: Path) -> None:
    """The one who restores a copy must know which file (hard case L21)."""
    root = tmp_path / "log"
    segments = segments_of(root, 3)
    assert check(root, deep=True).is_whole
    rows = next(segments[1].glob("shop*.parquet"))
    content = bytearray(rows.read_bytes())
    content[10] ^= 0xFF
    rows.write_bytes(bytes(content))
    rewrite_manifest(root, segments)
    faults = check(root).faults
    assert any(str(rows) == f.where and "differs from what was sealed" in f.text for f in faults)
    assert any(str(segments[1]) == f.where and "chain" in f.text for f in faults)
    rows.unlink()
    assert any("missing" in f.text for f in check(root).faults)
    shutil.rmtree(segments[1])
    assert any("before it are missing" in f.text for f in check(root).faults)


def test_manifest_with_wrong_counts_is_found_by_a_deep_check(tmp_path: Path) -> None:
    """The merge trusts the manifest's counts to choose its path; a deep check counts again."""
    root = tmp_path / "log"
    [segment] = segments_of(root, 1)
    manifest = json.loads((segment / "segment.json").read_text())
    manifest["files"][1]["ops"] = {"d": 1}
    (segment / "segment.json").write_text(json.dumps(manifest))
    assert any("differs from the manifest" in f.text for f in check(root, deep=True).faults)


# ── sealing, reading, retention ─────────────────────────────────────────────────────────────────────────────


def test_seal_is_due_by_bytes_or_by_age_and_only_at_a_cut(tmp_path: Path) -> None:
    """A merge waits for segments: quiet tables must not wait for bytes, and no segment may end inside a cut."""
    log = FileLog.open(tmp_path / "log", IDENTITY, Seal(bytes_max=20_000, age_max=10.0), layer=Unsynced())
    writer = Writer.of(log)
    assert not log.seal_due(0.0)
    assert not log.roll()
    writer.append(orders(1))
    assert not log.seal_due(5.0)
    writer.cut()
    assert not log.seal_due(100.0)
    assert not log.seal_due(109.9)
    assert log.seal_due(110.0)
    assert log.roll()
    assert not log.seal_due(200.0)
    writer.append(
        transactions([1], [400], changes(ORDERS, [{"id": i, "note": os.urandom(30).hex()} for i in range(400)]))
    )
    assert not log.seal_due(200.0)
    writer.cut()
    assert log.seal_due(200.0)
    log.close()
    assert [s.last_offset for s in list_segments(tmp_path / "log")] == [1, 401]


def test_rows_of_a_killed_run_are_sealed_without_new_changes(tmp_path: Path) -> None:
    """If the source is quiet afterwards, no merge would ever see them."""
    writer = opened(tmp_path / "log")
    writer.put(orders(1))
    killed(writer)
    again = opened(tmp_path / "log")
    log = log_of(again)
    assert log.seal_due(0.0)
    assert not log.roll(), "nothing new came"
    log.seal_pending()
    assert [s.last_offset for s in list_segments(tmp_path / "log")] == [1]
    assert not log.seal_due(1000.0)
    log.close()


def test_loop_never_waits_for_the_disk(tmp_path: Path) -> None:
    """The live capture appends, cuts and rolls: a slow disk must not delay it."""
    asleep = [False]

    def asked(call: str, path: Path) -> OSError | None:
        return OSError(errno.EIO, f"{call} {path.name} in the loop's thread") if asleep[0] else None

    disk = Failing(asked)
    writer = opened(tmp_path / "log", disk)
    writer.put(orders(1))
    asleep[0] = True
    for number in range(2, 40):
        writer.append(orders(number))
        writer.cut()
        assert not log_of(writer).seal_due(0.0)
        if number % 10 == 0:
            assert log_of(writer).roll()
    asleep[0] = False
    assert offsets(tmp_path / "log") == [1]
    assert log_of(writer).checkpoint.cut == 1
    assert writer.log.sync() == writer.checkpoint
    assert offsets(tmp_path / "log") == list(range(1, 40))
    assert len(list((tmp_path / "log" / "journal").iterdir())) == 4
    writer.log.close()
    assert check(tmp_path / "log", deep=True).faults == ()
    assert [s.last_offset for s in list_segments(tmp_path / "log")] == [10, 20, 30, 39]


def test_threads_that_append_sync_and_seal_do_not_disturb_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon's three threads at once, with journals that roll all the time and a queue that is soon full."""
    monkeypatch.setattr(files, "BUFFERED_BYTES_MAX", 3000)
    writer = opened(tmp_path / "log")
    log = log_of(writer)
    cuts = {0: log.checkpoint}
    seen: list[Checkpoint] = []
    problems: list[BaseException] = []
    done = threading.Event()

    def again(act: Callable[[], object]) -> None:
        try:
            while not done.is_set():
                act()
        except BaseException as error:  # noqa: BLE001 - told below, in the test's own thread
            problems.append(error)

    threads = [
        threading.Thread(target=again, args=(lambda: seen.append(log.sync()),)),
        threading.Thread(target=again, args=(log.seal_pending,)),
    ]
    for thread in threads:
        thread.start()
    for number in range(1, 700):
        writer.append(orders(number))
        if number % 100 == 1:
            writer.append(writer.write_spool(7, [([changes(ORDERS, [{"id": -number}])], None)], [], rows=1))
        cuts[number] = replace(writer.checkpoint, cut=number, epoch=log.epoch)
        writer.checkpoint = cuts[number]
        log.cut(cuts[number])
        if number % 37 == 0:
            log.roll()
    done.set()
    for thread in threads:
        thread.join()
    assert not problems
    assert all(cuts[found.cut] == found for found in seen)
    assert [found.cut for found in seen] == sorted(found.cut for found in seen)
    killed(writer)
    assert offsets(tmp_path / "log")[: seen[-1].next_offset - 1] == list(range(1, seen[-1].next_offset))
    again_opened = opened(tmp_path / "log")
    assert again_opened.checkpoint.cut >= seen[-1].cut
    again_opened.log.close()
    report = check(tmp_path / "log", deep=True)
    assert report.faults == ()
    assert report.segments > 15


def test_who_appends_more_than_is_synced_writes_it_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A window of a million rows is one cut: the memory that waits for it must not grow with it."""
    monkeypatch.setattr(files, "BUFFERED_BYTES_MAX", 2000)
    writer = opened(tmp_path / "log")
    for number in range(200):
        writer.append(orders(number))
        assert log_of(writer)._journal.encoder.waiting <= 2000 + 1000
    writer.cut()
    log_of(writer).roll()
    for number in range(200):
        writer.append(orders(number))
        assert log_of(writer)._journal.encoder.waiting <= 2000 + 1000
    assert offsets(tmp_path / "log") == list(range(1, 201)), "the rolled journal has its last cut, the new one no name"
    writer.log.close()
    assert offsets(tmp_path / "log") == list(range(1, 201))


def test_failed_write_makes_nothing_durable(tmp_path: Path) -> None:
    """The frames that were taken from the queue are in no file: no later sync may call their cut safe."""
    full = [False]
    disk = Failing(
        lambda call, _: OSError(errno.ENOSPC, "No space left on device") if full[0] and call == "write" else None
    )
    writer = opened(tmp_path / "log", disk)
    writer.put(orders(1))
    log = log_of(writer)
    writer.append(orders(2))
    writer.cut()
    full[0] = True
    with pytest.raises(SinkUnavailable):
        log._write()
    full[0] = False
    for act in (log.sync, log._write, log.seal_pending, log._sync_last_cut):
        with pytest.raises(SinkUnavailable):
            act()
    assert log.checkpoint.cut == 1
    log.close()
    assert ids(tmp_path / "log") == [1]


def test_log_without_rows_makes_no_segments(tmp_path: Path) -> None:
    """Heartbeats move the position all day; a segment for each would be a segment for nothing."""
    for _ in range(3):
        writer = opened(tmp_path / "log")
        for _ in range(5):
            writer.cut()
        assert writer.log.sync().cut == writer.checkpoint.cut
        writer.log.close()
    assert list_segments(tmp_path / "log") == []
    assert len(list((tmp_path / "log" / "journal").iterdir())) == 1
    assert opened(tmp_path / "log").checkpoint.cut == 15
    assert newest_checkpoint(tmp_path / "log").cut == 15


def test_reader_that_runs_next_to_the_writer_sees_every_row_once(tmp_path: Path) -> None:
    """The merge and `log show` read while the daemon seals journals under them."""
    root = tmp_path / "log"
    writer = opened(root)
    done = threading.Event()
    problems: list[str] = []
    reads = [0]

    def read() -> None:
        while not done.is_set() or not reads[0]:
            found = offsets(root)
            if found != list(range(1, len(found) + 1)):
                problems.append(f"{len(found)} rows, the last is {found[-1]}")
            numbers = [n for t in read_transactions(root) for n in t.column("number").to_pylist()]
            if numbers != list(range(1, len(numbers) + 1)):
                problems.append("transactions")
            problems.extend(str(f) for f in check(root).faults)
            newest_checkpoint(root)
            table_shapes(root)
            list_segments(root)
            reads[0] += 1

    thread = threading.Thread(target=read)
    thread.start()
    try:
        for number in range(60):
            writer.put(orders(number, number + 1))
            spool = [([changes(ORDERS, [{"id": 1}])], None)]
            writer.put(writer.write_spool(number, spool, [], rows=1))
            log_of(writer).roll()
            if number % 2:
                log_of(writer).seal_pending()
    finally:
        done.set()
        thread.join()
    writer.log.close()
    assert problems == []
    assert len(offsets(root)) == 180


def test_range_of_offsets_is_inclusive_on_both_ends(tmp_path: Path) -> None:
    """A merge reads (last merged, latest]: one row too few or too many is lost or applied twice."""
    root = tmp_path / "log"
    writer = opened(root)
    for number in range(6):
        mixed = [changes(ORDERS, [{"id": 1}, {"id": 2}], [0, 2]), changes(ORDERS_WIDER, [{"id": 3}], [1])]
        writer.put(transactions([number], [3], *mixed))
        if number in (1, 3):
            log_of(writer).roll()
            log_of(writer).seal_pending()
    for first in range(1, 19):
        for last in range(first, 19):
            found = [o for _, _, rows in read_rows(root, first, last) for o in rows.column(OFFSET).to_pylist()]
            assert sorted(found) == list(range(first, last + 1))
    only = [t.id for t, _, _ in read_rows(root, tables=[ORDERS.id])]
    assert set(only) == {ORDERS.id}
    writer.log.close()


def test_offsets_that_expired_are_refused_with_an_error_that_names_them(tmp_path: Path) -> None:
    """A slow merge must get an error that its rows are gone, not continue without them (hard cases L18, L19)."""
    root = tmp_path / "log"
    segments_of(root, 4)
    writer = opened(root)
    log_of(writer).seal_pending()
    assert len(list_segments(root)) == 5
    gone = log_of(writer).expire(before_cut=3)
    assert [s.last_cut for s in gone] == [1, 2]
    with pytest.raises(HistoryLost, match="first one left is 3"):
        list(read_rows(root, 2))
    assert offsets_from(root, 3) == [3, 4, 5]
    assert check(root, deep=True).is_whole
    log_of(writer).expire(bytes_max=1)
    assert len(list_segments(root)) == 1
    writer.put(orders(7))
    writer.log.close()
    reopened = opened(root)
    assert reopened.checkpoint.next_offset == 7
    assert check(root, deep=True).is_whole


def offsets_from(root: Path, first: int) -> list[int]:
    return sorted(o for _, _, rows in read_rows(root, first) for o in rows.column(OFFSET).to_pylist())


def test_segment_and_journal_of_a_crash_in_sealing_are_not_read_twice(tmp_path: Path) -> None:
    """Between the segment's rename and the journal's removal both exist (hard case L17)."""
    root = tmp_path / "log"
    armed = [True]

    def fails(call: str, path: Path) -> OSError | None:
        hit = armed[0] and call == "unlink" and path.suffix == ".journal"
        return OSError(errno.EIO, "x") if hit else None

    writer = opened(root, Failing(fails))
    writer.put(orders(1), orders(2))
    log_of(writer).roll()
    writer.put(orders(3))
    with pytest.raises(SinkUnavailable):
        log_of(writer).seal_pending()
    assert len(list((root / "journal").iterdir())) == 2
    assert offsets(root) == [1, 2, 3]
    killed(writer)
    assert offsets(root) == [1, 2, 3]
    opened(root)
    assert [p.name for p in sorted((root / "journal").iterdir())] == [f"{n:020d}.journal" for n in (3, 4)]
    assert offsets(root) == [1, 2, 3]
