"""The entries of the server's catalog: tables, their columns, keys and partitions, and types."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from cdcflow.model.table import TableId
from cdcflow.sources.postgres.columns import Attribute
from cdcflow.sources.postgres.connection import Connection, one_snapshot, quote_name
from cdcflow.sources.postgres.types import AttributeInfo

RELATIONS = """
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

ROOTS = """
WITH RECURSIVE up (oid, above) AS (
    SELECT i.inhrelid, i.inhparent FROM pg_catalog.pg_inherits i WHERE i.inhrelid = ANY (%s::oid[])
    UNION ALL
    SELECT u.oid, i.inhparent FROM up u JOIN pg_catalog.pg_inherits i ON i.inhrelid = u.above
)
SELECT u.oid::bigint, n.nspname, c.relname
FROM up u JOIN pg_catalog.pg_class c ON c.oid = u.above AND NOT c.relispartition
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
"""

# A missing value is an array of one element of the column's type. A cast of the array to text[] would split a box,
# whose arrays have another delimiter than a comma.
_ATTRIBUTES = """
SELECT a.attrelid::bigint, a.attnum, a.attname, a.atttypid::bigint, a.atttypmod,
       pg_catalog.format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attgenerated::text, a.attisdropped,
       CASE WHEN a.atthasmissing THEN pg_catalog.array_to_string(a.attmissingval, '') END
FROM pg_catalog.pg_attribute a
WHERE a.attrelid = ANY (%s::oid[]) AND a.attnum > 0
ORDER BY a.attrelid, a.attnum
"""

# The server stores the missing value of a partitioned table's column with its partitions, which have rows. A partition
# that was attached later may have a different value; partitions that existed when the column was added have a catalog
# row from that transaction.
_MISSING_IN_LEAVES = f"""
{_TREE}SELECT DISTINCT ON (r.attrelid, r.attnum) r.attrelid::bigint, r.attnum,
       pg_catalog.array_to_string(a.attmissingval, '')
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
       CASE WHEN e.oid IS NULL THEN 0 ELSE t.typelem::bigint END, t.typdelim::text
FROM wanted
JOIN pg_catalog.pg_type t ON t.oid = wanted.oid
LEFT JOIN pg_catalog.pg_type e ON e.oid = t.typelem AND e.typarray = t.oid
"""


@dataclass(frozen=True, slots=True)
class TypeInfo:
    """One row of pg_type. `element` 0: not an array; `base` 0: not a domain; `delimiter`: between values of the type in
    the text of an array."""

    kind: str
    base: int
    modifier: int
    element: int
    delimiter: str


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
    row = connection.execute(f"{RELATIONS} AND c.oid = %s", (oid,)).fetchone()
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
    base_oid, base_modifier, base = base_type(type_oid, type_modifier, types)
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
    element_oid, element_modifier, element = base_type(base.element, base_modifier, types)
    return replace(
        info,
        element_oid=element_oid,
        element_modifier=element_modifier,
        element_kind=element.kind if element else "b",
        element_delimiter=element.delimiter if element else ",",
    )


def base_type(oid: int, modifier: int, types: Mapping[int, TypeInfo]) -> tuple[int, int, TypeInfo | None]:
    found = types.get(oid)
    while found is not None and found.kind == "d":
        oid, modifier = found.base, found.modifier
        found = types.get(oid)
    return oid, modifier, found
