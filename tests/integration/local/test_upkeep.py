"""Maintenance never changes what a kept cut reads: whatever it does, wherever it dies, and concurrently with merges."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.support.log.hand_log import HandLog
from tests.support.merge.histories import make_table
from tests.support.tables.file_rows import places_of
from typer.testing import CliRunner

from cdcflow import local
from cdcflow.cli.app import app
from cdcflow.errors import HistoryLost, SinkUnavailable
from cdcflow.tables.formats import delta, iceberg
from cdcflow.tables.job import job, lease, views
from cdcflow.tables.job.engines import Engines
from cdcflow.tables.job.lease import folder_lease, upkeep_folder_lease
from cdcflow.tables.job.maintenance import OUT_OF_TIME, UpkeepPolicy, UpkeepReport, UpkeepWhenDue, upkeep
from cdcflow.tables.job.past_tables import VersionGone
from cdcflow.tables.job.reports import MergeReport, TableMergeReport
from cdcflow.tables.local import file_rewrites
from cdcflow.tables.local.delta import DeltaTable
from cdcflow.tables.local.deltalog import DeltaLog
from cdcflow.tables.local.engine import LocalEngine
from cdcflow.tables.local.iceberg import IcebergTable
from cdcflow.tables.local.tables import FileTable
from cdcflow.tables.merge.policy import Policies, TablePolicy
from cdcflow.tables.paths import STATE

ORDERS = make_table("orders", id="int64", v="int32")
QUIET = make_table("quiet", id="int64")
CUTS, KEPT = 9, 4

Merge = Callable[..., MergeReport]
Rows = dict[str, list[dict[str, Any]]]


@pytest.fixture
def warehouse(tmp_path: Path) -> Path:
    return tmp_path / "warehouse"


@pytest.fixture(autouse=True)
def files_go_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Delta's retention is over, rows are marked, and a few small files count as many."""
    monkeypatch.setattr(delta, "REMOVED_KEPT_S", 0.0)
    monkeypatch.setattr(file_rewrites, "TINY_BYTES", 0)
    monkeypatch.setattr(file_rewrites, "DEAD_SHARE_MAX", 0.9)


@pytest.fixture
def history(merge: Merge, hand_log: HandLog, warehouse: Path) -> HandLog:
    """A table that each cut changes, and one that only the first did."""
    for table in (ORDERS, QUIET):
        hand_log.state(table)
    hand_log.segment([(QUIET, "c", {"id": 1}), *((ORDERS, "c", {"id": n, "v": 0}) for n in range(40))])
    merge(hand_log.root, warehouse)
    for cut in range(2, CUTS + 1):
        changes = [(ORDERS, "u", {"id": cut * 3 + n, "v": cut}) for n in range(3)]
        hand_log.segment([*changes, (ORDERS, "d", {"id": cut}), (ORDERS, "c", {"id": 100 + cut, "v": cut})])
        merge(hand_log.root, warehouse)
    return hand_log


def read(warehouse: Path, cut: int | None = None) -> Rows:
    """Every table at a cut."""
    return {
        name: sorted(rows.to_pylist(), key=lambda row: row["id"])
        for name, rows in local.read_cut(warehouse, cut).items()
    }


def looked_after(warehouse: Path, format_name: str, kept: int = KEPT, **more: Any) -> UpkeepReport:
    """Maintenance at a time when this many cuts are young enough to be kept."""
    with closing(LocalEngine(warehouse, format_name)) as engine:
        oldest = engine.cuts().list_cuts()[-kept]
        now = time.time() + 60  # what is done now is over for a while then
        policy = UpkeepPolicy(keep_s=now - oldest.published / 1e6, **more)
        return upkeep(Engines(engine), policy, lambda: now)


def files_of(warehouse: Path) -> list[str]:
    return sorted(str(path) for path in warehouse.rglob("*") if path.suffix in (".parquet", ".bin"))


def kept_versions(warehouse: Path, format_name: str) -> int:
    """How many versions of the table that changes can be read still."""
    with closing(LocalEngine(warehouse, format_name)) as engine:
        there = engine.table(("public", "orders"))
        newest = there.snapshot()
        assert newest is not None
        return sum(is_readable(there, version) for version in range(1, newest.version + 1))


def newest_rows(warehouse: Path, format_name: str) -> list[dict[str, Any]]:
    """Those of the latest version of the changing table, where the next merge continues."""
    with closing(LocalEngine(warehouse, format_name)) as engine:
        there = engine.table(("public", "orders"))
        there.snapshot()
        return sorted(there.rows().to_pylist(), key=lambda row: row["id"])


def dead_rows(warehouse: Path, format_name: str) -> int:
    """How many rows of the table that changes are marked."""
    with closing(LocalEngine(warehouse, format_name)) as engine:
        there = engine.table(("public", "orders"))
        there.snapshot()
        return sum(there.deletions(file).dead for file in there.files())


def is_readable(table: FileTable[Any], version: int) -> bool:
    try:
        table.as_of(version)
        table.rows()
    except (VersionGone, FileNotFoundError):
        return False
    return True


@pytest.mark.spread(1)
def test_kept_cuts_read_the_same_and_expired_ones_are_explained(
    merge: Merge, history: HandLog, warehouse: Path, format_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cuts are kept for reports over an older point in time; and a reader of an expired one gets an error that explains
    it.
    """
    before = {cut: read(warehouse, cut) for cut in range(1, CUTS + 1)}
    versions, files = kept_versions(warehouse, format_name), files_of(warehouse)
    report = looked_after(warehouse, format_name)
    assert (report.expired, report.oldest, report.put_off) == (CUTS - KEPT, CUTS - KEPT + 1, ())
    assert any("files made 1" in what for table in report.tables for what in table.done)
    assert not [table for table in report.tables if table.skipped]
    assert kept_versions(warehouse, format_name) < versions
    if format_name == "delta":
        assert set(files) - set(files_of(warehouse))
    for cut in range(CUTS - KEPT + 1, CUTS + 1):
        assert read(warehouse, cut) == before[cut], cut
    for cut in range(1, CUTS - KEPT + 1):
        with pytest.raises(HistoryLost, match=r"has expired(?s:.*)`cdcflow cuts` lists"):
            read(warehouse, cut)
    listed = [one.cut for one in LocalEngine(warehouse, format_name).cuts().list_cuts()]
    assert listed == list(range(CUTS - KEPT + 1, CUTS + 1))

    # Maintenance commits are not reported as edits, and move no position: only new changes are merged.
    history.segment([(ORDERS, "u", {"id": 0, "v": 77})])
    merged = merge(history.root, warehouse)
    assert [(t.name, t.changes, t.edits, t.left_out) for t in merged.tables] == [
        ("public.orders", 1, (), None),
        ("public.quiet", 0, (), None),
    ]
    now = read(warehouse)
    assert now["public.orders"][0]["v"] == 77
    assert now["public.orders"][1:] == before[CUTS]["public.orders"][1:]
    assert looked_after(warehouse, format_name, kept=1).oldest == CUTS + 1
    assert read(warehouse) == now


MODES = {
    "current": ("id",),
    "soft_delete": ("id",),
    "history": ("id", "_valid_from"),
    "append": ("_offset",),
}


@pytest.mark.spread(1)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", ["small files", "worn files"])
def test_files_that_maintenance_writes_have_their_rows_in_order(
    merge: Merge,
    hand_log: HandLog,
    warehouse: Path,
    format_name: str,
    mode: Any,
    way: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That of the key, or of the log: a reader of one key passes over most of a file. No kept cut changes."""
    policies = Policies(TablePolicy(mode))
    hand_log.state(ORDERS)
    for cut in range(1, CUTS + 1):  # the first rows have the last keys
        ids = [*range(90 - 10 * cut, 100 - 10 * cut), *({95} if cut > 1 else ())]
        hand_log.segment([(ORDERS, "u" if n == 95 else "c", {"id": n, "v": cut}) for n in reversed(ids)])
        merge(hand_log.root, warehouse, policies=policies)
    before = {cut: read(warehouse, cut) for cut in range(CUTS - KEPT + 1, CUTS + 1)}
    portions(monkeypatch, way)
    done = [what for table in looked_after(warehouse, format_name, cluster=True).tables for what in table.done]
    assert any(", in order" in what for what in done) == (way == "small files" or mode != "append"), done
    places = places_of(warehouse, format_name, "public.orders", MODES[mode])
    assert len(places) == 1 or way != "small files"
    assert all(rows == sorted(rows) for rows in places)
    assert {cut: read(warehouse, cut) for cut in before} == before


STEPS: list[tuple[Any, str]] = [
    (IcebergTable, "_changing"),
    (DeltaLog, "commit"),
    (Path, "unlink"),
    (LocalEngine, "write_text"),
]


WAYS: dict[str, dict[str, int]] = {
    "small files": {},
    "small files, some at a time": {"AGAIN_BYTES_MAX": 12_000},
    "small files, in order": {},
    "worn files": {"JOINED_BYTES": 0},
    "worn files, one at a time": {"JOINED_BYTES": 0, "AGAIN_BYTES_MAX": 0},
}


def portions(patch: pytest.MonkeyPatch, way: str) -> None:
    """What maintenance rewrites, and how much of it in one commit."""
    for name, value in WAYS[way].items():
        patch.setattr(file_rewrites, name, value)


@pytest.mark.spread(1)
@pytest.mark.parametrize("way", WAYS)
def test_maintenance_that_dies_at_any_step_is_finished_by_the_next(
    history: HandLog, warehouse: Path, format_name: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It leaves more files than needed, never fewer: every kept cut reads the same after each death."""
    before = {cut: read(warehouse, cut) for cut in range(CUTS - KEPT + 1, CUTS + 1)}
    portions(monkeypatch, way)
    worn = dead_rows(warehouse, format_name)
    now = time.time() + 60
    with closing(LocalEngine(warehouse, format_name)) as engine:
        keep_s = now - engine.cuts().list_cuts()[-KEPT].published / 1e6
    left = 0

    def counted(right: Callable[..., Any]) -> Callable[..., Any]:
        def dying(*given: Any, **more: Any) -> Any:
            nonlocal left
            if not left:
                raise KeyboardInterrupt
            left -= 1
            return right(*given, **more)

        return dying

    deaths = 0
    for allowed in itertools.count():
        with pytest.MonkeyPatch.context() as patch, closing(LocalEngine(warehouse, format_name)) as engine:
            for of, method in STEPS:
                patch.setattr(of, method, counted(getattr(of, method)))
            left = allowed
            try:
                upkeep(Engines(engine), UpkeepPolicy(keep_s=keep_s, cluster=way.endswith("in order")), lambda: now)
            except KeyboardInterrupt:
                deaths += 1
            else:
                break
        assert {cut: read(warehouse, cut) for cut in before} == before, f"after {allowed} steps"
        assert newest_rows(warehouse, format_name) == before[CUTS]["public.orders"], f"after {allowed} steps"
    assert deaths >= 5
    assert {cut: read(warehouse, cut) for cut in before} == before
    assert not [what for table in looked_after(warehouse, format_name).tables for what in table.done]
    assert worn > 0
    assert not dead_rows(warehouse, format_name)


@pytest.mark.spread(1)
@pytest.mark.parametrize("way", ["small files, some at a time", "worn files, one at a time"])
def test_files_beyond_the_time_budget_are_rewritten_the_next_time(
    history: HandLog, warehouse: Path, format_name: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large table takes as many maintenance runs as it needs; each commits what it has done, and cuts do not
    change.
    """
    portions(monkeypatch, way)
    before = {cut: read(warehouse, cut) for cut in range(1, CUTS + 1)}
    made = []
    for _ in range(20):
        ticks = iter([0, 0, 0])  # when it begins, and twice for the first table; its first commit takes all of it
        with monkeypatch.context() as patch, closing(LocalEngine(warehouse, format_name)) as engine:
            patch.setattr("cdcflow.tables.job.maintenance.monotonic", lambda ticks=ticks: next(ticks, 100))
            (orders, *_) = upkeep(Engines(engine), UpkeepPolicy()).tables
        assert orders.name == "public.orders"
        made.append(orders.done)
        assert {cut: read(warehouse, cut) for cut in before} == before
        assert newest_rows(warehouse, format_name) == before[CUTS]["public.orders"]
        if not orders.skipped:
            break
        assert orders.skipped == OUT_OF_TIME
    assert len(made) > 1
    assert all(len(done) == 1 and "files made" in done[0] for done in made)
    assert not dead_rows(warehouse, format_name)


def test_file_with_few_dead_rows_keeps_its_marks(
    merge: Merge, hand_log: HandLog, warehouse: Path, format_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rewriting it would duplicate it for as long as a cut is kept that shows the old one."""
    monkeypatch.setattr(file_rewrites, "JOINED_BYTES", 0)
    hand_log.state(ORDERS)
    hand_log.segment([(ORDERS, "c", {"id": n, "v": 0}) for n in range(2000)])
    merge(hand_log.root, warehouse)
    hand_log.segment([(ORDERS, "u", {"id": n * 7, "v": 1}) for n in range(99)])
    merge(hand_log.root, warehouse)
    assert looked_after(warehouse, format_name, kept=1).tables[0].done in [
        (),
        ("1 tags and 1 snapshots removed, 1 files deleted",),
    ]
    assert dead_rows(warehouse, format_name) == 99
    hand_log.segment([(ORDERS, "u", {"id": n * 7 + 1, "v": 1}) for n in range(2)])
    merge(hand_log.root, warehouse)
    assert looked_after(warehouse, format_name, kept=1).tables[0].done
    assert dead_rows(warehouse, format_name) == 0


@pytest.mark.spread(1)
def test_maintenance_during_a_merge_is_skipped(
    merge: Merge, history: HandLog, warehouse: Path, format_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Maintenance never makes a merge fail: while a merge runs, maintenance is skipped, and while a maintenance step
    runs, a merge waits.
    """
    seen: list[UpkeepReport] = []
    right = job.MergeRun.pin

    def meanwhile(run: Any, cut: Any) -> Any:
        seen.append(looked_after(warehouse, format_name))
        return right(run, cut)

    history.segment([(ORDERS, "u", {"id": 0, "v": 5})])
    with monkeypatch.context() as patch:
        patch.setattr(job.MergeRun, "pin", meanwhile)
        assert merge(history.root, warehouse).published
    (report,) = seen
    assert "a merge or another maintenance run works there" in report.skipped
    assert all("a merge or another maintenance run works there" in table.skipped for table in report.tables)
    assert len(report.tables) == 2

    history.segment([(ORDERS, "u", {"id": 0, "v": 6})])
    working = upkeep_folder_lease(warehouse)
    working.__enter__()
    monkeypatch.setattr("cdcflow.tables.job.lease.time.sleep", lambda _: working.__exit__(None, None, None))
    assert merge(history.root, warehouse).published
    assert read(warehouse)["public.orders"][0]["v"] == 6
    with upkeep_folder_lease(warehouse), monkeypatch.context() as patch:
        patch.setattr(lease, "UPKEEP_WAIT_S", 0.0)
        with pytest.raises(SinkUnavailable, match="upkeep works there"):
            merge(history.root, warehouse)


@pytest.mark.spread(1)
def test_commit_that_arrives_first_postpones_the_maintenance_of_a_table(
    history: HandLog, warehouse: Path, format_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another program's job does not take cdcflow's lock; the table is maintained the next time, the others now."""
    of = IcebergTable if format_name == "iceberg" else DeltaTable
    right: Callable[..., None] = of.swap

    def late(table: Any, *given: Any) -> None:
        with closing(LocalEngine(warehouse, format_name)) as engine:
            other = engine.table(("public", "orders"))
            other.snapshot()
            first = other.files()[:1]
            other.replace(first, other.rows_of(first), {"user": "another"}, "", 0)
        right(table, *given)

    monkeypatch.setattr(of, "swap", late)
    before = read(warehouse)
    orders, quiet = looked_after(warehouse, format_name).tables
    assert (orders.name, bool(orders.skipped), quiet.skipped) == ("public.orders", True, "")
    assert read(warehouse) == before


def test_maintenance_runs_when_due_and_within_the_budget(
    history: HandLog, warehouse: Path, format_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a merge every half minute, maintenance must not process everything each time, and a hundred tables must not
    delay a merge.
    """
    now = 1_000_000.0

    def asked(passed: float) -> UpkeepReport:
        nonlocal now
        now += passed
        with closing(LocalEngine(warehouse, format_name)) as engine:
            return UpkeepWhenDue(Engines(engine), UpkeepPolicy(every_s=100, budget_s=10), lambda: now).after(())

    assert asked(0) == UpkeepReport(), "new to it"
    assert asked(99) == UpkeepReport()
    ticks = iter([0, 0, 0])  # when it begins, and twice for the first table; the second one's turn comes too late
    with monkeypatch.context() as patch:
        patch.setattr("cdcflow.tables.job.maintenance.monotonic", lambda: next(ticks, 20))
        first = asked(1)
    assert ([t.name for t in first.tables], first.put_off) == (["public.orders"], ("public.quiet",))
    second = asked(1)
    assert ([t.name for t in second.tables], second.put_off) == (["public.quiet"], ())
    assert asked(98) == UpkeepReport()
    assert [t.name for t in asked(1).tables] == ["public.orders"]
    state = warehouse.joinpath(*STATE)
    state.write_text("{")
    assert asked(1) == UpkeepReport(), "an unreadable state is started again"


@pytest.mark.spread(1)
def test_maintenance_is_due_after_many_merges(
    merge: Merge, history: HandLog, warehouse: Path, format_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table that is merged every few seconds would have a thousand small files after its hour, which each merge
    reads. Tables that need nothing wait; one that could not be maintained has its turn with the next merge.
    """
    monkeypatch.setattr(file_rewrites, "TINY_BYTES", 1 << 20)
    with closing(LocalEngine(warehouse, format_name)) as engine:
        due = UpkeepWhenDue(Engines(engine), UpkeepPolicy(after_merges=3))

        def merged(number: int) -> UpkeepReport:
            history.segment([(ORDERS, "c", {"id": 1000 + number, "v": number})])
            return due.after(merge(history.root, warehouse).tables)

        assert due.after(()) == UpkeepReport(), "a warehouse that is new to it"
        assert [merged(1), merged(2)] == [UpkeepReport()] * 2
        with monkeypatch.context() as patch:
            ticks = iter([0, 0])
            patch.setattr("cdcflow.tables.job.maintenance.monotonic", lambda: next(ticks, 99))
            assert [(t.name, t.skipped) for t in merged(3).tables] == [("public.orders", OUT_OF_TIME)]
        (orders,) = merged(4).tables
        assert orders.name == "public.orders"
        assert orders.done[0].endswith(" files made 1")
        assert [merged(5), merged(6)] == [UpkeepReport()] * 2
        unseen = [TableMergeReport("public.unseen", 1, 1, True, 0.0)] * 3
        assert (due.after(unseen).tables, due.after(())) == ((), UpkeepReport()), "of a table that no cut shows"
        without = UpkeepWhenDue(Engines(engine), UpkeepPolicy(after_merges=1, compact=False))
        history.segment([(ORDERS, "d", {"id": 1001})])
        assert without.after(merge(history.root, warehouse).tables) == UpkeepReport()


@pytest.mark.spread(1)
def test_a_quiet_table_is_kept_however_old_its_version_is(history: HandLog, warehouse: Path, format_name: str) -> None:
    """Its version is that of the first cut, long expired; the kept ones show it still."""
    looked_after(warehouse, format_name, kept=1)
    assert read(warehouse)["public.quiet"] == [{"id": 1, "_offset": 1, "_missing": None}]
    if format_name == "iceberg":
        with closing(LocalEngine(warehouse, format_name)) as engine:
            there = engine.table(("public", "quiet"))
            there.snapshot()
            assert iceberg.tag(1) in there._table.refs()  # type: ignore[attr-defined]  # Iceberg's
        assert f"`quiet` VERSION AS OF '{iceberg.tag(1)}';" in warehouse.joinpath(*views.LATEST).read_text()


@pytest.mark.spread(1)
def test_expire_command_expires_and_reports(
    history: HandLog, warehouse: Path, format_name: str, tmp_path: Path
) -> None:
    """What an operator runs by hand, and a merge does automatically when it is due."""
    settings = tmp_path / "cdcflow.yaml"
    text = (
        "source: {kind: postgres, url: 'postgresql://nobody@127.0.0.1/shop'}\n"
        f"log: {{path: {history.root}}}\n"
        f"merge: {{engine: local, format: {format_name}, warehouse: '{warehouse}', keep: KEEP,"
        " upkeep: {every: 1ms, cluster: true}}\n"
    )

    def ran(*words: str) -> str:
        found = CliRunner().invoke(app, [*words, "--config", str(settings)])
        assert found.exit_code == 0, found.output
        return found.stdout

    settings.write_text(text.replace("KEEP", "30d"))
    assert "files made 1, in order" in ran("upkeep")
    assert ran("upkeep").splitlines()[-1] == "nothing to do"
    settings.write_text(text.replace("KEEP", "1ms"))
    ran("merge", "--json")
    assert [one["cut"] for one in json.loads(ran("cuts", "--json"))] == [CUTS]
    assert json.loads(ran("upkeep", "--budget", "1s", "--json"))["oldest"] == CUTS
    with folder_lease(warehouse):
        assert "a merge or another maintenance run" in json.loads(ran("upkeep", "--json"))["skipped"]
