"""Mapped files keep their pages up to a limit, and give them back beyond it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cdcflow.tables.local.mapped_memory import MappedMemory, ResidentMemory

SIZE = 1 << 20


def mapped_kilobytes(memory: MappedMemory) -> int:
    """How much of a mapped file is in this process's page table, as the kernel counts it."""
    memory.buffer[:SIZE] = b"7" * SIZE
    memory.give_back()
    before = _resident()
    assert memory.buffer[:SIZE].count(b"7") == SIZE
    return _resident() - before


def _resident() -> int:
    found = re.findall(r"^(?:RssFile|RssShmem):\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    return sum(map(int, found))


@pytest.mark.parametrize(("limit", "stays"), [(SIZE, True), (SIZE - 1, False)])
def test_pages_are_given_back_beyond_the_limit(limit: int, *, stays: bool) -> None:
    resident = ResidentMemory(limit)
    memory = MappedMemory.of_size(SIZE, resident)
    assert (mapped_kilobytes(memory) < SIZE >> 11) == stays


def test_pages_stay_as_soon_as_there_is_room() -> None:
    resident = ResidentMemory(SIZE)
    first, second = MappedMemory.of_size(SIZE, resident), MappedMemory.of_size(SIZE, resident)
    assert mapped_kilobytes(second) >= SIZE >> 11
    del first
    assert mapped_kilobytes(second) < SIZE >> 11


def test_memory_that_is_no_longer_used_makes_room() -> None:
    resident = ResidentMemory(2 * SIZE)
    first, second = MappedMemory.of_size(SIZE, resident), MappedMemory.of_size(SIZE, resident)
    assert resident.bytes == 2 * SIZE
    third = MappedMemory.of_size(SIZE, resident)
    del first, third
    assert resident.bytes == SIZE
    fourth = MappedMemory.of_size(SIZE, resident)
    assert resident.bytes == 2 * SIZE
    del second, fourth
    assert resident.bytes == 0
