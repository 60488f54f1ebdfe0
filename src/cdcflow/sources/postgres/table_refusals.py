"""Which tables cannot be captured, according to their catalog entries, and the SQL that changes that. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from cdcflow.errors import ConfigurationError
from cdcflow.model.table import TableId
from cdcflow.sources.engine.selection import Refusal, name_refusals, refusal_of
from cdcflow.sources.postgres.catalog_entries import CatalogTable, Relid
from cdcflow.sources.postgres.connection import quote_name


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
    found += identity_refusals(table)
    if not table.published_columns(version):
        found.append(refusal_of(without_columns(rel.id)))
    found += unlogged_partitions(table)
    found += [_access_method(leaf) for leaf in table.leaves if leaf.access_method not in ("heap", None)]
    if rel.kind == "r" and rel.access_method not in ("heap", None):
        found.append(_access_method(rel))
    found += column_refusals(rel, [a.name for a in table.published_columns(version)])
    found += _unsent_key(table, version)
    return found


def unlogged_partitions(table: CatalogTable) -> list[Refusal]:
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


def column_refusals(rel: Relid, names: Sequence[str]) -> list[Refusal]:
    return name_refusals(rel.id, names, lambda name: f"ALTER TABLE {rel.sql} RENAME COLUMN {quote_name(name)} TO …")


def identity_refusals(table: CatalogTable) -> list[Refusal]:
    rel = table.rel
    everyone = [rel, *table.leaves]
    if rel.identity == "n":
        why = "has REPLICA IDENTITY NOTHING, so updates and deletes carry no key"
        return [(f"{rel.id} {why}", _remedy(everyone, table))]
    if rel.identity == "i" and not table.index:
        return [
            (f"{rel.id} has REPLICA IDENTITY USING INDEX, but that index is gone", _remedy(everyone, table)),
        ]
    if rel.identity == "d" and table.deferrable:
        why = "has a primary key that is DEFERRABLE, which the server does not use to tell old rows apart"
        return [(f"{rel.id} {why}", _remedy(everyone, table))]
    if rel.identity == "d" and not table.primary:
        return [(f"{rel.id} has no primary key and no other replica identity", _remedy(everyone, table))]
    # Old rows are written under the identity of the partition they are in.
    if bad := [x for x in table.leaves if x.identity == "n" or (x.identity == "d" and not x.old_columns)]:
        names = ", ".join(str(leaf.id) for leaf in bad)
        return [(f"partition {names} of {rel.id} has no replica identity itself", _remedy(bad, table))]
    if bad := [leaf for leaf in table.leaves if leaf.kind != "f" and not table.is_identified_in(leaf)]:
        return [other_identity(bad, table)]
    return []


def other_identity(bad: Sequence[Relid], table: CatalogTable) -> Refusal:
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


def _remedy(rels: Sequence[Relid], table: CatalogTable) -> str:
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
