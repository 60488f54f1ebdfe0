"""A cut has the tables of the warehouse; inside of a merge it is seen by source."""

from __future__ import annotations

import json
from dataclasses import replace

from cdcflow.model.routes import NO_ROUTES, Routes
from cdcflow.tables.cut import Cut, CutMember, CutTable

ROUTES = Routes.of({r"shard_(?P<shard>\d+)\.orders": "shop.orders", "public.a": "shop.b"})


def entry(source: str, version: int, *, complete: bool = True, state: str = "done", **key: str) -> CutTable:
    path = "shop/orders" if key else "shop/b"
    return CutTable(
        path, version, complete, 1, "id", state, "", f"c{version}", member=CutMember(source, False, key=key)
    )


BY_SOURCE = Cut(
    4,
    "log",
    90,
    "0/1",
    5,
    {
        "shard_1.orders": entry("shard_1/orders", 7, shard="1"),
        "shard_2.orders": entry("shard_2/orders", 8, complete=False, state="reading", shard="2"),
        "public.a": entry("public/a", 2),
        "public.c": CutTable("public/c", 3, True, 1, "id", "done"),
    },
)


def test_table_is_as_complete_as_the_least_of_its_members() -> None:
    """A reader of the one table must not take rows that are still to be read for absent ones."""
    found = BY_SOURCE.by_target(ROUTES)
    assert found.tables.keys() == {"shop.orders", "shop.b", "public.c"}
    orders = found.tables["shop.orders"]
    assert (orders.version, orders.commit, orders.complete, orders.state) == (8, "c8", False, "reading")
    assert [(name, one.complete, dict(one.key)) for name, one in orders.members.items()] == [
        ("shard_1.orders", True, {"shard": "1"}),
        ("shard_2.orders", False, {"shard": "2"}),
    ]
    assert found.tables["public.c"] is BY_SOURCE.tables["public.c"]


def test_cut_survives_its_json_and_its_row_and_is_the_same_by_source() -> None:
    """A merge continues from what the cut records of each member; a warehouse without routes gets no new words."""
    found = BY_SOURCE.by_target(ROUTES)
    assert Cut.from_json(json.loads(json.dumps(found.to_json()))) == found
    row = {
        "cut": 4,
        "log_id": "log",
        "offset": 90,
        "position": "0/1",
        "tables": {
            name: {"path": t.path, "version": t.version, "complete": t.complete, "generation": t.generation}
            for name, t in found.tables.items()
        },
        "ids": {name: t.id for name, t in found.tables.items()},
        "states": {name: t.state for name, t in found.tables.items()},
        "commits": {name: t.commit for name, t in found.tables.items()},
        "members": {name: t.members_json for name, t in found.tables.items() if t.members},
    }
    assert Cut.from_row(row, 5) == found
    again = found.by_source()
    assert again.by_target(ROUTES) == found
    assert {n: (t.version, t.complete, t.generation) for n, t in again.tables.items() if "shard" in n} == {
        "shard_1.orders": (8, True, 1),
        "shard_2.orders": (8, False, 1),
    }
    assert str(again.tables["shard_1.orders"].source) == "shard_1.orders"
    plain = replace(BY_SOURCE, tables={"public.c": BY_SOURCE.tables["public.c"]})
    assert plain.by_source() is plain
    assert plain.by_target(NO_ROUTES) == plain
    assert plain.to_json()["tables"]["public.c"].keys() == {
        *("path", "version", "complete", "generation", "id", "state", "tag", "commit")
    }


def test_table_is_excluded_with_the_name_of_the_member_that_is() -> None:
    """The one table would silently lack the rows of the member; after its repair nothing of the reason stays."""
    tables = {name: table for name, table in BY_SOURCE.tables.items() if name != "shard_2.orders"}
    broken = replace(BY_SOURCE, tables=tables, left_out={"shard_2.orders": "a reason"}).by_target(ROUTES)
    assert broken.tables.keys() == {"shop.b", "public.c"}
    assert broken.left_out == {
        "shard_2.orders": "a reason",
        "shop.orders": "it has the rows of shard_2.orders, which is not in the cut: a reason",
    }
    mended = replace(broken.by_source(), tables=BY_SOURCE.tables, left_out={"shop.orders": "old"}).by_target(ROUTES)
    assert (mended.left_out, "shop.orders" in mended.tables) == ({}, True)
