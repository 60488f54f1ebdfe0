"""The DDL fuzzer's pure parts: cases as text, the model, shrinking, and the oracle that finds a difference."""

from __future__ import annotations

import itertools
import queue
import re
from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pytest
from tests.ddlfuzz import jobs, model, oracle
from tests.ddlfuzz.alter_clauses import COMMENTS, FORMS, HEADS, QUALIFIED, QUOTES, words
from tests.ddlfuzz.daemon import Status
from tests.ddlfuzz.draw import Case, committed, drawn
from tests.ddlfuzz.execute import Failure, Outcome, Run
from tests.ddlfuzz.kept import Kept, Standing
from tests.ddlfuzz.kinds import COMPARE, DAEMON, KINDS, Step, acted
from tests.ddlfuzz.model import SERVERS, Model, Server
from tests.ddlfuzz.shrink import shrunk

from cdcflow.capture.interleave.progress import Progress, TableProgress
from cdcflow.log.fold.fold import LogChange
from cdcflow.model.position import Offset
from cdcflow.model.table import Column, Table, TableId
from cdcflow.model.types import ColumnType


@pytest.mark.parametrize("server", SERVERS)
def test_seed_draws_the_same_case_again_and_its_text_reads_back(server: Server) -> None:
    """A seed that failed at night must fail in the morning, and be committed as text."""
    for seed in range(30):
        case = drawn(server, seed)
        assert drawn(server, seed) == case
        assert Case.parse(server, case.text()).text() == case.text()


@pytest.mark.parametrize("server", SERVERS)
def test_every_kind_is_drawn(server: Server) -> None:
    """A kind that no seed draws tests nothing."""
    never = {k.name for k in KINDS.values() if server in k.servers}
    for seed in range(400):
        never -= drawn(server, seed).kinds
        if not never:
            break
    assert never == set()


CLAUSED: tuple[Server, ...] = ("mysql", "mariadb")
UNPARTED = {("hash", "unpart"), ("key", "unpart")}
"""Pairs that no table allows, or seldom: of partitions that it has and has not, and of a key that has them."""


@pytest.mark.parametrize("server", CLAUSED)
def test_every_pair_of_clauses_and_every_form_of_a_clause_is_drawn(server: Server) -> None:
    """Clauses that were harmless alone hid one another, and a form that no case had renamed a table unseen."""
    never: set[object] = {pair for pair in itertools.combinations(sorted(words(server)), 2) if pair not in UNPARTED}
    never |= {("head", quote, head) for quote in (*QUOTES, *QUALIFIED) for head in HEADS[server]}
    never -= {("head", quote, "dot") for quote in QUALIFIED}
    never |= {("rename", form) for form in FORMS} | {("same", form) for form in FORMS}
    never |= {"~back", "~double", *(f"~{mark}" for mark in COMMENTS[server])}
    for seed in range(800):
        for step in drawn(server, seed).steps:
            if step.name == "combined":
                never -= _drawn_forms(step)
        if not never:
            break
    assert never == set()


def _drawn_forms(step: Step) -> set[object]:
    """The pairs of its clauses, their forms and their marks."""
    given = [clause.split("~") for clause in step.arguments[1:]]
    names = sorted({plain.partition("/")[0] for plain, *_ in given} - {"head"})
    forms: set[object] = {tuple(plain.split("/")[: 3 if plain.startswith("head") else 2]) for plain, *_ in given}
    return {*itertools.combinations(names, 2), *forms, *(f"~{mark}" for _, *marks in given for mark in marks)}


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("ending", ["drop_table", "recreate_table", "rename_table"])
def test_tables_end_while_no_daemon_runs(server: Server, ending: str) -> None:
    """A table that changed and then ended was once kept indefinitely, without its last changes."""

    unseen = re.compile(rf"(?:stop|kill) (?:insert|update|delete) {ending}\b")
    assert any(unseen.search(" ".join(s.name for s in drawn(server, seed).steps)) for seed in range(400))


@pytest.mark.parametrize("server", SERVERS)
def test_committed_cases_mean_what_they_describe(server: Server) -> None:
    """A step that means nothing in its place would make a case pass always."""
    for case in committed(server):
        model, used = Model(server), 0
        for step in case.steps:
            if step.name in (*DAEMON, COMPARE):
                continue
            found = acted(model, step)
            used += found is not None
            model = found[0] if found else model
        wanted = sum(s.name not in (*DAEMON, COMPARE) for s in case.steps)
        # One update may be left over: it is for a server that lets a table keep its name.
        assert used >= wanted - 1, f"{case.title}: {used} of {wanted} steps mean something"


def test_removed_step_leaves_the_others_meaningful() -> None:
    """That makes cases shrinkable: a step whose table is gone is skipped, not an error."""
    model = Model("postgres")
    assert acted(model, Step("update", ("public.t0", "c1", "1", "0", "5"))) is None
    made = acted(model, Step("create_table", ("public.t0",)))
    assert made is not None
    assert model.tables == {}
    assert acted(made[0], Step("update", ("public.t0", "c1", "1", "0", "5"))) is not None


def test_case_shrinks_to_the_steps_that_matter() -> None:
    case = drawn("mysql", 7)
    names = [s.name for s in case.steps]
    wanted = {names[0], names[len(names) // 2], names[-1]}

    def fails(tried: Case) -> bool:
        return wanted <= {s.name for s in tried.steps}

    small = shrunk(case, fails)
    assert {s.name for s in small.steps} == wanted
    assert len(small.steps) == len(wanted)


class Ended:
    """A process that is over."""

    exitcode = -9

    def is_alive(self) -> bool:
        return False


def test_job_that_ends_by_itself_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run would wait for its case without end."""
    monkeypatch.setattr(jobs, "_LOOK_S", 0.01)
    with pytest.raises(RuntimeError, match="a job ended by itself, with -9"):
        jobs._next(queue.Queue(), [Ended()])  # type: ignore[arg-type, list-item]  # what the test passes instead


# ── the oracle ──────────────────────────────────────────────────────────────────────────────────────────────────

INT, TEXT = ColumnType("integer", pa.int32()), ColumnType("text", pa.string())


def shape(*columns: Column, key: tuple[str, ...] = ("id",)) -> Table:
    return Table(TableId("public", "t"), 1, (Column("id", 1, INT), *columns), key)


BEFORE = shape(Column("a", 2, INT), Column("b", 3, TEXT))
ROW = LogChange(1, "c", {"id": 1, "a": 10, "b": "x"})


class Told:
    """A database with one table that takes every statement."""

    def __init__(self) -> None:
        self.statements: list[str] = []

    def columns(self) -> dict[TableId, list[str]]:
        return {TableId("shop", "t"): ["id"]}

    def execute(self, statement: str) -> None:
        self.statements.append(statement)


@pytest.mark.parametrize(
    ("reason", "mended"),
    [("it is odd\n  run ALTER TABLE `shop`.`t` FORCE", ["ALTER TABLE `shop`.`t` FORCE"]), ("it is odd", [])],
)
def test_failed_reading_is_repaired_once_by_its_remedy(reason: str, mended: list[str]) -> None:
    """An error that remains at the next read of the list, with a remedy or without one, fails the case."""
    run = object.__new__(Run)
    told = Told()
    run.beside, run.model = told, Model("mariadb")  # type: ignore[assignment]  # what the test passes instead
    run.mended, run.outcome, run.kept, run.list_reads_due = set(), Outcome(), None, 0
    status = Status(tables={"shop.t": {"state": "failed", "reason": reason}}, list_reads=3)
    assert run._mend_failed(status)
    assert not run._mend_failed(Status(tables={"shop.t": {"state": "done", "reason": None}}, list_reads=4))
    assert not run._mend_failed(replace(status, list_reads=4)), "a read that began before the remedy decides nothing"
    status = replace(status, list_reads=5)
    assert told.statements == mended
    with pytest.raises(Failure, match=r"the backfill of shop\.t failed: it is odd"):
        run._mend_failed(status)


def test_oracle_follows_columns_by_number() -> None:
    """A renamed column keeps its values; one that was dropped and added again does not."""
    after = shape(Column("z", 2, INT), Column("b", 4, TEXT))
    _, rows = oracle.current([(BEFORE, ROW), (after, LogChange(2, "c", {"id": 2, "z": 20, "b": "y"}))], None)
    assert rows == [{"id": 1, "z": 10, "b": None}, {"id": 2, "z": 20, "b": "y"}]


def test_oracle_gives_old_rows_the_default_in_the_log() -> None:
    after = shape(*BEFORE.columns[1:], Column("c", 4, INT, missing="7"))
    _, rows = oracle.current([(BEFORE, ROW), (after, LogChange(2, "u", {"id": 2, "a": 1, "b": "y", "c": None}))], None)
    assert [row["c"] for row in rows] == [7, None]


def test_oracle_sweeps_what_a_finished_backfill_has_not_seen() -> None:
    done = TableProgress("done", 2, since=Offset(5))
    _, rows = oracle.current([(BEFORE, ROW), (BEFORE, LogChange(5, "r", {"id": 2, "a": 1, "b": "y"}))], done)
    assert [row["id"] for row in rows] == [2]


def test_oracle_detects_when_the_merge_would_stop() -> None:
    other = shape(Column("a", 2, INT), Column("b", 3, TEXT), key=("a",))
    logged = [(BEFORE, ROW), (other, LogChange(5, "r", {"id": 1, "a": 10, "b": "x"}))]
    with pytest.raises(oracle.Unmergeable, match="its key was"):
        oracle.current(logged, None)
    _, rows = oracle.current(logged, TableProgress("done", 2, since=Offset(5)), since_backfill=True)
    assert rows == [{"id": 1, "a": 10, "b": "x"}]


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ([(1, 10)], None),
        ([(1, 11)], "id 1: a: 10 in the log, 11 in the source"),
        ([(1, None)], "a: 10 in the log, None in the source"),
        ([], "1 rows in the log only"),
        ([(1, 10), (1, 10)], "1 in the source only"),
    ],
)
def test_oracle_finds_each_difference(source: list[tuple[object, ...]], said: str | None) -> None:
    """The fuzzer can fail."""
    found = oracle.differences([{"id": 1, "a": 10}], source, ("id", "a"))
    assert found is None if said is None else said in str(found)


def test_table_that_is_gone_has_to_be_empty_in_the_log() -> None:
    """MySQL and MariaDB: rows of a dropped table once stayed permanently in log and tables, and no check noticed."""
    run = object.__new__(Run)
    run._compare_ended({BEFORE.id: [(BEFORE, ROW), (BEFORE, LogChange(2, "t", {}))]}, Progress())
    with pytest.raises(Failure, match=r"public\.t: 1 rows in the log"):
        run._compare_ended({BEFORE.id: [(BEFORE, ROW)]}, Progress())


class OneTable:
    """A database with a table `public.t`, which is renamed or dropped."""

    def __init__(self) -> None:
        self.name: str | None = "t"
        self.number, self.values = 7, [(1, 10)]

    def standing(self) -> list[Standing]:
        return [] if self.name is None else [Standing(self.number, TableId("public", self.name), ("id", "a"))]

    def name_of(self, number: int) -> TableId | None:
        return None if self.name is None or number != self.number else TableId("public", self.name)

    def rows_of(self, number: int, columns: Sequence[str]) -> list[tuple[object, ...]] | None:
        return None if self.name is None or number != self.number else list(self.values)


def kept_of(database: OneTable, *done: str) -> Kept:
    """What is kept, when a daemon has read the tables `done`."""
    kept = Kept(database)
    kept.after(Step("create_table", ("public.t",)))
    kept.seen(set(done))
    return kept


def ended(kept: Kept, database: OneTable, step: Step, name: str | None = None) -> None:
    kept.before(step)
    database.name = name
    kept.after(step)


def test_postgres_log_keeps_what_a_dropped_table_had_at_its_end() -> None:
    """Changes from just before a DROP once never reached the log, and no check covered tables that are gone."""
    database = OneTable()
    kept = kept_of(database, "public.t")
    database.values = [(1, 11)]
    ended(kept, database, Step("drop_table", ("public.t",)))
    assert "11 in the source" in str(kept.difference({BEFORE.id: [(BEFORE, ROW)]}, Progress()))
    assert "1 in the source only" in str(kept.difference({}, Progress()))
    changed = LogChange(2, "u", {"id": 1, "a": 11, "b": "x"})
    assert kept.difference({BEFORE.id: [(BEFORE, ROW), (BEFORE, changed)]}, Progress()) is None


def test_postgres_table_with_another_name_may_still_change_under_its_old_one() -> None:
    """Until the capture reads the catalog."""
    database = OneTable()
    kept = kept_of(database, "public.t")
    ended(kept, database, Step("rename_table", ("public.t", "u")), name="u")
    database.values = [(1, 11)]
    kept.follow()
    database.values = [(1, 12)]
    for value, allowed in ((10, True), (11, True), (12, False)):
        change = LogChange(2, "u", {"id": 1, "a": value, "b": "x"})
        assert (kept.difference({BEFORE.id: [(BEFORE, ROW), (BEFORE, change)]}, Progress()) is None) == allowed


@pytest.mark.parametrize(("step", "is_expected"), [("alter_using", False), ("set_default", True)])
def test_nothing_is_expected_of_a_renamed_table_that_was_altered(step: str, is_expected: bool) -> None:
    """Until the capture reads the catalog, the old name's log may follow the statement, too."""
    database = OneTable()
    kept = kept_of(database, "public.t")
    ended(kept, database, Step("rename_table", ("public.t", "u")), name="u")
    ended(kept, database, Step(step, ("public.u", "a")), name="u")
    assert (kept.difference({}, Progress()) is not None) == is_expected


def test_name_that_no_daemon_has_read_need_not_be_in_the_log() -> None:
    """The table was read, under the name that it had before."""
    database = OneTable()
    kept = kept_of(database, "public.t")
    ended(kept, database, Step("rename_table", ("public.t", "u")), name="u")
    ended(kept, database, Step("drop_table", ("public.u",)))
    assert kept.difference({BEFORE.id: [(BEFORE, ROW)]}, Progress()) is None


@pytest.mark.parametrize("why", ["not read", "altered", "stopped", "rolled back", "back again"])
def test_oracle_expects_nothing_of_a_table_whose_rows_are_uncertain(why: str) -> None:
    """One that is gone cannot be read again."""
    database = OneTable()
    kept = kept_of(database, *(["public.t"] if why != "not read" else []))
    if why == "altered":
        kept.after(Step("alter_using", ("public.t", "a")))
    if why == "rolled back":
        kept.after(Step("begin"))
    ended(kept, database, Step("drop_table", ("public.t",)))
    if why == "stopped":
        kept.lost()
    if why == "rolled back":
        database.name = "t"
        kept.after(Step("rollback"))
    if why == "back again":
        database.name, database.number = "t", 8
        kept.after(Step("create_table", ("public.t",)))
    assert kept.difference({}, Progress()) is None


@pytest.mark.parametrize(("server", "name"), [("mysql", "t4"), ("postgres", "public.t4")])
def test_remedy_that_adds_a_key_gets_the_columns_of_the_table_s_key(server: Server, name: str) -> None:
    """A key was lost in the middle of a refused step: an operator fills in the remedy's `(…)`."""
    run = object.__new__(Run)
    run.model = Model(server)
    other = model.Table({})
    run.model.tables = {name.replace("t4", "t"): other, name: model.Table({}, key=("alt", "id"))}
    assert run._with_key("ALTER TABLE `shop`.`t4` ADD PRIMARY KEY (…)") == (
        "ALTER TABLE `shop`.`t4` ADD PRIMARY KEY (alt, id)"
    )
    assert run._with_key("ALTER TABLE `shop`.`t5` ADD PRIMARY KEY (…)").endswith("(…)")
