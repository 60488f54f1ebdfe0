"""The publication: what cdcflow executes on the server so that it carries the captured tables, and whether it always
has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from cdcflow.errors import ConfigurationError, HistoryLost, SourceUnavailable
from cdcflow.model.table import TableId
from cdcflow.sources.postgres import publication
from cdcflow.sources.postgres.catalog_entries import CatalogTable, Relid
from cdcflow.sources.postgres.publication import Publication, PublishedTable, check_unbroken, creation, ensure, read


def table(oid: int, name: str, kind: str = "r") -> CatalogTable:
    return CatalogTable(Relid(oid, TableId("shop", name), kind), (), (), ())


ORDERS, ITEMS, PARTED = table(1, "orders"), table(2, 'it"ems'), table(3, "parted", "p")


WRITTEN = 500
"""The transaction that wrote the publication's rows in the catalog."""


def entry(number: int, of: CatalogTable, *, written: int = WRITTEN, filtered: bool = False) -> PublishedTable:
    return PublishedTable(number, written, of.rel.oid, of.rel.id, filtered)


def found(
    *entries: PublishedTable, number: int = 70, written: int = WRITTEN, broad: bool = False, wrong: tuple[str, ...] = ()
) -> Publication:
    return Publication("p", number, written, broad, wrong, {e.table_oid: e for e in entries}, {})


@dataclass
class Server:
    """Answers the module's own queries about one publication, and records the statements that it got."""

    version: int = 180000
    row: tuple[Any, ...] | None = (70, WRITTEN, False, True, True, True, True, True, "s")
    entries: list[tuple[Any, ...]] = field(default_factory=list)
    schemas: list[tuple[str, int, int, int]] = field(default_factory=list)
    members: list[tuple[int, int]] = field(default_factory=list)
    covered: list[tuple[str, str]] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    refuses: type[psycopg.Error] | None = None
    after: Callable[[Server], None] = lambda server: None
    snapshots: list[int] = field(default_factory=list)
    locks: list[tuple[int, str, int | None, str | None, int | None]] = field(default_factory=list)

    @property
    def info(self) -> SimpleNamespace:
        return SimpleNamespace(server_version=self.version)

    def execute(self, sql: str | bytes, parameters: Sequence[Any] = ()) -> Any:
        if "pg_depend" in str(sql):
            return SimpleNamespace(fetchall=lambda: self.members)
        if "pg_snapshot" in str(sql):
            return SimpleNamespace(fetchone=lambda: (str(self.snapshots.pop(0)),))
        if isinstance(sql, bytes):
            self.told.append(sql.decode())
            if self.refuses:
                raise self.refuses("no")
            self.after(self)
            return None
        if "pg_publication_rel" in sql:
            assert parameters == (70,)
            return iter((*entry, False) if len(entry) == 7 else entry for entry in self.entries)
        if "pg_locks" in sql:
            return iter([row for row in self.locks if row[0] in parameters[0]])
        if "pg_publication_namespace" in sql:
            return iter(self.schemas)
        if "pg_publication_tables" in sql:
            return iter(self.covered)
        if "pg_stat_activity" in sql or "pg_prepared_xacts" in sql:
            return SimpleNamespace(fetchone=lambda: None)
        assert "pg_publication p WHERE" in sql
        row = self.row
        return SimpleNamespace(fetchone=lambda: (*row, False) if row is not None and len(row) == 9 else row)


def listed(*tables: CatalogTable, filters: bool = False, columns: bool = False) -> list[tuple[Any, ...]]:
    return [(100 + t.rel.oid, WRITTEN, t.rel.oid, t.rel.id.schema, t.rel.id.name, filters, columns) for t in tables]


def ensured(server: Server, *tables: CatalogTable, ours: bool = True) -> Publication:
    given: Any = server
    return ensure(given, "p", tables, ours=ours)


# ── whether it was always there ─────────────────────────────────────────────────────────────────────────────

BOTH = found(entry(101, ORDERS), entry(102, ITEMS))


def unbroken(now: Publication | None, before: Publication = BOTH, *, there: bool = True) -> None:
    check_unbroken(now, "p", before.fingerprint([ORDERS, ITEMS]), lambda kind, oid: there)


def test_an_untouched_publication_has_carried_everything() -> None:
    """And one that carries more than it did has too."""
    unbroken(BOTH)
    unbroken(found(entry(101, ORDERS), entry(102, ITEMS), entry(103, PARTED)))


@pytest.mark.parametrize(
    ("now", "said"),
    [
        (None, "publication p is gone"),
        (found(entry(101, ORDERS), entry(102, ITEMS), number=71), "dropped and recreated"),
        (found(entry(101, ORDERS), entry(102, ITEMS), wrong=("publish = 'insert'",)), r"it needs publish = 'insert'"),
        (found(entry(101, ORDERS)), r'table shop\.it"ems was taken out'),
        (found(entry(101, ORDERS), entry(202, ITEMS)), r'table shop\.it"ems was taken out'),
        (found(number=71, broad=True), "dropped and recreated"),
    ],
)
def test_publication_that_differed_in_between_lost_changes(now: Publication | None, said: str) -> None:
    """What the stream did not carry is lost silently: only these numbers show it."""
    with pytest.raises(HistoryLost, match=said):
        unbroken(now)


def test_a_table_that_was_dropped_has_lost_nothing() -> None:
    """It has no entry because it was dropped, not because it was removed from the publication."""
    unbroken(found(entry(101, ORDERS)), there=False)


def test_table_that_was_removed_and_added_again_lost_changes_even_if_it_is_looked_up_by_number() -> None:
    """A new entry means a time without one, whether the table still exists or not."""
    with pytest.raises(HistoryLost, match="taken out"):
        unbroken(found(entry(101, ORDERS), entry(202, ITEMS)), there=False)


def test_a_publication_of_whole_schemas_has_no_entries_to_miss() -> None:
    """It carries every table of theirs by itself."""
    unbroken(found(broad=True))


def test_the_fingerprint_speaks_of_the_captured_tables_only() -> None:
    """Another application's table may come and go in cdcflow's publication."""
    before = found(entry(101, ORDERS), entry(102, ITEMS))
    assert before.fingerprint([ORDERS]) == found(entry(101, ORDERS)).fingerprint([ORDERS, ITEMS])
    check_unbroken(found(entry(101, ORDERS)), "p", before.fingerprint([ORDERS]), lambda kind, oid: True)


# ── what it is ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("off", [3, 4, 5, 6])
def test_publication_that_excludes_an_operation_is_wrong(off: int) -> None:
    """Each of the four: inserts, updates, deletes and truncates."""
    row: list[Any] = [70, WRITTEN, False, True, True, True, True, True, "s"]
    row[off] = False
    given: Any = Server(row=tuple(row))
    seen = read(given, "p")
    assert seen is not None
    assert seen.wrong == ("publish = 'insert, update, delete, truncate'",)


@pytest.mark.parametrize(
    ("version", "root", "generated", "wrong"),
    [
        (180000, True, "s", ()),
        (180000, False, "n", ("publish_via_partition_root = true", "publish_generated_columns = stored")),
        (170000, False, "n", ("publish_via_partition_root = true",)),
        (180000, True, "n", ("publish_generated_columns = stored",)),
    ],
)
def test_catalog_columns_that_a_version_lacks_are_not_queried(
    version: int, root: bool, generated: str, wrong: tuple[str, ...]
) -> None:
    """Generated columns are published since PostgreSQL 18."""
    given: Any = Server(version, (70, WRITTEN, False, True, True, True, True, root, generated))
    seen = read(given, "p")
    assert seen is not None
    assert seen.wrong == wrong
    made = creation(version, "p", [ORDERS])
    assert ("publish_generated_columns = stored" in made) is (version >= 180000)
    assert "publish = 'insert, update, delete, truncate', publish_via_partition_root = true" in made


@pytest.mark.parametrize(("all_tables", "schemas"), [(True, False), (False, True)])
def test_all_tables_and_whole_schemas_are_broad(all_tables: bool, schemas: bool) -> None:
    """Neither lists its tables."""
    has = [("shop", 9, 90, WRITTEN)] if schemas else []
    given: Any = Server(row=(70, WRITTEN, all_tables, True, True, True, True, True, "s"), schemas=has)
    seen = read(given, "p")
    assert seen is not None
    assert seen.broad


# ── what is done about it ───────────────────────────────────────────────────────────────────────────────────


def test_missing_publication_is_created_for_exactly_these_tables() -> None:
    """A parent of a partitioned table with its partitions, any other without its children."""
    server = Server(
        row=None, after=lambda s: setattr(s, "row", (70, WRITTEN, False, True, True, True, True, True, "s"))
    )
    assert ensured(server, ORDERS, ITEMS, PARTED).number == 70
    assert server.told == [creation(180000, "p", [ORDERS, ITEMS, PARTED])]
    assert 'FOR TABLE ONLY "shop"."orders", ONLY "shop"."it""ems", "shop"."parted" WITH' in server.told[0]


def test_correct_publication_is_not_changed() -> None:
    """Each ALTER locks tables and gives entries new numbers."""
    server = Server(entries=listed(ORDERS, ITEMS))
    assert sorted(ensured(server, ORDERS, ITEMS).entries) == [1, 2]
    assert server.told == []


def test_tables_are_added_and_dropped_until_it_has_exactly_the_captured_ones() -> None:
    """They are added first: then no captured table is ever missing from it."""
    server = Server(entries=listed(ORDERS, PARTED))
    ensured(server, ORDERS, ITEMS)
    assert server.told == [
        'ALTER PUBLICATION "p" ADD TABLE ONLY "shop"."it""ems"',
        'ALTER PUBLICATION "p" DROP TABLE "shop"."parted"',
    ]


def test_table_that_another_process_dropped_need_not_be_dropped_again() -> None:
    """Two processes check at the same time; the result is what both need."""
    ensured(Server(entries=listed(ORDERS, PARTED), refuses=psycopg.errors.UndefinedObject), ORDERS)
    with pytest.raises(Exception, match="changing publication p"):
        ensured(Server(entries=listed(ORDERS), refuses=psycopg.errors.UndefinedObject), ORDERS, ITEMS)


@pytest.mark.parametrize(("filters", "columns"), [(True, False), (False, True)])
def test_a_captured_table_with_a_filter_or_a_column_list_is_refused(filters: bool, columns: bool) -> None:
    """A backfill would read the rows that the stream excludes."""
    with pytest.raises(ConfigurationError, match="excludes rows or columns") as refused:
        ensured(Server(entries=listed(ORDERS, filters=filters, columns=columns)), ORDERS)
    assert 'ALTER PUBLICATION "p" DROP TABLE "shop"."orders"' in str(refused.value)


def test_another_owner_s_filtered_table_is_dropped_not_refused() -> None:
    """It is dropped from cdcflow's publication, and not refused."""
    server = Server(entries=[*listed(ORDERS), *listed(ITEMS, filters=True)])
    ensured(server, ORDERS)
    assert server.told == ['ALTER PUBLICATION "p" DROP TABLE "shop"."it""ems"']


def test_cdcflow_s_publication_is_repaired_and_another_owner_s_is_only_checked() -> None:
    """cdcflow does not change another owner's publication; the message contains the statement that corrects it."""
    wrong = (70, WRITTEN, False, True, False, True, True, True, "s")
    server = Server(row=wrong, entries=listed(ORDERS))
    ensured(server, ORDERS)
    assert server.told == ["ALTER PUBLICATION \"p\" SET (publish = 'insert, update, delete, truncate')"]
    server = Server(row=wrong, entries=listed(ORDERS))
    with pytest.raises(ConfigurationError, match="does not publish everything") as refused:
        ensured(server, ORDERS, ours=False)
    assert "run ALTER PUBLICATION \"p\" SET (publish = 'insert, update, delete, truncate')" in str(refused.value)
    assert server.told == []


def test_a_broad_publication_must_have_every_table_and_is_not_changed() -> None:
    """FOR TABLES IN SCHEMA may miss a table of another schema."""
    server = Server(schemas=[("shop", 9, 90, WRITTEN)])
    assert ensured(server, ORDERS, ITEMS).broad
    far = CatalogTable(Relid(9, TableId("far", 'it"ems')), (), (), ())
    with pytest.raises(ConfigurationError, match="for all tables of some schemas") as refused:
        ensured(server, ORDERS, far)
    assert 'run ALTER PUBLICATION "p" ADD TABLE "far"."it""ems"' in str(refused.value)
    assert server.told == []


def test_locked_tables_are_reported_with_the_sessions_that_hold_them() -> None:
    """Those that the publication has already need no lock, and one of all tables of a schema needs none at all."""
    locks: list[tuple[int, str, int | None, str | None, int | None]] = [
        (1, "ShareLock", 7, "bob", 90),
        (2, "ShareLock", 7, "bob", 90),
        (2, "AccessExclusiveLock", 8, None, None),
        (3, "AccessExclusiveLock", None, None, None),
    ]
    given: Any = Server(entries=[(100, WRITTEN, 1, "shop", "orders", False, False)], locks=locks)
    assert publication.locked_tables(given, "p", [ORDERS, ITEMS, PARTED]) == {
        ITEMS.id: "its lock (ShareLock) is held by pid 7 of bob for 90 s",
        PARTED.id: "its lock (AccessExclusiveLock) is held by a prepared transaction",
    }
    assert publication.locked_tables(Server(row=None, locks=locks), "p", [ORDERS]).keys() == {ORDERS.id}  # type: ignore[arg-type]
    assert publication.locked_tables(Server(schemas=[("shop", 9, 90, WRITTEN)], locks=locks), "p", [ORDERS]) == {}  # type: ignore[arg-type]


ALL_BUT_SOME = (70, WRITTEN, True, True, True, True, True, True, "s", True)


def excepting(*tables: CatalogTable) -> Server:
    """PostgreSQL 19: FOR ALL TABLES EXCEPT (…), ALL SEQUENCES."""
    entries = [(*entry, True) for entry in listed(*tables)]
    covered = [(t.rel.id.schema, t.rel.id.name) for t in (ORDERS, ITEMS) if t not in tables]
    return Server(version=190000, row=ALL_BUT_SOME, entries=entries, covered=covered)


def test_excepted_table_is_not_an_entry_of_the_publication() -> None:
    """The catalog keeps both in one place: taken as published, its changes would be waited for in vain."""
    server = excepting(ITEMS)
    have = read(server, "p")  # type: ignore[arg-type]
    assert have is not None
    assert (dict(have.entries), have.excepted) == ({}, {ITEMS.rel.oid: ITEMS.rel.id})
    assert ensured(server, ORDERS).excepted == {ITEMS.rel.oid: ITEMS.rel.id}
    with pytest.raises(ConfigurationError, match="all tables except") as refused:
        ensured(server, ORDERS, ITEMS)
    assert 'run ALTER PUBLICATION "p" SET ALL TABLES, ALL SEQUENCES' in str(refused.value)
    with pytest.raises(ConfigurationError) as refused:
        ensured(excepting(ORDERS, ITEMS), ORDERS)
    assert 'SET ALL TABLES EXCEPT (TABLE "shop"."it""ems"), ALL SEQUENCES' in str(refused.value)


def test_a_table_that_was_excepted_since_is_a_loss() -> None:
    """Its later changes are in no stream, though the publication's own row stays unchanged."""
    whole, less = read(excepting(), "p"), read(excepting(ITEMS), "p")  # type: ignore[arg-type]
    assert whole is not None
    assert less is not None
    state = whole.fingerprint([ORDERS, ITEMS])
    check_unbroken(whole, "p", state, lambda kind, oid: True)
    with pytest.raises(HistoryLost, match=r"table shop.it\"ems was excepted from publication p"):
        check_unbroken(less, "p", state, lambda kind, oid: True)
    check_unbroken(less, "p", less.fingerprint([ORDERS]), lambda kind, oid: True)
    older = read(Server(row=ALL_BUT_SOME), "p")  # type: ignore[arg-type]
    assert older is not None
    assert "all" not in older.fingerprint([ORDERS]), "a server without the list has a fingerprint as before"


def test_role_that_may_not_change_it_gets_the_statement() -> None:
    """A capture's role need not own the tables: then an owner runs it."""
    server = Server(entries=[], refuses=psycopg.errors.InsufficientPrivilege)
    with pytest.raises(ConfigurationError, match="may not make or change publication p") as refused:
        ensured(server, ORDERS)
    assert 'run as an owner: ALTER PUBLICATION "p" ADD TABLE ONLY "shop"."orders"' in str(refused.value)


def test_creation_of_a_publication_that_vanishes_at_once_is_retried() -> None:
    """Another client drops it as soon as it is created: nothing is wrong with the settings."""
    with pytest.raises(SourceUnavailable, match="dropped just after"):
        ensured(Server(row=None), ORDERS)


@pytest.mark.parametrize("gone", [psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName])
def test_a_table_that_is_renamed_or_dropped_after_it_was_listed_is_tried_again(gone: type[psycopg.Error]) -> None:
    """The next attempt lists the tables again; a stop would leave an operator nothing to correct."""
    with pytest.raises(SourceUnavailable, match="renamed or dropped at the same time"):
        ensured(Server(entries=listed(ORDERS), refuses=gone), ORDERS, ITEMS)


def test_older_transactions_are_waited_for_up_to_the_first_that_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that ran when the table was added may have rows that are not decoded; one that began later has none."""
    naps: list[float] = []
    clock = SimpleNamespace(monotonic=lambda: float(len(naps)), sleep=naps.append)
    monkeypatch.setattr(publication, "time", clock)
    given: Any = Server(snapshots=[50, 48, 49, 50])
    publication.wait_for_older(given, 10, "adding a table")
    assert len(naps) == 2
    given = Server(snapshots=[50, *[49] * 20])
    with pytest.raises(SourceUnavailable, match="adding a table: waiting for older transactions"):
        publication.wait_for_older(given, 10, "adding a table")
