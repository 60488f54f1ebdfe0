"""Several logs merged into one warehouse: one cut for all of their tables, at a time that every log has reached."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.support.log.several_logs import START, Branch, go_on
from tests.support.merge.several_logs import check_cut, check_random, pair, roots
from typer.testing import CliRunner

from cdcflow import local
from cdcflow.cli.app import app
from cdcflow.errors import ConfigurationError
from cdcflow.tables.job import several_logs
from cdcflow.tables.job.derived_tables import Derivation
from cdcflow.tables.job.reports import SeveralReport
from cdcflow.tables.merge.policy import DerivedQuery, Policies

SEEDS = 1


def merge_delta(logs: dict[str, Path], warehouse: Path, **more: Any) -> SeveralReport:
    """For what does not depend on the table format."""
    return local.merge_logs(logs, warehouse, table_format="delta", **more)


@pytest.fixture
def merge(format_name: str) -> Callable[..., SeveralReport]:
    return lambda logs, warehouse, **more: local.merge_logs(logs, warehouse, table_format=format_name, **more)


@pytest.fixture
def branches(tmp_path: Path) -> Iterator[tuple[Branch, Branch]]:
    made = pair(tmp_path)
    yield made
    for branch in made:
        branch.log.close()


def ids(warehouse: Path, **more: Any) -> dict[str, set[int]]:
    return {name: set(t.column("id").to_pylist()) for name, t in local.read_cut(warehouse, **more).items()}


@pytest.mark.parametrize("seed", [*range(SEEDS), *(pytest.param(n, marks=pytest.mark.long) for n in range(50, 100))])
def test_a_cut_of_random_logs_shows_each_as_of_its_place_in_it(tmp_path: Path, merge: Any, seed: int) -> None:
    """G34: a reader that joins customers and orders sees both as of one bounded time, never one of them ahead."""
    check_random(tmp_path, Random(seed), 4, merge, local.published_cut, ids)


def test_log_that_makes_no_progress_holds_the_cut_and_is_named(
    tmp_path: Path, merge: Any, branches: tuple[Branch, Branch]
) -> None:
    """Its old rows must not be shown as current. The cut advances with heartbeats, or at an operator's command."""
    crm, shop = branches
    warehouse = tmp_path / "warehouse"
    crm.insert(10)
    shop.insert(12)
    for branch in branches:
        branch.seal()
    assert merge(roots(*branches), warehouse).published is False, "shop's first row is later than crm's clock"
    assert several_logs.held_text(merge(roots(*branches), warehouse)).startswith(
        "log crm limits the cut: it has reached"
    )
    crm.beat(12)
    assert merge(roots(*branches), warehouse).published
    shop.insert(5_000_000)
    shop.seal()
    held = merge(roots(*branches), warehouse)
    assert (held.cut, held.published, held.held_back_by) == (1, False, "crm")
    assert "log crm limits the cut: it has reached" in several_logs.held_text(held)
    assert several_logs.held_text(held).endswith(", a lag of 5.0 s")
    assert ids(warehouse) == {"people.orders": {1}, "trade.orders": {1}}
    crm.insert(13)
    crm.seal()
    without = merge(roots(*branches), warehouse, without=["crm"])
    assert (without.cut, without.published, without.without) == (2, True, ("crm",))
    assert (ids(warehouse)["trade.orders"], ids(warehouse)["people.orders"]) == ({1, 2}, {1})
    assert local.published_cut(warehouse).commit_clock == START + 5_000_000
    back = merge(roots(*branches), warehouse)
    assert (back.published, ids(warehouse)["people.orders"], ids(warehouse)["trade.orders"]) == (True, {1, 2}, {1, 2})
    crm.beat(5_000_000)
    assert merge(roots(*branches), warehouse).published is False, "a later time alone is worth no cut"
    crm.insert(5_000_001)
    crm.seal()
    shop.beat(6_000_000)
    assert merge(roots(*branches), warehouse).cut == 4
    check_cut(local.published_cut(warehouse), ids(warehouse), *branches)


def test_cuts_of_several_logs_are_found_by_their_time(
    tmp_path: Path, merge: Any, branches: tuple[Branch, Branch]
) -> None:
    """A report on last night names a time. A position of one source does not apply to the others, and is refused."""
    crm, shop = branches
    warehouse = tmp_path / "warehouse"
    for ts in (1_000_000, 2_000_000):
        for branch in branches:
            branch.insert(ts)
            branch.seal()
        merge(roots(*branches), warehouse)
    shop.insert(3_000_000)
    shop.seal()
    crm.beat(4_000_000)
    merge(roots(*branches), warehouse)
    then = datetime.fromtimestamp(START / 1e6 + 1.5, UTC)
    assert ids(warehouse, as_of=then)["trade.orders"] == {1}
    assert ids(warehouse, as_of=2)["people.orders"] == {1, 2}
    assert ids(warehouse)["trade.orders"] == {1, 2, 3}
    newest = local.published_cut(warehouse)
    assert newest.commit_clock == START + 3_000_000
    with pytest.raises(ConfigurationError, match="name a cut or a commit time"):
        local.read_cut(warehouse, as_of="0/1")
    live = local.read_live(shop.root, warehouse)
    assert set(live["trade.orders"].column("id").to_pylist()) == {1, 2, 3}
    assert "people.orders" not in live
    latest = (warehouse / "_cdcflow_views" / "latest.sql").read_text()
    assert "tables of several logs, as of offset 2 of crm, offset 3 of shop" in latest


def test_tables_of_one_name_and_logs_that_are_not_named_are_refused(
    tmp_path: Path, branches: tuple[Branch, Branch]
) -> None:
    """One table would replace the other's rows; and a log that is skipped by mistake would stop unnoticed. Each remedy
    works.
    """
    merge, format_name = merge_delta, "delta"
    crm, shop = branches
    other = Branch(tmp_path / "other", "other", "people")
    warehouse = tmp_path / "warehouse"
    for branch in (crm, shop, other):
        branch.insert(1)
        branch.seal()
    with pytest.raises(ConfigurationError, match=r"logs crm and other both have a table people\.orders") as refused:
        merge(roots(crm, other), warehouse)
    assert "into a separate warehouse" in str(refused.value.remedy)
    assert local.merge(other.root, tmp_path / "own", table_format=format_name).published
    assert local.merge(crm.root, warehouse, table_format=format_name).published
    with pytest.raises(ConfigurationError, match=r"it has tables of log .* which is not among shop") as refused:
        merge(roots(shop), warehouse)
    assert "name the settings of that log too (-c)" in str(refused.value.remedy)
    assert merge(roots(crm, shop), warehouse).published, "a warehouse of one log becomes one of both"
    with pytest.raises(ConfigurationError, match="its tables belong to another log") as refused:
        local.merge(crm.root, warehouse, table_format=format_name)
    assert "`cdcflow merge` with -c for each of crm, shop" in str(refused.value.remedy)
    for wrong, words in (
        ({"without": ["x"]}, "that is not one of them"),
        ({"without": ["crm", "shop"]}, "no log is left"),
    ):
        with pytest.raises(ConfigurationError, match=words):
            merge(roots(crm, shop), warehouse, **wrong)
    with pytest.raises(ConfigurationError, match="two of them are the same log"):
        merge({"a": crm.root, "b": crm.root}, warehouse)
    other.log.close()


@pytest.mark.parametrize(
    ("format_name", "step"), [("delta", "tables of one log"), ("iceberg", "versions kept"), ("delta", "before the cut")]
)
def test_a_merge_that_dies_is_finished_by_the_next(
    tmp_path: Path, merge: Any, branches: tuple[Branch, Branch], monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Until then readers see the previous cut; nothing is applied twice."""
    warehouse = tmp_path / "warehouse"
    for branch in branches:
        branch.insert(10)
        branch.insert(10)
        branch.seal()
    merge(roots(*branches), warehouse)
    before = ids(warehouse)
    for branch in branches:
        branch.insert(20)
        branch.insert(20)
        branch.seal()

    class Died(Exception):
        pass

    def die(*_: Any, **__: Any) -> None:
        raise Died

    calls = iter(range(10))
    merge_one = several_logs._Work._merge

    def only_the_first(*given: Any) -> Any:
        return die() if next(calls) else merge_one(*given)

    with monkeypatch.context() as patch:
        if step == "tables of one log":
            patch.setattr(several_logs._Work, "_merge", only_the_first)
        else:
            patch.setattr(several_logs._Work, "pin" if step == "versions kept" else "cut", die)
        with pytest.raises(Died):
            merge(roots(*branches), warehouse)
    assert ids(warehouse) == before
    assert merge(roots(*branches), warehouse).published
    check_cut(local.published_cut(warehouse), ids(warehouse), *branches)
    assert ids(warehouse)["trade.orders"] == {1, 2, 3, 4}


def test_bug_a_log_merged_beyond_the_slowest_one_is_found(
    tmp_path: Path, branches: tuple[Branch, Branch], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check can fail."""
    merge = merge_delta
    crm, shop = branches
    for branch in branches:
        branch.insert(10)
        branch.insert(10)
        branch.seal()
    shop.insert(30)
    shop.seal()
    right = several_logs._Work._range
    monkeypatch.setattr(several_logs._Work, "_range", lambda work, log, clock: right(work, log, START + 1_000_000))
    merge(roots(crm, shop), tmp_path / "warehouse")
    with pytest.raises(AssertionError):
        check_cut(local.published_cut(tmp_path / "warehouse"), ids(tmp_path / "warehouse"), crm, shop)


def test_the_command_merges_the_logs_of_several_settings_files(tmp_path: Path, branches: tuple[Branch, Branch]) -> None:
    """It reports which log holds the cut back, as text and as JSON."""
    crm, shop = branches
    crm.insert(10)
    shop.insert(10)
    shop.insert(3_000_010)
    for branch in branches:
        branch.seal()
        (tmp_path / f"{branch.name}.yaml").write_text(
            "source: {kind: postgres, url: 'postgresql://cdc@localhost/shop'}\n"
            f"log: {{path: '{branch.root}'}}\nmerge: {{engine: local, warehouse: '{tmp_path / 'warehouse'}'}}\n"
        )
    files = [part for name in ("crm", "shop") for part in ("-c", str(tmp_path / f"{name}.yaml"))]
    runner = CliRunner()
    done = runner.invoke(app, ["merge", *files])
    assert done.exit_code == 0, done.output
    assert "no cut was published yet" in done.output
    assert "log crm limits the cut: it has reached" in done.output
    done = runner.invoke(app, ["merge", *files, "--without", "crm", "--json"])
    assert (done.exit_code, '"published": true' in done.output) == (0, True), done.output
    crm.beat(9_000_000)
    done = runner.invoke(app, ["merge", *files])
    assert "cut 2 published" in done.output, done.output
    assert ids(tmp_path / "warehouse")["people.orders"] == {1}
    done = runner.invoke(app, ["cuts", *files[:2]])
    assert "several logs" in done.output
    twice = tmp_path / "more" / "crm.yaml"
    twice.parent.mkdir()
    twice.write_text((tmp_path / "shop.yaml").read_text())
    done = runner.invoke(app, ["merge", *files[:2], "-c", str(twice)])
    assert "two settings files are called crm" in done.output
    twice = twice.rename(twice.with_name("c.yaml"))
    twice.write_text(twice.read_text().replace("engine: local", "engine: auto"))
    done = runner.invoke(app, ["merge", *files[:2], "-c", str(twice)])
    assert "make these three the same in all of the files" in done.output


DERIVE = Policies(
    derived={
        "derived.matches": DerivedQuery(
            ("k",),
            "SELECT p.id % 3 AS k, count(*) AS n, count(t.id) AS m"
            " FROM people.orders AS p LEFT JOIN trade.orders AS t ON t.id = p.id GROUP BY p.id % 3",
        ),
        "derived.all": DerivedQuery(("k",), "SELECT k, n FROM derived.matches WHERE n > 1"),
    }
)


def check_derived(warehouse: Path) -> None:
    """Check that the derived tables of the latest cut are what their queries give for its other tables."""
    cut = local.read_cut(warehouse)
    people, trade = (set(cut[name].column("id").to_pylist()) for name in ("people.orders", "trade.orders"))
    n, m = Counter(id_ % 3 for id_ in people), Counter(id_ % 3 for id_ in people & trade)
    found = sorted(tuple(row.values()) for row in cut["derived.matches"].to_pylist())
    assert found == sorted((k, n[k], m[k]) for k in n)
    found = sorted(tuple(row.values()) for row in cut["derived.all"].to_pylist())
    assert found == sorted((k, n[k]) for k in n if n[k] > 1)


def test_comparison_names_each_derived_table_that_it_does_not_compare(
    tmp_path: Path, branches: tuple[Branch, Branch]
) -> None:
    """The warehouse has the derived tables of all pipelines. One settings file alone does not have all queries, and a
    comparison that silently excluded a table would seem clean. What it prints works."""
    queries = {
        "crm": {"matches": DERIVE.derived["derived.matches"], "broken": DerivedQuery(("k",), "SELECT k FROM nothing")},
        "shop": {"all": DERIVE.derived["derived.all"]},
    }
    for branch in branches:
        for _ in range(5):
            branch.insert(1)
        branch.seal()
        derive = {name: {"key": list(q.key), "sql": q.sql} for name, q in queries[branch.name].items()}
        (tmp_path / f"{branch.name}.yaml").write_text(
            "source: {kind: postgres, url: 'postgresql://cdc@localhost/shop'}\n"
            f"log: {{path: '{branch.root}'}}\nmerge: {{engine: local, warehouse: '{tmp_path / 'warehouse'}',"
            f" derive: {json.dumps(derive)}}}\n"
        )
    crm, shop = (["-c", str(tmp_path / f"{name}.yaml")] for name in ("crm", "shop"))
    runner = CliRunner()

    def compare(*args: str) -> tuple[int, dict[str, str]]:
        done = runner.invoke(app, ["verify", "--derived", "--json", *args])
        found = {one["table"]: one for one in json.loads(done.output)["tables"]}
        assert not any(one["lacks"] or one["more"] for one in found.values())
        return done.exit_code, {name: one["why"] for name, one in found.items() if one["why"]}

    assert runner.invoke(app, ["merge", *crm, *shop]).exit_code == 1  # one is excluded
    code, why = compare(*shop)
    assert (code, sorted(why)) == (1, ["derived.broken", "derived.matches"])
    assert all("name that file, too (-c)" in reason for reason in why.values())
    code, why = compare(*crm)
    assert (code, sorted(why)) == (1, ["derived.all", "derived.broken"])
    assert compare(*crm, "derived.matches") == (0, {})
    assert compare(*crm, *shop)[1].keys() == {"derived.broken"}
    assert compare(*crm, *shop, "derived.matches", "derived.all") == (0, {})
    twice = tmp_path / "other.yaml"
    twice.write_text((tmp_path / "crm.yaml").read_text().replace("GROUP BY p.id % 3", "GROUP BY p.id % 2"))
    done = runner.invoke(app, ["verify", "--derived", *crm, "-c", str(twice)])
    assert "crm and other have different queries for table derived.matches" in done.output
    twice.write_text((tmp_path / "crm.yaml").read_text().replace("/warehouse", "/elsewhere"))
    done = runner.invoke(app, ["verify", "--derived", *crm, "-c", str(twice)])
    assert "other and crm have different warehouses" in done.output
    done = runner.invoke(app, ["verify", *crm, *shop])
    assert (done.exit_code, "several settings files" in done.output) == (78, True), done.output


@pytest.mark.spread(1)
@pytest.mark.parametrize("seed", [*range(SEEDS), *(pytest.param(n, marks=pytest.mark.long) for n in range(50, 70))])
def test_derived_table_agrees_with_the_tables_of_all_logs(
    tmp_path: Path, merge: Any, branches: tuple[Branch, Branch], seed: int
) -> None:
    """A cut of several logs shows each at another position. A derived table that joins them must show the same."""
    rng, warehouse = Random(seed), tmp_path / "warehouse"
    for branch in branches:
        branch.insert(1)
    for number in range(5):
        for branch in branches:
            go_on(branch, rng, rng.choice([0, 3, 8]), 4000)
            branch.beat(4000 * (number + 1))
            branch.seal()
        without = [rng.choice(["crm", "shop"])] if number == 3 else []
        assert merge(roots(*branches), warehouse, policies=DERIVE, without=without).cut
        check_derived(warehouse)
    assert not merge(roots(*branches), warehouse, policies=DERIVE).published
    assert merge(roots(*branches), warehouse).published, "a query that the settings no longer have"
    assert not any(name.startswith("derived.") for name in local.published_cut(warehouse).tables)
    assert merge(roots(*branches), warehouse, policies={"crm": DERIVE, "shop": DERIVE}).published
    check_derived(warehouse)


def test_derived_table_of_a_merge_that_dies_is_published_by_the_next(
    tmp_path: Path, merge: Any, branches: tuple[Branch, Branch], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its commit is of a cut that readers never saw."""
    warehouse = tmp_path / "warehouse"
    for number in range(3):
        for branch in branches:
            branch.insert(10 * number, 3)
            branch.beat(10 * number + 5)
            branch.seal()
        if number:
            right = Derivation.derive

            def die(self: Derivation, cut: Any, right: Any = right) -> Any:
                right(self, cut)
                raise KeyboardInterrupt

            monkeypatch.setattr(Derivation, "derive", die)
            with pytest.raises(KeyboardInterrupt):
                merge(roots(*branches), warehouse, policies=DERIVE)
            monkeypatch.undo()
            check_derived(warehouse)
        assert merge(roots(*branches), warehouse, policies=DERIVE).published
        check_derived(warehouse)


def test_derived_table_that_fails_is_excluded_alone_and_two_queries_for_one_are_refused(
    tmp_path: Path, branches: tuple[Branch, Branch]
) -> None:
    """The tables of both logs are published without it. Neither of two queries is preferred silently."""
    crm, shop = branches
    warehouse = tmp_path / "warehouse"
    for branch in branches:
        branch.insert(1)
        branch.seal()
    wrong = Policies(derived={"derived.matches": DerivedQuery(("id",), "SELECT id FROM orders")})
    with pytest.raises(ConfigurationError, match=r"crm and shop have different queries for table derived\.matches"):
        merge_delta(roots(crm, shop), warehouse, policies={"crm": DERIVE, "shop": wrong})
    report = merge_delta(roots(crm, shop), warehouse, policies={"crm": wrong})
    assert [table.name for table in report.tables if table.left_out] == ["derived.matches"]
    cut = local.published_cut(warehouse)
    assert {"people.orders", "trade.orders"} <= cut.tables.keys()
    assert "derived.matches" in cut.left_out
