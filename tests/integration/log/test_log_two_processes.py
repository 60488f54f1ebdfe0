"""One writer: other processes are refused, replaced ones are fenced, killed ones leave what they were promised."""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from cdcflow.errors import ConfigurationError, InvariantViolated, SinkUnavailable, WriterReplaced
from cdcflow.log.disk.layer import OsLayer
from cdcflow.log.disk.lease import Lease
from cdcflow.log.read.reader import check, read_rows
from cdcflow.model.position import SourceIdentity
from cdcflow.sinks.files.log import FileLog
from cdcflow.testing.sinks import Writer, orders

IDENTITY = SourceIdentity("postgres", "7301", "shop", "1")

PRELUDE = """
    import sys
    from pathlib import Path
    from cdcflow.errors import CdcflowError
    from cdcflow.model.position import SourceIdentity
    from cdcflow.sinks.files.log import FileLog
    from cdcflow.testing.sinks import ORDERS, Writer, changes, orders

    log = FileLog.open(Path(sys.argv[1]), SourceIdentity("postgres", "7301", "shop", "1"))
    writer = Writer.of(log)
    print("opened", log.epoch, flush=True)
"""

ONE_MORE_WHEN_TOLD = """
    writer.put(orders(1))
    print("put", flush=True)
    sys.stdin.readline()
    try:
        writer.put(orders(666))
        print("accepted", flush=True)
    except CdcflowError as error:
        print(type(error).__name__, flush=True)
    sys.stdin.readline()
"""

WITHOUT_END = """
    while True:
        at = int(writer.checkpoint.next_offset)
        writer.append(orders(at, at + 1))
        if at % 3 == 0:
            batch = changes(ORDERS, [{"id": at + 2}])
            writer.append(writer.spooled(at, [([batch], None)], [], rows=1))
        print("cutting", writer.checkpoint.cut + 1, flush=True)
        writer.cut()
        if at % 5 == 0:
            log.roll()
        print("acknowledged", log.sync().cut, flush=True)
        if at % 4 == 0:
            log.seal_pending()
"""


@contextmanager
def process(path: Path, script: str) -> Iterator[subprocess.Popen[str]]:
    text = textwrap.dedent(PRELUDE) + textwrap.dedent(script)
    with subprocess.Popen(
        [sys.executable, "-c", text, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        try:
            yield child
        finally:
            child.kill()


def line(child: subprocess.Popen[str]) -> list[str]:
    assert child.stdout is not None
    return child.stdout.readline().split()


def tell(child: subprocess.Popen[str]) -> None:
    assert child.stdin is not None
    child.stdin.write("\n")
    child.stdin.flush()


def ids(path: Path) -> list[int]:
    return [i for _, _, rows in read_rows(path) for i in rows.column("id").to_pylist()]


def test_second_writer_gets_an_error_that_names_the_first(tmp_path: Path) -> None:
    """Two daemons on one log: the second must end, and name the first (hard case L10)."""
    with process(tmp_path / "log", ONE_MORE_WHEN_TOLD) as child:
        assert line(child) == ["opened", "1"]
        with pytest.raises(ConfigurationError, match=f"process {child.pid} on "):
            FileLog.open(tmp_path / "log", IDENTITY)
        tell(child)
        assert [line(child), line(child)] == [["put"], ["accepted"]]


def test_lock_of_a_dead_process_means_nothing(tmp_path: Path) -> None:
    """The file stays, with a pid that may belong to another process by now (hard case L13)."""
    with process(tmp_path / "log", ONE_MORE_WHEN_TOLD) as child:
        assert [line(child), line(child)] == [["opened", "1"], ["put"]]
        child.send_signal(signal.SIGKILL)
        child.wait()
        log = FileLog.open(tmp_path / "log", IDENTITY)
        assert (log.epoch, log.checkpoint.cut) == (2, 1)
        log.close()


@pytest.mark.spread(2)
@pytest.mark.parametrize("standby", [True, False])
@pytest.mark.parametrize("stopped", [True, False])
def test_writer_that_was_replaced_is_refused(tmp_path: Path, stopped: bool, standby: bool) -> None:
    """A suspended machine wakes up after another process acquired its log, and its lock no longer holds (L11, L12).

    Or a standby has taken the lock.
    """
    root = tmp_path / "log"
    with process(root, ONE_MORE_WHEN_TOLD) as child:
        assert [line(child), line(child)] == [["opened", "1"], ["put"]]
        if stopped:
            child.send_signal(signal.SIGSTOP)
        if not standby:
            (root / "lock").rename(tmp_path / "lock that a network file system forgot")
        log = FileLog.open(root, IDENTITY, replaces=standby)
        writer = Writer.of(log)
        writer.put(orders(2))
        if stopped:
            child.send_signal(signal.SIGCONT)
        tell(child)
        assert line(child) == ["WriterReplaced"]
        assert ids(root) == [1, 2]
        writer.put(orders(3))
        log.close()
        assert ids(root) == [1, 2, 3]
        assert check(root, deep=True).faults == ()


def test_replaced_writer_cannot_roll_or_seal(tmp_path: Path) -> None:
    """Neither a new journal nor a segment of a replaced writer may get a name (hard case L11)."""
    root = tmp_path / "log"
    old = Writer.of(FileLog.open(root, IDENTITY))
    old.put(orders(1))
    assert isinstance(old.log, FileLog)
    old.log.roll()
    old.put(orders(2))
    (root / "lock").unlink()
    new = Writer.of(FileLog.open(root, IDENTITY))
    old.log.roll()
    old.append(orders(9))
    old.log._write()
    for act in (old.log.seal_pending, old.log.sync, old.log.roll):
        with pytest.raises(InvariantViolated):
            act()
    new.log.roll()
    new.put(orders(3))
    old.log.close()
    new.log.close()
    assert ids(root) == [1, 2, 3]
    assert check(root, deep=True).faults == ()


class FailingLayer(OsLayer):
    """Writes everything, and then reports that the disk is full, after `then` has happened."""

    def __init__(self) -> None:
        self.then: Callable[[], object] | None = None

    def write(self, fd: int, parts: Sequence[bytes | memoryview]) -> int:
        written = super().write(fd, parts)
        if self.then is not None:
            then, self.then = self.then, None
            then()
            raise OSError(errno.ENOSPC, "No space left on device")
        return written


def test_replaced_writer_cannot_shorten_what_its_successor_counts(tmp_path: Path) -> None:
    """After a failed write it drops what it does not know to be written, and the successor has read that (L11)."""
    root, layer = tmp_path / "log", FailingLayer()
    old = Writer.of(FileLog.open(root, IDENTITY, layer=layer, replaces=True))
    old.put(orders(1))
    successors: list[FileLog] = []
    layer.then = lambda: successors.append(FileLog.open(root, IDENTITY, replaces=True))
    with pytest.raises(SinkUnavailable, match="No space left"):
        old.put(orders(2))
    old.log.close()
    new = Writer.of(successors[0])
    assert new.checkpoint.next_offset == 3
    new.put(orders(3))
    successors[0].close()
    assert ids(root) == [1, 2, 3]
    assert check(root, deep=True).faults == ()


def test_two_processes_that_begin_the_same_epoch_do_not_both_write(tmp_path: Path) -> None:
    """Each has read the number before the other one wrote it: the random word decides (L11)."""
    first = FileLog.open(tmp_path / "log", IDENTITY, replaces=True)
    number = (tmp_path / "log" / "epoch").read_text().split()[0]
    (tmp_path / "log" / "epoch").write_text(f"{number} 0123456789abcdef\n")
    with pytest.raises(WriterReplaced, match="epoch 1 has begun"):
        Writer.of(first).put(orders(1))
    first.close()


def test_epoch_that_is_not_checked_again_lets_a_replaced_writer_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: without the second check the fenced writer's sync succeeds, so the tests above can fail."""
    old = Writer.of(FileLog.open(tmp_path / "log", IDENTITY))
    (tmp_path / "log" / "lock").unlink()
    new = FileLog.open(tmp_path / "log", IDENTITY)
    with monkeypatch.context() as planted:
        planted.setattr(Lease, "check", lambda _: None)
        assert old.put(orders(1)).cut == 1
    with pytest.raises(InvariantViolated, match="epoch 2 has begun"):
        old.put(orders(2))
    old.log.close()
    new.close()
    assert ids(tmp_path / "log") == []


def test_killed_writer_keeps_every_promise(tmp_path: Path) -> None:
    """SIGKILL at any time, again and again: nothing that was acknowledged is lost (hard cases O01, L02, L17)."""
    root = tmp_path / "log"
    chance = random.Random(os.environ.get("CDCFLOW_SEED", "1"))
    acknowledged = cutting = 0
    for _ in range(5):
        with process(root, WITHOUT_END) as child:
            for _ in range(chance.randint(2, 60)):
                match line(child):
                    case ["acknowledged", cut]:
                        acknowledged = int(cut)
                    case ["cutting", cut]:
                        cutting = int(cut)
            child.send_signal(signal.SIGKILL)
            assert child.stdout is not None
            rest = child.stdout.read().split()  # not communicate(), which passes over what was read ahead
            acknowledged = max([acknowledged, *(int(n) for w, n in pairwise(rest) if w[0] == "a")])
            cutting = max([cutting, *(int(n) for w, n in pairwise(rest) if w[0] == "c")])
        log = FileLog.open(root, IDENTITY)
        assert acknowledged <= log.checkpoint.cut <= cutting
        log.close()
        found = ids(root)
        assert found == list(range(1, len(found) + 1)) == list(range(1, log.checkpoint.next_offset))
        assert check(root, deep=True).faults == ()
