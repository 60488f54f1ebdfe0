"""Where columns keep their numbers, a policy follows a column that is renamed, and a dropped one stops nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pyarrow as pa
import pytest

from cdcflow.config.columns import TableRules
from cdcflow.errors import ConfigurationError, TableMisfit
from cdcflow.model.table import Column, Table, TableId
from cdcflow.model.types import ColumnType
from cdcflow.sources.privacy.rules import PolicyRules, changed_policies, with_stored
from cdcflow.sources.privacy.stored_rules import raw_of, read_stored

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
def test_without_numbers_rows_of_both_are_refused_and_a_start_is_not(pattern: str) -> None:
    """One table must not stop the others. A start lists it as it last left, and stores that again."""
    for table in (RENAMED, DROPPED):
        mine = rules(pattern, follows=False)
        stored = start(mine, FIRST, {})
        with pytest.raises(TableMisfit, match="no column path, which has a policy"):
            mine.shape(table)
        for _ in range(2):
            mine = rules(pattern, follows=False)
            mine.learn(read_stored(stored).values())
            mine.check([table], read_stored(stored), [TABLE])
            assert mine.known_leaving(table) == rules(pattern, follows=False).table_leaving(FIRST)
            with pytest.raises(TableMisfit, match="no column path, which has a policy"):
                mine.shape(table)
            mine.check_new(table)
        with pytest.raises(TableMisfit):
            rules(pattern, {"path": {"truncate": 1}, "id": "mask"}, follows=False).check_new(table)


def test_mistyped_name_and_another_table_of_the_name_stop_with_numbers_too() -> None:
    with pytest.raises(ConfigurationError, match="no column pth"):
        start(rules(columns={"pth": "mask"}), FIRST, {})
    mine = rules()
    stored = start(mine, FIRST, {})
    other = replace(RENAMED, incarnation=2)
    with pytest.raises(TableMisfit, match="no column path"):
        mine.shape(other)
    assert mine.known_leaving(other).incarnation == 2
    assert stored


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


# ── expressions ─────────────────────────────────────────────────────────────────────────────────────────────

WHERE: dict[str, object] = {"where": "path = 'a'", "computed": {"x": "note || '!'"}}
EXCHANGED = visits("id:1", "note:2", "path:3")


def rules_with(given: Mapping[str, object], *, follows: bool = True) -> PolicyRules:
    return PolicyRules({EXACT: TableRules.model_validate(given)}, follows_numbers=follows)


def left(mine: PolicyRules, table: Table) -> list[str]:
    """What leaves of a row whose second column is `a` and whose third is `b`: the computed column, if it leaves."""
    found = mine.shape(table)
    assert found is not None
    values = {c.name: {1: "1", 2: "a", 3: "b"}.get(c.number) for c in table.columns}
    rows: list[str] = found.rows(pa.RecordBatch.from_pylist([values], schema=table.row_schema)).column("x").to_pylist()
    return rows


def test_expressions_follow_columns_that_are_renamed_or_exchange_their_names() -> None:
    """Never filter by another column: while running, and at any later start."""
    stored = start(rules_with(WHERE), FIRST, {})
    for table in (FIRST, RENAMED, EXCHANGED, FIRST, visits("id:1", "way:2", "note:3", "path:4")):
        mine = rules_with(WHERE)
        assert left(mine, FIRST) == ["b!"]
        assert left(mine, table) == ["b!"]
        before = read_stored(stored)
        mine = rules_with(WHERE)
        stored = start(mine, table, stored)
        assert left(mine, table) == ["b!"]
        assert changed_policies(before, mine, [table]) == {}, "nothing is read again"


def test_other_expression_uses_the_names_that_columns_have_when_it_is_written() -> None:
    stored = start(rules_with(WHERE), EXCHANGED, start(rules_with(WHERE), FIRST, {}))
    mine = rules_with({**WHERE, "where": "path = 'b'"})
    stored = start(mine, EXCHANGED, stored)
    assert left(mine, EXCHANGED) == ["b!"], "where is new, x is not"
    assert left(mine, FIRST) == ["b!"], "rows from before the exchange"


def test_name_of_a_dropped_column_means_a_new_one() -> None:
    mine = rules_with(WHERE)
    assert left(mine, FIRST) == ["b!"]
    with pytest.raises(TableMisfit, match="unknown column path"):
        mine.shape(DROPPED)
    again = visits("id:1", "note:3", "path:4")
    assert left(mine, again) == []


def test_statement_that_gives_a_used_name_to_another_column_is_noticed_without_numbers() -> None:
    """MySQL's log does not number columns, but it has the statement."""
    mine = rules_with(WHERE, follows=False)
    start(mine, FIRST, {})
    assert mine.mistaken_name(TABLE, [("path", "way")]) is None, "the next row is refused"
    assert mine.mistaken_name(TABLE, [("way", "other")]) is None
    found = mine.mistaken_name(TABLE, [("path", "tmp"), ("note", "PATH")])
    assert found is not None
    assert "gave the name of column PATH, which tables uses, to the column note" in str(found)
    assert rules_with(WHERE).mistaken_name(TABLE, [("note", "path")]) is None
    both = {"where": "coalesce(way, path) = 'a'", "optional": ["way", "path"]}
    mine = rules_with(both, follows=False)
    start(mine, FIRST, {})
    assert mine.mistaken_name(TABLE, [("path", "way")]) is None, "the settings expect it"
    mine = rules(follows=False)
    start(mine, FIRST, {})
    assert mine.mistaken_name(TABLE, [("path", "note"), ("note", "path")]) is not None, "a policy, too"


@pytest.mark.parametrize(
    ("given", "now", "suffices"),
    [
        ({"columns": {"path": "mask"}}, FIRST, True),
        ({"columns": {"path": "mask"}}, RENAMED, False),
        ({"columns": {"path": "mask"}}, visits("id:1", "note:2", "path:3"), False),
        ({"columns": {"path": "mask"}}, visits("id:1", "path:2", "remark:3"), True),
        ({"columns": {"path": "mask"}}, DROPPED, True),
        ({"where": '"path" <> lower(Note)'}, FIRST, True),
        ({"where": "path <> 'x'"}, RENAMED, False),
        ({"where": "path <> 'x'"}, visits("id:1", "note:2", "path:3"), False),
        ({"computed": {"day": "lower(path)"}}, visits("id:1", "note:2", "path:3"), False),
        ({"where": "path <> 'x'"}, visits("id:1", "path:2", "remark:3"), True),
    ],
)
@pytest.mark.parametrize("pattern", [EXACT, PATTERN])
def test_process_without_earlier_names_reads_only_where_names_suffice(
    pattern: str, given: Mapping[str, object], now: Table, suffices: bool
) -> None:
    """Executors have the settings only: where two columns exchanged their names, they would take the wrong one."""
    mine = PolicyRules({pattern: TableRules.model_validate(given)}, follows_numbers=True)
    mine.shape(FIRST)
    mine.shape(now)
    if suffices:
        mine.check_names_suffice(now)
        return
    with pytest.raises(TableMisfit, match="which executors do not know") as refused:
        mine.check_names_suffice(now)
    assert "run the same command without --on" in str(refused.value.remedy)


def test_shape_at_the_source_has_columns_whose_numbers_are_hashes() -> None:
    """Those of MySQL are as large as a computed column's: rows of a dropped table would be decoded without them."""
    given = {"columns": {"path": "drop", "note": {"rename": "remark"}}, "computed": {"day": "lower(note)"}}
    mine = PolicyRules({EXACT: TableRules.model_validate(given)})
    for numbers in ((7, 1 << 30, 2_000_000_000), (2_000_000_000, 5, (1 << 30) + 1), (1, 2, 3)):
        table = visits(*(f"{name}:{number}" for name, number in zip(("id", "path", "note"), numbers, strict=True)))
        stored = read_stored(with_stored({}, mine, [table], {}))[TABLE]
        logged = mine.table_leaving(table)
        assert [c.name for c in logged.columns] == ["id", "remark", "day"]
        assert raw_of(logged, stored) == table
