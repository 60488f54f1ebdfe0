"""Where columns keep their numbers, a policy follows a column that is renamed, and a dropped one stops nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pyarrow as pa
import pytest

from cdcflow.config.columns import TableRules
from cdcflow.errors import ConfigurationError
from cdcflow.model.table import Column, Table, TableId
from cdcflow.model.types import ColumnType
from cdcflow.sources.privacy.rules import (
    PolicyRules,
    changed_policies,
    raw_of,
    read_stored,
    with_stored,
)

TABLE = TableId("public", "visits")
TEXT = ColumnType("text", pa.string())
EXACT, PATTERN = "public.visits", "public.*"


def visits(*columns: str, incarnation: int = 1) -> Table:
    """A table of columns such as `path:2`, with their numbers; the first is its key."""
    made = tuple(Column(name, int(number), TEXT) for name, _, number in (c.partition(":") for c in columns))
    return Table(TABLE, incarnation, made, (made[0].name,))


FIRST = visits("id:1", "path:2", "note:3")
RENAMED = visits("id:1", "route:2", "note:3")
DROPPED = visits("id:1", "note:3")


def rules(pattern: str = EXACT, columns: Mapping[str, object] | None = None, *, follows: bool = True) -> PolicyRules:
    given = {"columns": {"Path": "mask"} if columns is None else columns}
    return PolicyRules({pattern: TableRules.model_validate(given)}, follows_numbers=follows)


def masks_of(mine: PolicyRules, table: Table) -> list[str]:
    """The columns that leave as masks."""
    found = mine.shape(table)
    return [] if found is None else [c.name for c in found.table.columns if c.type.source == "mask"]


def start(mine: PolicyRules, table: Table, source: Mapping[str, str]) -> dict[str, str]:
    """A start that finds the table in this state; what its checkpoint has."""
    before = read_stored(source)
    mine.learn(before.values())
    mine.check([table], before, [TABLE])
    return with_stored({}, mine, [table], before)


@pytest.mark.parametrize("pattern", [EXACT, PATTERN])
def test_policy_follows_a_column_that_is_renamed_while_running(pattern: str) -> None:
    mine = rules(pattern)
    assert masks_of(mine, FIRST) == ["path"]
    assert masks_of(mine, RENAMED) == ["route"]
    assert masks_of(mine, FIRST) == ["path"], "a row from before"
    assert masks_of(mine, visits("id:1", "way:2", "path:4")) == ["way", "path"], "a new column of that name has it, too"


@pytest.mark.parametrize("pattern", [EXACT, PATTERN])
def test_policy_follows_a_column_that_is_renamed_before_any_of_several_starts(pattern: str) -> None:
    stored = start(rules(pattern), FIRST, {})
    for table, name in ((RENAMED, "route"), (RENAMED, "route"), (visits("id:1", "way:2", "note:3"), "way")):
        mine = rules(pattern)
        before = read_stored(stored)
        stored = start(mine, table, stored)
        assert masks_of(mine, table) == [name]
        assert changed_policies(before, mine, [table]) == {}, "nothing is read again"


@pytest.mark.parametrize("pattern", [EXACT, PATTERN])
def test_dropped_column_stops_nothing_neither_then_nor_at_later_starts(pattern: str) -> None:
    mine = rules(pattern)
    stored = start(mine, FIRST, {})
    assert masks_of(mine, DROPPED) == []
    for _ in range(2):
        stored = start(rules(pattern), DROPPED, stored)
    again = visits("id:1", "note:3", "path:4")
    mine = rules(pattern)
    stored = start(mine, again, stored)
    assert masks_of(mine, again) == ["path"]


@pytest.mark.parametrize("pattern", [EXACT, PATTERN])
def test_without_numbers_both_stop(pattern: str) -> None:
    for table in (RENAMED, DROPPED):
        mine = rules(pattern, follows=False)
        stored = start(mine, FIRST, {})
        with pytest.raises(ConfigurationError, match="no column path, which has a policy"):
            mine.shape(table)
        with pytest.raises(ConfigurationError, match="no column path, which has a policy"):
            start(rules(pattern, follows=False), table, stored)


def test_mistyped_name_and_another_table_of_the_name_stop_with_numbers_too() -> None:
    with pytest.raises(ConfigurationError, match="no column pth"):
        start(rules(columns={"pth": "mask"}), FIRST, {})
    mine = rules()
    stored = start(mine, FIRST, {})
    other = replace(RENAMED, incarnation=2)
    with pytest.raises(ConfigurationError, match="no column path"):
        mine.shape(other)
    with pytest.raises(ConfigurationError, match="no column path"):
        start(rules(), other, stored)


def test_settings_with_the_new_name_or_without_the_column_are_used_at_the_next_start() -> None:
    stored = start(rules(), RENAMED, start(rules(), FIRST, {}))
    mine = rules(columns={"route": "mask"})
    assert changed_policies(read_stored(stored), mine, [RENAMED]) == {}
    start(mine, RENAMED, stored)
    assert masks_of(mine, FIRST) == ["path"], "rows from before the rename, in the log"
    mine = rules(columns={"note": "mask"})
    assert changed_policies(read_stored(stored), mine, [RENAMED])[TABLE] == (
        "note: no policy → mask, route: mask → no policy"
    )
    start(mine, RENAMED, stored)
    assert masks_of(mine, RENAMED) == ["note"]


def test_names_that_are_swapped_leave_neither_column_without_the_policy() -> None:
    mine = rules()
    stored = start(mine, FIRST, {})
    swapped = visits("id:1", "note:2", "path:3")
    assert masks_of(mine, swapped) == ["note", "path"]
    mine = rules()
    mine.learn(read_stored(stored).values())
    assert changed_policies(read_stored(stored), mine, [swapped])[TABLE] == "path: no policy → mask"


def test_checkpoint_stays_the_same_unless_a_column_was_renamed_or_dropped() -> None:
    stored = start(rules(), FIRST, {})
    assert stored == start(rules(follows=False), FIRST, {})
    assert start(rules(), RENAMED, stored) != stored


def test_shape_of_the_log_leads_to_the_column_under_its_new_name() -> None:
    stored = read_stored(start(rules(columns={"path": {"constant": 1}}), FIRST, {}))[TABLE]
    assert raw_of(RENAMED, stored) == RENAMED
