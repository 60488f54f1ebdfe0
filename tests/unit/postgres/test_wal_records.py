"""The heads of the records in a server's log: where each begins, across pages, and what proves an upgrade."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence

import pytest

from cdcflow.sources.postgres.lsn import Lsn
from cdcflow.sources.postgres.upgraded import NotProven, check_log
from cdcflow.sources.postgres.wal import PAGE, WalRecord, parse_records

BEGIN = Lsn(0x0A000000)
SHUTDOWN, RUNNING, COMMIT = (0, 0x00), (8, 0x10), (1, 0x00)


def written(lengths: Sequence[int]) -> tuple[bytes, list[int]]:
    """A log with a record of each length, written byte by byte as a server does, and where each begins."""
    log, begins = bytearray(b"\xee" * 40), []

    def put(piece: bytes) -> None:
        for byte in piece:
            if len(log) % PAGE == 0:
                log.extend(b"\xee" * 24)
            log.append(byte)

    for number, length in enumerate(lengths):
        while len(log) % 8:
            put(b"\0")
        if len(log) % PAGE == 0:
            log.extend(b"\xee" * 24)
        begins.append(len(log))
        put(struct.pack("<IIQBBxxI", length, number, 0, 0x10, 8, 0) + b"\xdd" * (length - 24))
    return bytes(log), begins


@pytest.mark.parametrize("seed", range(5))
def test_records_are_found_wherever_pages_end(seed: int) -> None:
    """A head may be divided by the end of a page, and a record may fill several."""
    dice = random.Random(seed)
    lengths = [dice.choice([24, 26, 49, 114, PAGE - 30, PAGE, 3 * PAGE + 5]) + dice.randint(0, 40) for _ in range(400)]
    log, begins = written(lengths)
    found = list(parse_records(log + bytes(100), BEGIN))
    assert [record.lsn.value - BEGIN.value for record in found] == begins
    assert [record.transaction for record in found] == list(range(len(lengths)))


def test_log_that_ends_within_a_head_has_no_further_record() -> None:
    log, begins = written([100, 100, 100])
    assert len(list(parse_records(log[: begins[2] + 10], BEGIN))) == 2


def log(*kinds: tuple[int, int], transactions: Sequence[int] = (), before: int = 0) -> list[WalRecord]:
    """Records of 100 bytes; the first one has no predecessor."""
    return [
        WalRecord(BEGIN + 40 + 100 * n, int(n in transactions), before if n == 0 else 1, *kind)
        for n, kind in enumerate(kinds)
    ]


SLOT = BEGIN + 240


def test_log_that_begins_before_the_slot_and_has_no_transaction_proves_the_upgrade() -> None:
    check_log(iter(log(SHUTDOWN, RUNNING, SHUTDOWN)), SLOT)
    check_log(iter(log(SHUTDOWN, RUNNING, SHUTDOWN, COMMIT, transactions=[3])), SLOT)


@pytest.mark.parametrize(
    "records",
    [
        log(SHUTDOWN, RUNNING, SHUTDOWN, before=7),  # the log began earlier
        log(RUNNING, RUNNING, SHUTDOWN),
        log(SHUTDOWN, COMMIT, SHUTDOWN, transactions=[1]),  # a transaction before the slot
        log(SHUTDOWN, RUNNING, COMMIT, SHUTDOWN, transactions=[2]),  # one before the server was stopped
        log(SHUTDOWN, SHUTDOWN, RUNNING, RUNNING),  # stopped before the slot existed, not after
        log(SHUTDOWN),
        [],
    ],
)
def test_anything_else_proves_nothing(records: list[WalRecord]) -> None:
    with pytest.raises(NotProven):
        check_log(iter(records), SLOT)
