"""Tables as described by the server's catalog and by the stream's Relation messages.

A Relation message describes a table at the time its rows were written, with names and type numbers only. The rest
(column numbers, domains, defaults of old rows) is in the catalog, which shows the current table; while the stream lags,
the two differ. `describe` combines them: it finds columns that still exist by their name and type, places others by
their order among the dropped ones, and describes a table that no longer exists from the message alone. The message
takes precedence for everything it contains except the table's name: a captured table is identified by its oid, and
keeps one name for as long as a stream lasts. Otherwise, a table that was renamed and back, or two that swapped names,
would have changes under another table's name; a new name is applied where the list of captured tables is updated.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from cdcflow.errors import ConfigurationError
from cdcflow.model.table import Identity, Table, TableId
from cdcflow.sources.engine import selection as selection_rules
from cdcflow.sources.engine.connections import Session
from cdcflow.sources.engine.selection import (
    CapturedTableRefused,
    Selection,
    ignored_object,
    refusal_of,
)
from cdcflow.sources.postgres.catalog_entries import (
    RELATIONS,
    ROOTS,
    CatalogTable,
    Relid,
    TypeInfo,
    attribute_info,
    base_type,
    load,
    load_types,
    relid,
)
from cdcflow.sources.postgres.column_numbers import Words, column_numbers, word_of
from cdcflow.sources.postgres.columns import Attribute, as_attributes, as_logged, key_in
from cdcflow.sources.postgres.connection import Connection, Connector, one_snapshot
from cdcflow.sources.postgres.lives import Lives
from cdcflow.sources.postgres.table_refusals import (
    column_refusals,
    identity_refusals,
    other_identity,
    refusals,
    unlogged_partitions,
    without_columns,
)
from cdcflow.sources.postgres.types import DescribedTable, Policy, describe_table
from cdcflow.sources.postgres.wire import Relation, RelationColumn

Selected = selection_rules.Selected[CatalogTable]


def select(
    connection: Connection, selection: Selection, policy: Policy, captured: Collection[TableId] = ()
) -> Selected:
    """Return the tables that the settings select. `captured`: names that were captured before, and may be gone.

    Raises:
        ConfigurationError: a name without wildcards is not the name of a table, or is that of one that cannot be
            captured.
    """
    with one_snapshot(connection):
        return _select_tables(connection, selection, policy, captured)


def _select_tables(
    connection: Connection, selection: Selection, policy: Policy, captured: Collection[TableId]
) -> Selected:
    version = connection.info.server_version
    rels: list[Relid] = []
    seen: list[TableId] = []
    ignored: list[str] = []
    parts: dict[int, TableId] = {}
    for oid, schema, name, kind, is_partition, persistence, identity, method, _, _ in connection.execute(RELATIONS):
        table = TableId(schema, name)
        seen.append(table)
        if not selection.selects(table):
            continue
        if is_partition:
            parts[oid] = table
        elif why := _not_a_table(kind, persistence, named=selection.names(table)):
            ignored.append(_ignored_text(selection, table, captured, *why))
        else:
            rels.append(Relid(oid, table, kind, persistence, identity, method))
    for oid, schema, name in connection.execute(ROOTS, (list(parts),)) if parts else ():
        why = _not_itself(TableId(schema, name), selection)
        ignored.append(_ignored_text(selection, parts[oid], captured, *why))
    if unknown := selection.unknown([*seen, *captured]):
        raise ConfigurationError(
            f"source.tables: there is no table {', '.join(unknown)} in the database",
            remedy="check the name (case counts), and GRANT USAGE on its schema",
            runbook="table-not-found",
        )
    tables = tuple(sorted(load(connection, rels).values(), key=lambda t: t.rel.id))
    refused = {t.rel.id: tuple(found) for t in tables if (found := refusals(t, version))}
    selected = Selected(tables, refused, tuple(ignored))
    if policy.special_values not in ("null", "clamp") and not policy.columns:
        return selected
    types = load_types(connection, [a.type_oid for t in selected.good for a in t.published_columns(version)])
    return selected.refusing(lambda table: describe_entry(table, types, policy, version))


def _ignored_text(selection: Selection, table: TableId, captured: Collection[TableId], why: str, remedy: str) -> str:
    """Return why an object of this name is not captured. If a table of that name was captured before, the name in the
    settings is no mistake: it must not stop the other tables."""
    return f"{table} {why}" if table in captured else ignored_object(selection, table, why, remedy)


def _not_itself(root: TableId, selection: Selection) -> tuple[str, str]:
    if selection.selects(root):
        return f"is a partition: it is captured through its root {root}", f"name {root} instead"
    return (
        f"is a partition of {root}, which source.tables does not select, so its changes are not captured: add {root}",
        f"name {root} instead",
    )


def _not_a_table(kind: str, persistence: str, *, named: bool) -> tuple[str, str] | None:
    match kind:
        case "v" | "m":
            return "is a view: it has no changes itself", "name the tables it reads"
        case "f":
            return "is a foreign table: its changes are in another server's log", "capture that server"
    if persistence == "u" and not named:
        return "is UNLOGGED: its changes are not logged", "run ALTER TABLE … SET LOGGED"
    return None


# ── the stream's tables ─────────────────────────────────────────────────────────────────────────────────────


class Catalog(Session[Connection]):
    """Reads the catalog through a dedicated connection. Thread-safe."""

    def __init__(self, connector: Connector, selection: Selection, policy: Policy) -> None:
        super().__init__(connector, lambda: connector.connect("catalog", statement_timeout="30s"))
        self._address = connector.address
        self._selection = selection
        self._policy = policy
        self.fits: Callable[[Table], object] | None = None
        """Raises ConfigurationError for tables that are refused (`cdcflow.ports.Choosy`)."""
        self.lives = Lives()
        """The names by which tables are captured."""
        self.was_captured: frozenset[TableId] = frozenset()
        """Names that were captured before: it is not a mistake in the settings if no table has one of them now."""
        self.shape_of: Callable[[TableId], Table | None] = lambda table: None
        """Returns the shape of a table's latest rows in the change log (`cdcflow.ports.ShapeAsking`)."""
        self.columns_before: Callable[[int], Sequence[Words]] = lambda oid: ()
        """Returns a table's columns at earlier polls: for each column number, the text of its type (`word_of`,
        `RowVersions`)."""
        self.key_before: Callable[[int], Sequence[int]] = lambda oid: ()
        """Returns the numbers of a table's key columns at the last poll (`RowVersions`)."""
        self.untold: set[int] = set()
        """The oids of tables for which a message arrived that does not contain the key of its time."""
        self._uncertain: set[int] = set()
        self._refused: list[CapturedTableRefused] = []
        self._known: dict[int, tuple[Relation, DescribedTable]] = {}
        self._described: dict[Table, DescribedTable] = {}

    def use_policy(self, policy: Policy) -> None:
        """Describe tables by this policy in later calls."""
        self._policy = policy
        self._known, self._described = {}, {}

    def selected_tables(self) -> Selected:
        return self.ask(f"reading the catalog of {self._address}", self.select)

    def select(self, connection: Connection) -> Selected:
        found = select(connection, self._selection, self._policy, self.was_captured)
        if (fits := self.fits) is None:
            return found
        version = connection.info.server_version
        types = load_types(connection, [a.type_oid for t in found.good for a in t.published_columns(version)])
        return found.refusing(lambda table: fits(describe_entry(table, types, self._policy, version).table))

    def tables(self, selected: Selected) -> tuple[DescribedTable, ...]:
        """Describe these tables in their current state, sorted by name."""

        def question(connection: Connection) -> tuple[DescribedTable, ...]:
            return describe_all(connection, selected.good, self._policy, selected.failing)

        found = self.ask(f"reading the catalog of {self._address}", question)
        return tuple(self._intern(d) for d in found)

    def describe(self, relation: Relation) -> DescribedTable | None:
        """Describe the table that a Relation message is about, at the time of the message (see the top of this module).

        None if the table is not captured under the name in the message. A table that cannot be captured now
        is described as far as it can be, if need be without columns, and `take_refused` returns the reason.
        """
        if self.lives.captures(relation.oid):
            name = self.lives.name(relation.oid, TableId(relation.namespace, relation.name))
            if name is None:
                return None
            relation = replace(relation, namespace=name.schema, name=name.name)
        known = self._known.get(relation.oid)

        def question(connection: Connection) -> DescribedTable:
            with one_snapshot(connection):
                return self._brought_together(connection, relation)

        found = self.ask(f"looking up table {relation.namespace}.{relation.name}", question)
        if known is not None and known[0] == relation and known[1].table == found.table:
            return known[1]
        found = self._intern(found)
        self._known[relation.oid] = (relation, found)
        return found

    def take_uncertain(self, oid: int) -> bool:
        """Whether, since the last call, the columns of one of this table's messages could not be determined, so that
        its rows must be read again."""
        found = oid in self._uncertain
        self._uncertain.discard(oid)
        return found

    def take_refused(self) -> Sequence[CapturedTableRefused]:
        """Return the tables that were described although they cannot be captured, since the last call."""
        found, self._refused = self._refused, []
        return found

    def lost_constants(self, connection: Connection, oids: Collection[int]) -> dict[int, frozenset[int]]:
        """Return which columns of these tables have a constant for older rows that their description does not keep
        (see `types.constants`), by oid."""
        rels = [rel for oid in sorted(oids) if (rel := relid(connection, oid)) is not None]
        if not rels:
            return {}
        tables = list(load(connection, rels).values())
        described = describe_all(connection, tables, self._policy, [t.id for t in tables])
        found = {}
        for table, known in zip(tables, described, strict=True):
            kept = {c.number for c in known.table.columns if c.missing is not None}
            shown = {c.number for c in known.table.columns}
            constants = {a.number for a in table.attributes if a.missing is not None}
            found[table.rel.oid] = frozenset(constants & shown - kept)
        return found

    def less_sent(self, oid: int, root: Table, partition: Relation) -> bool:
        """Whether rows of table `root` must be read again because old rows of `partition`, a relation that the stream
        described right after it, lack a part of its key, or of the whole row under FULL.

        The message describes the time of the rows. If the partition is still like that, reading again does not help:
        `take_refused` returns the table then.
        """
        sent = {c.name for c in partition.columns if c.in_identity}
        is_whole = partition.identity == "f"
        if is_whole or (root.identity is not Identity.FULL and sent.issuperset(root.key)):
            return False

        def question(connection: Connection) -> CatalogTable | None:
            rel = relid(connection, oid)
            return None if rel is None else load(connection, [rel])[rel.oid]

        table = self.ask(f"looking up table {root.id}", question)
        if table is None or table.rel.kind != "p":
            return False  # not its partition
        bad = [leaf for leaf in table.leaves if not table.is_identified_in(leaf)]
        if any(leaf.oid == partition.oid for leaf in bad):
            self._refused.append(CapturedTableRefused(root.id, [other_identity(bad, table)]))
            return False
        return True

    def _intern(self, described: DescribedTable) -> DescribedTable:
        return self._described.setdefault(described.table, described)

    def _brought_together(self, connection: Connection, relation: Relation) -> DescribedTable:
        rel = relid(connection, relation.oid)
        if rel is None:
            known = self._known.get(relation.oid)
            if known is not None and known[0] == relation:
                return known[1]  # dropped: the last shape has facts that no message contains
            table = None
        else:
            table = load(connection, [rel])[rel.oid]
        logged = self._logged_shape(relation, is_gone=table is None)
        attributes = table.attributes if table else as_attributes(logged)
        constants = [a.type_oid for a in attributes if a.missing is not None]
        types = load_types(connection, [*(c.type_oid for c in relation.columns), *constants])
        bases = [base_type(c.type_oid, c.type_modifier, types)[0] for c in relation.columns]
        numbers, is_certain = column_numbers(relation.columns, bases, attributes, self.columns_before(relation.oid))
        if not is_certain:
            self._uncertain.add(relation.oid)
        texts = _type_texts(connection, relation.columns)
        by_number = {a.number: a for a in attributes if not a.dropped}
        key = self._key(relation, table, logged, dict(zip((c.name for c in relation.columns), numbers, strict=True)))
        infos = []
        for column, base, number, text in zip(relation.columns, bases, numbers, texts, strict=True):
            info = attribute_info(column.name, number, column.type_oid, column.type_modifier, text, types)
            now = by_number.get(number)
            if now is not None and (now.type_oid, now.type_modifier) == (column.type_oid, column.type_modifier):
                info = replace(info, not_null=now.not_null, missing=now.missing)
            elif logged is not None and table is None:
                info = as_logged(info, logged, is_known=column.type_oid in types)
            elif now is not None and now.missing is not None and _has_words_of(now, base, types):
                info = replace(info, missing=now.missing)  # a later statement changed the type, and no bytes
            infos.append(replace(info, in_key=column.name in key))
        is_full = relation.identity == "f" and (table is None or not key or table.leaves_are_full)
        identity = Identity.FULL if is_full else Identity.KEY
        table_id = TableId(relation.namespace, relation.name)
        unlogged = unlogged_partitions(table) if table is not None and logged is None else []
        if unlogged:
            self._refused.append(CapturedTableRefused(table_id, unlogged))
        try:
            if not relation.columns and table is not None and self._selection.selects(table_id):
                raise without_columns(table_id)
            return describe_table(table_id, relation.oid, tuple(infos), identity, self._policy)
        except ConfigurationError as error:
            rel = Relid(relation.oid, table_id)
            unfit = column_refusals(rel, [c.name for c in relation.columns]) or [refusal_of(error)]
            self._refused.append(CapturedTableRefused(table_id, unfit))
            return _without_columns(table_id, relation.oid, self._policy)

    def _logged_shape(self, relation: Relation, *, is_gone: bool) -> Table | None:
        """Return the shape that this very table's rows have in the change log, if the table is gone or has another name
        now; otherwise None."""
        table = TableId(relation.namespace, relation.name)
        if not is_gone and not self.lives.is_ended(relation.oid, table):
            return None
        logged = self.shape_of(table)
        number = self._policy.numbers.number(relation.oid)
        return logged if logged is not None and logged.incarnation == number else None

    def _key(
        self, relation: Relation, table: CatalogTable | None, logged: Table | None, numbers: Mapping[str, int]
    ) -> frozenset[str]:
        """Return the names of a message's key columns.

        A message in which all columns are marked (FULL) or none (the table had no key at that time) does not reveal the
        key. Then the current key is assumed, and `RowVersions` checks whether that was the key all the time. For a
        table that is gone or has another name now, it is the key in the change log (`logged`).
        """
        told = frozenset(c.name for c in relation.columns if c.in_identity)
        if relation.identity != "f" and (
            told or not self._selection.selects(TableId(relation.namespace, relation.name))
        ):
            return told
        if logged is not None:
            return key_in(logged, frozenset(numbers))
        self.untold.add(relation.oid)
        if relation.identity != "f" and table is not None:
            self._check_has_identity(relation, table)
        wanted = set(table.identity_numbers if table else self.key_before(relation.oid))
        names = frozenset(name for name, number in numbers.items() if number in wanted)
        return names if len(names) == len(wanted) else frozenset()

    def _check_has_identity(self, relation: Relation, table: CatalogTable) -> None:
        """Refuse a table whose rows arrived without a key, unless it has one now, or REPLICA IDENTITY FULL."""
        if not identity_refusals(table):
            if table.rel.identity == "i":
                self._uncertain.add(relation.oid)  # `RowVersions` compares only primary keys
            return
        found = identity_refusals(table)
        if table.rel.identity == "d" and not table.deferrable and not table.primary:
            why = f"table {relation.namespace}.{relation.name} has lost its key, so its updates and deletes carry none"
            found = [(why, found[0][1])]
        self._refused.append(CapturedTableRefused(TableId(relation.namespace, relation.name), found))


def describe_entry(table: CatalogTable, types: Mapping[int, TypeInfo], policy: Policy, version: int) -> DescribedTable:
    """Describe a table of the catalog in its current state."""
    key = frozenset(table.key_numbers(version))
    is_full = table.rel.identity == "f" and (not key or table.leaves_are_full)
    identity = Identity.FULL if is_full else Identity.KEY
    attributes = tuple(
        replace(
            attribute_info(a.name, a.number, a.type_oid, a.type_modifier, a.type_text, types),
            not_null=a.not_null,
            missing=a.missing,
            in_key=a.number in key,
        )
        for a in table.published_columns(version)
    )
    if not attributes:
        raise without_columns(table.rel.id)
    return describe_table(table.rel.id, table.rel.oid, attributes, identity, policy)


def describe_all(
    connection: Connection, tables: Sequence[CatalogTable], policy: Policy, failing: Collection[TableId] = ()
) -> tuple[DescribedTable, ...]:
    """Describe tables in their current state; those that fail without columns, if nothing else is possible."""
    version = connection.info.server_version
    types = load_types(connection, [a.type_oid for t in tables for a in t.published_columns(version)])

    def describe(table: CatalogTable) -> DescribedTable:
        try:
            return describe_entry(table, types, policy, version)
        except ConfigurationError:
            if table.id not in failing:
                raise
            return _without_columns(table.id, table.rel.oid, policy)

    return tuple(describe(t) for t in tables)


def _has_words_of(attribute: Attribute, base: int, types: Mapping[int, TypeInfo]) -> bool:
    """Whether a column's values have the same texts as those of a type, `base`, with domains resolved."""
    return word_of(base_type(attribute.type_oid, attribute.type_modifier, types)[0]) == word_of(base)


def _without_columns(table: TableId, oid: int, policy: Policy) -> DescribedTable:
    return describe_table(table, oid, (), Identity.KEY, policy)


def _type_texts(connection: Connection, columns: Sequence[RelationColumn]) -> list[str]:
    """Return the names of the columns' types; for a type that has been dropped since, only its number (T36)."""
    rows = connection.execute(
        "SELECT pg_catalog.format_type(o, m) FROM unnest(%s::oid[], %s::int[]) WITH ORDINALITY x (o, m, i) ORDER BY i",
        ([c.type_oid for c in columns], [c.type_modifier for c in columns]),
    ).fetchall()
    return [f"oid {c.type_oid}" if text == "???" else text for c, (text,) in zip(columns, rows, strict=True)]
