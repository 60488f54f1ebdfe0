"""`log check` and the daemon have one rule: the daemon opens what `log check` calls whole, whatever happened to the
files.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import numpy as np
import pytest

from cdcflow.errors import CdcflowError
from cdcflow.log.read.reader import check
from cdcflow.model.position import SourceIdentity
from cdcflow.sinks.files.log import FileLog
from cdcflow.testing.sinks import ORDERS, Writer, changes, orders

IDENTITY = SourceIdentity("postgres", "7301", "shop", "1")
DAMAGES = 120


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A segment, two closed journals (one with a spool) and one that is written to, left by a killed process."""
    path = tmp_path_factory.mktemp("whole") / "log"
    opened = FileLog.open(path, IDENTITY)
    writer = Writer.of(opened)
    writer.put(orders(1, 2))
    opened.roll()
    opened.seal_pending()
    writer.put(orders(3))
    opened.roll()
    writer.put(orders(4))
    writer.put(writer.write_spool(9, [([changes(ORDERS, [{"id": 5}])], np.array([9], np.uint64))], [], rows=1))
    opened.roll()
    for number in range(6, 12):
        writer.put(orders(number))
    opened._lease.release()
    return path


def agree(damaged: Path) -> bool:
    """Whether the log is whole; both must agree."""
    report = check(damaged)
    try:
        opened = FileLog.open(damaged, IDENTITY)
    except CdcflowError as error:
        if report.is_whole:
            raise AssertionError(f"check calls it whole, and the daemon says: {error}") from None
        return False
    assert report.is_whole, f"the daemon opens it, and check says: {report.faults}"
    assert opened.checkpoint.next_offset == report.next_offset
    opened._lease.release()
    return True


def damaged_files(path: Path) -> list[Path]:
    return sorted((*(path / "journal").iterdir(), *(path / "spool").iterdir()))


def damage(path: Path, chance: random.Random) -> str:
    """Do one thing to one file or two."""
    file, other = chance.sample(damaged_files(path), 2)
    content = bytearray(file.read_bytes())
    at = chance.randrange(len(content))
    match what := chance.choice(["truncate", "flip", "remove", "swap", "zero the end"]):
        case "truncate":
            file.write_bytes(content[:at])
        case "flip":
            content[at] ^= 1 << chance.randrange(8)
            file.write_bytes(content)
        case "remove":
            file.unlink()
        case "swap":
            file.write_bytes(other.read_bytes())
            other.write_bytes(content)
        case _:
            file.write_bytes(content[:at] + bytes(len(content) - at))
    return f"{what} {file.name} at {at} of {len(content)} (other: {other.name})"


def test_check_and_the_daemon_agree_on_every_damaged_log(log: Path, tmp_path: Path) -> None:
    """A log that is called whole and then refused leaves an operator without any hint about what to restore."""
    whole = 0
    for seed in range(DAMAGES):
        copy = tmp_path / str(seed)
        shutil.copytree(log, copy)
        done = damage(copy, random.Random(seed))
        try:
            whole += agree(copy)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, {done}: {error}") from None
        shutil.rmtree(copy)
    assert 0 < whole < DAMAGES


@pytest.mark.parametrize("sealed", [True, False])
def test_log_whose_journals_are_gone_is_whole_to_no_command(sealed: bool, tmp_path: Path) -> None:
    """They held what was acknowledged to the source; starting from scratch there would hide that it is lost."""
    opened = FileLog.open(tmp_path / "log", IDENTITY)
    Writer.of(opened).put(orders(1))
    if sealed:
        opened.close()
    else:
        opened._lease.release()
    for journal in (tmp_path / "log" / "journal").iterdir():
        journal.unlink()
    assert not agree(tmp_path / "log")
    shutil.rmtree(tmp_path / "log" / "journal")
    assert not agree(tmp_path / "log")


def test_log_whose_first_start_was_killed_before_its_first_journal_is_begun_again(tmp_path: Path) -> None:
    """Nothing was captured yet, so nothing is missing."""
    FileLog.open(tmp_path / "log", IDENTITY)._lease.release()
    for journal in (tmp_path / "log" / "journal").iterdir():
        journal.unlink()
    (tmp_path / "log" / "schemas.json").unlink()
    (tmp_path / "log" / "newest").unlink()
    assert agree(tmp_path / "log")
