"""What a cut shows survives a power cut: everything of it is synced before the log may expire its rows."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from tests.support.kill.power_cuts import PowerCuts
from tests.support.log.hand_log import HandLog
from tests.support.merge.histories import make_table

from cdcflow import local
from cdcflow.tables.job.reports import MergeReport
from cdcflow.tables.local import file_rewrites
from cdcflow.tables.local.engine import LocalEngine

ORDERS = make_table("orders", id="int64", v="int32")
NAME = "public.orders"
Merge = Callable[..., MergeReport]


def rows(warehouse: Path, cut: int | None = None) -> dict[int, int]:
    found = local.read_cut(warehouse, cut)[NAME]
    return dict(zip(found["id"].to_pylist(), found["v"].to_pylist(), strict=True))


@pytest.fixture
def marked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are marked in small files, too: vectors and delete files are files as well."""
    monkeypatch.setattr(file_rewrites, "TINY_BYTES", 0)


@pytest.mark.usefixtures("marked")
def test_a_published_cut_is_durable(merge: Merge, hand_log: HandLog, warehouse: Path) -> None:
    """The disk loses everything that was not synced, directly after each merge."""
    warehouse.mkdir()
    hand_log.state(ORDERS)
    expected: dict[int, int] = {}
    disk = PowerCuts(warehouse, every=1000)
    for number in range(4):
        expected |= dict.fromkeys(range(3 * number, 3 * number + 3), number) | {0: number}
        hand_log.segment(
            [
                (ORDERS, "u" if n < 3 * number else "c", {"id": n, "v": number})
                for n in sorted({0, *range(3 * number, 3 * number + 3)})
            ]
        )
        with disk.watching():
            assert merge(hand_log.root, warehouse).published
        disk.moments[-1].put_into(warehouse)
        assert rows(warehouse) == expected
        disk = PowerCuts(warehouse, every=1000)


@pytest.mark.usefixtures("marked")
def test_files_that_maintenance_wrote_are_durable(
    merge: Merge, hand_log: HandLog, warehouse: Path, format_name: str
) -> None:
    """They are written before the table is locked, and named later by a separate commit."""
    warehouse.mkdir()
    hand_log.state(ORDERS)
    expected: dict[int, int] = {}
    for number in range(12):
        expected |= dict.fromkeys(range(3 * number, 3 * number + 3), number)
        hand_log.segment([(ORDERS, "c", {"id": n, "v": number}) for n in range(3 * number, 3 * number + 3)])
        assert merge(hand_log.root, warehouse).published
    disk = PowerCuts(warehouse, every=1000)
    with disk.watching(), closing(LocalEngine(warehouse, format_name)) as engine:
        with closing(engine.table(("public", "orders"))) as table:
            table.snapshot()
            written = table.rewrite_portion()
            assert written is not None
        with closing(engine.table(("public", "orders"))) as table:
            table.snapshot()
            assert table.finish_portion(written) is not None
    disk.moments[-1].put_into(warehouse)
    hand_log.segment([(ORDERS, "u", {"id": 0, "v": 99})])
    assert merge(hand_log.root, warehouse).published
    assert rows(warehouse) == expected | {0: 99}


@pytest.mark.usefixtures("marked")
def test_merge_continues_with_the_remains_of_a_power_cut(merge: Merge, hand_log: HandLog, warehouse: Path) -> None:
    """At several points within a merge, with any part of what was not synced, or half of it."""
    warehouse.mkdir()
    hand_log.state(ORDERS)
    hand_log.segment([(ORDERS, "c", {"id": n, "v": 0}) for n in range(4)])
    merge(hand_log.root, warehouse)
    hand_log.segment([(ORDERS, "u", {"id": 1, "v": 1}), (ORDERS, "d", {"id": 2}), (ORDERS, "c", {"id": 9, "v": 9})])
    disk = PowerCuts(warehouse)
    with disk.watching():
        merge(hand_log.root, warehouse)
    seed = random.SystemRandom().randrange(10**6)
    chance = random.Random(seed)
    for number in chance.sample(range(len(disk.moments)), min(8, len(disk.moments))):
        disk.moments[number].put_into(warehouse, chance)
        merge(hand_log.root, warehouse)
        assert rows(warehouse) == {0: 0, 1: 1, 3: 0, 9: 9}, f"seed {seed}, crash {number}"
        assert rows(warehouse, 1) == dict.fromkeys(range(4), 0), f"seed {seed}, crash {number}"
