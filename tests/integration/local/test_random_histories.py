"""Random histories of tables, merged without Spark, against the fold in plain Python.

Each history has its own seed, and the seeds of a run follow each other. A failure names the seeds of the histories that
differ: `CDCFLOW_HISTORY_SEED=<seed> CDCFLOW_HISTORIES=1` runs one of them alone, in its own log.
"""

from __future__ import annotations

import os
import random
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.log.hand_log import HandLog
from tests.support.tables.histories import MODES, Histories

from cdcflow import local
from cdcflow.log.format.segment import Segment
from cdcflow.model.table import Table, TableId
from cdcflow.tables.formats import FORMATS
from cdcflow.tables.job import changes, foldings, histories, job, table_merge
from cdcflow.tables.job.positions import Positions
from cdcflow.tables.job.reports import MergeReport
from cdcflow.tables.local import file_rewrites, position_deletes, row_changes, table_files
from cdcflow.tables.local.delta import DeltaTable
from cdcflow.tables.local.deltalog import DeltaLog
from cdcflow.tables.local.engine import LocalEngine
from cdcflow.tables.local.file_keys import KnownKeys
from cdcflow.tables.local.iceberg import IcebergTable
from cdcflow.tables.local.recently_used import RecentlyUsed
from cdcflow.tables.local.row_changes import RowChanges
from cdcflow.tables.local.session import DuckSession
from cdcflow.tables.merge import append_mode, evolution, history, reduce, soft_delete, statement
from cdcflow.tables.merge.evolution import Evolution
from cdcflow.tables.merge.policy import Mode
from cdcflow.tables.merge.reduce import ColumnLayout
from cdcflow.tables.merge.target import Target
from cdcflow.tables.paths import Warehouse, table_path

SEED = int(os.environ.get("CDCFLOW_HISTORY_SEED", "0")) or random.SystemRandom().randrange(1, 10**8)
HISTORIES = int(os.environ.get("CDCFLOW_HISTORIES", "200"))
MANY = int(os.environ.get("CDCFLOW_HISTORIES_MANY", "4500"))
REPAIRS = 20
"""Histories with repairs."""

UNDONE = int(os.environ.get("CDCFLOW_HISTORIES_UNDONE", "12"))
"""Histories with statements that are undone."""

POLICIES = int(os.environ.get("CDCFLOW_HISTORIES_WITH_POLICIES", "20"))
LAYOUTS = int(os.environ.get("CDCFLOW_HISTORIES_WITH_LAYOUTS", "12"))
"""Histories of partitioned and sorted tables."""

KNOWN = 9001
"""A seed of histories with every kind of policy, and columns that are retyped."""

VERSIONED = 4
"""Histories of tables in mode history whose merges die before each commit."""

TOGETHER = 25
"""Histories in one log."""

ROUNDS, ROUNDS_MANY = 3, 4

ONLY = os.environ.get("CDCFLOW_HISTORY_FORMAT", "iceberg")
"""The tables' format where histories of one log are run alone."""

COMMITTED: list[Counter[str]] = []
"""What the commits of each run of histories did."""

COMMITS: list[tuple[Any, str]] = [(IcebergTable, "create"), (IcebergTable, "_changing"), (DeltaLog, "commit")]
"""Where each commit begins."""


@pytest.fixture(autouse=True)
def few_small_files(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """So that a short history has enough small files to compact, and none too small to have its rows marked, sometimes
    more than once. Every other test reads the files that it has written, as another process would; and in every other
    one, Iceberg's files have delete files as large ones have them.
    """
    by_name = zlib.crc32(request.node.name.encode())
    monkeypatch.setattr(table_files, "WRITTEN", RecentlyUsed(table_files.WRITTEN_BYTES_MAX * (by_name % 2)))
    if by_name // 2 % 2:
        monkeypatch.setattr(position_deletes, "SHARING_BYTES", 0)
        monkeypatch.setattr(position_deletes, "OWN_TIMES", by_name // 4 % 2)
    monkeypatch.setattr(file_rewrites, "SMALL_FILES_MAX", 3)
    monkeypatch.setattr(file_rewrites, "TINY_BYTES", 0)
    monkeypatch.setattr(file_rewrites, "DEAD_SHARE_MAX", 0.9)
    monkeypatch.setattr(row_changes, "KNOWN", KnownKeys(at_once=SEED % 2 == 0))


def run(
    seed: int,
    count: int,
    folder: Path,
    merge: Callable[..., MergeReport] = local.merge,
    rounds: int = ROUNDS_MANY,
    table_format: str = "iceberg",
    modes: Sequence[Mode] = MODES,
    *,
    with_policies: bool = False,
    with_repairs: bool = False,
    with_undone: bool = False,
    with_layouts: bool = False,
    into: Warehouse | None = None,
    folder_of: Callable[[TableId], Any] | None = None,
) -> Histories:
    """Merge histories and compare after each merge. `into`: another warehouse than a folder of `folder`, whose tables
    `folder_of` finds."""
    room = folder / "warehouse"
    warehouse = room if into is None else into
    log = HandLog(folder / "log")
    layouts = table_format if with_layouts else ""
    made = Histories(range(seed, seed + count), log, modes, with_policies, with_repairs, with_undone, layouts)
    for _ in range(rounds):
        made.write_round()
        made.move_away(folder_of or (lambda table: room.joinpath(*table_path(table))))
        made.lay_out()
        report = merge(made.log.root, warehouse, table_format=table_format, policies=made.policies)
        with closing(LocalEngine(warehouse, table_format)) as engine:

            def rows(table: Table, engine: LocalEngine = engine) -> list[dict[str, Any]]:
                there = engine.table(table_path(table.id))
                assert there.snapshot() is not None
                found: list[dict[str, Any]] = there.rows().to_pylist()
                return found

            made.check(report, rows)
    return made


@pytest.mark.parametrize("first", range(0, HISTORIES, TOGETHER))
def test_histories_of_tables_give_what_the_fold_gives(first: int, tmp_path: Path, commits: Counter[str]) -> None:
    """Whatever a source does to a table, the merged one is the fold of the log, after every merge.

    Hard cases G01 to G06, G10, G16, G18, G21, G23 to G27, P08, P10, P18.
    """
    rounds = ROUNDS if HISTORIES > TOGETHER else ROUNDS_MANY  # alone: as many as it may have had
    table_format = FORMATS[first // TOGETHER % len(FORMATS)] if HISTORIES > TOGETHER else ONLY
    run(SEED + first, min(TOGETHER, HISTORIES - first), tmp_path, rounds=rounds, table_format=table_format)
    COMMITTED.append(commits)
    if len(COMMITTED) * TOGETHER >= HISTORIES > TOGETHER:  # 25 histories may have no row that is marked
        together = sum(COMMITTED, Counter[str]())
        assert together["marked"], together
        assert together["written again"], together


@pytest.mark.spread(1)
@pytest.mark.parametrize("table_format", FORMATS)
def test_a_row_may_miss_a_column_that_was_dropped(table_format: str, tmp_path: Path) -> None:
    """In this history a row lacks a column, then the source drops it and sends the rest of the row. The merge of every
    table ended with InvariantViolated.
    """
    run(72_779_962, 1, tmp_path, table_format=table_format, modes=["soft_delete"])


@pytest.mark.parametrize("table_format", FORMATS)
def test_a_row_without_its_beginning_has_null_in_a_later_version_of_a_column(table_format: str, tmp_path: Path) -> None:
    """In this history the log has only updates of a row: one before a column is retyped, and one that leaves the column
    unchanged after it. Merged at once the row lacked the later version; merged one by one it had NULL there.
    """
    run(11_838_735, 1, tmp_path, table_format=table_format, modes=["current"], with_policies=True)


@pytest.mark.spread(1)
@pytest.mark.parametrize("table_format", FORMATS)
def test_histories_of_tables_with_policies_give_what_the_fold_gives(table_format: str, tmp_path: Path) -> None:
    """Tables that follow only some changes of their source, and tables that keep a column next to the one of its new
    type, by merges that die. Refused changes are applied once the policy is `evolve`, as the message promises.
    """
    is_known = table_format != ONLY
    merge = Dying(KNOWN) if is_known else local.merge
    modes: Sequence[Mode] = ("current", "current", "soft_delete")
    seed = KNOWN if is_known else SEED
    made = run(seed, POLICIES, tmp_path, merge, ROUNDS_MANY, table_format, modes, with_policies=True)
    if is_known:  # others may have too few changes of shape
        assert made.refused, "no change of shape was refused"
        assert made.versions, "no column was kept next to one of its new type"


@pytest.mark.long
@pytest.mark.parametrize("table_format", FORMATS)
def test_many_histories_of_tables_with_policies_give_what_the_fold_gives(table_format: str, tmp_path: Path) -> None:
    """The same, of more tables, and of other seeds in either format."""
    modes: Sequence[Mode] = ("current", "current", "soft_delete")
    run(SEED + POLICIES, 2 * POLICIES, tmp_path, local.merge, ROUNDS_MANY, table_format, modes, with_policies=True)


@pytest.mark.spread(1)
@pytest.mark.parametrize("table_format", FORMATS)
def test_histories_of_tables_with_repairs_give_what_the_fold_gives(table_format: str, tmp_path: Path) -> None:
    """Deletes of rows that a repair did not find: of one whose delete the log never got, and of unknown keys."""
    made = run(SEED, REPAIRS, tmp_path, rounds=ROUNDS, table_format=table_format, with_repairs=True)
    assert sum(history.covered["repair"] for history in made.listed) > REPAIRS // 2


@pytest.mark.spread(1)
@pytest.mark.parametrize("table_format", FORMATS)
def test_histories_of_returning_shapes_give_what_the_fold_gives(table_format: str, tmp_path: Path) -> None:
    """Statements that are undone soon: rows of a shape from before them differ from its rows after them."""
    made = run(SEED, UNDONE, tmp_path, rounds=ROUNDS, table_format=table_format, with_undone=True)
    # 14 in the mean of random seeds, and 6 in one of 150; 0 without `with_undone`.
    assert sum(history.covered["without"] for history in made.listed) > 1


@pytest.mark.spread(1)
@pytest.mark.parametrize("table_format", FORMATS)
def test_histories_of_tables_with_layouts_give_what_the_fold_gives(table_format: str, tmp_path: Path) -> None:
    """Tables that are partitioned and sorted by changing columns, which the source changes, renames, drops and leaves
    NULL, by merges that die: rows that move to another partition leave the old one.
    """
    merge = Dying(SEED)
    made = run(SEED, LAYOUTS, tmp_path, merge, ROUNDS_MANY, table_format, with_layouts=True)
    if table_format == "iceberg":
        assert any(history.recorded is not None and history.recorded.partitions for history in made.listed)


@pytest.mark.spread(1)
@pytest.mark.parametrize("table_format", FORMATS)
def test_histories_of_tables_that_keep_versions_survive_a_death_before_each_commit(
    table_format: str, tmp_path: Path
) -> None:
    """G10: whatever was already committed, each version appears once, and ends where the fold ends it."""
    merge = DyingEachTime()
    run(SEED, VERSIONED, tmp_path, merge, ROUNDS, table_format, ["history"])
    assert merge.deaths > VERSIONED


def test_default_of_a_column_that_a_dead_merge_added_is_in_no_version_that_had_ended(tmp_path: Path) -> None:
    """In this history the merge dies when the column exists, and its range has versions from before it."""
    run(74_682_003, 1, tmp_path, DyingEachTime(), ROUNDS, "delta", ["history"])


@pytest.mark.long
@pytest.mark.parametrize("part", range(10))
def test_many_histories_of_tables_give_what_the_fold_gives(part: int, tmp_path: Path) -> None:
    """The same, thousands of them. Every second log is merged by jobs that die."""
    for first in range(part * MANY // 10, (part + 1) * MANY // 10, TOGETHER):
        count = min(TOGETHER, (part + 1) * MANY // 10 - first)
        seed = SEED + 1_000_000 + first
        turn = first // TOGETHER
        merge = Dying(seed) if turn % 2 else local.merge
        run(seed, count, tmp_path / str(first), merge, table_format=FORMATS[turn // 2 % len(FORMATS)])


class Dying:
    """Merges that each die before some commit, if they have that many, and are started again."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self.left = 0

    def __call__(self, log: Path, warehouse: Path | Warehouse, **more: Any) -> MergeReport:
        self.dies(self._chance.randrange(60), log, warehouse, **more)
        return local.merge(log, warehouse, **more)

    def dies(self, before: int, log: Path, warehouse: Path | Warehouse, **more: Any) -> bool:
        """Whether a merge died before a commit of that number; otherwise it completed."""
        self.left = before
        with pytest.MonkeyPatch.context() as patch, suppress(KeyboardInterrupt):
            patch.setattr(job, "TABLES_AT_ONCE", 1)
            for of, method in COMMITS:
                patch.setattr(of, method, self._counted(getattr(of, method)))
            local.merge(log, warehouse, **more)
            return False
        return True

    def _counted(self, right: Callable[..., Any]) -> Callable[..., Any]:
        def commits(*given: Any, **more: Any) -> Any:
            if not self.left:
                raise KeyboardInterrupt
            self.left -= 1
            return right(*given, **more)

        return commits


class DyingEachTime(Dying):
    """Merges that die before their first commit, then before their second, and so on, until one has no more."""

    def __init__(self) -> None:
        super().__init__(0)
        self.deaths = 0

    def __call__(self, log: Path, warehouse: Path | Warehouse, **more: Any) -> MergeReport:
        before = 0
        while self.dies(before, log, warehouse, **more):
            self.deaths += 1
            before += 1
        return local.merge(log, warehouse, **more)


# ── a comparison that cannot fail proves nothing ──────────────────────────────────────────────────────────────


@contextmanager
def null_is_unchanged() -> Iterator[None]:
    right = reduce.Family.sent_sql
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reduce.Family, "sent_sql", lambda f: f"{right(f)} AND c{f.columns[0]} IS NOT NULL")
        yield


@contextmanager
def sweep_off_by(offsets: int) -> Iterator[None]:
    right = Positions.sweep_due
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Positions, "sweep_due", lambda run, table: (due := right(run, table)) and due + offsets)
        yield


@contextmanager
def truncate_off_by(offsets: int) -> Iterator[None]:
    right = changes.last_truncate
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(changes, "last_truncate", lambda *given: (last := right(*given)) and last + offsets)
        yield


@contextmanager
def truncates_ignored() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(changes, "last_truncate", lambda *_: 0)
        yield


@contextmanager
def key_changes_not_followed() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(changes, "_complete_moves", lambda _, views, layout, masks, name, *more: name)
        yield


@contextmanager
def no_act_of(kind: str) -> Iterator[None]:
    right = Evolution.acts
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Evolution, "acts", lambda e: (act for act in right(e) if type(act).__name__ != kind))
        yield


@contextmanager
def greatest_key_of_a_file_not_looked_for() -> Iterator[None]:
    def narrowed(right: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *given: [ends and (ends[0], ends[0]) for ends in right(*given)]

    with pytest.MonkeyPatch.context() as patch:
        for of in (IcebergTable, DeltaTable):
            patch.setattr(of, "bounds", narrowed(of.bounds))
        yield


@contextmanager
def compacted_files_read_from_their_beginning() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Segment, "offset_of", lambda *_: 0)
        yield


@contextmanager
def marks_of_before_forgotten() -> Iterator[None]:
    def forgetting(right: Callable[..., Any]) -> Callable[..., Any]:
        def replaced(table: Any, old: Any, new: Any, *given: Any) -> None:
            *said, marked = given if len(given) > 3 else (*given, ())
            right(table, old, new, *said, [(file, np.setdiff1d(gone, before(table, file))) for file, gone in marked])

        return replaced

    def before(table: Any, file: Any) -> Any:
        with table.open_file(file) as rows:
            return rows.deleted_rows

    with pytest.MonkeyPatch.context() as patch:
        for of in (IcebergTable, DeltaTable):
            patch.setattr(of, "replace", forgetting(of.replace))
        yield


@contextmanager
def rows_numbered_from_one() -> Iterator[None]:
    right = RowChanges._dead

    def shifted(standing: Any, number: int, gone: Any) -> Any:
        return np.unique((gone + 1) % standing.places[number].rows)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            RowChanges, "_dead", lambda changes, of: {n: shifted(of, n, g) for n, g in right(changes, of).items()}
        )
        yield


@contextmanager
def dead_rows_written_again() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            RowChanges,
            "_remaining_rows",
            lambda changes, file, place, _: changes._table.read(file, changes._table.schema.names),
        )
        yield


@contextmanager
def nothing_but_keys_read() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_changes, "_kept_columns", lambda *_: set())
        yield


@contextmanager
def attribute_of(of: Any, name: str, value: object) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(of, name, value)
        yield


BUGS: dict[str, tuple[Callable[[], Any], int]] = {
    "null is unchanged": (null_is_unchanged, 7),
    "sweep takes one more": (lambda: sweep_off_by(1), 5),
    "sweep leaves one": (lambda: sweep_off_by(-1), 44),
    "truncate leaves one": (lambda: truncate_off_by(-2), 6),
    "truncate takes one more": (lambda: truncate_off_by(1), 20),
    "truncates ignored": (truncates_ignored, 6),
    "key changes not followed": (key_changes_not_followed, 69),
    "no defaults": (lambda: no_act_of("Fill"), 20),
    "dropped columns kept": (lambda: no_act_of("Empty"), 6),
    "missing columns not renamed": (lambda: no_act_of("MissAlso"), 42),
    "greatest key of a file not looked for": (greatest_key_of_a_file_not_looked_for, 25),
    "compacted files read from their beginning": (compacted_files_read_from_their_beginning, 6),
    "marks of before forgotten": (marks_of_before_forgotten, 162),
    "rows numbered from one": (rows_numbered_from_one, 9),
    "dead rows written again": (dead_rows_written_again, 4),
    "nothing but keys read": (nothing_but_keys_read, 9),
    "zeros without their sign": (lambda: attribute_of(DuckSession, "takes_by_offset", False), 1),
}
"""Each with the seed of a history that shows it. Other histories need other seeds: plant it and run hundreds."""


@pytest.mark.spread(4)
@pytest.mark.parametrize("table_format", FORMATS)
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_seen(bug: str, table_format: str, tmp_path: Path) -> None:
    """A comparison that cannot fail proves nothing."""
    planted, seed = BUGS[bug]
    with planted(), pytest.raises(AssertionError, match=f"CDCFLOW_HISTORY_SEED={seed} "):
        run(seed, 1, tmp_path, table_format=table_format, modes=["current"])


# ── and of other modes ────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def said_otherwise(of: Any, name: str, instead: Callable[..., Any]) -> Iterator[None]:
    """`instead` receives the right result, then what is given."""
    right = getattr(of, name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(of, name, lambda *given, **more: instead(right, *given, **more))
        yield


def of_a_delete(mask: Callable[[ColumnLayout], frozenset[int]]) -> Callable[..., Any]:
    return lambda right, layout: [mask(layout) for _ in right(layout)]


def with_defaults(
    right: Callable[..., ColumnLayout], target: Target, then: Target, shapes: Sequence[Table]
) -> ColumnLayout:
    made = right(target, then, shapes)
    return replace(made, defaults=evolution._defaults(made.shapes))


def unswept(right: Callable[..., Any], *given: Any, **more: Any) -> Any:
    return right(*given, **{**more, "swept": 0})


MODE_BUGS: dict[str, tuple[Mode, Callable[[], Any], int]] = {
    "deleted rows live": (
        "soft_delete",
        lambda: said_otherwise(
            soft_delete, "changes_with_end", lambda _, layout, name: soft_delete.living(layout, name)
        ),
        1,
    ),
    "a delete sends NULLs": (
        "soft_delete",
        lambda: said_otherwise(soft_delete, "masks", of_a_delete(lambda layout: frozenset())),
        1,
    ),
    "a delete misses columns of later shapes": (
        "soft_delete",
        lambda: said_otherwise(
            soft_delete, "masks", of_a_delete(lambda layout: frozenset(layout.others) - {layout.ended or 0})
        ),
        25,
    ),
    "truncates end no row of the range": (
        "soft_delete",
        lambda: said_otherwise(
            soft_delete, "with_truncates", lambda _, layout, name, *more, **moved: f"SELECT * FROM {name}"
        ),
        12,
    ),
    "truncates end no other row": (
        "soft_delete",
        lambda: said_otherwise(foldings, "Ending", lambda right, before, at: right(before, 0)),
        17,
    ),
    "sweeps end no row": (
        "soft_delete",
        lambda: said_otherwise(foldings, "Ending", lambda right, before, at: right(0, at)),
        44,
    ),
    "sweeps are not written": (
        "soft_delete",
        lambda: said_otherwise(RowChanges, "_touched_by_end", lambda *_: frozenset()),
        126,
    ),
    "deleted rows count": ("soft_delete", lambda: said_otherwise(statement, "is_ended", lambda *_: "false"), 4),
    "renames not followed": ("append", lambda: no_act_of("MissAlso"), 1),
    "dropped tables' changes lost": (
        "append",
        lambda: said_otherwise(table_merge, "group_shapes", lambda right, *given: right(*given)[-1:]),
        13,
    ),
    "defaults recorded as sent": (
        "append",
        lambda: said_otherwise(append_mode, "layout_of", with_defaults),
        25,
    ),
    "defaults filled in": (
        "append",
        lambda: said_otherwise(evolution, "_of_changes", lambda _, shape: replace(shape, key=())),
        9,
    ),
    "defaults in versions that had ended": (
        "history",
        lambda: said_otherwise(histories, "_default_offsets", lambda *_: {}),
        121,
    ),
    "rows of a dropped table are kept": (
        "history",
        lambda: said_otherwise(histories, "offsets_of", lambda *_: (0, 0)),
        155,
    ),
    "reads make versions at once": (
        "history",
        lambda: said_otherwise(histories, "_ends_of_segments", lambda *_: []),
        102,
    ),
    "dropped columns are kept": (
        "history",
        lambda: attribute_of(reduce.Family, "late", property(lambda _: frozenset())),
        1,
    ),
    "sweeps end no version": ("history", lambda: said_otherwise(history, "RangeFacts", unswept), 102),
}
"""Each with the mode and the seed of a history that shows it."""


@pytest.mark.spread(4)
@pytest.mark.parametrize("table_format", FORMATS)
@pytest.mark.parametrize("bug", MODE_BUGS)
def test_a_bug_planted_in_a_mode_is_seen(bug: str, table_format: str, tmp_path: Path) -> None:
    """The same for tables that are not `current`."""
    mode, planted, seed = MODE_BUGS[bug]
    with planted(), pytest.raises(AssertionError, match=f"CDCFLOW_HISTORY_SEED={seed} "):
        run(seed, 1, tmp_path, table_format=table_format, modes=[mode])
