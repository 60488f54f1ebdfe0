"""The merge's own SQL, run on an embedded engine in milliseconds and compared with the fold in plain Python."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.merge.embedded_engine import EmbeddedWarehouse
from tests.support.merge.histories import State, Step, World, differences, grow, make_table, make_world, segment_of

from cdcflow.log.fold.fold import FoldedRow, LogChange, fold, sweep
from cdcflow.model.table import Table
from cdcflow.tables.merge import moves, removed_and_added, statement
from cdcflow.tables.merge import reduce as reduction

TABLE = make_table("orders", id="int64", a="int32", doc="string")


@pytest.fixture(params=["statement", "marks"])
def warehouse(request: pytest.FixtureRequest) -> Iterator[EmbeddedWarehouse]:
    """Both ways in which a range is merged into a table."""
    made = EmbeddedWarehouse(marks=request.param == "marks")
    yield made
    made.close()


def change(offset: int, step: Step) -> LogChange:
    _, op, given = step
    values = dict(given)
    unchanged, before = values.pop("_unchanged", ()), values.pop("_before", None)
    return LogChange(offset, op, values, frozenset(unchanged), before)


def merge_rounds(warehouse: EmbeddedWarehouse, seed: int, events: int = 80) -> list[str]:
    """Merge three ranges of every table's random histories; return what differs from the fold after any of them."""
    world, offset, found = make_world(seed, events // 8), 0, list[str]()
    for round_ in range(3):
        for name in world.tables:
            steps: list[Step] = []
            if name == "growing":
                grow(world, max(round_ - 1, 0))
                steps += segment_of(world, name, events // 2, 0)
                grow(world, round_)
            steps += segment_of(world, name, events, 2 if name != "growing" and round_ == 2 else 0)
            written = [(step[0], change(offset + n, step)) for n, step in enumerate(steps, start=1)]
            offset += len(written)
            world.apply(name, written)
            warehouse.merge(name, written, bounded=round_ == 1)
            found += differences(world.expected(name), warehouse.state(name, world.tables[name]))
    return found


@pytest.mark.spread(2)
@pytest.mark.parametrize("seed", range(1, 4))
def test_random_histories_merge_to_the_fold(warehouse: EmbeddedWarehouse, seed: int) -> None:
    """The fold is the meaning: partial rows, NULLs, key changes in chains and swaps, equal rows, shapes that change."""
    found = merge_rounds(warehouse, seed)
    assert not found, f"seed {seed}\n" + "\n".join(found[:5])


VALUE = st.none() | st.integers(0, 2)
KEYS = st.integers(1, 3)


@st.composite
def changes_together(draw: st.DrawFn) -> list[Step]:
    """Changes that belong together, of keys 1 to 3: one row's, or a key change's two."""
    unchanged = draw(st.sets(st.sampled_from(["a", "doc"])))
    sent: dict[str, Any] = {c: v for c, v in (("a", draw(VALUE)), ("doc", draw(VALUE))) if c not in unchanged}
    if sent.get("doc") is not None:
        sent["doc"] = f"doc{sent['doc']}"
    whole = {"a": None, "doc": None} | sent
    key = {"id": draw(KEYS)}
    left = {"_unchanged": sorted(unchanged)} if unchanged else {}
    match draw(st.sampled_from("crudmt")):
        case "m":
            to = {"id": draw(KEYS)}
            return [(TABLE, "d", key), (TABLE, "c", to | sent | left | {"_before": key})]
        case "u":
            return [(TABLE, "u", key | sent | left)]
        case "t":
            return [(TABLE, "t", {})]
        case "d":
            return [(TABLE, "d", key)]
        case op:
            return [(TABLE, op, key | whole)]


@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.lists(st.lists(changes_together(), min_size=1, max_size=6), min_size=1, max_size=3), st.booleans())
def test_any_history_merged_at_any_cuts_equals_the_fold(ranges: list[list[list[Step]]], marks: bool) -> None:
    """Few keys and few changes, so that a difference shrinks to the changes that make it."""
    warehouse = EmbeddedWarehouse(marks=marks)
    world, offset = World(None, {"orders": TABLE}, 1), 0  # type: ignore[arg-type]  # no chance is left to it
    for listed in ranges:
        steps = [step for event in listed for step in event]
        written = [(TABLE, change(offset + n, step)) for n, step in enumerate(steps, start=1)]
        offset += len(written)
        world.apply("orders", written)
        warehouse.merge("orders", written)
        assert not differences(world.expected("orders"), warehouse.state("orders", TABLE))
    warehouse.close()


def rows_of(warehouse: EmbeddedWarehouse, name: str = "orders", table: Table = TABLE) -> State:
    return warehouse.state(name, table)


def put(warehouse: EmbeddedWarehouse, first: int, *steps: tuple[str, dict[str, Any]], **more: Any) -> State:
    warehouse.merge("orders", [(TABLE, change(first + n, (TABLE, *step))) for n, step in enumerate(steps)], **more)
    return rows_of(warehouse)


def test_a_null_that_was_sent_replaces_the_value_in_the_table(warehouse: EmbeddedWarehouse) -> None:
    """NULL, unchanged and absent differ: each must be preserved, within the range and over the table."""
    put(warehouse, 1, ("c", {"id": 1, "a": 1, "doc": "D"}), ("c", {"id": 2, "a": 1, "doc": "D"}))
    found = put(
        warehouse,
        3,
        ("u", {"id": 1, "a": None, "doc": None}),
        ("u", {"id": 2, "a": None, "_unchanged": ["doc"]}),
        ("u", {"id": 3, "a": None, "_unchanged": ["doc"]}),
    )
    assert {key: (values, missing) for key, (values, missing, _, _) in found.items()} == {
        (1,): ({"id": 1, "a": None, "doc": None}, frozenset()),
        (2,): ({"id": 2, "a": None, "doc": "D"}, frozenset()),
        (3,): ({"id": 3, "a": None}, frozenset({"doc"})),
    }


def test_row_whose_version_in_the_table_is_newer_is_not_touched(warehouse: EmbeddedWarehouse) -> None:
    """A range that is merged again must not restore an earlier version of a row."""
    newer = put(warehouse, 10, ("c", {"id": 1, "a": 2, "doc": "new"}))
    assert put(warehouse, 5, ("u", {"id": 1, "a": 1, "doc": "old"})) == newer
    assert put(warehouse, 5, ("d", {"id": 1})) == newer
    assert put(warehouse, 10, ("d", {"id": 1})) == newer


def test_a_range_merged_twice_changes_nothing(warehouse: EmbeddedWarehouse) -> None:
    """A run that died after its commit is repeated."""
    steps: list[tuple[str, dict[str, Any]]] = [
        ("c", {"id": 1, "a": 1, "doc": "D"}),
        ("d", {"id": 1}),
        ("c", {"id": 2, "a": 2, "_unchanged": ["doc"], "_before": {"id": 1}}),
    ]
    once = put(warehouse, 1, *steps)
    assert once == {(2,): ({"id": 2, "a": 2, "doc": "D"}, frozenset(), 3, 1)}
    assert put(warehouse, 1, *steps) == once


def test_sweep_removes_older_rows_and_no_others(warehouse: EmbeddedWarehouse) -> None:
    """A finished backfill removes the rows that nothing touched since it began: only those; the row of its first offset
    stays."""
    put(warehouse, 1, ("c", {"id": 1, "a": 1, "doc": "x"}), ("c", {"id": 2, "a": 1, "doc": "x"}))
    put(warehouse, 3, ("r", {"id": 3, "a": 1, "doc": "x"}))
    found = put(warehouse, 4, ("u", {"id": 2, "a": 2, "doc": "x"}), sweep_before=3)
    assert sorted(found) == [(2,), (3,)]
    rows = {key: FoldedRow(values, missing, offset, count) for key, (values, missing, offset, count) in found.items()}
    warehouse.sweep("orders", 4)
    assert sorted(rows_of(warehouse)) == sorted(sweep(rows, 4)) == [(2,)]


def test_result_older_than_the_sweep_is_not_inserted(warehouse: EmbeddedWarehouse) -> None:
    """A row that the range inserts before the backfill began, and that the backfill did not find, is gone."""
    put(warehouse, 1, ("c", {"id": 1, "a": 1, "doc": "x"}))
    found = put(
        warehouse, 2, ("c", {"id": 2, "a": 1, "doc": "x"}), ("r", {"id": 1, "a": 1, "doc": "x"}), sweep_before=3
    )
    assert sorted(found) == [(1,)]


def test_bag_counts_through_deletes_of_missing_rows(warehouse: EmbeddedWarehouse) -> None:
    """In a table without a key a delete of a missing row does nothing: it must not consume a later insert."""
    bag = make_table("bag", key=(), a="int32")
    histories: list[tuple[list[str], int]] = [
        (["d", "c"], 1),
        (["c", "c", "d", "c", "r"], 4),
        (["d", "d", "d", "d", "d", "c"], 1),
        (["d"], 0),
        (["c", "d", "d", "c", "c"], 2),
    ]
    rows: dict[Any, FoldedRow] = {}
    offset = 0
    for ops, count in histories:
        changes = [LogChange(offset + n, op, {"a": None}) for n, op in enumerate(ops, start=1)]
        offset += len(ops)
        rows = fold(rows, changes, ("a",), keyed=False)
        warehouse.merge("bag", [(bag, c) for c in changes])
        found = rows_of(warehouse, "bag", bag)
        assert [r[3] for r in found.values()] == ([count] if count else [])
        assert [(r.count, r.offset) for r in rows.values()] == [(r[3], r[2]) for r in found.values()]


def test_a_bag_whose_column_was_dropped_counts_rows_that_are_alike_since(warehouse: EmbeddedWarehouse) -> None:
    """The source sends of a deleted row only the columns that the table has at that time."""
    wide, narrow = make_table("bag", key=(), a="int32", b="int32"), make_table("bag", key=(), a="int32")
    warehouse.merge("bag", [(wide, LogChange(n, "c", {"a": 1, "b": n})) for n in (1, 2, 3)])
    warehouse.merge("bag", [(narrow, LogChange(4, "d", {"a": 1}))])
    assert [(r[0], r[3]) for r in rows_of(warehouse, "bag", narrow).values()] == [({"a": 1}, 2)]


def test_names_with_quotes_survive_merge_rename_and_widening(warehouse: EmbeddedWarehouse) -> None:
    """Whatever its name, a column stays that column: in the projection, the moves, the MERGE and the steps."""
    odd = "a`b'c\\d\"e"
    before: dict[str, Any] = {"id": "int64", odd: "int32", "doc": "string"}
    after: dict[str, Any] = {"id": "int64", f"{odd}2": "int64", "doc": "string"}
    first, second = make_table("odd", **before), make_table("odd", **after)
    warehouse.merge("odd", [(first, LogChange(1, "c", {"id": 1, odd: 1, "doc": "x"}))])
    partial = LogChange(2, "u", {"id": 2, "doc": "y"}, frozenset({odd}))
    away = LogChange(3, "d", {"id": 1})
    back = LogChange(4, "c", {"id": 3, "doc": "z"}, frozenset({odd}), {"id": 1})
    warehouse.merge("odd", [(first, c) for c in (partial, away, back)])
    warehouse.merge("odd", [(second, LogChange(5, "u", {"id": 3, f"{odd}2": 2**40, "doc": "z"}))])
    assert rows_of(warehouse, "odd", second) == {
        (2,): ({"id": 2, "doc": "y"}, frozenset({f"{odd}2"}), 2, 1),
        (3,): ({"id": 3, f"{odd}2": 2**40, "doc": "z"}, frozenset(), 5, 1),
    }


def test_recreated_table_keeps_no_row_of_the_old_one(warehouse: EmbeddedWarehouse) -> None:
    """A new incarnation under the same name begins empty, and its columns carry only their own values."""
    old = make_table("orders", id="int64", a="int32", doc="string")
    new = make_table("orders", id="int64", doc="string", added="int32", incarnation=2, missing={"added": "7"})
    warehouse.merge("orders", [(old, LogChange(n, "c", {"id": n, "a": n, "doc": "old"})) for n in (1, 2)])
    newer = [
        (old, LogChange(3, "u", {"id": 2, "a": 9, "doc": "old"})),
        (new, LogChange(4, "c", {"id": 2, "doc": "new"})),
    ]
    warehouse.merge("orders", newer)
    shown = make_table("orders", id="int64", a="int32", doc="string", added="int32")
    expected = {"id": 2, "a": None, "doc": "new", "added": None}
    assert rows_of(warehouse, "orders", shown) == {(2,): (expected, frozenset(), 4, 1)}


def _replaced(module: Any, function: str, right: str, wrong: str) -> Callable[[pytest.MonkeyPatch], None]:
    """A breach planted in the text that `function` writes."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        built = getattr(module, function)

        def writes(*given: Any, **more: Any) -> str:
            sql: str = built(*given, **more)
            return sql.replace(right, wrong)

        patch.setattr(module, function, writes)

    return plant


def _both(*plants: Callable[[pytest.MonkeyPatch], None]) -> Callable[[pytest.MonkeyPatch], None]:
    """The same breach in both ways in which a range is merged into a table."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        for one in plants:
            one(patch)

    return plant


def _null_is_not_sent(patch: pytest.MonkeyPatch) -> None:
    right = reduction.Family.sent_sql
    patch.setattr(reduction.Family, "sent_sql", lambda family: f"{right(family)} AND c{family.columns[0]} IS NOT NULL")


BREACHES: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "a NULL does not count as sent": _null_is_not_sent,
    "of a NULL the table's value is kept": _both(
        _replaced(statement, "merge", "THEN s.c2 ", "THEN coalesce(s.c2, t.`a`) "),
        _replaced(removed_and_added, "coming", "THEN s.c2 ELSE g.v2", "THEN coalesce(s.c2, g.v2) ELSE g.v2"),
    ),
    "the latest value that is not NULL wins": _replaced(
        reduction,
        "reduction",
        "max_by(struct(c2), o) FILTER (WHERE ",
        "max_by(struct(c2), o) FILTER (WHERE c2 IS NOT NULL AND ",
    ),
    "a range without barriers": _replaced(
        reduction, "reduction", "WHEN op IN ('c', 'r', 'd') THEN o", "WHEN false THEN o"
    ),
    "a delete is no barrier": _replaced(reduction, "reduction", "('c', 'r', 'd')", "('c', 'r')"),
    "deletes ignored": _replaced(reduction, "reduction", "(op = 'd' OR", "(false OR"),
    "moves not followed": _replaced(moves, "moves", "WHERE op = 'c'", "WHERE op = 'none'"),
    "moves followed one step": _replaced(moves, "next_round", "p.parent", "NULL AS parent"),
    "a life begins with inserts only": _replaced(moves, "lives", "('c', 'r', 'd')", "('c')"),
    "missing columns forgotten": _both(
        _replaced(
            statement, "merge", "WHEN size(array_except(t._missing", "WHEN false AND size(array_except(t._missing"
        ),
        _replaced(removed_and_added, "coming", "WHEN size(array_except(", "WHEN false AND size(array_except("),
    ),
}


@pytest.mark.spread(3)
@pytest.mark.parametrize("breach", BREACHES)
def test_a_planted_breach_differs_from_the_fold(
    breach: str, warehouse: EmbeddedWarehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A comparison that cannot fail proves nothing: NULL taken for unchanged above all must be seen."""
    BREACHES[breach](monkeypatch)
    assert merge_rounds(warehouse, 1)


@pytest.mark.parametrize("default", [None, "7"])
def test_a_row_from_before_a_column_does_not_miss_it_when_an_update_leaves_it_unchanged(
    warehouse: EmbeddedWarehouse, default: str | None
) -> None:
    """MySQL omits unchanged columns from an update's image (MINIMAL, NOBLOB), also a new column: the row has the
    default there, and a finished table with a row that misses a column stops the merge."""
    old = make_table("orders", id="int64", a="int32")
    missing = {} if default is None else {"added": default}
    new = make_table("orders", id="int64", a="int32", added="int32", missing=missing)
    warehouse.merge(
        "orders",
        [
            (old, LogChange(1, "c", {"id": 1, "a": 1})),
            (new, LogChange(2, "u", {"id": 1, "a": 2}, frozenset({"added"}))),
            (old, LogChange(3, "r", {"id": 2, "a": 1})),
            (new, LogChange(4, "u", {"id": 2, "a": 2}, frozenset({"added"}))),
        ],
    )
    found = rows_of(warehouse, "orders", new)
    value = None if default is None else int(default)
    assert found == {
        (1,): ({"id": 1, "a": 2, "added": value}, frozenset(), 2, 1),
        (2,): ({"id": 2, "a": 2, "added": value}, frozenset(), 4, 1),
    }


@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.parametrize("deleted", [False, True])
def test_update_after_a_dropped_column_does_not_remove_its_default(
    warehouse: EmbeddedWarehouse, dropped: bool, deleted: bool
) -> None:
    """The column is added and dropped within one range. An update in between left it unchanged, so the row has the
    default; an update after the drop does not contain it, wherever in the range that is."""
    old = make_table("orders", id="int64", a="int32")
    new = make_table("orders", id="int64", a="int32", added="int32", missing={"added": "7"})
    rows = [
        (old, LogChange(1, "u", {"id": 1, "a": 1})),  # the row is not in the table yet: it comes with a backfill
        *([(old, LogChange(2, "d", {"id": 1}))] if deleted else []),
        (old, LogChange(3, "u", {"id": 1, "a": 2})),
        (new, LogChange(4, "u", {"id": 1, "a": 3}, frozenset({"added"}))),
    ]
    if dropped:
        after = make_table("orders", id="int64", a="int64")
        rows.append((after, LogChange(5, "u", {"id": 1, "a": 4})))
    warehouse.merge("orders", rows)
    ((values, missing, *_),) = rows_of(warehouse, "orders", new).values()
    assert (values["added"], missing) == (7, frozenset())


def test_dropped_column_is_not_taken_for_one_that_did_not_exist_yet(warehouse: EmbeddedWarehouse) -> None:
    """It was never sent, and nothing shows that it had its default: it is missing."""
    full = make_table("orders", id="int64", a="int32", doc="string")
    less = make_table("orders", id="int64", a="int64")
    warehouse.merge(
        "orders",
        [
            (full, LogChange(1, "u", {"id": 1, "a": 1}, frozenset({"doc"}))),
            (less, LogChange(2, "u", {"id": 1, "a": 2})),
        ],
    )
    ((values, missing, *_),) = rows_of(warehouse, "orders", full).values()
    assert (values.get("doc"), missing) == (None, frozenset({"doc"}))


def zeros(state: State, column: str) -> list[str]:
    """How a column's zeros are written, in the order of their rows."""
    return [str(values[column]) for values, *_ in state.values()]


@pytest.mark.parametrize(("first", "second"), [(-0.0, None), (-0.0, 0.0), (0.0, -0.0)])
def test_a_zero_keeps_the_sign_that_was_sent_last(
    warehouse: EmbeddedWarehouse, first: float, second: float | None
) -> None:
    """-0.0 and 0.0 are one key, as in the fold; which of them is shown is what the source sent last."""
    keyed, bag = make_table("keyed", key=("f",), f="float64", a="int32"), make_table("bag", key=(), f="float64")
    for value in (first, second):
        if value is None:
            continue
        for table in (keyed, bag):
            op = "u" if table is keyed and value is second else "c"
            values = {"f": value} | ({"a": 1} if table is keyed else {})
            warehouse.merge(table.id.name, [(table, LogChange(1 if value is first else 2, op, values))])
    for table in (keyed, bag):
        changes = [LogChange(n, "c", {"f": v}) for n, v in enumerate((first, second), start=1) if v is not None]
        folded = fold({}, changes, ("f",), keyed=table is keyed)
        found = warehouse.state(table.id.name, table)
        assert len(found) == len(folded) == 1
        assert set(zeros(found, "f")) == {str(row.values["f"]) for row in folded.values()}
