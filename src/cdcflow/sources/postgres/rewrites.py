"""Detects whether rows that were read have different values now, without any record of it in the server's log.

A statement that rewrites a table (ADD COLUMN … DEFAULT random(), a serial or stored generated column, ALTER TYPE …
USING) gives every row a new value and publishes nothing. A few more statements change the values that rows show without
even touching them (a label of an enum is renamed). So a table's *row version* is taken from the catalog before a
backfill pins what it reads, is stored with the backfill's progress, and is compared later:

    plan ── version 1 ── rows are read ──▶ done        ALTER TABLE        version 2 ── changed: plan, read again
                         stored with each cut                             (at the next row, poll, or start)

docs/decisions/0030 lists the contents of a version, and which difference means that rows have changed. For why a
version must also be known before a generation begins, see `cdcflow.capture.interleave.machine`.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from cdcflow.capture.interleave.messages import KnownRows, RowsCompared, RowVersion
from cdcflow.model.table import TableId
from cdcflow.sources.postgres.catalog import Catalog
from cdcflow.sources.postgres.catalog_entries import Relid
from cdcflow.sources.postgres.column_numbers import Words, word_of
from cdcflow.sources.postgres.connection import Connection

FORMAT = 1

# pg_partition_tree is not used, because it waits for locks of DDL; nor is pg_relation_filenode, because it uses a
# different snapshot.
_FILES = """
WITH RECURSIVE tree (root, oid, kind, file, attached_by, made_here) AS (
    SELECT c.oid, c.oid, c.relkind, c.relfilenode, '', true FROM pg_catalog.pg_class c WHERE c.oid = ANY (%s::oid[])
    UNION ALL
    SELECT t.root, c.oid, c.relkind, c.relfilenode, concat_ws(':', nullif(t.attached_by, ''), i.xmin), t.made_here
    AND EXISTS (
        SELECT FROM pg_catalog.pg_attribute made JOIN pg_catalog.pg_attribute a ON a.attrelid = made.attrelid
        WHERE made.attrelid = c.oid AND made.attnum = -1 AND a.attnum > 0 AND a.attinhcount > 0
          AND a.xmin = made.xmin AND a.cmin = made.cmin AND a.xmax = 0 AND made.xmax = 0)
    FROM tree t
    JOIN pg_catalog.pg_inherits i ON i.inhparent = t.oid AND NOT i.inhdetachpending
    JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid
    WHERE t.kind = 'p'
)
SELECT t.root::bigint, t.oid::bigint, t.file::bigint,
       (SELECT pg_catalog.hashtextextended(
            string_agg(concat_ws(':', a.attnum, a.xmin), ',' ORDER BY a.attnum) COLLATE "C", 0)
        FROM pg_catalog.pg_attribute a WHERE a.attrelid = t.oid AND a.attnum > 0),
       t.made_here AND t.file = t.oid, t.attached_by,
       (SELECT a.xmin::text FROM pg_catalog.pg_attribute a WHERE a.attrelid = t.root AND a.attnum = -1)
FROM tree t WHERE t.kind <> 'p'
"""

_COLUMNS = """
SELECT a.attrelid::bigint, CASE WHEN a.attisdropped THEN 0 ELSE a.atttypid::bigint END,
       a.attgenerated = '' OR (a.attgenerated = 's' AND current_setting('server_version_num')::int >= 180000)
FROM pg_catalog.pg_attribute a WHERE a.attrelid = ANY (%s::oid[]) AND a.attnum > 0
ORDER BY a.attrelid, a.attnum
"""

# The types that the columns use, and all their parts: for an enum a hash of each label, for a composite one hash.
_TYPES = """
WITH RECURSIVE used (root, oid) AS (
    SELECT a.attrelid, a.atttypid FROM pg_catalog.pg_attribute a
    WHERE a.attrelid = ANY (%s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
    UNION
    SELECT u.root, next.oid
    FROM used u JOIN pg_catalog.pg_type t ON t.oid = u.oid
    CROSS JOIN LATERAL (
        SELECT t.typbasetype UNION ALL SELECT t.typelem
        UNION ALL SELECT a.atttypid FROM pg_catalog.pg_attribute a
                  WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped
        UNION ALL SELECT r.rngsubtype FROM pg_catalog.pg_range r WHERE t.oid IN (r.rngtypid, r.rngmultitypid)
    ) AS next (oid)
    WHERE next.oid <> 0
)
SELECT u.root::bigint, t.oid::bigint, t.typbasetype::bigint, CASE t.typtype
           WHEN 'e' THEN EXISTS (
               SELECT FROM pg_catalog.pg_enum e
               WHERE e.enumtypid = t.oid AND NOT (e.xmin = t.xmin AND e.cmin = t.cmin))
           WHEN 'c' THEN EXISTS (
               SELECT FROM pg_catalog.pg_attribute a
               WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT (a.xmin = t.xmin AND a.cmin = t.cmin))
       END, CASE t.typtype
           WHEN 'e' THEN ARRAY(
               SELECT pg_catalog.hashtextextended(concat_ws(':', e.oid, e.enumlabel) COLLATE "C", 0)
               FROM pg_catalog.pg_enum e WHERE e.enumtypid = t.oid)
           WHEN 'c' THEN ARRAY(
               SELECT pg_catalog.hashtextextended(
                   string_agg(concat_ws(':', a.attnum, a.atttypid), ',' ORDER BY a.attnum) COLLATE "C", 0)
               FROM pg_catalog.pg_attribute a WHERE a.attrelid = t.typrelid AND a.attnum > 0)
       END
FROM used u JOIN pg_catalog.pg_type t ON t.oid = u.oid
WHERE t.typtype IN ('e', 'c', 'd')
"""

_KEYS = """
SELECT t.oid::bigint, t.relreplident = 'f', k.oid::bigint, k.relfilenode::bigint, k.conkey,
       NOT EXISTS (SELECT FROM pg_catalog.pg_publication_rel p WHERE p.prrelid = t.oid
                   AND NOT coalesce((to_jsonb(p) ->> 'prexcept')::bool, false))
FROM pg_catalog.pg_class t LEFT JOIN (
    SELECT c.conrelid, c.oid, c.conkey, i.relfilenode
    FROM pg_catalog.pg_constraint c
    JOIN pg_catalog.pg_index x ON x.indexrelid = c.conindid AND x.indisvalid AND x.indimmediate
    JOIN pg_catalog.pg_class i ON i.oid = c.conindid
    WHERE c.contype = 'p'
) AS k ON k.conrelid = t.oid
WHERE t.oid = ANY (%s::oid[])
"""

_OIDS = """
SELECT c.oid::bigint, n.nspname, c.relname
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE (n.nspname::text, c.relname::text) IN (SELECT * FROM unnest(%s::text[], %s::text[]))
"""

WAS_MAX = 4
"""How many of a table's earlier lists of columns, and how many of its earlier keys, are remembered."""


@dataclass(frozen=True, slots=True)
class PrimaryKey:
    """A primary key that is unique at all times (not deferrable): its constraint's number, its index's file (0: the
    table has none itself), and the numbers of its columns. `NO_KEY`: the table had none."""

    constraint: int
    file: int
    columns: tuple[int, ...]

    def is_still(self, now: PrimaryKey) -> bool:
        """Whether the table had this key all the time until `now`."""
        return self.constraint == now.constraint or (self.file != 0 and self.file == now.file)

    @property
    def word(self) -> str:
        return f"{self.constraint:x}:{self.file:x}:{'.'.join(map(str, self.columns))}"

    @classmethod
    def of_word(cls, word: str) -> PrimaryKey:
        constraint, file, columns = word.split(":")
        return cls(int(constraint, 16), int(file, 16), tuple(map(int, columns.split("."))) if columns else ())


NO_KEY = PrimaryKey(0, 0, ())
_NO_KEYS = (NO_KEY, False, False)


@dataclass(frozen=True, slots=True)
class CatalogVersion:
    """The facts in the catalog that the values of a table's rows depend on (see the top of this module). `oid` is the
    table's own.

    `files` has (relfilenode, digest of columns) by oid. `columns` has a text for each column number, starting at 1
    (`word_of`), empty if the column is dropped. `types` has texts by type; texts may be added. `attached` are
    the partitions that may have had rows when they were added, `altered` the types that were changed since they were
    created; neither is stored, because only new partitions and types are checked for it. `was` are earlier lists of
    columns, which the stream may still refer to although some of their columns were dropped since. `attached_by` has
    the transactions that attached each partition, and the tables between it and the root; `created_by` is the
    transaction that created the root (pg_upgrade creates it again, and attaches all partitions). `unkept` are the
    columns with a constant for older rows that their description does not keep; it is not stored either, and only
    determined for tables with new columns. `key` is the primary
    key (None: an earlier cdcflow, which did not record it, wrote the version), `keys_were` those that the table had
    since its rows were read, `is_full` whether REPLICA IDENTITY is FULL, `untold` whether a message arrived that does
    not contain the key of its time.
    """

    oid: int
    files: Mapping[int, tuple[int, str]]
    columns: tuple[str, ...]
    types: Mapping[int, frozenset[str]]
    attached: frozenset[int] = field(default=frozenset(), compare=False)
    altered: frozenset[int] = field(default=frozenset(), compare=False)
    unkept: frozenset[int] = field(default=frozenset(), compare=False)
    was: tuple[Words, ...] = ()
    key: PrimaryKey | None = None
    keys_were: tuple[PrimaryKey, ...] = ()
    is_full: bool = False
    untold: bool = False
    unlisted: bool = False
    attached_by: Mapping[int, str] = field(default_factory=dict)
    created_by: str = ""

    def after(self, before: CatalogVersion) -> CatalogVersion:
        """Return this version, with the facts that it must keep from an earlier version: lists of columns, keys, and
        `untold`."""
        gone = any(then and not now for now, then in zip(self.columns, before.columns, strict=False))
        keys = (*before.keys_were, before.key) if before.key is not None and self.has_other_key(before) else ()
        return replace(
            self,
            was=(*before.was, *((before.columns,) if gone else ()))[-WAS_MAX:],
            keys_were=(keys or before.keys_were)[-WAS_MAX:],
            untold=before.untold,
        )

    def has_other_key(self, before: CatalogVersion) -> bool:
        """Whether the key is not the one of `before`, or was missing at some time since."""
        return self.key is not None and before.key is not None and not before.key.is_still(self.key)

    def changed_since(self, before: CatalogVersion) -> bool:
        """Whether rows that were read at `before` show other values now, or were decoded with a key that the table did
        not have at that time."""
        rewritten = any(
            file != self.files[oid][0] and digest != self.files[oid][1]
            for oid, (file, digest) in before.files.items()
            if oid in self.files
        )
        left = any(
            file != self.files.get(oid, (0, ""))[0] for oid, (file, _) in before.files.items() if oid != self.oid
        )
        came = any(oid not in before.files for oid in self.attached)
        # A partition that was detached may have been changed without being logged before it was attached again.
        came_back = self.created_by == before.created_by and any(
            by != before.attached_by.get(oid, by) for oid, by in self.attached_by.items()
        )
        both = zip(self.columns, before.columns, strict=False)
        shown_otherwise = any(now != then for now, then in both if now and then)
        types = any(
            not before.types[t] <= words if t in before.types else t in self.altered for t, words in self.types.items()
        )
        unlogged = self.unlisted and any(
            file != self.files[oid][0] for oid, (file, _) in before.files.items() if oid in self.files
        )
        decoded_otherwise = (self.is_full or before.is_full) and self.has_other_key(before)
        lacking = any(number > len(before.columns) for number in self.unkept)
        partitions = left or came or came_back
        return rewritten or unlogged or partitions or shown_otherwise or types or decoded_otherwise or lacking

    def to_json(self) -> str:
        types = {str(oid): ".".join(sorted(words)) for oid, words in self.types.items()}
        value = {"version": FORMAT, "oid": self.oid, "files": self.files, "columns": ".".join(self.columns)}
        more = {"types": types} if types else {}
        was = {"was": [".".join(words) for words in self.was]} if self.was else {}
        key = {} if self.key is None else {"key": self.key.word}
        keys = {"keys_were": [key.word for key in self.keys_were]} if self.keys_were else {}
        full = {"full": True} if self.is_full else {}
        untold = {"untold": True} if self.untold else {}
        unlisted = {"unlisted": True} if self.unlisted else {}
        by = {"attached_by": self.attached_by, "created_by": self.created_by} if self.attached_by else {}
        found = {**value, **more, **was, **key, **keys, **full, **untold, **unlisted, **by}
        return json.dumps(found, separators=(",", ":"), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> CatalogVersion:
        value = json.loads(text)
        return cls(
            value["oid"],
            {int(oid): (file, digest) for oid, (file, digest) in value["files"].items()},
            tuple(value["columns"].split(".")),
            {int(oid): frozenset(words.split(".")) for oid, words in value.get("types", {}).items()},
            was=tuple(tuple(words.split(".")) for words in value.get("was", ())),
            key=PrimaryKey.of_word(value["key"]) if "key" in value else None,
            keys_were=tuple(map(PrimaryKey.of_word, value.get("keys_were", ()))),
            is_full=value.get("full", False),
            untold=value.get("untold", False),
            unlisted=value.get("unlisted", False),
            attached_by={int(oid): by for oid, by in value.get("attached_by", {}).items()},
            created_by=value.get("created_by", ""),
        )


def versions(connection: Connection, oids: Collection[int]) -> dict[int, CatalogVersion]:
    """Return the versions of tables in their current state, by oid. Tables that no longer exist are skipped."""
    wanted = (sorted(oids),)
    files: dict[int, dict[int, tuple[int, str]]] = {}
    attached: dict[int, set[int]] = {}
    attached_by: dict[int, dict[int, str]] = {}
    created_by: dict[int, str] = {}
    for root, oid, file, digest, came_empty, by, created in connection.execute(_FILES, wanted):
        files.setdefault(root, {})[oid] = (file, _word(digest or 0))
        if root == oid:
            continue
        attached_by.setdefault(root, {})[oid] = by
        created_by[root] = created or ""
        if not came_empty:
            attached.setdefault(root, set()).add(oid)
    bases: dict[int, int] = {}
    types: dict[int, dict[int, frozenset[str]]] = {}
    altered: dict[int, set[int]] = {}
    for root, oid, base, is_altered, hashes in connection.execute(_TYPES, wanted):
        if is_altered:
            altered.setdefault(root, set()).add(oid)
        if base:
            bases[oid] = base
        else:
            types.setdefault(root, {})[oid] = frozenset(_word(h or 0) for h in hashes)
    keys: dict[int, tuple[PrimaryKey, bool, bool]] = {}
    for root, is_full, constraint, file, numbers, unlisted in connection.execute(_KEYS, wanted):
        keys[root] = (PrimaryKey(constraint, file, tuple(numbers)) if constraint else NO_KEY), is_full, unlisted
    columns: dict[int, list[str]] = {}
    for root, type_oid, published in connection.execute(_COLUMNS, wanted):
        while type_oid in bases:
            type_oid = bases[type_oid]
        shown = f"{'' if published else '-'}{word_of(type_oid)}" if type_oid else ""
        columns.setdefault(root, []).append(shown)
    return {
        root: CatalogVersion(
            root,
            files.get(root, {}),
            tuple(found),
            types.get(root, {}),
            frozenset(attached.get(root, ())),
            frozenset(altered.get(root, ())),
            key=keys.get(root, _NO_KEYS)[0],
            is_full=keys.get(root, _NO_KEYS)[1],
            unlisted=keys.get(root, _NO_KEYS)[2],
            attached_by=attached_by.get(root, {}),
            created_by=created_by.get(root, ""),
        )
        for root, found in columns.items()
    }


@dataclass(frozen=True, slots=True)
class _Known:
    """The version, as text, that the stream compares a table's rows with: the version at which generation `generation`
    reads them, with changes observed since that do not matter to the rows."""

    table: TableId
    generation: int
    text: str


class RowVersions:
    """Takes versions when tables are planned, and compares with them when there is a reason. Thread-safe.

    Three threads meet here: one plans, one polls the catalog, and one reads the stream. The stream's version of a table
    is replaced by the plan of a later generation, and by a poll only if the poll began with that same version, because
    the stream may have observed more in the meantime. Otherwise a message from before a change would be compared with a
    version from after it.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._lock = threading.Lock()
        self._known: dict[int, _Known] = {}
        catalog.columns_before = self._columns_before
        catalog.key_before = self._key_before

    def _columns_before(self, oid: int) -> Sequence[Words]:
        version = self._version(oid)
        return () if version is None else (*version.was, version.columns)

    def _key_before(self, oid: int) -> Sequence[int]:
        version = self._version(oid)
        return () if version is None or version.key is None else version.key.columns

    def _version(self, oid: int) -> CatalogVersion | None:
        with self._lock:
            known = self._known.get(oid)
        return None if known is None else CatalogVersion.from_json(known.text)

    def take(self, connection: Connection, rel: Relid, generation: int) -> str | None:
        """Return the version of a table that is about to be planned; None if it no longer exists.

        `generation` 0: the plan begins no generation, so the version that the stream compares with stays the same.
        """
        found = versions(connection, [rel.oid]).get(rel.oid)
        text = None if found is None else found.to_json()
        with self._lock:
            known = self._known.get(rel.oid)
            if text is not None and generation and (known is None or known.generation <= generation):
                self._known[rel.oid] = _Known(rel.id, generation, text)
        return text

    def compare(self, known: Mapping[TableId, KnownRows]) -> RowsCompared:
        """Compare the tables' current row versions. See `cdcflow.ports.Source.compare_rows`."""
        before = {table: _read(rows.version) for table, rows in known.items()}

        def ask(connection: Connection) -> dict[TableId, CatalogVersion]:
            oids = {table: version.oid for table, version in before.items() if version is not None}
            oids |= _oids(connection, [table for table, version in before.items() if version is None])
            known_before = [version for version in before.values() if version is not None]
            found = self._with_unkept(connection, versions(connection, oids.values()), known_before)
            return {table: found[oid] for table, oid in oids.items() if oid in found}

        now = self._catalog.ask("comparing the versions of tables", ask) if before else {}
        compared = []
        with self._lock:
            for table, version in now.items():
                then = before[table]
                version = version if then is None else version.after(then)
                if version.oid in self._catalog.untold:
                    version = replace(version, untold=True)  # the progress may lack what the stream reported
                text = version.to_json()
                changed = then is not None and (version.changed_since(then) or self._decoded_otherwise(version))
                if self._is_latest(version.oid, known[table]):
                    if changed:
                        self._known.pop(version.oid, None)
                    else:
                        self._known[version.oid] = _Known(table, known[table].generation, text)
                if changed or text != known[table].version:
                    compared.append(RowVersion(table, known[table].version, text, changed))
        return RowsCompared(tuple(compared))

    def _is_latest(self, oid: int, polled: KnownRows) -> bool:
        """Whether the stream has observed nothing of the table since a poll began. `polled`: what was known of the rows
        then."""
        known = self._known.get(oid)
        return known is None or known.generation < polled.generation or known.text == polled.version

    def changed_version(self, oid: int, partition: int) -> RowVersion | None:
        """Return the version of a table that the stream has just described, if its rows must be read again (returned
        once), or if it has other partitions or columns; otherwise None.

        `partition` is one that the table has according to the stream (0 if it reported none). A partition that was
        added and removed left rows in the log, but is in no catalog.
        """
        with self._lock:
            known = self._known.get(oid)
        if known is None:
            return None
        uncertain = not partition and self._catalog.take_uncertain(oid)
        table, text = known.table, known.text
        then = CatalogVersion.from_json(text)
        if partition and (oid in then.files or partition in then.files):
            return None

        def ask(connection: Connection) -> dict[int, CatalogVersion]:
            return self._with_unkept(connection, versions(connection, [oid]), [then])

        now = self._catalog.ask(f"comparing the version of {table}", ask).get(oid)
        if now is None:
            return None
        now = now.after(then)
        if not partition and oid in self._catalog.untold:
            now = replace(now, untold=True)
        came_and_went = bool(partition and partition not in now.files)
        changed = now.changed_since(then) or came_and_went or uncertain or self._decoded_otherwise(now)
        same_key = (now.key, now.is_full, now.untold) == (then.key, then.is_full, then.untold)
        if not changed and same_key and now.files.keys() == then.files.keys() and now.columns == then.columns:
            return None
        now_text = now.to_json()
        with self._lock:
            if self._known.get(oid) == known:
                if changed:
                    del self._known[oid]
                else:
                    self._known[oid] = replace(known, text=now_text)
        return RowVersion(table, text, now_text, changed)

    def _with_unkept(
        self, connection: Connection, found: dict[int, CatalogVersion], before: Sequence[CatalogVersion]
    ) -> dict[int, CatalogVersion]:
        """Return these versions, with `unkept` of those that have more columns than before."""
        grown = [v.oid for v in before if v.oid in found and len(found[v.oid].columns) > len(v.columns)]
        lost = self._catalog.lost_constants(connection, grown) if grown else {}
        return found | {oid: replace(found[oid], unkept=columns) for oid, columns in lost.items()}

    def _decoded_otherwise(self, version: CatalogVersion) -> bool:
        """Whether a message without a key arrived for a table whose key has changed since its rows were read."""
        return bool(version.keys_were) and (version.untold or version.oid in self._catalog.untold)


Changed = Callable[[int, int], RowVersion | None]
"""The type of `RowVersions.changed_version`."""


def _read(text: str | None) -> CatalogVersion | None:
    """Return a stored version; None if it has another format, of a newer cdcflow: the table's version is then read
    again."""
    return CatalogVersion.from_json(text) if text and json.loads(text)["version"] == FORMAT else None


def _oids(connection: Connection, tables: Collection[TableId]) -> dict[TableId, int]:
    if not tables:
        return {}
    names = [t.schema for t in tables], [t.name for t in tables]
    return {TableId(schema, name): oid for oid, schema, name in connection.execute(_OIDS, names)}


def _word(number: int) -> str:
    return f"{number & 0xFFFFFFFFFFFFFFFF:x}"
