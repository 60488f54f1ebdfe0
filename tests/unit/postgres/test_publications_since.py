"""A publication's previous state, as its fingerprint keeps it, and each way in which it may have differed since."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from cdcflow.errors import ConfigurationError, HistoryLost, SourceUnavailable
from cdcflow.model.table import TableId
from cdcflow.sources.postgres import publication
from cdcflow.sources.postgres.catalog_entries import CatalogTable, Relid
from cdcflow.sources.postgres.publication import (
    Publication,
    PublishedTable,
    blocker,
    check_unbroken,
    ensure,
    has_newcomers,
    read,
)


def table(oid: int, name: str, schema: str = "shop") -> CatalogTable:
    return CatalogTable(Relid(oid, TableId(schema, name)), (), (), ())


A, B, C, FAR = table(1, "a"), table(2, "b"), table(3, "c"), table(4, "d", "far")
ALL = (A, B, C, FAR)


def entry(of: CatalogTable, number: int = 0, written: int = 500) -> PublishedTable:
    return PublishedTable(number or 100 + of.rel.oid, written, of.rel.oid, of.rel.id, False)


def found(*tables: CatalogTable, **more: Any) -> Publication:
    given = {"number": 70, "written": 500, "all_tables": False, "wrong": (), "schemas": {}, **more}
    return Publication(name="p", entries={t.rel.oid: entry(t) for t in tables}, **given)


def state(of: Publication, *tables: CatalogTable) -> Any:
    return json.loads(of.fingerprint(tables))


# ── the fingerprint ─────────────────────────────────────────────────────────────────────────────────────────


def test_a_fingerprint_has_the_numbers_of_what_carries_the_captured_tables() -> None:
    """It is stored with the log, and compared for years."""
    one = found(A, C, schemas={"far": (9, 90, 501), "other": (8, 80, 502)}, members={4: 503, 77: 504})
    assert state(one, A, B, FAR) == {
        "publication": 70,
        "written": 500,
        "tables": {'["shop", "a"]': [1, 101, 500]},
        "schemas": {"far": [9, 90, 501]},
        "members": {'["far", "d"]': [4, 503]},
    }
    assert "members" not in state(one, A), "an older cdcflow's has none"
    both = found(FAR, schemas={"far": (9, 90, 501)}, members={4: 503})
    assert "members" not in state(both, FAR), "by its own entry it stays whatever its schema"
    assert '":' in one.fingerprint([A])
    assert ": " not in one.fingerprint([A])


# ── what was lost since ─────────────────────────────────────────────────────────────────────────────────────


def unbroken(now: Publication, before: Any, gone: Sequence[tuple[str, int]] = ()) -> None:
    """`gone`: what the catalog no longer has."""
    check_unbroken(now, "p", json.dumps(before), lambda kind, oid: (kind, oid) not in gone)


SCHEMAS = {"shop": (5, 50, 500), "far": (9, 90, 501)}
MEMBERS = {1: 510, 2: 520, 4: 540}
WHOLE = found(schemas=SCHEMAS, members=MEMBERS)
LISTED = found(A, B, C)


def test_altered_and_restored_publication_is_a_loss() -> None:
    """Only the transaction that wrote its row shows it."""
    before = state(LISTED, A, B)
    with pytest.raises(HistoryLost, match="publication p was altered"):
        unbroken(replace(LISTED, written=501), before)
    del before["written"]
    unbroken(replace(LISTED, written=501), before)


@pytest.mark.parametrize(
    ("now", "name"),
    [
        ({"schemas": {"shop": (5, 50, 500)}}, "far"),
        ({"schemas": {"far": (9, 90, 501)}}, "shop"),
        ({"schemas": {**SCHEMAS, "far": (9, 91, 501)}}, "far"),
        ({"schemas": {**SCHEMAS, "far": (9, 90, 502)}}, "far"),
        ({"schemas": {"shop": (5, 50, 502), "far": (9, 90, 501)}}, "shop"),
    ],
)
def test_a_schema_that_was_out_of_it_has_lost_changes(now: dict[str, Any], name: str) -> None:
    """Whichever schema it was; a new entry means a recreated one."""
    before = state(WHOLE, A, B, FAR)
    unbroken(WHOLE, before)
    with pytest.raises(HistoryLost, match=f"schema {name} was taken out of publication p"):
        unbroken(replace(WHOLE, **now), before)


def test_a_schema_that_is_gone_or_has_another_name_has_lost_nothing() -> None:
    """It is known by its number."""
    before = state(WHOLE, A, B, FAR)
    unbroken(replace(WHOLE, schemas={"renamed": (5, 50, 500), "far": (9, 90, 501)}), before)
    left = replace(WHOLE, schemas={"far": (9, 90, 501)})
    unbroken(left, before, gone=[("pg_namespace", 5)])
    with pytest.raises(HistoryLost, match="schema shop"):
        unbroken(left, before, gone=[("pg_class", 5)])
    with pytest.raises(HistoryLost, match="schema far"):
        unbroken(replace(WHOLE, schemas={}), before, gone=[("pg_namespace", 5)])


@pytest.mark.parametrize(("oid", "name"), [(1, "shop.a"), (2, "shop.b"), (4, "far.d")])
def test_a_table_that_was_moved_out_of_its_schema_has_lost_changes(oid: int, name: str) -> None:
    """Even if it was moved back: another transaction wrote its entry. Unless the table was dropped."""
    before = state(WHOLE, A, B, FAR)
    for members in ({**MEMBERS, oid: 999}, {o: w for o, w in MEMBERS.items() if o != oid}):
        now = replace(WHOLE, members=members)
        with pytest.raises(HistoryLost, match=rf"table {name} was moved out of its schema"):
            unbroken(now, before)
        unbroken(now, before, gone=[("pg_class", oid)])


@pytest.mark.parametrize(("of", "name"), [(A, "shop.a"), (B, "shop.b"), (C, "shop.c")])
def test_a_table_that_was_out_of_it_has_lost_changes(of: CatalogTable, name: str) -> None:
    """Whichever of them it was, and whatever is right with the others."""
    before = state(LISTED, A, B, C)
    unbroken(LISTED, before)
    others = {oid: e for oid, e in LISTED.entries.items() if oid != of.rel.oid}
    for now in (
        replace(LISTED, entries=others),
        replace(LISTED, entries={**others, of.rel.oid: entry(of, 999)}),
        replace(LISTED, entries={**others, of.rel.oid: entry(of, 0, 501)}),
    ):
        with pytest.raises(HistoryLost, match=rf"table {name} was taken out of publication p"):
            unbroken(now, before)
    unbroken(replace(LISTED, entries=others), before, gone=[("pg_class", of.rel.oid)])


def test_what_an_older_fingerprint_does_not_hold_is_not_compared() -> None:
    """It had no transactions in it, and no schemas."""
    before = {"publication": 70, "tables": {'["shop", "a"]': [1, 101]}}
    unbroken(replace(LISTED, written=9), before)
    unbroken(replace(LISTED, entries={1: entry(A, 0, 9)}), before)
    with pytest.raises(HistoryLost, match=r"table shop\.a was taken out"):
        unbroken(replace(LISTED, entries={1: entry(A, 9)}), before)


def test_a_table_that_is_carried_as_part_of_a_whole_needs_no_entry() -> None:
    """All tables, or all of its previous schema; another schema does not count."""
    before = state(LISTED, A)
    nothing = replace(LISTED, entries={})
    unbroken(replace(nothing, all_tables=True), before)
    with_schema = {**before, "schemas": {"shop": [5, 50, 500]}}
    unbroken(replace(nothing, schemas=SCHEMAS), with_schema)
    with pytest.raises(HistoryLost):
        unbroken(replace(nothing, schemas=SCHEMAS), before)
    with pytest.raises(HistoryLost):
        unbroken(replace(nothing, schemas=SCHEMAS), {**before, "schemas": {"far": [9, 90, 501]}})


def test_new_tables_are_reported_with_their_numbers() -> None:
    """Their older rows may belong to running transactions: a backfill has to wait for those. A rename adds no
    newcomer."""

    def newcomers(before: Any, now: Any) -> bool:
        return has_newcomers(json.dumps(before), json.dumps(now))

    before = state(found(A, B, schemas={"far": (9, 90, 501)}), A, B, FAR)
    assert not newcomers(before, before)
    assert not newcomers(before, state(found(A, schemas={"far": (9, 90, 501)}), A, FAR))
    assert newcomers(before, state(LISTED, A, B, C))
    assert newcomers(before, state(replace(LISTED, entries={1: entry(A, 999)}), A))
    assert not newcomers(before, state(replace(LISTED, entries={1: entry(A, 0, 999)}), A)), "the entry is the same one"
    assert newcomers(before, state(found(A, schemas={"far": (9, 91, 501)}), A, FAR))
    assert newcomers(before, state(found(A, schemas=SCHEMAS), A, FAR))
    assert not newcomers({"tables": before["tables"]}, before), "an older cdcflow's has no schemas"
    renamed = {**before, "tables": {'["shop", "other"]': [1, 101, 500]}}
    assert not newcomers(before, renamed)


# ── the questions to the server ─────────────────────────────────────────────────────────────────────────────


ROW = (70, 500, False, True, True, True, True, True, "s", False)


class Server:
    """Answers by a word of the query, and records the queries."""

    def __init__(self, version: int = 180000, row: Any = ROW, **answers: Any) -> None:
        self.info = SimpleNamespace(server_version=version, dbname='sh"op', user="cap")
        self.asked: list[tuple[str, tuple[Any, ...]]] = []
        self.told: list[str] = []
        self.refuses: Callable[[], psycopg.Error] | None = None
        self._answers: dict[str, Any] = {
            "pg_publication p": [row] if row else [],
            "pg_publication_rel": [
                (101, 500, 1, "shop", "a", False, False, False),
                (104, 501, 4, "far", "d", False, True, False),
            ],
            "pg_publication_namespace": [("far", 9, 90, 501)],
            "pg_depend": [(4, 540)],
            "pg_locks": [],
            **answers,
        }

    def execute(self, sql: str | bytes, parameters: Sequence[Any] = ()) -> Any:
        if isinstance(sql, bytes):
            self.told.append(sql.decode())
            if self.refuses is not None:
                raise self.refuses()
            return None
        word = min((w for w in self._answers if w in sql), key=sql.index)  # what the statement reads first
        self.asked.append((word, tuple(parameters)))
        return Answer(self._answers[word])


class Answer(list[Any]):
    """Rows, as a cursor gives them."""

    def fetchone(self) -> Any:
        return self[0] if self else None

    def fetchall(self) -> list[Any]:
        return self


def publication_of(server: Server) -> Publication | None:
    given: Any = server
    return read(given, "p")


def test_a_publication_is_read_with_its_tables_and_schemas() -> None:
    """What it excludes of a table is recorded: rows or columns."""
    server = Server()
    assert publication_of(server) == Publication(
        "p",
        70,
        500,
        False,
        (),
        {
            1: PublishedTable(101, 500, 1, TableId("shop", "a"), False),
            4: PublishedTable(104, 501, 4, TableId("far", "d"), True),
        },
        {"far": (9, 90, 501)},
        {4: 540},
    )
    assert server.asked == [
        ("pg_publication p", ("p",)),
        ("pg_publication_rel", (70,)),
        ("pg_publication_namespace", (70,)),
        ("pg_depend", ([9],)),
    ]
    assert publication_of(Server(row=None)) is None


def test_publications_of_schemas_are_queried_only_where_they_exist() -> None:
    """PostgreSQL 14 has no schemas in publications; one of all tables has no members to lose."""
    old = Server(149999)
    seen = publication_of(old)
    assert seen is not None
    assert (seen.schemas, seen.members, seen.broad) == ({}, {}, False)
    assert [word for word, _ in old.asked] == ["pg_publication p", "pg_publication_rel"]
    seen = publication_of(Server(150000))
    assert seen is not None
    assert seen.broad
    every = Server(row=(70, 500, True, *ROW[3:]))
    seen = publication_of(every)
    assert seen is not None
    assert (seen.members, seen.broad) == ({}, True)
    none = Server(pg_publication_namespace=[])
    seen = publication_of(none)
    assert seen is not None
    assert not seen.broad
    assert "pg_depend" not in [word for word, _ in none.asked]


def test_blocking_session_is_reported_as_far_as_it_is_visible() -> None:
    """The operator who is woken has to know whom to contact."""
    given: Any = Server(pg_stat_activity=[("pid 7 of bob, for 90 s",)])
    assert blocker(given) == "the oldest is pid 7 of bob, for 90 s"
    given = Server(pg_stat_activity=[], pg_prepared_xacts=[("prepared transaction in database shop, since noon",)])
    assert blocker(given) == "the oldest is a prepared transaction in database shop, since noon"
    given = Server(pg_stat_activity=[], pg_prepared_xacts=[])
    assert "GRANT pg_read_all_stats" in blocker(given)


def test_wait_for_older_transactions_checks_until_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """It checks at least once, also with a timeout of zero; the error names what it waited for and which session holds
    it up."""
    now = [100.0]
    naps: list[float] = []

    def sleep(seconds: float) -> None:
        naps.append(seconds)
        now[0] += 1.0

    monkeypatch.setattr(publication, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    bounds = iter([50])

    class Running(Server):
        def execute(self, sql: str | bytes, parameters: Sequence[Any] = ()) -> Any:
            if "pg_snapshot_xmax" in str(sql):
                return SimpleNamespace(fetchone=lambda: (str(next(bounds)),))
            if "pg_snapshot_xmin" in str(sql):
                return SimpleNamespace(fetchone=lambda: ("49",))
            return super().execute(sql, parameters)

    given: Any = Running(pg_stat_activity=[("pid 7",)])
    with pytest.raises(SourceUnavailable, match="adding: waiting for older transactions to end; the oldest is pid 7"):
        publication.wait_for_older(given, 2.0, "adding")
    assert len(naps) == 3, "up to and including the deadline"
    assert all(0 < nap < 1 for nap in naps)


# ── refusals ────────────────────────────────────────────────────────────────────────────────────────────────


class NoDatabase(psycopg.errors.InsufficientPrivilege):
    diag = SimpleNamespace(message_primary="permission denied for database shop")  # type: ignore[assignment]


def refused(error: Callable[[], psycopg.Error]) -> Exception:
    server = Server(pg_publication_rel=[], pg_publication_namespace=[])
    server.refuses = error
    given: Any = server
    with pytest.raises(Exception, match=r".") as caught:
        ensure(given, "p", [A], ours=True)
    return caught.value


def test_missing_right_on_the_database_is_reported_with_its_grant() -> None:
    """Only where that is what is missing."""
    error = refused(lambda: NoDatabase("no"))
    assert isinstance(error, ConfigurationError)
    statement = 'ALTER PUBLICATION "p" ADD TABLE ONLY "shop"."a"'
    assert error.remedy == (
        'run GRANT CREATE ON DATABASE "sh""op" TO "cap", if that role owns the tables; or run as an owner: ' + statement
    )
    other = refused(lambda: psycopg.errors.InsufficientPrivilege("no"))
    assert isinstance(other, ConfigurationError)
    assert other.remedy == f"run as an owner: {statement}"


def test_other_refusals_of_the_server_keep_their_kind() -> None:
    """A missing table is queried again; an unknown refusal stops."""
    assert "changing publication p" in str(refused(lambda: psycopg.errors.UndefinedObject("gone")))
    assert "changing publication p" in str(refused(lambda: psycopg.errors.SyntaxError("no")))
    assert isinstance(refused(lambda: psycopg.errors.AdminShutdown("bye")), SourceUnavailable)


def test_publication_of_cdcflow_keeps_its_tables_and_loses_the_rest_in_one_statement_each() -> None:
    """Each ALTER rewrites only the entries that it names."""
    rel = [(100 + n, 500, n, "shop", name, False, False, False) for n, name in ((1, "a"), (8, "x"), (9, "y"))]
    server = Server(pg_publication_rel=rel, pg_publication_namespace=[])
    given: Any = server
    ensure(given, "p", [A, B, C], ours=True)
    assert server.told == [
        'ALTER PUBLICATION "p" ADD TABLE ONLY "shop"."b", ONLY "shop"."c"',
        'ALTER PUBLICATION "p" DROP TABLE "shop"."x", "shop"."y"',
    ]
