"""The live view of random histories, read without Spark, against the fold in plain Python.

As in `test_random_histories.py`, each history has its own seed: `CDCFLOW_HISTORY_SEED=<seed> CDCFLOW_HISTORIES=1` runs
one alone (`CDCFLOW_HISTORY_FORMAT` sets the format).
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.log.hand_log import HandLog
from tests.support.merge.histories import make_table
from tests.support.tables import histories as table_histories
from tests.support.tables import live_histories
from tests.support.tables.live_histories import Here

from cdcflow import local
from cdcflow.log.files.layout import Layout
from cdcflow.tables.formats import FORMATS
from cdcflow.tables.job import live as warehouse_live
from cdcflow.tables.local.live import LocalPastTable
from cdcflow.tables.merge import live, removed_and_added
from cdcflow.tables.merge.acts import Act, Fill
from cdcflow.tables.merge.modes import ModeRules
from cdcflow.tables.merge.policy import Mode, Policies, TablePolicy
from cdcflow.tables.merge.statement import Folding
from cdcflow.tables.merge.target import Target

SEED = int(os.environ.get("CDCFLOW_HISTORY_SEED", "0")) or random.SystemRandom().randrange(1, 10**8)
ALONE = int(os.environ.get("CDCFLOW_HISTORIES", "0"))
HISTORIES, IN_MODES, MANY = 20, 10, 2000
"""Of each format: here, here in each mode, and in `make test-long`."""

MODES: tuple[Mode, ...] = ("soft_delete", "append", "history")

KNOWN = 9200
"""Histories with changes of shape that policies are about."""

ROUNDS = 3


def all_in(mode: Mode) -> Policies:
    return Policies(TablePolicy(mode))


ONLY = os.environ.get("CDCFLOW_HISTORY_FORMAT", "")


@pytest.mark.spread(1)
@pytest.mark.parametrize("table_format", [ONLY] if ONLY else FORMATS)
def test_live_view_of_histories_is_the_fold_of_all_that_is_sealed(table_format: str, tmp_path: Path) -> None:
    """A live read shows what a merge would leave, before it, while it runs, and after it."""
    live_histories.run(Here(table_format), SEED, ALONE or HISTORIES, tmp_path, ROUNDS)


@pytest.mark.spread(1)
@pytest.mark.parametrize("table_format", [ONLY] if ONLY else FORMATS)
@pytest.mark.parametrize("mode", MODES)
def test_live_view_in_each_mode_is_the_fold(mode: Mode, table_format: str, tmp_path: Path) -> None:
    """What a table keeps in addition to the current rows is in its live view: deleted rows, changes, and versions."""
    live_histories.run(Here(table_format), SEED, ALONE or IN_MODES, tmp_path, ROUNDS, [mode])


@pytest.mark.spread(1)
@pytest.mark.parametrize("table_format", [ONLY] if ONLY else FORMATS)
def test_live_view_follows_the_policies_of_shape(table_format: str, tmp_path: Path) -> None:
    """What a merge would exclude is excluded, and a column next to the one of its new type is shown as one."""
    is_known = not ALONE and table_format == FORMATS[0]
    seed = KNOWN if is_known else SEED
    made = live_histories.run(Here(table_format), seed, ALONE or HISTORIES, tmp_path, ROUNDS, with_policies=True)
    if is_known:  # others may have too few changes of shape
        assert made.refused, "no change of shape was refused"
        assert any(history.merged.retyped for history in made.listed), "no column was kept next to one of its new type"


def test_live_view_shows_a_table_without_a_row_as_the_next_merge_will(tmp_path: Path) -> None:
    """Before a merge created it, after that, and once it has rows. A table whose rows have expired is skipped with an
    error that names it.
    """
    log, warehouse = HandLog(tmp_path / "log"), tmp_path / "warehouse"
    orders, beside = make_table("orders", id="int64", v="string"), make_table("beside", id="int64")
    log.state(orders)
    log.progress["public.orders"] |= {"schema": "public", "name": "orders", "shape": orders.to_text()}
    log.segment([(beside, "c", {"id": 1})])
    for _ in range(2):
        shown = local.read_live(log.root, warehouse)
        assert shown["public.orders"].column_names == ["id", "v", "_offset", "_missing"]
        assert shown["public.orders"].num_rows == 0
        assert local.merge(log.root, warehouse).tables[1].complete or not shown.incomplete
    log.segment([(orders, "c", {"id": 1, "v": "a"})])
    assert local.read_live(log.root, warehouse)["public.orders"].column("v").to_pylist() == ["a"]

    shutil.rmtree(warehouse)
    log.state(orders, since=2)
    log.progress["public.orders"] |= {"schema": "public", "name": "orders", "shape": orders.to_text()}
    log.segment([(beside, "c", {"id": 2})])
    for segment in Layout(log.root).segment_offsets()[:2]:
        shutil.rmtree(Layout(log.root).segment(*segment))  # as retention does
    shown = local.read_live(log.root, warehouse)
    assert "cdcflow backfill public.orders" in shown.left_out["public.orders"]


@pytest.mark.parametrize("mode", ["current", *MODES])
@pytest.mark.parametrize("table_format", FORMATS)
def test_live_view_shows_what_a_backfill_did_not_find_as_the_next_merge_will(
    mode: Mode, table_format: str, tmp_path: Path
) -> None:
    """No change of the table is in the tail, but a backfill is done: its rows are deleted, marked, ended, or kept."""
    log, warehouse, policies = HandLog(tmp_path / "log", has_transactions=True), tmp_path / "warehouse", all_in(mode)
    orders, beside = make_table("orders", id="int64", v="string"), make_table("beside", id="int64")
    log.state(orders)
    log.segment([(orders, "c", {"id": 1, "v": "a"}), (orders, "c", {"id": 2, "v": "b"})])
    local.merge(log.root, warehouse, table_format=table_format, policies=policies)
    log.state(orders, "done", 2, 2)
    log.segment([(beside, "c", {"id": 1})])
    shown = local.read_live(log.root, warehouse, policies=policies)["public.orders"]
    local.merge(log.root, warehouse, policies=policies)
    merged = local.read_cut(warehouse)["public.orders"]
    assert shown.sort_by("id").to_pylist() == merged.sort_by("id").to_pylist()
    assert shown.column_names == merged.column_names
    first = {"current": None, "append": {"_op": "c"}, "soft_delete": {"_is_deleted": True}, "history": {"_valid_to": 2}}
    of_one = [row for row in shown.to_pylist() if row["id"] == 1]
    wanted = first[mode]
    assert [row.items() >= wanted.items() for row in of_one] == [True] if wanted else not of_one


@pytest.mark.parametrize("mode", ["current", *MODES])
def test_table_is_whole_in_the_live_view_as_soon_as_its_backfill_is_done(mode: Mode, tmp_path: Path) -> None:
    """Its last chunk may have no row: nothing of the table comes after the merge that saw it half read."""
    log, warehouse, policies = HandLog(tmp_path / "log", has_transactions=True), tmp_path / "warehouse", all_in(mode)
    orders, beside = make_table("orders", id="int64", v="string"), make_table("beside", id="int64")
    log.state(orders, "reading")
    log.segment([(orders, "r", {"id": 1, "v": "a"})])
    local.merge(log.root, warehouse, policies=policies)
    assert "public.orders" not in local.read_live(log.root, warehouse, policies=policies)
    log.state(orders, "done")
    log.segment([(beside, "c", {"id": 1})])
    assert local.read_live(log.root, warehouse, policies=policies)["public.orders"].num_rows == 1
    local.merge(log.root, warehouse, policies=policies)
    assert local.read_cut(warehouse)["public.orders"].num_rows == 1


@pytest.mark.long
@pytest.mark.parametrize("part", range(10))
def test_live_view_of_many_histories_is_the_fold(part: int, tmp_path: Path) -> None:
    """The same, thousands of them."""
    for first in range(part * MANY // 10, (part + 1) * MANY // 10, 25):
        table_format = FORMATS[first // 25 % len(FORMATS)]
        modes: Sequence[Mode] = table_histories.MODES if first // 50 % 2 else ["current"]
        seed, with_policies = SEED + 2_000_000 + first, first % 100 == 0  # of mode `current`
        folder = tmp_path / str(first)
        live_histories.run(Here(table_format), seed, 25, folder, ROUNDS, modes, with_policies=with_policies)


# ── a comparison that cannot fail proves nothing ──────────────────────────────────────────────────────────────


@pytest.mark.spread(1)
@pytest.mark.parametrize(
    ("seed", "mode", "with_policies"),
    [
        pytest.param(14331208, "append", False, id="died between two incarnations"),
        pytest.param(26889005, "current", True, id="key there and back, then a backfill"),
        pytest.param(26889064, "history", False, id="default given to a version that had ended"),
    ],
)
def test_histories_that_once_failed(seed: int, mode: Mode, with_policies: bool, tmp_path: Path) -> None:
    count = 10 if mode == "append" else 1  # where a merge dies depends on the others
    live_histories.run(Here("delta"), seed, count, tmp_path, ROUNDS, [mode], with_policies=with_policies)


@contextmanager
def patched(of: Any, name: str, bug: Callable[[Any], Any]) -> Iterator[None]:
    """A part of the live view, made faulty. A merge does not use it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(of, name, bug(getattr(of, name)))
        yield


def no_act_of(kind: str) -> Any:
    return patched(
        live,
        "rows_after_acts",
        lambda right: lambda target, acts, *more: right(target, (a for a in acts if type(a).__name__ != kind), *more),
    )


def words(old: str, new: str) -> Any:
    def bug(right: Callable[..., str]) -> Callable[..., str]:
        return lambda *given, **more: right(*given, **more).replace(old, new)

    return patched(live, "current", bug)


def newest(right: Any) -> Any:
    return lambda table, version: table._table.snapshot() or right(table, version)


def all_columns(folding: Folding) -> str:
    return live._column_list(folding.layout.target, "t")


def of_nothing(right: Callable[..., str]) -> Callable[..., str]:
    return lambda folding, target, rows, mode, **more: right(
        folding, target, "" if folding.adds_only else rows, mode, **more
    )


BUGS: dict[str, tuple[Callable[[], Any], int]] = {
    "sweep leaves rows": (lambda: patched(live, "_sweep_filter", lambda _: lambda _: ""), 44),
    "latest version, not the cut's": (lambda: patched(LocalPastTable, "as_of", newest), 17),
    "least key out of bounds": (lambda: words(">= CAST", "> CAST"), 35),
    "missing columns not renamed": (lambda: patched(live, "_missing", lambda _: lambda _, own: own), 42),
    "values of the table not taken": (
        lambda: patched(removed_and_added, "needs_values", lambda _: lambda _: False),
        17,
    ),
    "no defaults": (lambda: no_act_of("Fill"), 20),
    "dropped columns kept": (lambda: no_act_of("Empty"), 6),
    "touched rows stay": (lambda: words("LEFT ANTI JOIN", "LEFT JOIN"), 6),
    "existing copies forgotten": (lambda: words("coalesce(g.stood, 0)", "0"), 6),
}
"""Each with the seed of a history that shows it. Other histories need other seeds: plant it and run hundreds."""


def with_all_filled(right: Callable[..., str]) -> Callable[..., str]:
    def followed(target: Target, acts: Iterable[Act], rows: str, mode: ModeRules) -> str:
        return right(target, [replace(a, only="") if isinstance(a, Fill) else a for a in acts], rows, mode)

    return followed


def last_turn_only() -> Any:
    return patched(warehouse_live, "_turns", lambda right: lambda range_: list(right(range_))[-1:])


BUGS_OF_MODES: dict[str, tuple[Mode, Callable[[], Any], int]] = {
    "truncates mark nothing": ("soft_delete", lambda: patched(live, "_staying", lambda _: all_columns), 102),
    "defaults in versions that had ended": ("history", lambda: patched(live, "rows_after_acts", with_all_filled), 133),
    "open versions stay open": ("history", lambda: words("LEFT ANTI JOIN", "LEFT JOIN"), 101),
    "versions of a dropped table lost": ("history", lambda: last_turn_only(), 155),
    "existing changes forgotten": ("append", lambda: patched(live, "rows_after_range", of_nothing), 100),
    "unchanged columns not renamed": ("append", lambda: patched(live, "_missing", lambda _: lambda _, own: own), 107),
}
"""The same of modes that keep more than the rows of now."""


@pytest.mark.spread(3)
@pytest.mark.parametrize("bug", [*BUGS, *BUGS_OF_MODES])
def test_a_planted_bug_is_seen(bug: str, tmp_path: Path) -> None:
    """A comparison that cannot fail proves nothing."""
    mode, planted, seed = BUGS_OF_MODES[bug] if bug in BUGS_OF_MODES else ("current", *BUGS[bug])
    with (
        planted(),
        pytest.raises(AssertionError, match=f"CDCFLOW_HISTORY_SEED={seed} CDCFLOW_HISTORIES=1, (before|after) a merge"),
    ):
        live_histories.run(Here(FORMATS[seed % len(FORMATS)]), seed, 1, tmp_path, ROUNDS, [mode])
