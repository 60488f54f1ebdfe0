"""Derived tables: published in the same cut as their inputs, and always what their queries give for these."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.integration.local.test_local_merges import COMMITS
from tests.support.log.hand_log import HandLog
from tests.support.merge.histories import make_table
from tests.unit.local.test_derived_units import COLUMNS, SHAPES, Rows, changed, rows_of, some_row

from cdcflow import local, wiring
from cdcflow.config import Config
from cdcflow.model.file_layout import PartitionField
from cdcflow.tables.job.derived_tables import report_derived
from cdcflow.tables.job.engines import Engines
from cdcflow.tables.job.maintenance import UpkeepPolicy, upkeep
from cdcflow.tables.job.reports import MergeReport
from cdcflow.tables.local import (
    compaction,
    decoded_columns,
    derived_inputs,
    derived_units,
    deriver,
    file_keys,
    file_rewrites,
    position_deletes,
    stored_columns,
    table_files,
    value_places,
)
from cdcflow.tables.local.derived_rows import stored_types
from cdcflow.tables.local.deriver import LocalDeriver
from cdcflow.tables.local.engine import LocalEngine
from cdcflow.tables.local.query_database import QueryDatabase
from cdcflow.tables.merge.policy import DerivedQuery, Mode, Policies, TablePolicy
from cdcflow.tables.paths import Warehouse
from cdcflow.tables.sql.quotes import quote

SEED = int(os.environ.get("CDCFLOW_DERIVED_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)
TABLES = {name: make_table(name, **columns) for name, columns in COLUMNS.items()}

Merge = Callable[..., MergeReport]


@pytest.fixture(autouse=True)
def _small_files_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of small files are found and taken as those of large ones are (`decoded_columns`, `value_places`)."""
    monkeypatch.setattr(derived_inputs, "SEARCHED_ROWS", 0)
    monkeypatch.setattr(decoded_columns, "ROWS_MIN", 1)
    monkeypatch.setattr(value_places, "IN_MEMORY_BYTES_MAX", 0)


def forget_files() -> None:
    """Forget what this process knows about files, as the next process does."""
    for known in (decoded_columns.DECODED, value_places.PLACES, file_keys.KNOWN):
        known.forget_all()
    table_files.WRITTEN.forget_all()


def queries(*names: str) -> Policies:
    return Policies(derived={f"derived.{_name(name)}": DerivedQuery(*_shape(name)) for name in names})


def _name(name: str) -> str:
    return name.replace(" ", "_")


def _shape(name: str) -> tuple[tuple[str, ...], str]:
    key, sql = SHAPES[name]
    return tuple(key.split()), sql


class Tables:
    """The rows of the inputs, and the log of their changes."""

    def __init__(self, log: HandLog, chance: random.Random) -> None:
        self.log = log
        self.chance = chance
        self.rows: dict[str, Rows] = {name: {} for name in TABLES}
        for table in TABLES.values():
            log.state(table)
        self.rows = {name: {7: some_row(chance, name, 7)} for name in TABLES}
        log.segment([(table, "c", self.rows[name][7]) for name, table in TABLES.items()])

    def change(self) -> None:
        """Seal a segment of some changes, sometimes with a truncate."""
        steps: list[tuple[Any, str, Mapping[str, Any]]] = []
        for name, table in TABLES.items():
            before = self.rows[name]
            if before and self.chance.random() < 0.05:
                steps.append((table, "t", {}))
                before = {}
            after = changed(self.chance, name, before)
            steps += [(table, "d", {"id": id_}) for id_ in before.keys() - after.keys()]
            for id_, row in after.items():
                if before.get(id_) != row:
                    steps.append((table, "u" if id_ in before else "c", row))
            self.rows[name] = after
        self.log.segment(steps)


def expected(tables: Tables, names: tuple[str, ...]) -> dict[str, list[str]]:
    """What the queries give for the rows of the source."""
    with closing(QueryDatabase(None)) as db:
        for name, rows in tables.rows.items():
            given = pa.Table.from_pylist(list(rows.values()), pa.schema(list(COLUMNS[name].items())))
            db.name("", name, db.give(given))
        return {f"derived.{_name(name)}": _in_order(db.arrow(SHAPES[name][1])) for name in names}


def _in_order(rows: pa.Table) -> list[str]:
    return sorted(map(repr, rows_of(rows)))


def found(warehouse: Path | Warehouse) -> dict[str, list[str]]:
    cut = local.read_cut(warehouse)
    return {name: _in_order(rows) for name, rows in cut.items() if name.startswith("derived.")}


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """Whether each derivation computed the whole table."""
    seen: list[bool] = []
    right = LocalDeriver.derive

    def derive(self: LocalDeriver, *given: Any) -> Any:
        made = right(self, *given)
        seen.append(made.units is None)
        return made

    with monkeypatch.context() as patch:
        patch.setattr(LocalDeriver, "derive", derive)
        yield seen


def run_history(merge: Merge, log: HandLog, warehouse: Path, format_name: str, seed: str) -> None:
    """Merge a random history, with maintenance in between; after each merge the derived tables must be right."""
    chance = random.Random(seed)
    names = tuple(chance.sample(list(SHAPES), 4))
    tables = Tables(log, chance)
    marks_rows = chance.random() < 0.5
    for number in range(4):
        for _ in range(chance.choice([1, 1, 2])):
            tables.change()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(derived_inputs, "SEARCHED_ROWS", chance.choice([0, 1 << 14]))
            patch.setattr(deriver, "CHANGED_MIN", chance.choice([7, 10_000]))
            if marks_rows:  # as in large files; otherwise merges rewrite them
                patch.setattr(file_rewrites, "TINY_BYTES", 0)
                patch.setattr(file_rewrites, "DEAD_SHARE_MAX", 0.9)
                patch.setattr(position_deletes, "SHARING_BYTES", 0)
            if number and chance.random() < 0.4:
                compact_between_merges(merge, tables, warehouse, format_name)
            merge(log.root, warehouse, policies=queries(*names))
        assert found(warehouse) == expected(tables, names), f"CDCFLOW_DERIVED_SEED={seed} after merge {number}"
        if chance.random() < 0.5:
            forget_files()
        if chance.random() < 0.3:
            with closing(local.local_engine(warehouse, format_name)) as engine:
                upkeep(Engines(engine), UpkeepPolicy(keep_s=0.0))


def compact_between_merges(merge: Merge, tables: Tables, warehouse: Path, format_name: str) -> None:
    """Rewrite the files of the inputs, as cdcflow's maintenance or another program does, between merges that do not
    derive tables. So a later one finds versions of both kinds since the last derivation."""
    chance = tables.chance
    for _ in range(chance.choice([1, 1, 2])):
        name = chance.choice(list(TABLES))
        with closing(LocalEngine(warehouse, format_name)) as engine:
            with closing(engine.table(("public", name))) as there:
                there.snapshot()
                files = there.files()
                chosen = [file for file in files if chance.random() < 0.8] or files[:1]
                done = compaction.rewrite(there, chosen, there.recall_rows(chosen), ())
            if chance.random() < 0.7:
                tables.change()
                merge(tables.log.root, warehouse)
            with closing(engine.table(("public", name))) as there, engine.upkeep_lease():
                there.snapshot()
                with pytest.MonkeyPatch.context() as patch:
                    if chance.random() < 0.3:
                        patch.setattr(compaction, "COMMIT", {"another": "program"})
                    compaction.finish(there, done)
        if chance.random() < 0.5:
            tables.change()
            merge(tables.log.root, warehouse)


def test_derived_tables_are_what_their_queries_give(
    merge: Merge, hand_log: HandLog, warehouse: Path, format_name: str
) -> None:
    """A reader of a cut joins a derived table with its inputs, and the two must agree."""
    run_history(merge, hand_log, warehouse, format_name, f"{SEED}")


@pytest.mark.long
@pytest.mark.parametrize("number", range(150))
def test_derived_tables_are_what_their_queries_give_in_many_histories(
    merge: Merge, hand_log: HandLog, warehouse: Path, format_name: str, number: int
) -> None:
    """Histories differ in what follows what."""
    run_history(merge, hand_log, warehouse, format_name, f"{SEED} {number}")


@pytest.mark.spread(1)
def test_interrupted_merge_is_continued(
    merge: Merge, hand_log: HandLog, warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A merge that dies before any of its commits leaves nothing that the next merge does not complete."""
    tables, names = Tables(hand_log, random.Random(7)), ("groups", "left join")
    tables.change()
    tables.change()
    merge(hand_log.root, warehouse, policies=queries(*names))
    died = 0
    for number in range(1, 9, 2):
        tables.change()
        left = number
        with monkeypatch.context() as patch:

            def dying(right: Callable[..., Any]) -> Callable[..., Any]:
                def call(*given: Any, **more: Any) -> Any:
                    nonlocal left
                    left -= 1
                    if left < 0:
                        raise KeyboardInterrupt
                    return right(*given, **more)

                return call

            for of, name in COMMITS:
                patch.setattr(of, name, dying(getattr(of, name)))
            try:
                merge(hand_log.root, warehouse, policies=queries(*names))
            except KeyboardInterrupt:
                died += 1
        merge(hand_log.root, warehouse, policies=queries(*names))
        assert found(warehouse) == expected(tables, names), number
    assert died > 1


def test_one_that_cannot_be_computed_is_excluded_alone(hand_log: HandLog, warehouse: Path) -> None:
    """A mistake in a derived table must not keep the captured tables from being published, nor show a row's values."""
    tables = Tables(hand_log, random.Random(1))
    a = TABLES["a"]
    hand_log.segment([(a, "c", {"id": 1, "k": 1, "x": 2, "s": "secret"})])
    wrong = Policies(
        derived={
            "derived.cast": DerivedQuery(("id",), "SELECT id, CAST(s AS INTEGER) AS n FROM a"),
            "derived.twice": DerivedQuery(("k",), "SELECT k, id FROM a UNION ALL SELECT k, id FROM a"),
            "derived.of_it": DerivedQuery(("id",), "SELECT id FROM derived.cast WHERE id > 1"),
            "derived.circle": DerivedQuery(("id",), "SELECT id FROM circle"),
            "derived.clock": DerivedQuery(("id",), "SELECT id, current_date AS d FROM a"),
            "derived.file": DerivedQuery(("id",), "SELECT * FROM read_csv('/etc/passwd')"),
            "public.a": DerivedQuery(("id",), "SELECT id FROM b"),
            "derived.right": DerivedQuery(("id",), "SELECT id FROM a"),
        }
    )
    report = local.merge(hand_log.root, warehouse, policies=wrong)
    assert report.latest is not None
    excluded = report.latest.left_out
    assert sorted(excluded) == sorted(set(wrong.derived) - {"public.a", "derived.right"})
    assert "secret" not in "".join(excluded.values())
    assert "2 keys (k) more than once" in excluded["derived.twice"]
    assert sorted(report.latest.tables) == ["derived.right", "public.a", "public.b", "public.c"]
    tables.change()
    corrected = Policies(
        derived={"derived.cast": DerivedQuery(("id",), "SELECT id, TRY_CAST(s AS INTEGER) AS n FROM a")}
    )
    report = local.merge(hand_log.root, warehouse, policies=corrected)
    assert report.latest is not None
    assert not report.latest.left_out
    assert "derived.cast" in report.latest.tables


def test_planted_difference_is_found(hand_log: HandLog, warehouse: Path) -> None:
    """`cdcflow verify --derived` and `cdcflow plan` tell what a derived table is, from the settings."""
    tables = Tables(hand_log, random.Random(2))
    tables.change()
    derive = {
        "groups": {"key": ["k"], "sql": SHAPES["groups"][1]},
        "all": {"key": ["n"], "sql": "SELECT count(*) AS n FROM a"},
        "later": {"key": ["k"], "sql": "SELECT k FROM nothing"},
        "having": {"key": ["k"], "sql": "SELECT k, count(*) AS n FROM a GROUP BY k HAVING count(*) > 1"},
        "distinct": {"key": ["k"], "sql": "SELECT k, count(DISTINCT x) AS n FROM a GROUP BY k"},
        "rows": {"key": ["id"], "sql": "SELECT id, x FROM a WHERE x > 1"},
    }
    config = Config.model_validate(
        {
            "source": {"kind": "postgres", "url": "postgresql://localhost/shop"},
            "log": {"path": hand_log.root},
            "merge": {"engine": "local", "warehouse": warehouse, "derive": derive},
        }
    )
    local.merge(hand_log.root, warehouse, policies=wiring.policies(config))
    found = {one.table: one for one in wiring.report_derived(config, compares=True)}
    equal = ["derived.all", "derived.distinct", "derived.groups", "derived.having", "derived.rows"]
    assert [name for name, one in found.items() if one.is_equal] == equal
    cheaper = "; merge.tables.each.public.a.sort_by: [k] makes that cheaper"
    plain = "its column n is not a plain count, sum, avg, min or max"
    assert found["derived.distinct"].how == f"by k, reading all rows of these: {plain}{cheaper}"
    assert found["derived.having"].how == "by k, from changed rows"
    assert found["derived.rows"].how == "by id, reading all rows of these: it has no groups"
    assert "neither captured nor derived" in found["derived.later"].why
    assert found["derived.groups"].how == "by k, from changed rows"
    assert found["derived.all"].how.startswith("whole: it has aggregates without GROUP BY")
    with closing(local.local_engine(warehouse, "delta")) as engine, closing(engine.table(("derived", "all"))) as there:
        there.snapshot()
        there.append(pa.table({"n": pa.array([99])}), {}, "", 0, 1)
        there.snapshot()
    with closing(local.local_engine(warehouse, "delta")) as engine:
        newest = engine.cuts().newest()
        assert newest is not None
        moved = replace(newest.tables["derived.all"], version=newest.tables["derived.all"].version + 1, commit="")
        planted = replace(newest, tables={**newest.tables, "derived.all": moved})
        reports = report_derived(engine.deriver(), planted, wiring.policies(config).derived, compares=True)
    assert {one.table: (one.lacks, one.more) for one in reports if one.how} == {
        "derived.all": (0, 1),
        **dict.fromkeys(equal[1:], (0, 0)),
    }


def test_sorting_that_the_plan_proposes_can_be_set(hand_log: HandLog, warehouse: Path) -> None:
    """`cdcflow plan` names a setting, and no longer does once it is set and merged."""
    tables = Tables(hand_log, random.Random(2))
    seen = []
    for each in ({}, {"public.a": {"sort_by": ["k"]}}):
        tables.change()
        derive = {"distinct": {"key": ["k"], "sql": "SELECT k, count(DISTINCT x) AS n FROM a GROUP BY k"}}
        config = Config.model_validate(
            {
                "source": {"kind": "postgres", "url": "postgresql://localhost/shop"},
                "log": {"path": hand_log.root},
                "merge": {"engine": "local", "warehouse": warehouse, "derive": derive, "tables": {"each": each}},
            }
        )
        local.merge(hand_log.root, warehouse, policies=wiring.policies(config))
        (report,) = wiring.report_derived(config, compares=True)
        assert report.is_equal
        seen.append(report.how.partition("; ")[2])
    assert seen == ["merge.tables.each.public.a.sort_by: [k] makes that cheaper", ""]


def test_changes_concern_few_rows(
    merge: Merge, hand_log: HandLog, warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table is computed as a whole only once, and again when its query changes."""
    tables = Tables(hand_log, random.Random(3))
    seen: list[bool]
    with counted(monkeypatch) as seen:
        for name in ("groups", "groups", "join", "join"):
            tables.change()
            shape = DerivedQuery(_shape(name)[0], _shape(name)[1])
            merge(hand_log.root, warehouse, policies=Policies(derived={"derived.one": shape}))
    assert seen == [True, False, True, False]


@pytest.mark.long
def test_next_process_computes_no_index_again(
    merge: Merge, hand_log: HandLog, warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A merge from cron is a new process each time. Its indexes are those that the last one stored, for keys of any
    type, and they end with the files that they belong to."""
    names = ("groups", "conditional", "join")
    tables, computed = Tables(hand_log, random.Random(3)), list[str]()
    right = stored_columns._store

    def store(place: stored_columns.StoredPlace, *more: Any) -> None:
        computed.append(f"{place.data.name} {place.content} {place.what}")
        right(place, *more)

    monkeypatch.setattr(stored_columns, "_store", store)
    for _ in range(12):
        tables.change()
        merge(hand_log.root, warehouse, policies=queries(*names))
        assert found(warehouse) == expected(tables, names)
        forget_files()
    assert computed
    assert len(set(computed)) == len(computed)
    stored = list(warehouse.rglob(f"{stored_columns.FOLDER}/*"))
    assert stored
    for path in stored:
        path.write_bytes(path.read_bytes()[:-8])
    tables.change()
    merge(hand_log.root, warehouse, policies=queries(*names))
    assert found(warehouse) == expected(tables, names)


def compact(warehouse: Path, format_name: str) -> set[str]:
    """Write all rows of the table `a` into new files, as maintenance does, and return the names of these."""
    with closing(LocalEngine(warehouse, format_name)) as engine, closing(engine.table(("public", "a"))) as there:
        there.snapshot()
        files = there.files()
        done = compaction.rewrite(there, files, there.recall_rows(files), ())
        with engine.upkeep_lease():
            assert compaction.finish(there, done)
        there.snapshot()
        return {str(there.path_on_disk(file)) for file in there.files()}


@pytest.mark.spread(1)
def test_first_merge_after_a_compaction_costs_as_much_as_others(
    merge: Merge, hand_log: HandLog, warehouse: Path, format_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows of rewritten files have not changed, and what is needed of these files was computed with them."""
    names = ("groups", "distinct", "conditional")
    parts = [PartitionField.parse("bucket(3, id)")] if format_name == "iceberg" else []
    policies = replace(queries(*names), each={"public.a": TablePolicy(partition_by=tuple(parts))})
    monkeypatch.setattr(file_rewrites, "TINY_BYTES", 0)
    monkeypatch.setattr(deriver, "CHANGED_MIN", 12)
    tables, a = Tables(hand_log, random.Random(8)), TABLES["a"]
    rows = tables.rows["a"]
    rows |= {id_: some_row(tables.chance, "a", id_) for id_ in range(20, 80)}
    hand_log.segment([(a, "c", rows[id_]) for id_ in range(20, 80)])
    computed, right = set[str](), stored_columns._store

    def store(place: stored_columns.StoredPlace, *more: Any) -> None:
        computed.add(str(place.data))
        right(place, *more)

    monkeypatch.setattr(stored_columns, "_store", store)

    def change(ids: range, wanted: Policies) -> None:
        rows.update({id_: some_row(tables.chance, "a", id_) for id_ in ids})
        hand_log.segment([(a, "u", rows[id_]) for id_ in ids])
        merge(hand_log.root, warehouse, policies=wanted)
        if wanted.derived:
            assert found(warehouse) == expected(tables, names)

    merge(hand_log.root, warehouse, policies=policies)
    change(range(20, 23), policies)
    without = replace(policies, derived={})
    with counted(monkeypatch) as seen:
        for first, before in ((30, policies), (40, without)):
            change(range(first, first + 3), before)
            files = compact(warehouse, format_name)
            assert files <= computed
            computed.clear()
            change(range(first + 2, first + 5), policies)
            assert not files & computed
    assert not any(seen)
    assert len(seen) == 3 * len(names)


@pytest.mark.spread(1)
def test_mean_is_continued_by_the_count_of_rows_while_no_row_has_null(
    merge: Merge, hand_log: HandLog, warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`count(*)` counts a row without a value, too; the files of the table show whether there may be one."""
    tables, a, names = Tables(hand_log, random.Random(4)), TABLES["a"], ("means of counted rows",)
    recomputed, right = list[int](), derived_units.recompute

    def recompute(*given: Any) -> Any:
        recomputed.append(len(values))
        return right(*given)

    monkeypatch.setattr(deriver, "recompute", recompute)
    values: list[int | None] = []
    for value in (3, 8, 1, None, 5, 2):
        values.append(value)
        id_ = 7 + len(values) // 2
        row = {"id": id_, "k": 1, "x": value, "s": "a"}
        hand_log.segment([(a, "u" if id_ in tables.rows["a"] else "c", row)])
        tables.rows["a"][id_] = row
        merge(hand_log.root, warehouse, policies=queries(*names))
        assert found(warehouse) == expected(tables, names)
    assert recomputed[0] == 4


ROWS = 40


def test_columns_may_have_names_that_cdcflow_uses(merge: Merge, hand_log: HandLog, warehouse: Path) -> None:
    """A source's column of that name was taken for cdcflow's own, and a group vanished without an error."""
    taken = ["_cdcflow_exists", "_CDCFLOW_weight_0", "_cdcflow_unit_0", 'a"b; DROP TABLE a']
    columns: dict[str, Any] = dict.fromkeys(["id", *taken], "int64")
    table = make_table("a", **columns)
    quoted = {name: quote(name) for name in taken}
    derived = {
        f"derived.t{n}": DerivedQuery((name,), f"SELECT {column}, count(*) AS n FROM a GROUP BY {column}")
        for n, (name, column) in enumerate(quoted.items())
    }
    derived["derived.file"] = DerivedQuery(("id",), "SELECT id, 1 AS _cdcflow_FILE FROM a")
    hand_log.state(table)
    rows = {n: {"id": n, **dict.fromkeys(taken, n % 3)} for n in range(9)}
    hand_log.segment([(table, "c", row) for row in rows.values()])
    for number in range(2):
        rows[number] = {"id": number, **dict.fromkeys(taken, 7 * number)}
        hand_log.segment([(table, "u", rows[number])])
        report = merge(hand_log.root, warehouse, policies=Policies(derived=derived))
        assert report.latest is not None
        assert {name: why.splitlines()[0][-60:] for name, why in report.latest.left_out.items()} == {
            "derived.file": "gives a column _cdcflow_FILE, which is a name of cdcflow's own"[-60:]
        }
        cut, expected_rows = local.read_cut(warehouse), Counter(row[taken[0]] for row in rows.values())
        for n, name in enumerate(taken):
            assert {row[name]: row["n"] for row in cut[f"derived.t{n}"].to_pylist()} == expected_rows, name


RENAMES: Mapping[str, Any] = {
    "two columns swap their names": make_table("a", id="int64", y="int32", x="int32"),
    "a column is added with the name of a renamed one": make_table(
        "a", id="int64", z="int32", y="int32", x="int32", numbers={"x": 4}
    ),
    "a column is added with the name of a dropped one": make_table(
        "a", id="int64", y="int32", x="int32", numbers={"y": 3, "x": 4}
    ),
}


@pytest.mark.spread(3)
@pytest.mark.parametrize("name", RENAMES)
def test_column_that_gets_the_name_of_another_changes_every_row(
    merge: Merge, hand_log: HandLog, warehouse: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """After ALTER TABLE … RENAME no file of the input is different, and each of its rows has another value."""
    monkeypatch.setattr(file_rewrites, "TINY_BYTES", 0)  # a merge marks a row, and does not write its file again
    table, after = make_table("a", id="int64", x="int32", y="int32"), RENAMES[name]
    sums = DerivedQuery(("g",), "SELECT id % 2 AS g, sum(x) AS t, count(*) AS n FROM a GROUP BY id % 2")
    rows = DerivedQuery(("id",), "SELECT id, x FROM a")
    policies = Policies(derived={"derived.sums": sums, "derived.rows": rows})
    hand_log.state(table)
    hand_log.segment([(table, "c", {"id": n, "x": n, "y": 100 + n}) for n in range(ROWS)])
    merge(hand_log.root, warehouse, policies=policies)
    hand_log.segment([(after, "u", {"id": 1, "x": 1000, "y": 1})])
    merge(hand_log.root, warehouse, policies=policies)
    cut = local.read_cut(warehouse)
    now = {row["id"]: row["x"] for row in cut["public.a"].to_pylist()}
    assert now == {n: 1000 if n == 1 else 100 + n if "swap" in name else None for n in range(ROWS)}
    assert {row["id"]: row["x"] for row in cut["derived.rows"].to_pylist()} == now
    even = {row["g"]: (row["t"], row["n"]) for row in cut["derived.sums"].to_pylist()}[0]
    assert even == (sum(100 + n for n in range(0, ROWS, 2)) if "swap" in name else None, ROWS // 2)


MODES: Mapping[Mode, str] = {
    "soft_delete": "SELECT k, count(*) FILTER (WHERE NOT _is_deleted) AS n, sum(x) AS t FROM a GROUP BY k",
    "history": "SELECT id, count(*) AS n, max(_valid_from) AS last FROM a GROUP BY id",
    "append": "SELECT id, _op, count(*) AS n, max(_offset) AS last FROM a GROUP BY id, _op",
}


@pytest.mark.spread(1)
@pytest.mark.parametrize("mode", MODES)
def test_inputs_have_any_mode(
    merge: Merge, hand_log: HandLog, warehouse: Path, mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a row of the input is does not matter: the derived table is what the query gives for the rows it has."""
    key = ("k",) if mode == "soft_delete" else ("id", "_op") if mode == "append" else ("id",)
    policies = Policies(
        each={"public.a": TablePolicy(mode=mode)}, derived={"derived.one": DerivedQuery(key, MODES[mode])}
    )
    tables = Tables(hand_log, random.Random(9))
    with counted(monkeypatch) as seen:
        for _ in range(5):
            tables.change()
            report = merge(hand_log.root, warehouse, policies=policies)
            assert report.latest is not None
            assert not report.latest.left_out
            cut = local.read_cut(warehouse)
            with closing(QueryDatabase(None)) as db:
                db.name("", "a", db.give(cut["public.a"]))
                assert _in_order(cut["derived.one"]) == _in_order(stored_types(db.arrow(MODES[mode])))
    assert not all(seen[1:])


def test_derivation_of_the_same_cut_is_not_repeated(merge: Merge, hand_log: HandLog, warehouse: Path) -> None:
    """A merge that finds nothing new publishes nothing; without the setting the table leaves the cut."""
    tables = Tables(hand_log, random.Random(5))
    tables.change()
    first = merge(hand_log.root, warehouse, policies=queries("groups"))
    again = merge(hand_log.root, warehouse, policies=queries("groups"))
    assert (first.published, again.published) == (True, False)
    after = merge(hand_log.root, warehouse)
    assert after.published
    assert after.latest is not None
    assert not [name for name in after.latest.tables if name.startswith("derived.")]


def test_merge_of_several_logs_does_not_keep_an_old_derived_table(hand_log: HandLog, warehouse: Path) -> None:
    """A cut must not show a table that the settings no longer have next to newer inputs."""
    tables = Tables(hand_log, random.Random(5))
    local.merge(hand_log.root, warehouse, policies=queries("groups"))
    tables.change()
    tables.change()
    local.merge_logs({"shop": hand_log.root}, warehouse)
    assert sorted(local.published_cut(warehouse).tables) == ["public.a", "public.b", "public.c"]
