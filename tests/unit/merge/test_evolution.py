"""What a current-state table does when its source table changes shape."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from cdcflow.errors import ConfigurationError
from cdcflow.model.table import Column, Table, TableId
from cdcflow.model.types import ColumnType
from cdcflow.tables.merge.acts import Add, Describe, Empty, Fill, Rename, Widen
from cdcflow.tables.merge.describe_existing import with_existing_columns
from cdcflow.tables.merge.evolution import Evolution, evolve
from cdcflow.tables.merge.format import Format
from cdcflow.tables.merge.modes import APPEND
from cdcflow.tables.merge.reduce import ColumnLayout, projection
from cdcflow.tables.merge.refusals import CannotFollow
from cdcflow.tables.merge.target import FormatColumn, Target, TargetColumn

INT, BIG, TEXT = pa.int32(), pa.int64(), pa.string()


def shape(*columns: tuple[Any, ...], key: tuple[str, ...] = ("id",), incarnation: int = 1) -> Table:
    """shape(("id", 1, INT), ("x", 2, TEXT, "missing text"))"""
    made = tuple(
        Column(name, number, ColumnType(str(arrow), arrow), missing=more[0] if more else None)
        for name, number, arrow, *more in columns
    )
    return Table(TableId("public", "orders"), incarnation, made, key)


FIRST = shape(("id", 1, INT), ("note", 2, TEXT))


def target_of(table: Table) -> Target:
    return evolve(None, [table]).target


def follow(*shapes: Table) -> Evolution:
    return evolve(target_of(FIRST), shapes)


def test_added_column_gives_its_default_to_existing_rows() -> None:
    """G21, P18: the source gave old rows the constant, and its log does not record it."""
    found = follow(FIRST, shape(("id", 1, INT), ("note", 2, TEXT), ("qty", 3, INT, "7")))
    assert found.steps == (Add(TargetColumn("qty", 3, "int"), "CAST('7' AS int)"),)
    assert found.defaults == {3: "CAST('7' AS int)"}


def test_of_several_defaults_of_one_column_existing_rows_get_the_first() -> None:
    """A later default is for later rows, which carry it. Columns that existed before have no default to give."""
    first, second = (shape(("id", 1, INT, "1"), ("note", 2, TEXT), ("qty", 3, INT, default)) for default in ("7", "8"))
    found = follow(FIRST, first, second)
    assert found.defaults == {3: "CAST('7' AS int)"}


def test_dropped_column_distinguishes_no_rows_of_a_table_without_a_key() -> None:
    """A delete after it does not contain the column: rows that differ only there are now equal. It is emptied once,
    never becomes the source's column again, and is not created at all if it was added and dropped within one range."""
    before = shape(("a", 1, INT), ("b", 2, TEXT), key=())
    between = shape(("a", 1, INT), ("b", 2, TEXT), ("c", 3, TEXT), key=())
    after = shape(("a", 1, INT), key=())
    found = evolve(target_of(before), [before, between, after])
    assert found.steps == (Empty("b"),)
    assert [(c.name, c.number) for c in found.target.columns] == [("a", 1), ("b", -2)]
    assert not evolve(found.target, [after]).steps
    again = evolve(found.target, [after, shape(("a", 1, INT), ("b", 4, TEXT), key=())])
    assert again.steps == (Rename("b", "b__dropped_2"), Add(TargetColumn("b", 4, "string"), None))
    other = evolve(target_of(before), [before, shape(("x", 5, INT), key=())])
    assert [c.number for c in other.target.columns] == [-1, -2, 5]
    layout = ColumnLayout.of(other, [before, shape(("x", 5, INT), key=())])
    assert "map(" not in " ".join(projection(layout, 0, moved=False))


def test_unsupported_default_stops_with_an_error_that_names_the_column() -> None:
    """Old rows must not silently get NULL where the source shows a value."""
    with pytest.raises(ConfigurationError, match=r"public\.orders.*column tags"):
        follow(shape(("id", 1, INT), ("note", 2, TEXT), ("tags", 3, pa.list_(TEXT), "{{a},{b}}")))


@pytest.mark.parametrize(
    ("old", "new", "type_"),
    [
        (INT, BIG, "bigint"),
        (pa.int16(), INT, "int"),
        (pa.float32(), pa.float64(), "double"),
        (pa.decimal128(10, 2), pa.decimal128(12, 3), "decimal(12,3)"),
        (INT, pa.decimal128(12, 2), "decimal(12,2)"),
    ],
    ids=str,
)
def test_a_wider_type_widens_the_column(old: pa.DataType, new: pa.DataType, type_: str) -> None:
    """G23: every old value is exactly a new one."""
    found = evolve(target_of(shape(("id", 1, INT), ("v", 2, old))), [shape(("id", 1, INT), ("v", 2, new))])
    assert found.steps == (Widen("v", type_),)


def test_type_that_the_table_s_format_cannot_widen_stops_with_an_error_that_names_the_column() -> None:
    """The value would fit, but the column keeps its type."""
    rigid = Format("rigid", widens=lambda old, new: False)
    with pytest.raises(CannotFollow, match=r"column v was int and is bigint now, and rigid cannot widen that"):
        evolve(target_of(shape(("id", 1, INT), ("v", 2, INT))), [shape(("id", 1, INT), ("v", 2, BIG))], format_=rigid)


def test_type_that_no_table_has_is_reported_with_its_column() -> None:
    with pytest.raises(CannotFollow, match=r"table public\.orders, column took: "):
        evolve(None, [shape(("id", 1, INT), ("took", 2, pa.timestamp("ns")))])


def test_a_narrower_type_leaves_the_wide_column() -> None:
    """G24: the table's type holds the new values too, so nothing needs to be cast away."""
    wide = target_of(shape(("id", 1, INT), ("v", 2, BIG)))
    found = evolve(wide, [shape(("id", 1, INT), ("v", 2, INT))])
    assert found.steps == ()
    assert found.target == wide


@pytest.mark.parametrize(
    ("old", "new"),
    [(TEXT, INT), (INT, TEXT), (pa.decimal128(10, 2), pa.decimal128(10, 4)), (pa.float64(), pa.decimal128(10, 2))],
    ids=str,
)
def test_type_that_does_not_hold_the_old_values_stops_with_an_error_that_names_the_column(
    old: pa.DataType, new: pa.DataType
) -> None:
    """G24: no silent NULL by a cast; the message names column, both types and what to do."""
    with pytest.raises(ConfigurationError, match=r"column v was .* and is .* now") as caught:
        evolve(target_of(shape(("id", 1, INT), ("v", 2, old))), [shape(("id", 1, INT), ("v", 2, new))])
    assert "cdcflow backfill public.orders" in str(caught.value)


def test_a_renamed_column_is_followed_by_its_number() -> None:
    """G25, P20: the values stay with the column, whatever its name."""
    found = follow(shape(("id", 1, INT), ("remark", 2, TEXT)))
    assert found.steps == (Rename("note", "remark"),)


def test_columns_that_swap_their_names_do_not_collide() -> None:
    """G25: two columns of one name cannot exist, not even between two statements."""
    before = target_of(shape(("id", 1, INT), ("a", 2, TEXT), ("b", 3, TEXT)))
    found = evolve(before, [shape(("id", 1, INT), ("b", 2, TEXT), ("a", 3, TEXT))])
    names = {"id", "a", "b"}
    for step in found.steps:
        assert isinstance(step, Rename)
        assert step.old in names
        assert step.new not in names
        names = names - {step.old} | {step.new}
    assert [(c.name, c.number) for c in found.target.columns] == [("id", 1), ("b", 2), ("a", 3)]


def test_a_dropped_column_stays_in_the_table() -> None:
    """What was captured is not thrown away because the source no longer needs it."""
    found = follow(shape(("id", 1, INT)))
    assert found.steps == ()
    assert numbers(found.target) == {"id": 1, "note": 2}


def test_column_that_reappears_under_its_name_is_a_new_column() -> None:
    """G27, P19: the old column's values must not show up in the new one."""
    found = follow(shape(("id", 1, INT)), shape(("id", 1, INT), ("note", 3, INT)))
    assert found.steps == (Rename("note", "note__dropped_2"), Add(TargetColumn("note", 3, "int"), None))


def test_recreated_table_adopts_columns_of_the_same_name_and_nothing_else() -> None:
    """P25: numbers of a new incarnation mean other columns; none of the old rows survives."""
    found = follow(FIRST, shape(("note", 1, TEXT), ("id", 2, INT), incarnation=2))
    assert found.fresh
    assert found.steps == ()
    assert list(found.acts()) == [Describe(found.target)], "its description is the current one"
    assert {c.name: c.number for c in found.target.columns} == {"id": 2, "note": 1}


def test_changed_key_stops_with_an_error_that_names_the_table() -> None:
    """Rows keyed one way cannot be found by another."""
    with pytest.raises(ConfigurationError, match=r"its key was \(id\) and is \(id, note\) now"):
        follow(shape(("id", 1, INT), ("note", 2, TEXT), key=("id", "note")))


def test_names_that_differ_only_in_case_stop_with_an_error_that_names_them() -> None:
    """Spark would mistake the one for the other."""
    with pytest.raises(ConfigurationError, match="column Note"):
        evolve(None, [shape(("id", 1, INT), ("note", 2, TEXT), ("Note", 3, TEXT))])


def test_our_own_column_names_are_refused() -> None:
    """A source column called _missing would be taken for cdcflow's own."""
    with pytest.raises(ConfigurationError, match="column _missing"):
        evolve(None, [shape(("id", 1, INT), ("_missing", 2, TEXT))])


def test_description_is_read_back_unchanged() -> None:
    """The table's own property is the only memory of its column numbers."""
    target = target_of(FIRST)
    assert Target.from_json(target.to_json()) == target
    begun = replace(
        target, is_open=True, emptied_at=7, columns=(*target.columns, TargetColumn("x", 3, "int", added=True))
    )
    assert Target.from_json(begun.to_json()) == begun
    with pytest.raises(ConfigurationError, match="newer cdcflow"):
        Target.from_json(target.to_json().replace('"version":2', '"version":99'))


def numbers(target: Target) -> dict[str, int]:
    return {c.name: c.number for c in target.columns}


def test_columns_that_the_new_table_lacks_get_numbers_that_no_source_has() -> None:
    """P25: a number that the new table's column bears, or gets later, would give it the old one's values."""
    before = target_of(shape(("id", 1, INT), ("a", 2, TEXT), ("b", 3, TEXT), ("c", 9, TEXT)))
    made_again = shape(("id", 1, INT), ("x", 2, TEXT), ("c", 3, TEXT), incarnation=2)
    found = evolve(before, [made_again]).target
    assert numbers(found) == {"id": 1, "a": -2, "b": -3, "c": 3, "x": 2}
    again = evolve(found, [shape(("id", 1, INT), ("c", 2, TEXT), incarnation=3)]).target
    assert numbers(again) == {"id": 1, "a": -2, "b": -3, "c": 2, "x": -4}, "-2 is another's already"


def test_column_that_a_recreated_table_gets_later_is_not_one_that_it_lacked() -> None:
    """P25: otherwise the values of two columns would mix, or the types would clash for no reason."""
    before = target_of(shape(("id", 1, INT), ("a", 2, TEXT)))
    made_again = shape(("id", 1, INT), ("b", 2, TEXT), incarnation=2)
    later = shape(("id", 1, INT), ("b", 2, TEXT), ("c", 3, INT), ("d", 4, INT), ("e", 5, INT), incarnation=2)
    found = evolve(evolve(before, [made_again]).target, [later])
    assert numbers(found.target) == {"id": 1, "a": -2, "b": 2, "c": 3, "d": 4, "e": 5}
    assert [type(step) for step in found.steps] == [Add, Add, Add]


@pytest.mark.parametrize(("key", "key_swapped"), [("id", "id"), ("a", "b")])
def test_recreated_table_is_known_by_the_names_it_began_with(key: str, key_swapped: str) -> None:
    """Its columns swapped names and swapped them back: the other shape has each name with the other column's number."""
    names = ("id", 1, INT), ("a", 2, TEXT), ("b", 3, TEXT)
    before = evolve(None, [shape(*names, key=(key,))]).target
    began = shape(*names, key=(key,), incarnation=2)
    swapped = shape(("id", 1, INT), ("b", 2, TEXT), ("a", 3, TEXT), key=(key_swapped,), incarnation=2)
    found = evolve(before, [began, swapped, began])
    assert numbers(found.target) == {"id": 1, "a": 2, "b": 3}
    assert found.steps == ()


def test_number_assigned_by_an_older_cdcflow_does_not_collide_with_the_source_s() -> None:
    """P25: its number was above all others, where the source numbers its next column."""
    columns = '[["id",1,"int"],["a",3,"string"],["b",2,"string"]]'
    old = Target.from_json(f'{{"version":1,"incarnation":2,"key":["id"],"columns":{columns}}}')
    now = shape(("id", 1, INT), ("b", 2, TEXT), incarnation=2)
    later = shape(("id", 1, INT), ("b", 2, TEXT), ("c", 3, INT), incarnation=2)
    found = evolve(old, [now, later])
    assert numbers(found.target) == {"id": 1, "a": -3, "b": 2, "c": 3}
    assert found.steps == (Add(TargetColumn("c", 3, "int"), None),)
    (announced, *_) = found.acts()
    assert isinstance(announced, Describe)
    again = evolve(Target.from_json(announced.target.to_json()), [later])
    assert numbers(again.target) == numbers(found.target), "also when the first run that saw it dies"


def test_name_of_a_dropped_column_is_not_given_twice() -> None:
    """A recreated table numbers its columns again, so two columns may be dropped under one name and number."""
    target = target_of(shape(("id", 1, INT), ("note", 2, TEXT)))
    for incarnation in (1, 2):
        has = shape(("id", 1, INT), ("note", 2, TEXT), incarnation=incarnation)
        has_another = shape(("id", 1, INT), ("note", 3, TEXT), incarnation=incarnation)
        target = evolve(target, [has]).target
        target = evolve(target, [has_another]).target
    assert [c.name for c in target.columns] == ["id", "note__dropped_2", "note__dropped_2_2", "note"]


def test_a_column_that_the_new_table_has_in_other_letters_is_the_same() -> None:
    """Spark's names are case-insensitive, so it cannot have both."""
    before = target_of(shape(("id", 1, INT), ("Note", 2, TEXT)))
    found = evolve(before, [shape(("id", 1, INT), ("NOTE", 2, TEXT), incarnation=2)])
    assert numbers(found.target) == {"id": 1, "NOTE": 2}
    assert found.steps == (Rename("Note", "__cdcflow_2"), Rename("__cdcflow_2", "NOTE"))


def test_recreated_table_with_another_key_stops_with_an_error_that_names_it() -> None:
    """Its old rows are gone, but the table is built for the old key."""
    with pytest.raises(ConfigurationError, match=r"its key was \(id\) and is \(note\) now"):
        evolve(target_of(FIRST), [shape(("id", 1, INT), ("note", 2, TEXT), key=("note",), incarnation=2)])


def test_rows_of_a_table_that_was_recreated_since_are_passed_over() -> None:
    """Their table is gone, and with it all that its shapes asked for."""
    old = shape(("id", 1, INT), ("note", 2, pa.list_(TEXT), "{a}"))
    new = shape(("id", 1, INT), ("note", 2, TEXT), incarnation=2)
    found = evolve(None, [old, new])
    assert found.fresh
    assert numbers(found.target) == {"id": 1, "note": 2}
    assert evolve(target_of(new), [old, new]).fresh, "also when the table is described as the new one"
    assert evolve(target_of(FIRST), [new]).fresh, "also when the range has nothing of the old one"
    assert not evolve(None, [new]).fresh
    assert not follow(FIRST).fresh


def described_by_an_older_cdcflow(*columns: tuple[str, int, str]) -> Target:
    listed = ",".join(f'["{name}",{number},"{type_}"]' for name, number, type_ in columns)
    return Target.from_json(f'{{"version":1,"incarnation":1,"key":["id"],"columns":[{listed}]}}')


def in_the_table(*names: str) -> list[FormatColumn]:
    return [
        FormatColumn(name, i, None) for i, name in enumerate([*names[:3], "_offset", "_missing", *names[3:]], start=1)
    ]


SWAPPED = shape(("id", 1, INT), ("b", 2, TEXT), ("a", 3, TEXT))


@pytest.mark.parametrize(
    ("names", "steps"),
    [
        (("id", "b", "a"), ()),
        (("id", "__cdcflow_2", "b"), (Rename("b", "__cdcflow_3"), Rename("__cdcflow_3", "a"))),
    ],
    ids=["after the last rename", "between two"],
)
def test_an_older_cdcflow_that_died_in_a_swap_of_names_is_understood(names: Any, steps: Any) -> None:
    """Its description has no ids, but ids grow and it lists columns in their order: no old row gets another's value."""
    old = described_by_an_older_cdcflow(("id", 1, "int"), ("a", 2, "string"), ("b", 3, "string"))
    assert not old.is_open
    found = with_existing_columns(old, in_the_table(*names), SWAPPED.id, [SWAPPED])
    assert {c.number: c.name for c in found.columns} == dict(zip((1, 2, 3), names, strict=True))
    names_now = {c.name for c in found.columns}
    for step in evolve(found, [SWAPPED]).steps:
        assert isinstance(step, Rename)
        names_now = names_now - {step.old} | {step.new}
    assert bool(evolve(found, [SWAPPED]).steps) == bool(steps)
    assert names_now == {"id", "a", "b"}


def test_an_older_cdcflow_that_died_after_a_rename_is_understood() -> None:
    """Only the shapes that follow contain the name."""
    old = described_by_an_older_cdcflow(("id", 1, "int"), ("a", 2, "string"), ("b", 3, "string"))
    renamed = shape(("id", 1, INT), ("c", 2, TEXT), ("b", 3, TEXT))
    found = with_existing_columns(old, in_the_table("id", "c", "b"), renamed.id, [renamed])
    assert numbers(found) == {"id": 1, "c": 2, "b": 3}
    assert evolve(found, [renamed]).steps == ()


def test_no_two_columns_of_a_recreated_table_get_one_number() -> None:
    """One was renamed by a run that died, and another column has its name now."""
    target = target_of(shape(("id", 1, INT), ("x", 2, TEXT), ("y", 3, TEXT)))
    id_, x, y = target.columns
    died = replace(target, columns=(id_, replace(x, name="z", was="y"), y))
    found = evolve(died, [shape(("id", 1, INT), ("y", 5, TEXT), incarnation=2)])
    assert len({c.number for c in found.target.columns}) == len(found.target.columns)


def test_column_that_an_older_cdcflow_added_before_it_died_is_adopted() -> None:
    """It did not announce what it added; its default may or may not be in the rows."""
    old = described_by_an_older_cdcflow(("id", 1, "int"), ("note", 2, "string"))
    more = shape(("id", 1, INT), ("note", 2, TEXT), ("qty", 3, INT, "7"))
    columns = [FormatColumn(n, i, None) for i, n in enumerate(["id", "note", "_offset", "_missing", "qty"])]
    found = evolve(with_existing_columns(old, columns, more.id, [more]), [more])
    assert found.steps == (Fill(TargetColumn("qty", 3, "int"), "CAST('7' AS int)"),)
    (announced, *_) = found.acts()
    assert isinstance(announced, Describe)
    again = evolve(
        with_existing_columns(Target.from_json(announced.target.to_json()), columns, more.id, [more]), [more]
    )
    assert again.steps == found.steps, "and the same when the run that adopted it dies"


def test_column_that_a_user_added_or_removed_in_the_table_is_distinguished_from_cdcflow_s() -> None:
    """cdcflow owns the table, but nothing keeps users from ALTER TABLE: no value may be read from their column."""
    columns = [FormatColumn(n, i, None) for i, n in enumerate(["id", "note", "_offset", "_missing", "mine"])]
    first = with_existing_columns(target_of(FIRST), columns, FIRST.id, [FIRST])
    assert first.others == ("mine",)
    assert evolve(first, [FIRST]).steps == ()
    for clash in (shape(("id", 1, INT), ("mine", 2, TEXT)), shape(("id", 1, INT), ("note", 2, TEXT), ("Mine", 3, INT))):
        with pytest.raises(
            CannotFollow, match=r"column (mine|Mine), but the current-state table already has .*(?s:.*)rename or drop"
        ):
            evolve(first, [clash])
    for described in (target_of(FIRST), described_by_an_older_cdcflow(("id", 1, "int"), ("note", 2, "string"))):
        with pytest.raises(CannotFollow, match="column note was removed"):
            with_existing_columns(described, columns[:1] + columns[2:], FIRST.id, [FIRST])


def test_column_that_a_user_inserted_between_cdcflow_s_is_passed_over() -> None:
    """In a table that an older cdcflow described, which only order and names identify."""
    old = described_by_an_older_cdcflow(("id", 1, "int"), ("note", 2, "string"))
    found = with_existing_columns(
        old, [FormatColumn(n, i, None) for i, n in enumerate(["id", "mine", "note"])], FIRST.id, [FIRST]
    )
    assert [(c.name, c.id) for c in found.columns] == [("id", 0), ("note", 2)]


def test_a_column_that_an_older_cdcflow_knew_keeps_its_number_when_it_is_dropped() -> None:
    """Only a number above all of the source's was assigned by cdcflow, and a later column may get it."""
    before = evolve(None, [shape(("id", 1, INT), ("note", 2, TEXT), ("qty", 3, INT))]).target
    left = shape(("id", 1, INT), ("qty", 3, INT))
    found = evolve(dataclasses.replace(before, version=1), [left])
    assert {c.name: c.number for c in found.target.columns} == {"id": 1, "note": 2, "qty": 3}
    ours = dataclasses.replace(before.columns[2], number=9)
    made = dataclasses.replace(before, version=1, columns=(*before.columns[:2], ours))
    apart = evolve(made, [shape(("id", 1, INT), ("note", 2, TEXT))])
    assert {c.name: c.number for c in apart.target.columns} == {"id": 1, "note": 2, "qty": -9}


def test_adopted_column_is_not_filled_in_a_recreated_table() -> None:
    """Its rows are already gone, so a statement for them would be a useless scan and commit."""
    old = described_by_an_older_cdcflow(("id", 1, "int"), ("note", 2, "string"))
    made_again = shape(("id", 1, INT), ("note", 2, TEXT), ("qty", 3, INT, "7"), incarnation=2)
    columns = [FormatColumn(n, i, None) for i, n in enumerate(["id", "note", "_offset", "_missing", "qty"])]
    found = evolve(with_existing_columns(old, columns, made_again.id, [made_again]), [made_again])
    assert found.fresh
    assert not any(isinstance(step, Fill) for step in found.steps)
    without = shape(("id", 1, INT), ("note", 2, TEXT), ("qty", 3, INT))
    assert evolve(with_existing_columns(old, columns, without.id, [without]), [without]).steps == (), (
        "nor without a default"
    )


@pytest.mark.parametrize("columns_there", [0, 1, 2])
def test_numbers_announced_for_a_recreated_table_are_not_taken_for_the_old_one_s(columns_there: int) -> None:
    """A merge of changes that died between two incarnations begins with the older one again. The numbers that it
    announced for the newer one equal those of the older one's columns."""
    old = shape(("id", 1, INT), ("day", 2, pa.date32()), ("price", 3, pa.decimal128(12, 2)), key=())
    new = [
        shape(("id", 1, INT), ("price", 2, pa.decimal128(12, 2)), ("note", 3, TEXT), *later, key=(), incarnation=2)
        for later in ((), (("rate", 4, pa.float32()),))
    ]
    announced = next(iter(evolve(target_of(old), new, mode=APPEND).acts()))
    assert isinstance(announced, Describe)
    assert announced.target.is_open
    names = [c.name for c in announced.target.columns][: 3 + columns_there]
    columns = [FormatColumn(c.name, i, c.type) for i, c in enumerate(announced.target.columns, 1) if c.name in names]
    described = Target.from_json(announced.target.to_json())
    first = evolve(with_existing_columns(described, columns, old.id, [old], APPEND), [old], mode=APPEND)
    assert [a for a in first.acts() if isinstance(a, (Add, Rename, Widen))] == []
    described = Target.from_json(first.target.to_json())
    then = evolve(with_existing_columns(described, columns, old.id, new, APPEND), new, mode=APPEND)
    assert [c.name for c in then.target.columns] == ["id", "day", "price", "note", "rate"]
    assert [c.number for c in then.target.columns] == [1, -2, 2, 3, 4]
    assert [a.column.name for a in then.acts() if isinstance(a, Add)] == ["note", "rate"][columns_there:]
