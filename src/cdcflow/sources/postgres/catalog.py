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

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from cdcflow.errors import ConfigurationError
from cdcflow.model.table import Identity, Table, TableId
from cdcflow.sources.engine import selection as selection_rules
from cdcflow.sources.engine.connections import Session
from cdcflow.sources.engine.selection import (
    CapturedTableRefused,
    Refusal,
    Selection,
    ignored_object,
    name_refusals,
    refusal_of,
)
from cdcflow.sources.postgres.columns import Attribute, as_attributes, as_logged, key_in
from cdcflow.sources.postgres.connection import Connection, Connector, one_snapshot, quote_name
from cdcflow.sources.postgres.lives import Lives
from cdcflow.sources.postgres.types import AttributeInfo, DescribedTable, Policy, describe_table
from cdcflow.sources.postgres.wire import Relation, RelationColumn

Words = tuple[str, ...]

_TEXT = 25
_CHARACTERS = {1042: _TEXT, 1043: _TEXT}
"""bpchar and varchar count as text in a version's list of columns: a change among these types changes no value if it
does not rewrite the table."""

_RELATIONS = """
SELECT c.oid::bigint, n.nspname, c.relname, c.relkind::text, c.relispartition, c.relpersistence::text,
       c.relreplident::text, am.amname, c.relrowsecurity, pg_get_userbyid(c.relowner)
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_catalog.pg_am am ON am.oid = c.relam
WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND c.relpersistence <> 't'
  AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast')
  AND NOT (n.nspname = 'cdcflow' AND c.relname = 'released_slots')
"""

# pg_partition_tree is not used: it waits for any session that alters a partition, and all other tables would wait as
# well. A partition whose DETACH CONCURRENTLY was interrupted has left its table, although it is still listed.
_TREE = """
WITH RECURSIVE tree (root, oid) AS (
    SELECT r.oid, r.oid FROM unnest(%s::oid[]) AS r (oid)
    UNION ALL
    SELECT t.root, i.inhrelid FROM tree t
    JOIN pg_catalog.pg_inherits i ON i.inhparent = t.oid AND NOT i.inhdetachpending
)
"""

_LEAVES = f"""
{_TREE}SELECT t.root::bigint, c.oid::bigint, n.nspname, c.relname, c.relkind::text, '', c.relpersistence::text,
       c.relreplident::text, am.amname, ARRAY(
           SELECT a.attname::text FROM pg_catalog.pg_index x
           JOIN pg_catalog.pg_attribute a
             ON a.attrelid = x.indrelid AND a.attnum = ANY ((x.indkey::int2[])[0:x.indnkeyatts - 1])
           WHERE x.indrelid = c.oid AND x.indisvalid AND x.indimmediate
             AND CASE c.relreplident WHEN 'd' THEN x.indisprimary WHEN 'i' THEN x.indisreplident END)
FROM tree t
JOIN pg_catalog.pg_class c ON c.oid = t.oid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_catalog.pg_am am ON am.oid = c.relam
WHERE c.relkind <> 'p'
ORDER BY t.root, c.oid
"""  # noqa: S608  constants

_ROOTS = """
WITH RECURSIVE up (oid, above) AS (
    SELECT i.inhrelid, i.inhparent FROM pg_catalog.pg_inherits i WHERE i.inhrelid = ANY (%s::oid[])
    UNION ALL
    SELECT u.oid, i.inhparent FROM up u JOIN pg_catalog.pg_inherits i ON i.inhrelid = u.above
)
SELECT u.oid::bigint, n.nspname, c.relname
FROM up u JOIN pg_catalog.pg_class c ON c.oid = u.above AND NOT c.relispartition
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
"""

# A missing value is an array of one element of the column's type; as text[] its element is the value's own text.
_ATTRIBUTES = """
SELECT a.attrelid::bigint, a.attnum, a.attname, a.atttypid::bigint, a.atttypmod,
       pg_catalog.format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attgenerated::text, a.attisdropped,
       CASE WHEN a.atthasmissing THEN (a.attmissingval::text::text[])[1] END
FROM pg_catalog.pg_attribute a
WHERE a.attrelid = ANY (%s::oid[]) AND a.attnum > 0
ORDER BY a.attrelid, a.attnum
"""

# The server stores the missing value of a partitioned table's column with its partitions, which have rows. A partition
# that was attached later may have a different value; partitions that existed when the column was added have a catalog
# row from that transaction.
_MISSING_IN_LEAVES = f"""
{_TREE}SELECT DISTINCT ON (r.attrelid, r.attnum) r.attrelid::bigint, r.attnum, (a.attmissingval::text::text[])[1]
FROM tree t
JOIN pg_catalog.pg_attribute a ON a.attrelid = t.oid AND a.atthasmissing
JOIN pg_catalog.pg_attribute r ON r.attrelid = t.root AND r.attname = a.attname
ORDER BY r.attrelid, r.attnum, a.xmin::text <> r.xmin::text, a.attrelid
"""  # noqa: S608  constants

_INDEXES = """
SELECT i.indrelid::bigint, i.indisprimary, i.indisreplident, i.indimmediate, i.indkey::int2[], i.indnkeyatts
FROM pg_catalog.pg_index i
WHERE i.indrelid = ANY (%s::oid[]) AND i.indisvalid AND (i.indisprimary OR i.indisreplident)
"""

_LOOSE_COLLATIONS = """
SELECT n.nspname, c.relname, a.attname, l.collname
FROM pg_catalog.pg_collation l JOIN pg_catalog.pg_attribute a ON a.attcollation = l.oid
JOIN pg_catalog.pg_class c ON c.oid = a.attrelid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE NOT l.collisdeterministic AND a.attnum > 0 AND NOT a.attisdropped
"""

_TYPES = """
WITH RECURSIVE wanted (oid) AS (
    SELECT unnest(%s::oid[])
    UNION
    SELECT next.oid
    FROM wanted JOIN pg_catalog.pg_type t ON t.oid = wanted.oid
    CROSS JOIN LATERAL (VALUES (t.typbasetype), (t.typelem)) AS next (oid)
    WHERE next.oid <> 0
)
SELECT t.oid::bigint, t.typtype::text, t.typbasetype::bigint, t.typtypmod,
       CASE WHEN e.oid IS NULL THEN 0 ELSE t.typelem::bigint END
FROM wanted
JOIN pg_catalog.pg_type t ON t.oid = wanted.oid
LEFT JOIN pg_catalog.pg_type e ON e.oid = t.typelem AND e.typarray = t.oid
"""

UNKNOWN_NUMBER = 10_000
"""Columns that the catalog no longer has get numbers from this one upwards. The server's own numbers end at 1600."""


@dataclass(frozen=True, slots=True)
class TypeInfo:
    """One row of pg_type. `element` 0: not an array; `base` 0: not a domain."""

    kind: str
    base: int
    modifier: int
    element: int


@dataclass(frozen=True, slots=True)
class Relid:
    """A table by its number and name, as `pg_class` has them; `identity` is `relreplident`.

    `old_columns`: for a partition, the columns that the server sends of its old rows, unless it sends all (FULL).
    """

    oid: int
    id: TableId
    kind: str = "r"
    persistence: str = "p"
    identity: str = "d"
    access_method: str | None = "heap"
    old_columns: frozenset[str] = frozenset()

    @property
    def sql(self) -> str:
        return quote_name(self.id.schema, self.id.name)


@dataclass(frozen=True, slots=True)
class CatalogTable:
    """A table with everything in the catalog that a capture needs.

    `primary` and `index` are the column numbers of the primary key and of the REPLICA IDENTITY index (empty if the
    table has none that the server would use for old rows); `deferrable`: the table has a primary key that is
    deferrable. `leaves` are a partitioned table's partitions that hold rows.
    """

    rel: Relid
    attributes: tuple[Attribute, ...]
    primary: tuple[int, ...]
    index: tuple[int, ...]
    leaves: tuple[Relid, ...] = ()
    deferrable: bool = False

    @property
    def id(self) -> TableId:
        return self.rel.id

    def published_columns(self, version: int) -> tuple[Attribute, ...]:
        """Return the columns that stream and chunk both carry. PostgreSQL 18 and later publish stored generated
        columns."""
        return tuple(a for a in self.attributes if not a.dropped and is_published(a, version))

    @property
    def identity_numbers(self) -> tuple[int, ...]:
        """The numbers of the columns that the server sends of an old row; under FULL, where it sends all columns, the
        numbers of the key's columns."""
        return self.index if self.rel.identity == "i" else self.primary

    @property
    def leaves_are_full(self) -> bool:
        """Whether every partition has REPLICA IDENTITY FULL. The server does not pass the setting on to them."""
        return all(leaf.identity == "f" for leaf in self.leaves)

    def is_identified_in(self, leaf: Relid) -> bool:
        """Whether old rows of this partition carry the table's key; if it has none, whether they carry all columns."""
        key = frozenset(self.names_of(self.identity_numbers))
        return leaf.identity == "f" or bool(key and key <= leaf.old_columns)

    def key_numbers(self, version: int) -> tuple[int, ...]:
        """Return the columns that distinguish rows in the change log.

        Empty if only all columns together do, because the table has no key, or the server does not send all of it.
        """
        return () if self.unsent(version) else self.identity_numbers

    def unsent(self, version: int) -> tuple[int, ...]:
        """Return the columns of the key that the server does not send."""
        sent = {a.number for a in self.published_columns(version)}
        return tuple(number for number in self.identity_numbers if number not in sent)

    def names_of(self, numbers: Iterable[int]) -> tuple[str, ...]:
        names = {a.number: a.name for a in self.attributes}
        return tuple(names[n] for n in numbers)


def is_published(attribute: Attribute, version: int) -> bool:
    return attribute.generated == "" or (attribute.generated == "s" and version >= 180000)


# ── reading the catalog ─────────────────────────────────────────────────────────────────────────────────────


def load(connection: Connection, rels: Sequence[Relid]) -> dict[int, CatalogTable]:
    """Return the entries of these tables, by oid, all from one state of the catalog."""
    with one_snapshot(connection):
        return _load_tables(connection, rels)


def _load_tables(connection: Connection, rels: Sequence[Relid]) -> dict[int, CatalogTable]:
    oids = [rel.oid for rel in rels]
    attributes: dict[int, list[Attribute]] = {oid: [] for oid in oids}
    for row in connection.execute(_ATTRIBUTES, (oids,)):
        attributes[row[0]].append(Attribute(*row[1:]))
    primary: dict[int, tuple[int, ...]] = {}
    deferrable: set[int] = set()
    index: dict[int, tuple[int, ...]] = {}
    for oid, is_primary, is_identity, immediate, columns, count in connection.execute(_INDEXES, (oids,)):
        if not immediate:
            deferrable |= {oid} if is_primary else set()
            continue  # a deferrable key is not unique at all times: the server does not use it either
        if is_primary:
            primary[oid] = tuple(columns[:count])
        if is_identity:
            index[oid] = tuple(columns[:count])
    leaves: dict[int, list[Relid]] = {}
    roots = [rel.oid for rel in rels if rel.kind == "p"]
    if roots:
        for row in connection.execute(_LEAVES, (roots,)):
            leaf = Relid(row[1], TableId(row[2], row[3]), row[4], row[6], row[7], row[8], frozenset(row[9]))
            leaves.setdefault(row[0], []).append(leaf)
        missing = {(oid, number): text for oid, number, text in connection.execute(_MISSING_IN_LEAVES, (roots,))}
        for oid in roots:
            attributes[oid] = [replace(a, missing=missing.get((oid, a.number))) for a in attributes[oid]]
    return {
        rel.oid: CatalogTable(
            rel,
            tuple(attributes[rel.oid]),
            primary.get(rel.oid, ()),
            index.get(rel.oid, ()),
            tuple(leaves.get(rel.oid, ())),
            rel.oid in deferrable,
        )
        for rel in rels
    }


def load_types(connection: Connection, oids: Iterable[int]) -> dict[int, TypeInfo]:
    """Return these types, and those that they are based on or consist of."""
    wanted = sorted({oid for oid in oids if oid})
    return {row[0]: TypeInfo(*row[1:]) for row in connection.execute(_TYPES, (wanted,))}


def loose_collations(connection: Connection) -> dict[TableId, dict[str, str]]:
    """Return, by table and column, the collations in which different texts are equal."""
    found: dict[TableId, dict[str, str]] = {}
    for schema, name, column, collation in connection.execute(_LOOSE_COLLATIONS):
        found.setdefault(TableId(schema, name), {})[column] = collation
    return found


def relid(connection: Connection, oid: int) -> Relid | None:
    """Return a table by its oid; None if it no longer exists."""
    row = connection.execute(f"{_RELATIONS} AND c.oid = %s", (oid,)).fetchone()
    return None if row is None else Relid(row[0], TableId(row[1], row[2]), row[3], row[5], row[6], row[7])


def attribute_info(
    name: str,
    number: int,
    type_oid: int,
    type_modifier: int,
    type_text: str,
    types: Mapping[int, TypeInfo],
) -> AttributeInfo:
    """Return a column with its type resolved: domains to their base types, arrays to their elements."""
    base_oid, base_modifier, base = _looked_through(type_oid, type_modifier, types)
    info = AttributeInfo(
        name=name,
        number=number,
        type_oid=type_oid,
        type_modifier=type_modifier,
        type_text=type_text,
        base_oid=base_oid,
        base_modifier=base_modifier,
        kind=base.kind if base else "b",
    )
    if base is None or not base.element:
        return info
    element_oid, element_modifier, element = _looked_through(base.element, base_modifier, types)
    return replace(
        info,
        element_oid=element_oid,
        element_modifier=element_modifier,
        element_kind=element.kind if element else "b",
    )


def _looked_through(oid: int, modifier: int, types: Mapping[int, TypeInfo]) -> tuple[int, int, TypeInfo | None]:
    found = types.get(oid)
    while found is not None and found.kind == "d":
        oid, modifier = found.base, found.modifier
        found = types.get(oid)
    return oid, modifier, found


# ── what a table's catalog entry means ──────────────────────────────────────────────────────────────────────


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


def without_columns(table: TableId) -> ConfigurationError:
    return ConfigurationError(
        f"table {table} has no column that the server publishes, so its rows cannot be distinguished or stored",
        remedy=f"leave it out of source.tables (write !{table}) and start again; include it again when it has columns",
        runbook="table-not-capturable",
    )


def refusals(table: CatalogTable, version: int) -> list[Refusal]:
    """Return why this table cannot be captured, and the SQL that fixes it; empty if it can be captured.

    An UPDATE or DELETE of a published table whose old rows have no identity fails at the source, for the user's own
    application. So such a table never gets into a publication (P05).
    """
    found: list[Refusal] = []
    rel = table.rel
    if rel.persistence == "u":
        found.append((f"{rel.id} is UNLOGGED: its changes are not logged", f"ALTER TABLE {rel.sql} SET LOGGED"))
    found += _identity_refusals(table)
    if not table.published_columns(version):
        found.append(refusal_of(without_columns(rel.id)))
    found += _unlogged_partitions(table)
    found += [_access_method(leaf) for leaf in table.leaves if leaf.access_method not in ("heap", None)]
    if rel.kind == "r" and rel.access_method not in ("heap", None):
        found.append(_access_method(rel))
    found += _name_refusals(rel, [a.name for a in table.published_columns(version)])
    found += _unsent_key(table, version)
    return found


def _unlogged_partitions(table: CatalogTable) -> list[Refusal]:
    """Return a refusal for each partition whose changes the server does not log."""
    rel = table.rel
    return [
        (
            f"partition {leaf.id} of {rel.id} is a foreign table: its changes are not logged",
            f"ALTER TABLE {rel.sql} DETACH PARTITION {leaf.sql}",
        )
        if leaf.kind == "f"
        else (
            f"partition {leaf.id} of {rel.id} is UNLOGGED: its changes are not logged",
            f"ALTER TABLE {leaf.sql} SET LOGGED",
        )
        for leaf in table.leaves
        if leaf.kind == "f" or leaf.persistence == "u"
    ]


def _name_refusals(rel: Relid, names: Sequence[str]) -> list[Refusal]:
    return name_refusals(rel.id, names, lambda name: f"ALTER TABLE {rel.sql} RENAME COLUMN {quote_name(name)} TO …")


def _identity_refusals(table: CatalogTable) -> list[Refusal]:
    rel = table.rel
    everyone = [rel, *table.leaves]
    if rel.identity == "n":
        return [(f"{rel.id} has REPLICA IDENTITY NOTHING, so updates and deletes carry no key", _mend(everyone, table))]
    if rel.identity == "i" and not table.index:
        return [
            (f"{rel.id} has REPLICA IDENTITY USING INDEX, but that index is gone", _mend(everyone, table)),
        ]
    if rel.identity == "d" and table.deferrable:
        why = "has a primary key that is DEFERRABLE, which the server does not use to tell old rows apart"
        return [(f"{rel.id} {why}", _mend(everyone, table))]
    if rel.identity == "d" and not table.primary:
        return [(f"{rel.id} has no primary key and no other replica identity", _mend(everyone, table))]
    # Old rows are written under the identity of the partition they are in.
    if bad := [x for x in table.leaves if x.identity == "n" or (x.identity == "d" and not x.old_columns)]:
        names = ", ".join(str(leaf.id) for leaf in bad)
        return [(f"partition {names} of {rel.id} has no replica identity itself", _mend(bad, table))]
    if bad := [leaf for leaf in table.leaves if leaf.kind != "f" and not table.is_identified_in(leaf)]:
        return [_other_identity(bad, table)]
    return []


def _other_identity(bad: Sequence[Relid], table: CatalogTable) -> Refusal:
    """Return the refusal of a table with partitions whose old rows do not carry its key."""
    names = ", ".join(str(leaf.id) for leaf in bad)
    key = ", ".join(table.names_of(table.identity_numbers))
    lacks = f"the columns ({key}) by which {table.rel.id} identifies rows" if key else "all columns"
    is_primary = set(table.identity_numbers) == set(table.primary) and bool(table.primary)
    identity = "DEFAULT" if is_primary else "FULL"
    return (
        f"partition {names} of {table.rel.id} has another replica identity: its old rows do not carry {lacks}",
        "; ".join(f"ALTER TABLE {leaf.sql} REPLICA IDENTITY {identity}" for leaf in bad),
    )


def _unsent_key(table: CatalogTable, version: int) -> list[Refusal]:
    """Return a refusal if the server does not send the whole key: old rows can then be distinguished only if it sends
    all columns."""
    rel = table.rel
    short = [r for r in (rel, *table.leaves) if r.identity != "f"]
    if not (lost := table.unsent(version)) or not short:
        return []
    names = ", ".join(table.names_of(lost))
    return [
        (
            f"{rel.id} has the generated column {names} in its key, which this server does not publish",
            "; ".join(f"ALTER TABLE {r.sql} REPLICA IDENTITY FULL" for r in short)
            + ", or else give it a unique index of other columns, all of them NOT NULL, and make that its "
            "REPLICA IDENTITY",
        )
    ]


def _mend(rels: Sequence[Relid], table: CatalogTable) -> str:
    if table.primary:
        return "; ".join(f"ALTER TABLE {r.sql} REPLICA IDENTITY DEFAULT" for r in rels)
    full = "; ".join(f"ALTER TABLE {r.sql} REPLICA IDENTITY FULL" for r in rels)
    if table.deferrable:
        return full
    return f"ALTER TABLE {rels[0].sql} ADD PRIMARY KEY (…), or else {full}"


def _access_method(rel: Relid) -> tuple[str, str]:
    return (
        f"{rel.id} is stored by {rel.access_method}, whose rows cannot be read by tuple id",
        f"ALTER TABLE {rel.sql} SET ACCESS METHOD heap",
    )


# ── the selected tables ─────────────────────────────────────────────────────────────────────────────────────


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
    for oid, schema, name, kind, is_partition, persistence, identity, method, _, _ in connection.execute(_RELATIONS):
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
    for oid, schema, name in connection.execute(_ROOTS, (list(parts),)) if parts else ():
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
            self._refused.append(CapturedTableRefused(root.id, [_other_identity(bad, table)]))
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
        types = load_types(connection, [c.type_oid for c in relation.columns])
        bases = [_looked_through(c.type_oid, c.type_modifier, types)[0] for c in relation.columns]
        numbers, is_certain = column_numbers(relation.columns, bases, attributes, self.columns_before(relation.oid))
        if not is_certain:
            self._uncertain.add(relation.oid)
        texts = _type_texts(connection, relation.columns)
        by_number = {a.number: a for a in attributes if not a.dropped}
        key = self._key(relation, table, logged, dict(zip((c.name for c in relation.columns), numbers, strict=True)))
        infos = []
        for column, number, text in zip(relation.columns, numbers, texts, strict=True):
            info = attribute_info(column.name, number, column.type_oid, column.type_modifier, text, types)
            now = by_number.get(number)
            if now is not None and (now.type_oid, now.type_modifier) == (column.type_oid, column.type_modifier):
                info = replace(info, not_null=now.not_null, missing=now.missing)
            elif logged is not None and table is None:
                info = as_logged(info, logged, is_known=column.type_oid in types)
            infos.append(replace(info, in_key=column.name in key))
        is_full = relation.identity == "f" and (table is None or not key or table.leaves_are_full)
        identity = Identity.FULL if is_full else Identity.KEY
        table_id = TableId(relation.namespace, relation.name)
        unlogged = _unlogged_partitions(table) if table is not None and logged is None else []
        if unlogged:
            self._refused.append(CapturedTableRefused(table_id, unlogged))
        try:
            if not relation.columns and table is not None and self._selection.selects(table_id):
                raise without_columns(table_id)
            return describe_table(table_id, relation.oid, tuple(infos), identity, self._policy)
        except ConfigurationError as error:
            rel = Relid(relation.oid, table_id)
            unfit = _name_refusals(rel, [c.name for c in relation.columns]) or [refusal_of(error)]
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
        if not _identity_refusals(table):
            if table.rel.identity == "i":
                self._uncertain.add(relation.oid)  # `RowVersions` compares only primary keys
            return
        found = _identity_refusals(table)
        if table.rel.identity == "d" and not table.deferrable and not table.primary:
            why = f"table {relation.namespace}.{relation.name} has lost its key, so its updates and deletes carry none"
            found = [(why, found[0][1])]
        self._refused.append(CapturedTableRefused(TableId(relation.namespace, relation.name), found))


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


def _without_columns(table: TableId, oid: int, policy: Policy) -> DescribedTable:
    return describe_table(table, oid, (), Identity.KEY, policy)


def _type_texts(connection: Connection, columns: Sequence[RelationColumn]) -> list[str]:
    """Return the names of the columns' types; for a type that has been dropped since, only its number (T36)."""
    rows = connection.execute(
        "SELECT pg_catalog.format_type(o, m) FROM unnest(%s::oid[], %s::int[]) WITH ORDINALITY x (o, m, i) ORDER BY i",
        ([c.type_oid for c in columns], [c.type_modifier for c in columns]),
    ).fetchall()
    return [f"oid {c.type_oid}" if text == "???" else text for c, (text,) in zip(columns, rows, strict=True)]


def word_of(type_oid: int) -> str:
    """Return the text that represents a type in a version's list of columns: its oid in hexadecimal."""
    return f"{_CHARACTERS.get(type_oid, type_oid):x}"


def column_numbers(
    columns: Sequence[RelationColumn], bases: Sequence[int], attributes: Sequence[Attribute], before: Sequence[Words]
) -> tuple[list[int], bool]:
    """Return the column numbers of a message's columns, and whether they are certain.

    `bases`: the columns' types, with domains resolved; `before`: the table's columns at earlier polls.

    A message may be older than a statement whose effect the catalog already shows. A column that was dropped and
    recreated under its name is a different column. If the type is the same, too, only an earlier poll distinguishes the
    two, if anything does.
    """
    found = numbers_by_order(columns, attributes)
    dropped = {a.number for a in attributes if a.dropped}
    if not any(number > len(words) or words[number - 1] for words in before for number in dropped):
        return found, True  # dropped before rows were first read: the order of the columns is enough
    wanted = [word_of(base) for base in bases]
    fitting = set()
    for words in before:
        shown = [(number, word) for number, word in enumerate(words, 1) if word and not word.startswith("-")]
        if [word for _, word in shown] == wanted:
            fitting.add(tuple(number for number, _ in shown))
    kinds = {(a.name, a.type_oid): a.number for a in attributes if not a.dropped}
    now = [kinds.get((c.name, c.type_oid), 0) for c in columns]
    if all(now) and now == sorted(now):
        fitting.add(tuple(now))
    if len(fitting) == 1:
        return list(fitting.pop()), True
    return found, False


def numbers_by_order(columns: Sequence[RelationColumn], attributes: Sequence[Attribute]) -> list[int]:
    """Return the column number of each column of a message. A message lists its columns by ascending number.

    Where names and types agree this is a lookup. Otherwise the most similar columns are paired: the same name and type,
    the same name with a new type, a dropped column's position, a new name. A column that matches no position gets a
    number that no column has.
    """
    present = {(a.name, a.type_oid): a.number for a in attributes if not a.dropped}
    numbers = [present.get((c.name, c.type_oid), 0) for c in columns]
    if all(numbers) and numbers == sorted(numbers):
        return numbers
    return _best_assignment(columns, attributes)


def _best_assignment(columns: Sequence[RelationColumn], attributes: Sequence[Attribute]) -> list[int]:
    """Return the best assignment that keeps the order, by dynamic programming over both lists.

    Numbers are assigned in the order in which columns are created. So a column that still exists already existed when
    one with a higher number did: skipping it costs more than any similarity is worth.
    """
    last = len(columns)
    scores = [[0] * (len(attributes) + 1) for _ in range(last + 1)]
    for i in range(last + 1):
        for j, attribute in enumerate(attributes, 1):
            cost = 0 if i == last or attribute.dropped or attribute.generated else _PASSED_OVER
            scores[i][j] = scores[i][j - 1] - cost
            if i:
                matched = scores[i - 1][j - 1] + _likeness(columns[i - 1], attribute)
                scores[i][j] = max(scores[i][j], scores[i - 1][j], matched)
    numbers = [UNKNOWN_NUMBER + i for i in range(last)]
    i, j = last, len(attributes)
    while i and j:
        if scores[i][j] == scores[i - 1][j - 1] + _likeness(columns[i - 1], attributes[j - 1]):
            i, j = i - 1, j - 1
            numbers[i] = attributes[j].number
        elif scores[i][j] == scores[i - 1][j]:
            i -= 1
        else:
            j -= 1
    return numbers


_PASSED_OVER = 100


def _likeness(column: RelationColumn, attribute: Attribute) -> int:
    if attribute.dropped:
        return 3
    if attribute.name == column.name:
        return 8 if attribute.type_oid == column.type_oid else 6
    return 2 if attribute.type_oid == column.type_oid else 1
