"""Tables under other names, and many tables in one (docs/routes.md)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.log.hand_log import HandLog
from tests.support.merge.histories import make_table
from tests.support.merge.several_logs import pair, roots
from tests.support.tables.routed_histories import (
    ROUTED,
    TARGET,
    differences,
    differences_from_separate,
    differences_of_pipelines,
)

from cdcflow import local
from cdcflow.errors import ConfigurationError
from cdcflow.model.routes import Routes
from cdcflow.model.sqltypes import name_sql
from cdcflow.tables.job import histories, member_tables
from cdcflow.tables.job.member_tables import MemberTable
from cdcflow.tables.job.reports import MergeReport
from cdcflow.tables.merge import statement
from cdcflow.tables.merge.policy import Mode, Policies, TablePolicy

KNOWN = 5
LATER_MODES = ("soft_delete", "append", "history")

Merge = Callable[..., MergeReport]


def rows_of_cut(warehouse: Path) -> dict[str, list[dict[str, Any]]]:
    return {name: rows.to_pylist() for name, rows in local.read_cut(warehouse).items()}


def rows_now(log: Path, warehouse: Path) -> dict[str, list[dict[str, Any]]]:
    return {name: rows.to_pylist() for name, rows in local.read_live(log, warehouse).items()}


@pytest.mark.spread(1)
@pytest.mark.parametrize("seed", [KNOWN, *(pytest.param(n, marks=pytest.mark.long) for n in range(100, 130))])
def test_one_table_has_exactly_the_rows_of_its_sources(tmp_path: Path, merge: Merge, seed: int) -> None:
    """Shards in one table: a truncate, a new backfill, a new column or a dropped table of one of them must leave the
    rows of the others alone, whenever a merge dies."""
    assert differences(tmp_path, seed, merge, rows_of_cut, rows_now) == []


@pytest.mark.spread(3)
@pytest.mark.parametrize("seed", [KNOWN, *(pytest.param(n, marks=pytest.mark.long) for n in range(100, 120))])
@pytest.mark.parametrize("mode", ["soft_delete", "append", "history"])
def test_one_table_has_in_each_mode_what_separate_tables_would_have(
    tmp_path: Path, merge: Merge, mode: Mode, seed: int
) -> None:
    """Rows are retained after a truncate, a drop or a new backfill: marks and ends must be those of the one source."""
    assert differences_from_separate(tmp_path, seed, merge, mode) == []


@pytest.mark.spread(1)
@pytest.mark.parametrize("seed", [KNOWN, *(pytest.param(n, marks=pytest.mark.long) for n in range(100, 115))])
@pytest.mark.parametrize("mode", ["current", *(pytest.param(m, marks=pytest.mark.long) for m in LATER_MODES)])
def test_two_pipelines_are_in_one_table_what_they_are_in_two(
    tmp_path: Path, format_name: str, mode: Mode, seed: int
) -> None:
    """Two logs, each with a table of one name: a truncate, a drop, a new backfill or a wider type of one must leave the
    rows of the other alone, and a merge that dies must lose neither's position."""
    merge_logs = functools.partial(local.merge_logs, table_format=format_name)
    assert differences_of_pipelines(tmp_path, seed, merge_logs, mode) == []


def _sweeps_all(table: MemberTable, *given: Any) -> None:
    table._whole.sweep(*given)


def _fills_all(table: str, act: Any) -> str:
    return f"UPDATE {table} SET {name_sql(act.column.name)} = {act.default}"


def _of_all(known: Mapping[str, int], *_: object) -> dict[str, int]:
    return {app: max(known.values()) for app in known}


FAULTS: dict[str, tuple[int, Callable[[pytest.MonkeyPatch], None]]] = {
    "a truncate of one empties all": (
        1,
        lambda patch: patch.setattr(
            statement, "merge", lambda *given, right=statement.merge, **more: right(*given, **{**more, "only": ""})
        ),
    ),
    "a new backfill of one sweeps all": (6, lambda patch: patch.setattr(MemberTable, "sweep", _sweeps_all)),
    "the position of one is that of all": (0, lambda patch: patch.setattr(member_tables, "_transactions_of", _of_all)),
    "an added column's default is given to all": (5, lambda patch: patch.setattr(statement, "fill", _fills_all)),
}
"""Each with the seed of a history that shows it."""


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """A comparison that cannot fail proves nothing."""
    seed, plant = FAULTS[fault]
    plant(monkeypatch)
    with suppress(ConfigurationError):  # the merge itself may notice
        assert differences(tmp_path, seed, local.merge, rows_of_cut, rows_now)


MODE_FAULTS: dict[str, tuple[Mode, int, Callable[[pytest.MonkeyPatch], None]]] = {
    "a truncate of one marks the rows of all": (
        "soft_delete",
        1,
        lambda patch: patch.setattr(
            statement, "_ends_of_untouched", lambda *given, right=statement._ends_of_untouched: right(*given[:2], "")
        ),
    ),
    "a truncate of one ends the versions of all": (
        "history",
        0,
        lambda patch: patch.setattr(histories, "only_with", lambda member: ""),
    ),
    "a new backfill of one marks the rows of all": (
        "soft_delete",
        6,
        lambda patch: patch.setattr(MemberTable, "sweep", _sweeps_all),
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("fault", MODE_FAULTS)
def test_planted_faults_of_modes_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """The same for the modes in which rows stay."""
    mode, seed, plant = MODE_FAULTS[fault]
    plant(monkeypatch)
    with suppress(ConfigurationError):
        found = [differences_from_separate(tmp_path / str(n), n, local.merge, mode) for n in range(seed, seed + 6)]
        assert any(found)


def test_tables_without_a_key_are_merged_into_one_in_mode_append(hand_log: HandLog, warehouse: Path) -> None:
    """A change is a row whatever its key is; in the other modes a row without a key cannot be found again."""
    tables = [make_table("orders", schema=f"shard_{n}", key=(), id="int64") for n in (1, 2)]
    for table in tables:
        hand_log.state(table)
    policies = with_routes(ROUTE, others=TablePolicy(mode="append"))
    for _ in range(2):
        hand_log.segment([(table, "c", {"id": 1}) for table in tables])
        local.merge(hand_log.root, warehouse, policies=policies)
    assert sorted(row["shard"] for row in rows_of_cut(warehouse)[TARGET]) == ["1", "1", "2", "2"]


ROUTE = {r"shard_(?P<shard>\d+)\.orders": TARGET}


def with_routes(routes: dict[str, str], **policies: Any) -> Policies:
    return Policies(**policies, routes=Routes.of(routes))


def left_out(report: MergeReport) -> dict[str, str]:
    return {table.name: table.left_out.splitlines()[0] for table in report.tables if table.left_out}


@pytest.mark.parametrize(
    "mode", ["current", "history", *(pytest.param(mode, marks=pytest.mark.long) for mode in ("soft_delete", "append"))]
)
def test_table_under_another_name(hand_log: HandLog, warehouse: Path, merge: Merge, mode: Any) -> None:
    """A rename of one table to one is a matter of names only: it works in every mode, and readers see one name."""
    orders, others = make_table("orders", id="int64", doc="string"), make_table("others", id="int64")
    hand_log.state(orders)
    hand_log.state(others)
    hand_log.segment([(orders, "c", {"id": 1, "doc": "a"}), (others, "c", {"id": 1})])
    renamed = with_routes({"public.orders": "shop.sold"}, each={"shop.sold": TablePolicy(mode=mode)})
    merge(hand_log.root, warehouse, policies=renamed)
    hand_log.segment([(orders, "u", {"id": 1, "doc": "b"})])
    merge(hand_log.root, warehouse, policies=renamed)
    shown = local.read_cut(warehouse)
    assert shown.keys() == {"shop.sold", "public.others"}
    assert "b" in shown["shop.sold"].column("doc").to_pylist()
    assert len(shown["shop.sold"]) == (2 if mode in ("append", "history") else 1)
    assert not (warehouse / "public" / "orders").exists()
    assert merge(hand_log.root, warehouse, policies=renamed).published is False
    assert local.read_live(hand_log.root, warehouse).keys() == {"public.orders", "public.others"}
    with pytest.raises(ConfigurationError, match="did you mean"):
        merge(hand_log.root, warehouse, ["shop.solt"], policies=renamed)


def test_route_that_changes_creates_the_table_again(hand_log: HandLog, warehouse: Path) -> None:
    """The old name must not stay in the cuts with rows that are no longer kept."""
    orders = make_table("orders", id="int64")
    hand_log.state(orders)
    hand_log.segment([(orders, "c", {"id": 1})])
    for routes, name in (({}, "public.orders"), ({"public.orders": "shop.a"}, "shop.a"), ({}, "public.orders")):
        local.merge(hand_log.root, warehouse, policies=with_routes(routes))
        assert local.read_cut(warehouse).keys() == {name}
        hand_log.segment([(orders, "c", {"id": hand_log.next_offset})])
        local.merge(hand_log.root, warehouse, policies=with_routes(routes))
        assert len(local.read_cut(warehouse)[name]) == hand_log.next_offset - 1


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "type": ({"n": "string"}, "its column n is string, and int in the others"),
    "list": ({"n": "int32", "l": pa.list_(pa.string())}, "its column l is array<string>, and array<int> in the others"),
    "letters": ({"N": "int32"}, "its column N is called n in the others"),
    "column": ({"shard": "string"}, "it has a column shard, and so is a group of its route called"),
    "unkeyed": ({"n": "int32", "key": ()}, "it has no key"),
    "rekeyed": ({"n": "int32", "key": ("id", "n")}, "its key is (id, n, shard)"),
}
"""What the second table of a pair is like, and why it does not fit the first."""


def test_table_that_does_not_fit_is_refused_and_others_continue(hand_log: HandLog, warehouse: Path) -> None:
    """A clash must be named, and must stop neither the other members nor the other tables. The table of all of them is
    not shown: it would silently lack rows."""
    free = make_table("free", id="int64")
    ones = {kind: make_table("orders", schema=f"{kind}_1", id="int64", n="int32") for kind in REFUSED}
    listed = pa.list_(pa.int32())
    ones["list"] = make_table("orders", schema="list_1", id="int64", n="int32", l=listed)
    twos = {kind: make_table("orders", schema=f"{kind}_2", id="int64", **given) for kind, (given, _) in REFUSED.items()}
    for table in (free, *ones.values(), *twos.values()):
        hand_log.state(table)
    paired = {r"(?P<kind>\w+)_(?P<shard>\d)\.orders": "{kind}.orders"}
    hand_log.segment([(table, "c", {"id": 1, "n": 1}) for table in (free, *ones.values())])
    local.merge(hand_log.root, warehouse, policies=with_routes(paired))
    texts = [(twos["type"], "c", {"id": 2, "n": "text"})]
    others = [table for kind, table in twos.items() if kind != "type"]
    hand_log.segment([*texts, *((table, "c", {"id": 2, "n": 1}) for table in (free, *ones.values(), *others))])
    report = local.merge(hand_log.root, warehouse, policies=with_routes(paired))
    assert left_out(report).keys() == {f"{kind}_2.orders" for kind in REFUSED}
    assert {kind: why in left_out(report)[f"{kind}_2.orders"] for kind, (_, why) in REFUSED.items()} == dict.fromkeys(
        REFUSED, True
    )
    assert report.published
    assert local.read_cut(warehouse).keys() == {"public.free"}
    told = local.published_cut(warehouse).left_out["type.orders"]
    assert told.startswith("it has the rows of type_2.orders, which is not in the cut: ")
    alone = {r"(?P<kind>\w+)_2\.orders": "{kind}.two", **paired}
    local.merge(hand_log.root, warehouse, policies=with_routes(alone))
    shown = {name: len(rows) for name, rows in local.read_cut(warehouse).items()}
    each = {f"{kind}.{name}": count for kind in REFUSED for name, count in (("orders", 2), ("two", 1))}
    assert shown == {"public.free": 2, **each}


def test_tables_whose_rows_nothing_distinguishes_are_refused(hand_log: HandLog, warehouse: Path) -> None:
    """Without a column for the shard, rows of two tables would overwrite each other."""
    tables = [make_table("orders", schema=f"shard_{n}", id="int64") for n in (1, 2)]
    free = make_table("free", id="int64")
    hand_log.segment([*((table, "c", {"id": 1}) for table in tables), (free, "c", {"id": 1})])
    report = local.merge(hand_log.root, warehouse, policies=with_routes({r"shard_\d+\.orders": TARGET}))
    text = "table shard_{}.orders cannot be merged into shop.orders: shard_{}.orders goes there too, and nothing"
    assert left_out(report) == {
        f"shard_{n}.orders": f"{text.format(n, 3 - n)} distinguishes their rows" for n in (1, 2)
    }
    each = {"shard_2.orders": TablePolicy(mode="history")}
    report = local.merge(hand_log.root, warehouse, policies=with_routes(ROUTE, each=each))
    assert "its mode is history, and that of the others is current" in left_out(report)["shard_2.orders"]
    of_all = {TARGET: TablePolicy(mode="current")}
    assert left_out(local.merge(hand_log.root, warehouse, policies=with_routes(ROUTE, each=of_all))) == {}


def test_renamed_column_of_one_is_refused_and_the_remedy_works(hand_log: HandLog, warehouse: Path) -> None:
    """The others still have the old name: nothing is renamed for them, and the printed remedy leads to both columns."""
    one, two = (make_table("orders", schema=f"shard_{n}", id="int64", n="int32") for n in (1, 2))
    for table in (one, two):
        hand_log.state(table)
    hand_log.segment([(one, "c", {"id": 1, "n": 1}), (two, "c", {"id": 1, "n": 2})])
    local.merge(hand_log.root, warehouse, policies=ROUTED)
    renamed = make_table("orders", schema="shard_1", id="int64", amount="int32")
    hand_log.segment([(renamed, "c", {"id": 2, "amount": 3}), (two, "c", {"id": 2, "n": 4})])
    report = local.merge(hand_log.root, warehouse, policies=ROUTED)
    assert "its column n was renamed to amount, and other tables are merged" in left_out(report)["shard_1.orders"]
    (warehouse / "shop" / "orders").rename(warehouse.parent / "away")
    rows = [(renamed, "r", {"id": 1, "amount": 1}), (renamed, "r", {"id": 2, "amount": 3})]
    hand_log.state(renamed, generation=2, since=hand_log.next_offset)
    hand_log.segment(rows)
    assert left_out(local.merge(hand_log.root, warehouse, policies=ROUTED)) == {}
    shown = local.read_cut(warehouse)[TARGET].sort_by([("shard", "ascending"), ("id", "ascending")])
    assert shown.select(["shard", "id", "n", "amount"]).to_pylist() == [
        {"shard": "1", "id": 1, "n": None, "amount": 1},
        {"shard": "1", "id": 2, "n": None, "amount": 3},
        {"shard": "2", "id": 1, "n": 2, "amount": None},
        {"shard": "2", "id": 2, "n": 4, "amount": None},
    ]


def test_two_logs_do_not_write_one_table(tmp_path: Path) -> None:
    """Rows of two pipelines would overwrite each other, so a name that both would write is refused."""
    crm, shop = branches = pair(tmp_path)
    for branch in branches:
        branch.insert(10)
        branch.seal()
        branch.beat(20)
    warehouse = tmp_path / "warehouse"
    both = with_routes({r"(?:people|trade)\.orders": "all.orders"})
    with pytest.raises(ConfigurationError, match=r"logs crm and shop both have a table all\.orders"):
        local.merge_logs(roots(*branches), warehouse, policies=both)
    apart = with_routes({r"(?P<dept>people|trade)\.orders": "{dept}.sold"})
    assert local.merge_logs(roots(*branches), warehouse, policies=apart).published
    shop.insert(30)
    shop.seal()
    crm.beat(40)
    assert local.merge_logs(roots(*branches), warehouse, policies=apart).cut == 2
    assert {name: len(rows) for name, rows in local.read_cut(warehouse).items()} == {"people.sold": 1, "trade.sold": 2}
    assert local.read_live(shop.root, warehouse).keys() == {"trade.orders"}
    for branch in branches:
        branch.log.close()
