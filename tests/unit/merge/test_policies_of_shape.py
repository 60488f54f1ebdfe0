"""Tables that follow only some changes of their source, and columns that are kept next to a column of their new
type."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from cdcflow.model.table import Column, Table, TableId
from cdcflow.model.types import ColumnType
from cdcflow.tables.merge.acts import Add
from cdcflow.tables.merge.column_versions import numbered_as, source_number, version_of
from cdcflow.tables.merge.describe_existing import with_existing_columns
from cdcflow.tables.merge.evolution import Evolution, evolve
from cdcflow.tables.merge.modes import APPEND
from cdcflow.tables.merge.policy import TablePolicy
from cdcflow.tables.merge.refusals import CannotFollow
from cdcflow.tables.merge.shape_policy import check_allowed
from cdcflow.tables.merge.target import FormatColumn, Target

INT, BIG, TEXT, DAY = pa.int32(), pa.int64(), pa.string(), pa.date32()
ID = TableId("public", "orders")


def shape(*columns: tuple[Any, ...], key: tuple[str, ...] = ("id",), incarnation: int = 1) -> Table:
    listed = (("id", 1, INT), *columns)
    made = tuple(
        Column(name, number, ColumnType(str(arrow), arrow), missing=more[0] if more else None)
        for name, number, arrow, *more in listed
    )
    return Table(ID, incarnation, made, key)


FIRST = shape(("amount", 2, INT), ("note", 3, TEXT))


def allowed(policy: TablePolicy, *shapes: Table, target: Target | None = None) -> Evolution:
    found = evolve(target or evolve(None, [FIRST]).target, shapes, new_versions=policy.incompatible == "new_column")
    check_allowed(found, policy)
    return found


CHANGES: dict[str, tuple[Table, set[str], str]] = {
    "none": (FIRST, set(), ""),
    "narrowed": (shape(("amount", 2, pa.int16()), ("note", 3, TEXT)), set(), ""),
    "added": (shape(("amount", 2, INT), ("note", 3, TEXT), ("x", 4, INT)), {"freeze"}, "column x was added"),
    "widened": (
        shape(("amount", 2, BIG), ("note", 3, TEXT)),
        {"add_only", "freeze"},
        "column amount was widened to bigint",
    ),
    "renamed": (
        shape(("amount__dropped_2", 2, INT), ("note", 3, TEXT)),
        {"add_only", "freeze"},
        "column amount was renamed to amount__dropped_2",
    ),
    "dropped": (shape(("amount", 2, INT)), {"add_only", "freeze"}, "column note was dropped"),
    "dropped and added": (
        shape(("amount", 2, INT), ("note", 4, TEXT)),
        {"add_only", "freeze"},
        "column note was dropped",
    ),
    "made again": (shape(("note", 9, TEXT), ("amount", 8, INT), incarnation=2), set(), ""),
    "made again without": (
        shape(("amount", 8, INT), incarnation=2),
        {"add_only", "freeze"},
        "column note was dropped",
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_change_that_a_policy_forbids_is_refused_and_applied_once_the_policy_is_changed(change: str) -> None:
    """An operator froze a table because its readers would break; the remedy must work, and the policy may then be
    restored."""
    new, refusing, why = CHANGES[change]
    for name in ("add_only", "freeze"):
        policy = TablePolicy(evolve=name)
        if name in refusing:
            with pytest.raises(CannotFollow, match=why) as refused:
                allowed(policy, new)
            assert "set merge.tables.each.'public.orders'.evolve to evolve" in str(refused.value)
        else:
            allowed(policy, new)
        after = allowed(TablePolicy(), new).target
        allowed(policy, new, target=Target.from_json(after.to_json()))
    evolve(None, [FIRST, new])


def test_a_dropped_column_of_a_table_without_a_key_is_one_too() -> None:
    """There the column is emptied: its values would be lost silently."""
    before = evolve(None, [replace(FIRST, key=())]).target
    with pytest.raises(CannotFollow, match="column note was dropped"):
        allowed(TablePolicy(evolve="add_only"), replace(shape(("amount", 2, INT)), key=()), target=before)


def test_policy_does_not_apply_to_a_newly_created_table() -> None:
    """Otherwise a log with a rename in it could not be merged into a new warehouse."""
    renamed = shape(("sum", 2, BIG), ("note", 3, TEXT))
    check_allowed(evolve(None, [FIRST, renamed]), TablePolicy(evolve="freeze"))


def columns(target: Target) -> list[tuple[str, str]]:
    return [(c.name, c.type) for c in target.columns]


KEEPING = TablePolicy(incompatible="new_column")
RETYPED = shape(("amount", 2, TEXT, "7"), ("note", 3, TEXT))


def test_type_that_does_not_hold_the_old_values_gets_a_separate_column() -> None:
    """The old values stay for readers that need them; the existing rows get no new value."""
    found = allowed(KEEPING, FIRST, RETYPED)
    assert columns(found.target)[1:] == [("amount", "int"), ("note", "string"), ("amount__2", "string")]
    assert [(s.column.name, s.default) for s in found.steps if isinstance(s, Add)] == [("amount__2", None)]
    assert found.defaults == {}
    assert found.target == allowed(KEEPING, RETYPED).target, "wherever the range began"
    assert allowed(replace(KEEPING, evolve="add_only"), RETYPED).target == found.target
    with pytest.raises(CannotFollow, match="column amount__2 was added"):
        allowed(replace(KEEPING, evolve="freeze"), RETYPED)


@pytest.mark.parametrize("later", ["stop", "new_column"])
def test_of_several_versions_the_latest_that_holds_a_type_takes_its_values(later: Any) -> None:
    """Whatever the order: where ranges begin, and whether a run died, must not show. Also with the old policy again."""
    day = shape(("amount", 2, DAY), ("note", 3, TEXT))
    big = shape(("amount", 2, BIG), ("note", 3, TEXT))
    first = allowed(KEEPING, FIRST, RETYPED, day).target
    assert [c.name for c in first.columns][1:] == ["amount", "note", "amount__2", "amount__3"]
    policy = TablePolicy(incompatible=later)
    for orders in ((big,), (big, RETYPED), (RETYPED, big), (day, RETYPED, big)):
        after = allowed(policy, *orders, target=first).target
        assert columns(after)[1:] == [
            ("amount", "bigint"),
            ("note", "string"),
            ("amount__2", "string"),
            ("amount__3", "date"),
        ]
    with pytest.raises(CannotFollow, match="amount__3 was date and is boolean now"):
        allowed(TablePolicy(), shape(("amount", 2, pa.bool_()), ("note", 3, TEXT)), target=first)


def test_a_version_s_name_is_no_other_column_s_and_follows_a_rename() -> None:
    """Neither a column of the source, nor one that a user added to the table, nor a later one has its name."""
    taken = evolve(None, [shape(("amount", 2, INT), ("Amount__2", 3, TEXT))]).target
    found = evolve(
        replace(taken, others=("amount__3",)),
        [shape(("amount", 2, TEXT), ("Amount__2", 3, TEXT))],
        new_versions=True,
    ).target
    assert [c.name for c in found.columns][1:] == ["amount", "Amount__2", "amount__4"]

    versioned = allowed(KEEPING, RETYPED).target
    clash = shape(("amount", 2, TEXT), ("note", 3, TEXT), ("amount__2", 4, INT))
    found = allowed(KEEPING, clash, target=versioned).target
    assert [c.name for c in found.columns][1:] == ["amount", "note", "amount__3", "amount__2"]
    renamed = shape(("total", 2, TEXT), ("note", 3, TEXT), ("amount", 4, INT))
    found = allowed(KEEPING, renamed, target=versioned).target
    assert [c.name for c in found.columns][1:] == ["amount__dropped_2", "note", "total__2", "amount"]


def test_a_column_that_is_renamed_before_it_gets_a_version_was_renamed() -> None:
    """Otherwise readers would lose the column's own name. Renamed with its new type, or later, it keeps its name."""
    policy = replace(KEEPING, evolve="add_only")
    renamed = shape(("total", 2, INT), ("note", 3, TEXT))
    after = shape(("total", 2, TEXT), ("note", 3, TEXT))
    with pytest.raises(CannotFollow, match="column amount was renamed to total,"):
        allowed(policy, renamed, after)
    found = allowed(policy, RETYPED, after)
    assert [c.name for c in found.target.columns][1:] == ["amount", "note", "total__2"]


def test_in_a_table_of_changes_any_column_may_have_versions() -> None:
    """No row is searched for in it, so neither its key nor the lack of one matters."""
    for keyed in (FIRST, replace(FIRST, key=())):
        before = evolve(None, [keyed], mode=APPEND).target
        retyped = replace(keyed, columns=(Column("id", 1, ColumnType("t", TEXT)), *RETYPED.columns[1:]))
        with pytest.raises(CannotFollow, match=r"incompatible to new_column"):
            evolve(before, [retyped], mode=APPEND)
        found = evolve(before, [keyed, retyped], mode=APPEND, new_versions=True)
        assert [c.name for c in found.target.columns] == ["id", "amount", "note", "id__2", "amount__2"]


def test_keys_and_tables_without_a_key_have_no_versions() -> None:
    """Rows are found by them: a key column with a new type is another key."""
    with pytest.raises(CannotFollow, match="column id was int and is string now") as refused:
        allowed(KEEPING, replace(FIRST, columns=(replace(FIRST.columns[0], type=ColumnType("t", TEXT)),)))
    assert "new_column" not in str(refused.value)
    bag = replace(FIRST, key=())
    with pytest.raises(CannotFollow, match="column amount was int"):
        allowed(KEEPING, replace(RETYPED, key=()), target=evolve(None, [bag]).target)


def test_the_message_of_a_type_that_cannot_be_held_names_the_other_policy() -> None:
    """The remedy works to the letter: what was refused is merged, and the old values stay."""
    with pytest.raises(CannotFollow, match=r"set merge\.tables\.each\.'public\.orders'\.incompatible to new_column"):
        allowed(TablePolicy(), RETYPED)


def test_a_run_that_dies_anywhere_gives_the_same_versions() -> None:
    """G25: an announced version is found by its name; the next run, of a longer range, must not create another."""
    ids = {"id": 1, "amount": 2, "note": 3}
    first = allowed(KEEPING, FIRST, RETYPED)
    acts: Sequence[Any] = list(first.acts())
    described, there = first.before, dict(ids)
    for death in range(len(acts) + 1):
        if death:
            act = acts[death - 1]
            described = getattr(act, "target", described)
            if isinstance(act, Add):
                there[act.column.name] = 9
        assert described is not None
        found = with_existing_columns(described, [FormatColumn(n, i, None) for n, i in there.items()], ID, [FIRST])
        for shapes in (
            (FIRST, RETYPED),
            (RETYPED, FIRST),
            (FIRST, RETYPED, shape(("amount", 2, BIG), ("note", 3, TEXT))),
        ):
            after = allowed(KEEPING, *shapes, target=found).target
            assert [c.name for c in after.columns] == ["id", "amount", "note", "amount__2"], (death, shapes)


def test_recreated_table_finds_its_versions() -> None:
    """It uses names, as for its columns; otherwise it would get a further version each time it is recreated."""
    versioned = allowed(KEEPING, RETYPED).target
    again = shape(("note", 5, TEXT), ("amount", 6, TEXT), incarnation=2)
    after = allowed(KEEPING, again, target=versioned).target
    assert [(c.name, source_number(c.number), version_of(c.number)) for c in after.columns] == [
        ("id", 1, 1),
        ("amount", 6, 1),
        ("note", 5, 1),
        ("amount__2", 6, 2),
    ]
    assert numbered_as(numbered_as(6, 3), 2) == numbered_as(6, 2)
