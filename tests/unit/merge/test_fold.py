"""The oracle itself: short enough to be trusted, and these tests state what it must do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cdcflow.log.fold.fold import (
    FoldedRow,
    LogChange,
    Rows,
    append,
    fold,
    incomplete_keys,
    soft_delete,
    sweep,
    swept_softly,
)


def row(offset: int, *missing: str, count: int = 1, **values: object) -> FoldedRow:
    return FoldedRow(values, frozenset(missing), offset, count)


def change(offset: int, op: str, *unchanged: str, before: int | None = None, **values: object) -> LogChange:
    return LogChange(offset, op, values, frozenset(unchanged), None if before is None else {"id": before})


def test_a_delete_then_an_insert_leaves_the_new_row() -> None:
    """G02: the row exists with its new values, and with nothing of the old one."""
    found = fold({(1,): row(1, id=1, a="old", doc="D")}, [change(2, "d", id=1), change(3, "c", id=1, a="new")], ("id",))
    assert found == {(1,): row(3, id=1, a="new")}


def test_an_insert_then_a_delete_leaves_no_row() -> None:
    """G03: the table may hold an older row of that key, so the two must not cancel out."""
    found = fold({(1,): row(1, id=1, a="old")}, [change(2, "c", id=1, a="new"), change(3, "d", id=1)], ("id",))
    assert found == {}


def test_unchanged_columns_are_copied_from_the_existing_row() -> None:
    """G05, G06, P01: an update that does not repeat a wide value must not lose it."""
    changes = [change(1, "c", id=1, a=1, doc="D"), change(2, "u", "doc", id=1, a=2), change(3, "u", "a", id=1, doc="E")]
    assert fold({}, changes, ("id",)) == {(1,): row(3, id=1, a=2, doc="E")}


def test_column_that_was_never_sent_is_missing_and_not_null() -> None:
    """Until the backfill brings it, NULL would be wrong."""
    found = fold({}, [change(1, "u", "doc", id=1, a=2)], ("id",))
    assert found == {(1,): row(1, "doc", id=1, a=2)}
    assert incomplete_keys(found) == [(1,)]
    assert incomplete_keys(fold(found, [change(2, "r", id=1, a=2, doc="D")], ("id",))) == []


def test_key_changes_in_a_chain_carry_unchanged_values_along() -> None:
    """P10: 1 becomes 2 becomes 3 in one transaction, and the wide value goes all the way."""
    start: Rows = {(1,): row(1, id=1, a=1, doc="D")}
    changes = [
        change(2, "d", id=1),
        change(3, "c", "doc", before=1, id=2, a=2),
        change(4, "d", id=2),
        change(5, "c", "doc", before=2, id=3, a=3),
    ]
    assert fold(start, changes, ("id",)) == {(3,): row(5, id=3, a=3, doc="D")}


def test_rows_that_swap_keys_keep_their_own_values() -> None:
    """P10: a swap goes through a temporary key; each row keeps what it did not send."""
    start: Rows = {(1,): row(1, id=1, doc="one"), (2,): row(2, id=2, doc="two")}
    steps = [(1, 9), (2, 1), (9, 2)]
    changes = []
    for n, (old, new) in enumerate(steps):
        changes += [change(10 + 2 * n, "d", id=old), change(11 + 2 * n, "c", "doc", before=old, id=new)]
    found = fold(start, changes, ("id",))
    assert {k: r.values["doc"] for k, r in found.items()} == {(1,): "two", (2,): "one"}


def test_plain_insert_inherits_nothing_from_a_delete_before_it() -> None:
    """Only an insert that names its old row continues it."""
    found = fold({(1,): row(1, id=1, doc="D")}, [change(2, "d", id=1), change(3, "c", "doc", id=2)], ("id",))
    assert found == {(2,): row(3, "doc", id=2)}


def test_key_change_does_not_miss_a_column_that_is_already_dropped() -> None:
    """It cannot miss what its shape does not have: otherwise the row would count as partial indefinitely."""
    start: Rows = {(1,): row(1, "doc", "note", id=1)}
    found = fold(start, [change(2, "d", id=1), change(3, "c", "doc", before=1, id=2)], ("id",))
    assert found == {(2,): row(3, "doc", id=2)}


def test_a_truncate_ends_everything_before_it() -> None:
    """G16: rows before it are gone, rows after it stay."""
    found = fold({(1,): row(1, id=1)}, [change(2, "c", id=2), change(3, "t"), change(4, "c", id=3)], ("id",))
    assert found == {(3,): row(4, id=3)}


def test_equal_rows_of_a_table_without_a_key_are_counted() -> None:
    """P08, G18: two equal rows are two rows, and deleting one leaves one."""
    twice = fold({}, [change(1, "c", a=1), change(2, "c", a=1)], ("a",), keyed=False)
    assert twice == {(1,): row(2, a=1, count=2)}
    assert fold(twice, [change(3, "d", a=1)], ("a",), keyed=False) == {(1,): row(3, a=1)}


def test_the_sweep_removes_what_nothing_touched_since() -> None:
    """A re-backfill finds rows that were deleted while no capture ran."""
    assert sweep({(1,): row(4, id=1), (2,): row(5, id=2)}, 5) == {(2,): row(5, id=2)}


def test_an_unknown_op_stops_the_fold() -> None:
    """Skipping an unknown op would be silent loss."""
    with pytest.raises(ValueError, match="unknown op 'x' at offset 7"):
        fold({}, [change(7, "x", id=1)], ("id",))


def test_an_update_keeps_what_its_shape_does_not_have() -> None:
    """G26: a column that the source dropped keeps, row by row, what it had; an insert begins without it."""
    start: Rows = {(1,): row(1, id=1, a=1, dropped="x"), (2,): row(2, id=2, a=1, dropped="y")}
    found = fold(start, [change(3, "u", id=1, a=2), change(4, "c", id=2, a=2)], ("id",))
    assert found == {(1,): row(3, id=1, a=2, dropped="x"), (2,): row(4, id=2, a=2)}


# ── soft deletes ─────────────────────────────────────────────────────────────────────────────────────────────────

OTHERS = frozenset({"a", "doc"})


def softly(rows: Rows, *changes: LogChange) -> dict[tuple[object, ...], FoldedRow]:
    return soft_delete(rows, changes, ("id",), OTHERS)


def dead(row: FoldedRow) -> FoldedRow:
    return replace(row, deleted=True)


def test_a_deleted_row_stays_with_its_last_values() -> None:
    """A reader needs its last values, and the change that deleted it."""
    found = softly({}, change(1, "c", id=1, a=1, doc="D"), change(2, "u", "doc", id=1, a=2), change(3, "d", id=1))
    assert found == {(1,): dead(row(3, id=1, a=2, doc="D"))}


def test_nothing_of_a_deleted_row_is_in_the_next_one_of_its_key() -> None:
    """It is another row: what the log did not contain for it is missing, in `fold` too."""
    there: Rows = {(1,): dead(row(3, id=1, a=2, doc="D"))}
    assert softly(there, change(4, "c", id=1, a=3, doc="E")) == {(1,): row(4, id=1, a=3, doc="E")}
    assert softly(there, change(4, "u", "doc", id=1, a=3)) == {(1,): row(4, "doc", id=1, a=3)}


def test_delete_of_an_unknown_row_leaves_its_key() -> None:
    """It was deleted before the backfill reached it; no later change brings its values."""
    found = softly({}, change(1, "d", id=1))
    assert found == {(1,): dead(row(1, "a", "doc", id=1))}
    assert incomplete_keys(found) == []


def test_truncate_deletes_the_live_rows_and_no_others() -> None:
    """A row that was deleted before has the offset of the delete that removed it."""
    there: Rows = {(1,): row(1, id=1, a=1, doc="D"), (2,): dead(row(2, id=2, a=2, doc="E"))}
    found = softly(there, change(3, "c", id=3, a=3, doc="F"), change(4, "t"), change(5, "c", id=4, a=4, doc="G"))
    assert found == {
        (1,): dead(row(4, id=1, a=1, doc="D")),
        (2,): dead(row(2, id=2, a=2, doc="E")),
        (3,): dead(row(4, id=3, a=3, doc="F")),
        (4,): row(5, id=4, a=4, doc="G"),
    }


def test_key_change_deletes_the_row_of_the_old_key_and_keeps_its_values() -> None:
    """P10: both rows are present, and only the new one is not deleted."""
    there: Rows = {(1,): row(1, id=1, a=1, doc="D")}
    found = softly(there, change(2, "d", id=1), change(3, "c", "doc", before=1, id=2, a=2))
    assert found == {(1,): dead(row(2, id=1, a=1, doc="D")), (2,): row(3, id=2, a=2, doc="D")}


def test_a_sweep_deletes_what_the_backfill_did_not_find() -> None:
    """G16: no change in the log shows when it was deleted, so its offset stays."""
    there: Rows = {(1,): row(1, id=1, a=1), (2,): row(5, id=2, a=2)}
    assert swept_softly(there, 3) == {(1,): dead(row(1, id=1, a=1)), (2,): row(5, id=2, a=2)}


def test_changes_that_are_appended_stay_what_they_are() -> None:
    """No change fills in the values of another."""
    first, second = change(1, "c", id=1, a=1), change(2, "d", id=1)
    assert append(append([], [first]), [second]) == [first, second]
