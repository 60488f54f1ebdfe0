"""Which tables are captured, and which names downstream systems could not distinguish."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from cdcflow.errors import ConfigurationError
from cdcflow.model.table import TableId
from cdcflow.sources.engine.selection import Refusal, Selected, Selection, check_columns, name_refusals

ORDERS, LATER, NAMED = (TableId("shop", name) for name in ("orders", "later", "named"))


@dataclass(frozen=True)
class Entry:
    id: TableId


def selected(**refused: Refusal) -> Selected[Entry]:
    found = {TableId("shop", name): (why,) for name, why in refused.items()}
    return Selected((Entry(LATER), Entry(NAMED), Entry(ORDERS)), found, ())


@pytest.mark.parametrize("name", ["_op", "_OFFSET", "_Missing", "_before", "_unchanged", "_txn", "_commit_ts"])
def test_column_with_a_name_of_cdcflows_own_is_refused(name: str) -> None:
    """The log or the merged table has a column of that name; Spark does not distinguish names by case."""
    ((text, remedy),) = name_refusals(ORDERS, ["id", name], lambda n: f"RENAME {n}")
    assert name in text
    assert remedy == f"RENAME {name}"


def test_columns_that_differ_only_in_case_are_refused() -> None:
    """The change log could hold both, but every SQL engine that reads it takes them for one."""
    ((text, remedy),) = name_refusals(ORDERS, ["id", "a", "A"], lambda n: f"RENAME {n}")
    assert "a and A" in text
    assert remedy == "RENAME A"


def test_such_a_column_stops_the_stream_too() -> None:
    """A table may get one while it is captured; the message explains how to continue."""
    check_columns(ORDERS, ["id", "a", "b"])
    with pytest.raises(ConfigurationError, match=r"shop\.orders has a column _op") as stopped:
        check_columns(ORDERS, ["id", "_op"])
    assert "accept-history-loss" in (stopped.value.remedy or "")


def test_new_table_that_is_refused_does_not_stop_the_others() -> None:
    """Its key may still have to be added; a table that was captured or is named in the settings does stop them."""
    selection = Selection.parse(["shop.*", "shop.named"])
    found, left_out = selected(later=("no key", "add one")).for_start(frozenset({ORDERS}), selection)
    assert left_out == (LATER,)
    assert [t.id for t in found.good] == [NAMED, ORDERS]
    found.check()
    for name in ("orders", "named"):
        kept, left_out = selected(**{name: ("no key", "add one")}).for_start(frozenset({ORDERS}), selection)
        assert left_out == ()
        with pytest.raises(ConfigurationError, match="no key"):
            kept.check()


def test_settings_that_do_not_fit_a_table_stop_the_first_start() -> None:
    """They are a mistake then; a table that cannot be captured whatever they are is only skipped."""

    def describe(table: Entry) -> None:
        if table.id == NAMED:
            raise ConfigurationError("shop.named does not fit")

    selection = Selection.parse(["shop.*"])
    found = selected(later=("no key", "add one")).refusing(describe)
    kept, left_out = found.for_start(frozenset(), selection, is_first=True)
    assert left_out == (LATER,)
    with pytest.raises(ConfigurationError, match="named does not fit"):
        kept.check()
    kept, left_out = found.for_start(frozenset({ORDERS}), selection)
    assert left_out == (LATER, NAMED)
    kept.check()


def test_table_without_a_key_is_not_a_misfit_when_the_selection_gets_smaller() -> None:
    """Other settings would not let it in, so it fails alone; a misfit stops the start."""

    def describe(table: Entry) -> None:
        if table.id == NAMED:
            raise ConfigurationError("shop.named does not fit")

    found = selected(later=("no key", "add one")).refusing(describe)
    assert found.only([LATER, NAMED]).misfits == {NAMED}
    assert found.only([LATER]).misfits == frozenset()


DOTTED, TWIN = TableId("a.b", "c"), TableId("a", "b.c")


def test_tables_of_one_joined_name_are_refused() -> None:
    """S11: logs, topics, cuts and commands know both by the name a.b.c: their rows went into one table."""
    selected = Selected((Entry(DOTTED), Entry(ORDERS), Entry(TWIN)), {}, ())
    assert selected.refused.keys() == {DOTTED, TWIN}
    assert [t.id for t in selected.good] == [ORDERS]
    with pytest.raises(ConfigurationError, match=r'"a\.b"\."c" has the name a\.b\.c of another table, "a"\."b\.c"'):
        selected.check()
    assert not Selected((Entry(DOTTED), Entry(ORDERS)), {}, ()).refused


def test_table_that_takes_a_captured_tables_joined_name_is_skipped_alone() -> None:
    """It must not stop the one that was captured."""
    selected = Selected((Entry(DOTTED), Entry(ORDERS), Entry(TWIN)), {}, ())
    kept, left_out = selected.for_start(frozenset({DOTTED, ORDERS}), Selection.parse(["*.*"]))
    assert [t.id for t in kept.good] == [DOTTED, ORDERS]
    assert not kept.refused
    assert left_out == (TWIN,)
    # Neither was captured before: neither is now, and the others continue.
    kept, left_out = selected.for_start(frozenset({ORDERS}), Selection.parse(["*.*"]))
    assert [t.id for t in kept.good] == [ORDERS]
    assert left_out == (TWIN, DOTTED)
