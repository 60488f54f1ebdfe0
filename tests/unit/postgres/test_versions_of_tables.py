"""Versions of tables' rows from the catalog's answers, and when a table is reported as to be read again."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from cdcflow.capture.interleave.messages import KnownRows, RowVersion
from cdcflow.model.table import TableId
from cdcflow.sources.postgres.catalog_entries import Relid
from cdcflow.sources.postgres.rewrites import NO_KEY, CatalogVersion, PrimaryKey, RowVersions, versions

T, U = TableId("public", "t"), TableId("public", "u")


@dataclass
class Server:
    """Answers the questions of `versions` about tables 10 (t) and 20 (u, with partitions 21 and 22)."""

    files: list[tuple[int, int, int, int | None, bool]] = field(
        default_factory=lambda: [(10, 10, 100, -1, False), (20, 21, 210, 5, True), (20, 22, 220, None, False)]
    )
    columns: list[tuple[int, int, bool]] = field(
        default_factory=lambda: [(10, 23, True), (10, 0, True), (10, 1043, False), (20, 900, True)]
    )
    types: list[tuple[int, int, int, bool | None, list[int | None] | None]] = field(
        default_factory=lambda: [
            (20, 900, 901, None, None),
            (20, 901, 1042, None, None),
            (10, 800, 0, True, [17, None]),
            (20, 801, 0, False, [-1]),
        ]
    )
    keys: list[tuple[int, bool, int | None, int | None, list[int] | None]] = field(
        default_factory=lambda: [(10, False, 900, 901, [1, 3]), (20, False, None, None, None)]
    )
    attached_by: dict[int, str] = field(default_factory=lambda: {21: "701", 22: "702"})
    oids: list[tuple[int, str, str]] = field(default_factory=lambda: [(10, "public", "t"), (20, "public", "u")])
    asked: list[object] = field(default_factory=list)

    def execute(self, sql: str, parameters: Sequence[Any]) -> Any:
        if "unnest" in sql:
            self.asked.append(parameters)
            return [row for row in self.oids if row[2] in parameters[1]]
        (wanted,) = parameters
        assert wanted == sorted(wanted)
        if "conkey" in sql:
            return [(*row, False) for row in self.keys if row[0] in wanted]
        if "tree" in sql:
            return [(*row, self.attached_by.get(row[1]), "700") for row in self.files if row[0] in wanted]
        rows: Any = self.types if "used" in sql else self.columns
        return [row for row in rows if row[0] in wanted]


def rows(version: str | None, generation: int = 1) -> KnownRows:
    return KnownRows(generation, version)


def found(server: Server, *oids: int) -> dict[int, CatalogVersion]:
    given: Any = server
    return versions(given, oids)


def test_a_version_holds_what_the_values_of_rows_depend_on() -> None:
    """Files with the digests of their columns, each column's type under its domains, labels; hashes as words."""
    t, u = found(Server(), 20, 10).values()
    if t.oid != 10:
        t, u = u, t
    key = PrimaryKey(900, 901, (1, 3))
    assert t == CatalogVersion(10, {10: (100, "f" * 16)}, ("17", "", "-19"), {800: frozenset({"11", "0"})}, key=key)
    assert u == CatalogVersion(
        20,
        {21: (210, "5"), 22: (220, "0")},
        ("19",),
        {801: frozenset({"f" * 16})},
        key=NO_KEY,
        attached_by={21: "701", 22: "702"},
        created_by="700",
    )
    assert (t.attached, u.attached) == (frozenset(), frozenset({22})), "only a partition can come with rows"
    assert (t.altered, u.altered) == (frozenset({800}), frozenset())


def test_tables_that_are_gone_have_no_version() -> None:
    """Only the requested tables have one."""
    assert found(Server(), 30) == {}
    assert list(found(Server(), 10, 30)) == [10]


def test_version_is_stored_briefly_and_deterministically() -> None:
    """It is compared as text."""
    t = found(Server(), 10)[10]
    assert t.to_json() == (
        '{"columns":"17..-19","files":{"10":[100,"ffffffffffffffff"]},"key":"384:385:1.3","oid":10,'
        '"types":{"800":"0.11"},"version":1}'
    )
    assert "types" not in json.loads(CatalogVersion(1, {}, ("17",), {}).to_json())


class Catalog:
    def __init__(self, server: Server) -> None:
        self._server = server
        self.asked: list[str] = []
        self.meanwhile: Callable[[], None] = lambda: None
        self.columns_before: Callable[[int], Sequence[tuple[str, ...]]] = lambda oid: ()
        self.uncertain: set[int] = set()
        self.untold: set[int] = set()
        self.lost: dict[int, frozenset[int]] = {}
        self.key_before: Callable[[int], Sequence[int]] = lambda oid: ()

    def take_uncertain(self, oid: int) -> bool:
        found = oid in self.uncertain
        self.uncertain.discard(oid)
        return found

    def lost_constants(self, _connection: Any, oids: Collection[int]) -> dict[int, frozenset[int]]:
        return {oid: columns for oid, columns in self.lost.items() if oid in oids}

    def ask(self, attempted: str, question: Callable[[Any], Any]) -> Any:
        self.asked.append(attempted)
        answer = question(self._server)
        self.meanwhile()
        return answer


class Stage:
    def __init__(self) -> None:
        self.server = Server()
        self.catalog = Catalog(self.server)
        given: Any = self.catalog
        self.versions = RowVersions(given)

    def take(self, oid: int, table: TableId, generation: int = 1) -> str | None:
        given: Any = self.server
        return self.versions.take(given, Relid(oid, table), generation)

    def rewrite(self) -> None:
        """Another file and other columns of t."""
        self.server.files[0] = (10, 10, 101, 7, False)

    def rewrite_more(self) -> None:
        self.server.files[0] = (10, 10, 104, 6, False)

    def move(self) -> None:
        """Another file alone: VACUUM FULL."""
        self.server.files[0] = (10, 10, 102, -1, False)


def test_a_version_is_taken_when_a_table_is_planned() -> None:
    """None where the table was dropped before: the plan will fail by itself."""
    on = Stage()
    assert on.take(10, T) == found(on.server, 10)[10].to_json()
    assert on.take(30, T) is None
    assert on.versions.changed_version(30, 0) is None


def test_tables_whose_rows_changed_are_reported_and_those_with_a_new_version_too() -> None:
    """The first are read again, for the others the new version is stored; an unchanged version is not reported."""
    on = Stage()
    t, u = (found(on.server, oid)[oid].to_json() for oid in (10, 20))
    assert on.versions.compare({T: rows(t), U: rows(u)}).found == ()
    assert on.catalog.asked == ["comparing the versions of tables"]
    on.move()
    moved = found(on.server, 10)[10].to_json()
    assert on.versions.compare({T: rows(t), U: rows(u)}).found == (RowVersion(T, t, moved, False),)
    on.rewrite()
    rewritten = found(on.server, 10)[10].to_json()
    assert on.versions.compare({T: rows(t), U: rows(u)}).found == (RowVersion(T, t, rewritten, True),)
    assert on.server.asked == [], "the numbers of the tables were known"


def test_a_table_without_a_version_gets_one_by_its_name() -> None:
    """It is still to be read, or a newer cdcflow wrote it: nothing is known to have changed."""
    on = Stage()
    t = found(on.server, 10)[10].to_json()
    newer = t.replace('"version":1', '"version":2')
    u = found(on.server, 20)[20].to_json()
    assert on.versions.compare({T: rows(newer), U: rows(None)}).found == (
        RowVersion(T, newer, t, False),
        RowVersion(U, None, u, False),
    )
    assert on.server.asked == [(["public", "public"], ["t", "u"])]
    assert on.versions.compare({TableId("public", "gone"): rows(None)}).found == ()
    on.catalog.asked.clear()
    assert on.versions.compare({}).found == ()
    assert on.catalog.asked == [], "nothing to ask"


def test_what_was_compared_is_what_the_stream_is_compared_with() -> None:
    """A table that is to be read again is not known until it is planned."""
    on = Stage()
    t = found(on.server, 10)[10].to_json()
    on.versions.compare({T: rows(t)})
    on.rewrite()
    now = found(on.server, 10)[10].to_json()
    assert on.versions.changed_version(10, 0) == RowVersion(T, t, now, True)
    assert on.versions.changed_version(10, 0) is None, "it is reported once"
    assert on.catalog.asked[1:] == ["comparing the version of public.t"]
    on.versions.compare({T: rows(now)})
    assert on.versions.changed_version(10, 0) is None, "the same"
    on.rewrite_more()
    assert [version.changed for version in on.versions.compare({T: rows(now)}).found] == [True]
    assert on.versions.changed_version(10, 0) is None, "reported by the comparison already"
    on.server.files[0] = (10, 10, 103, 8, False)
    assert on.versions.changed_version(10, 0) is None, "nor is the next statement: all of it is still to be read"


def test_table_that_was_never_read_or_is_gone_is_not_reported() -> None:
    """The stream describes every table that it sends a row of."""
    on = Stage()
    assert on.versions.changed_version(10, 0) is None
    assert on.catalog.asked == []
    on.take(10, T)
    on.server.files.clear()
    on.server.columns.clear()
    assert on.versions.changed_version(10, 0) is None


def test_a_column_that_is_dropped_is_remembered_for_messages_from_before() -> None:
    """By the check that finds it gone, by the stream, and by a process that has only what the log keeps."""
    on = Stage()
    before = on.take(10, T)
    assert before is not None
    assert on.catalog.columns_before(10) == (("17", "", "-19"),)
    on.server.columns[2] = (10, 0, True)
    told = on.versions.changed_version(10, 0)
    assert told is not None
    assert not told.changed
    assert on.catalog.columns_before(10) == (("17", "", "-19"), ("17", "", ""))
    assert on.versions.changed_version(10, 0) is None, "it is reported once"
    assert on.versions.compare({T: rows(told.now)}).found == ()
    again = Stage()
    again.server.columns[2] = (10, 0, True)
    (compared,) = again.versions.compare({T: rows(before)}).found
    assert compared.now == told.now
    assert again.catalog.columns_before(10) == (("17", "", "-19"), ("17", "", ""))
    assert CatalogVersion.from_json(compared.now).was == (("17", "", "-19"),)
    later = Stage()
    later.versions.compare({T: rows(compared.now)})
    assert later.catalog.columns_before(10)[0] == ("17", "", "-19")
    for n in range(6):  # columns are created and dropped one after another
        later.server.columns.insert(3 + n, (10, 23, True))
        later.versions.changed_version(10, 0)
        later.server.columns[3 + n] = (10, 0, True)
        later.versions.changed_version(10, 0)
    assert len(later.catalog.columns_before(10)) == 5


def test_message_with_unknown_columns_has_the_table_read_again() -> None:
    """Once, and nothing else is needed for it."""
    on = Stage()
    before = on.take(10, T)
    on.catalog.uncertain.add(10)
    assert on.versions.changed_version(10, 10) is None, "the partition was not queried"
    found = on.versions.changed_version(10, 0)
    assert found is not None
    assert (found.known, found.changed) == (before, True)
    assert on.versions.changed_version(10, 0) is None
    on.catalog.uncertain.add(30)
    assert on.versions.changed_version(30, 0) is None, "a table that is not read is not reported"
    assert on.catalog.uncertain == {30}, "its next message after it is read counts"


def test_another_file_alone_is_no_reason_and_is_not_remembered() -> None:
    """Otherwise the stored version would not be the one that is compared with."""
    on = Stage()
    before = on.take(10, T)
    on.move()
    assert on.versions.changed_version(10, 0) is None
    on.rewrite()
    changed = on.versions.changed_version(10, 0)
    assert changed is not None
    assert changed.known == before


def test_new_partition_is_reported_with_the_version_that_has_it() -> None:
    """The version was empty, so nothing is read again; the next one is compared with this version."""
    on = Stage()
    before = on.take(20, U)
    on.server.files.append((20, 23, 23, 9, True))
    now = found(on.server, 20)[20].to_json()
    assert on.versions.changed_version(20, 23) == RowVersion(U, before, now, False)
    asked = len(on.catalog.asked)
    assert on.versions.changed_version(20, 23) is None
    assert on.versions.changed_version(20, 21) is None
    assert len(on.catalog.asked) == asked, "known partitions need no question"


def test_partition_that_was_added_and_dropped_left_rows_that_no_catalog_shows() -> None:
    """The stream described it; it is in neither version."""
    on = Stage()
    before = on.take(20, U)
    now = found(on.server, 20)[20].to_json()
    assert on.versions.changed_version(20, 29) == RowVersion(U, before, now, True)


def test_table_without_partitions_is_not_its_own_partition() -> None:
    """Its own number is in its version: a partition with that number in the stream is not new."""
    on = Stage()
    on.take(10, T)
    assert on.versions.changed_version(10, 99) is None
    assert on.catalog.asked == []


def test_version_that_was_taken_in_between_is_kept() -> None:
    """A plan between the query and its answer has pinned newer rows; the answer concerns the older ones."""
    on = Stage()
    before = on.take(10, T)
    on.rewrite()

    def planned() -> None:
        on.catalog.meanwhile = lambda: None
        on.take(10, T)

    on.catalog.meanwhile = planned
    now = found(on.server, 10)[10].to_json()
    assert on.versions.changed_version(10, 0) == RowVersion(T, before, now, True)
    assert on.versions.changed_version(10, 0) is None, "the plan's version is the one that is known"
    on.server.files[0] = (10, 10, 105, 55, False)
    assert on.versions.changed_version(10, 0) is not None


def test_changed_key_is_a_reason_once_a_message_does_not_describe_its_columns() -> None:
    """By the stream, by a check, and by a process that has only what the log keeps. Until then the new key is
    remembered."""
    on = Stage()
    before = on.take(10, T)
    assert before is not None
    assert list(on.catalog.key_before(10)) == [1, 3]
    on.server.keys[0] = (10, False, 950, 951, [1, 3])
    told = on.versions.changed_version(10, 0)
    assert told is not None
    assert not told.changed
    assert CatalogVersion.from_json(told.now).keys_were == (PrimaryKey(900, 901, (1, 3)),)
    assert on.versions.changed_version(10, 0) is None, "it is reported once"
    on.catalog.untold.add(10)
    found = on.versions.changed_version(10, 0)
    assert found is not None
    assert (found.known, found.changed) == (told.now, True)
    later = Stage()
    later.server.keys[0] = (10, False, 950, 951, [1, 3])
    assert later.versions.compare({T: rows(told.now)}).found == ()
    later.catalog.untold.add(10)
    (compared,) = later.versions.compare({T: rows(told.now)}).found
    assert (compared.known, compared.changed) == (told.now, True)
    later.take(10, T)
    told = later.versions.changed_version(10, 0)
    assert told is not None
    assert not told.changed, "rows of the new generation are decoded with the new key"


def test_message_that_is_sent_before_its_transaction_is_visible_is_remembered() -> None:
    """The catalog still has the old key when the message arrives. The process that sees the new one is another."""
    on = Stage()
    before = on.take(10, T)
    on.catalog.untold.add(10)
    told = on.versions.changed_version(10, 0)
    assert told is not None
    assert (told.known, told.changed) == (before, False)
    assert on.versions.changed_version(10, 0) is None, "it is reported once"
    later = Stage()
    assert later.versions.compare({T: rows(told.now)}).found == (), "the key is still the same"
    later.server.keys[0] = (10, False, 950, 951, [1, 3])
    (compared,) = later.versions.compare({T: rows(told.now)}).found
    assert compared.changed
    taken = later.take(10, T)
    assert taken is not None
    assert not CatalogVersion.from_json(taken).untold, "the new generation has only rows with the new key"


def test_message_without_the_key_of_its_time_is_stored_by_the_next_poll_too() -> None:
    """The stream reports it once, and a poll's answer may come first; then the stream's is dropped."""
    on = Stage()
    before = on.take(10, T)
    on.catalog.untold.add(10)
    (compared,) = on.versions.compare({T: rows(before)}).found
    assert CatalogVersion.from_json(compared.now).untold
    assert on.versions.compare({T: rows(compared.now)}).found == (), "it is reported once"


def test_changed_key_of_a_table_with_full_identity_is_a_reason_at_once() -> None:
    """REPLICA IDENTITY FULL now, or at the previous check: its changes in between are in the stream, or were."""
    for then, now in ((True, True), (True, False), (False, True)):
        on = Stage()
        on.server.keys[0] = (10, then, 900, 901, [1])
        known = on.take(10, T)
        on.server.keys[0] = (10, now, None, None, None)
        (compared,) = on.versions.compare({T: rows(known)}).found
        assert compared.changed


def test_a_key_stays_the_same_while_its_constraint_or_its_file_does() -> None:
    """REINDEX gives it another file, a new type of a column another constraint; a version from before keys were kept
    proves nothing. Keys that are not indexed themselves (of a partitioned table) have no file to identify them."""
    for constraint, file, same in ((900, 905, True), (905, 901, True), (905, 905, False), (None, None, False)):
        on = Stage()
        on.server.keys[0] = (10, True, 900, 901, [1])
        known = on.take(10, T)
        on.server.keys[0] = (10, True, constraint, file, [1])
        (compared,) = on.versions.compare({T: rows(known)}).found
        assert compared.changed is not same
    without = CatalogVersion(10, {}, ("17",), {}, is_full=True)
    assert CatalogVersion.from_json(without.to_json()) == without
    now = CatalogVersion(10, {}, ("17",), {}, key=PrimaryKey(900, 901, (1,)), is_full=True)
    assert not now.after(without).changed_since(without)
    assert now.after(without).keys_were == ()
    parted = CatalogVersion(10, {}, ("17",), {}, key=PrimaryKey(1, 0, (1,)))
    assert CatalogVersion(10, {}, ("17",), {}, key=PrimaryKey(2, 0, (1,))).has_other_key(parted)
    assert CatalogVersion.from_json(parted.to_json()) == parted


def test_poll_that_answers_during_the_streams_question_takes_nothing_from_its_answer() -> None:
    """The stream and a poll compare a table at the same time: the columns of a message stay uncertain."""
    on = Stage()
    before = on.take(10, T)
    on.server.columns[0] = (10, 0, True)

    def polled() -> None:
        on.catalog.meanwhile = lambda: None
        assert [version.changed for version in on.versions.compare({T: rows(before)}).found] == [False]

    on.catalog.meanwhile = polled
    on.catalog.uncertain.add(10)
    shown = on.versions.changed_version(10, 0)
    assert shown is not None
    assert shown.changed


def test_poll_that_began_before_the_plan_does_not_replace_the_plans_version() -> None:
    """It was slow: a column that was dropped since must be remembered, or messages from before count as certain."""
    for polled in (rows(None), rows(None, 0), rows('{"version":2}')):
        on = Stage()
        on.take(10, T)
        on.server.columns[0] = (10, 0, True)
        on.versions.compare({T: polled})
        assert on.catalog.columns_before(10) == (("17", "", "-19"),)
    on = Stage()
    first = on.take(10, T)
    on.server.columns[0] = (10, 0, True)
    on.take(10, T, 2)
    on.versions.compare({T: rows(first)})
    assert on.catalog.columns_before(10) == (("", "", "-19"),), "the rows are those of the second generation"


def test_plan_that_begins_no_generation_leaves_the_version_of_the_rows() -> None:
    """A row is read by its key, or a comparison reads its copy; nor does a late plan of an earlier generation."""
    on = Stage()
    on.take(10, T, 2)
    on.server.columns[0] = (10, 0, True)
    for generation in (0, 1):
        assert on.take(10, T, generation) is not None
        assert on.catalog.columns_before(10) == (("17", "", "-19"),)
    on.take(10, T, 3)
    assert on.catalog.columns_before(10) == (("", "", "-19"),)


def test_table_that_is_not_known_yet_stays_uncertain() -> None:
    """It is planned, and its next message has it read again."""
    on = Stage()
    on.catalog.uncertain.add(10)
    assert on.versions.changed_version(10, 0) is None
    on.take(10, T)
    shown = on.versions.changed_version(10, 0)
    assert shown is not None
    assert shown.changed
