"""The checks of `doctor`: conditions that prevent a capture, each with the SQL that fixes it. Nothing is changed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cdcflow.capture.ports.findings import Finding, Remedy
from cdcflow.config import Postgres
from cdcflow.errors import CdcflowError
from cdcflow.sources.engine import findings as findings_of
from cdcflow.sources.engine.findings import (
    Checks,
    at_first_start,
    created_at_first_start,
    of_error,
    ok,
    problem,
    run,
    warning,
)
from cdcflow.sources.engine.selection import Selection, advice
from cdcflow.sources.postgres import (
    backfill_standby_findings,
    budget_findings,
    publication,
    slot,
    standby_findings,
)
from cdcflow.sources.postgres.catalog import Selected, select
from cdcflow.sources.postgres.catalog_entries import CatalogTable
from cdcflow.sources.postgres.connection import Connection, Connector, query_row, quote_name
from cdcflow.sources.postgres.decoders import COMPILED, Compiled
from cdcflow.sources.postgres.identity import decodes, identify
from cdcflow.sources.postgres.platforms import Platform, platform_of
from cdcflow.sources.postgres.recovery import is_standby
from cdcflow.sources.postgres.types import Policy

# The first minor of each major in which rows of a running transaction are not lost when its table is added to a
# publication (P62; release notes of May 2025).
PATCHED = {14: 18, 15: 13, 16: 9, 17: 5}

_SERVER = """
SELECT current_setting('wal_level'), current_setting('max_replication_slots')::int,
       (SELECT count(*) FROM pg_catalog.pg_replication_slots)::int, current_setting('max_wal_senders')::int,
       (SELECT count(*) FROM pg_catalog.pg_stat_replication)::int, current_setting('max_slot_wal_keep_size'),
       current_setting('idle_replication_slot_timeout', true), current_setting('wal_sender_timeout'),
       current_setting('server_version'), current_setting('effective_wal_level', true)
"""

_OLDEST = """
SELECT max(extract(epoch FROM clock_timestamp() - xact_start))::bigint FROM pg_catalog.pg_stat_activity
WHERE backend_xid IS NOT NULL AND pid <> pg_catalog.pg_backend_pid()
"""
OLD_TRANSACTION_S = 60

_ROLE = """
SELECT rolname, rolreplication, rolsuper, rolbypassrls,
       coalesce((SELECT pg_catalog.pg_has_role(g.oid, 'MEMBER') FROM pg_catalog.pg_roles g
                 WHERE g.rolname = %s), false),
       pg_catalog.has_database_privilege(current_database(), 'CREATE'), current_database()
FROM pg_catalog.pg_roles WHERE rolname = current_user
"""

_RIGHTS = """
SELECT c.oid::bigint, n.nspname, pg_catalog.has_schema_privilege(n.oid, 'USAGE'),
       pg_catalog.has_table_privilege(c.oid, 'SELECT'), pg_catalog.pg_has_role(c.relowner, 'USAGE'),
       c.relrowsecurity AND (c.relforcerowsecurity OR NOT pg_catalog.pg_has_role(c.relowner, 'USAGE')),
       pg_catalog.pg_get_userbyid(c.relowner),
       EXISTS (SELECT FROM pg_catalog.pg_inherits i WHERE i.inhparent = c.oid) AND c.relkind = 'r'
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = ANY (%s::oid[])
"""


@dataclass(frozen=True, slots=True)
class _Role:
    name: str
    replicates: bool
    is_superuser: bool
    bypasses_rls: bool
    is_granted: bool  # it has the role by which a service lets its users replicate
    creates_in_database: bool
    database: str

    @property
    def may_replicate(self) -> bool:
        return self.replicates or self.is_superuser or self.is_granted


def findings(connector: Connector, settings: Postgres, selection: Selection) -> list[Finding]:
    """Return the results of all checks; a check that fails to run is a finding too."""
    checks = Checks(connector, lambda: connector.connect("doctor", statement_timeout="60s"), connector.map_error)

    def everything(connection: Connection) -> Iterator[Finding]:
        if not is_standby(connection):
            yield from every_check(connection, at_standby=False)
        else:
            yield from map(standby_findings.for_primary, every_check(connection, at_standby=True))

    def every_check(connection: Connection, *, at_standby: bool) -> Iterator[Finding]:
        platform = platform_of(connection)
        role = _Role(*query_row(connection, _ROLE, (platform.grant,)))
        yield decoders()
        yield from _link(connection, connector)
        yield from _server(connection, settings, platform)
        if at_standby:
            yield from standby_findings.findings(connection, settings, platform)
        yield from _role(role, platform)
        yield from _replication(connector, role)
        try:
            selected = select(connection, selection, Policy.of(settings))
        except CdcflowError as error:
            yield of_error("source.tables", error)
            return
        yield from _tables(connection, selected, role)
        if at_standby:
            yield from standby_findings.publication_findings(connection, settings, selected.good)
        else:
            yield from _publication(connection, settings, selected, role)
            yield from _locked_findings(connection, settings, selected)
            yield from _old_transaction(connection)
            yield from _backfill_standby(connector, settings)
        yield from _slot(connection, settings, role)
        may_create = role.creates_in_database or role.is_superuser
        if not (at_standby and settings.releases):
            yield from budget_findings.findings(connection, settings, platform, may_create=may_create)

    return checks.run(lambda c: checks.run_one("connection", f"querying {connector.address}", everything(c)))


_LOST_PART = re.compile(r"(.*) is a partition of (.*), which source\.tables does not select.*", re.DOTALL)
_NAMES_SHOWN = 3

_FACTS = (
    *("server_version", "server_encoding", "wal_level", "max_replication_slots", "max_wal_senders"),
    *("max_slot_wal_keep_size", "idle_replication_slot_timeout", "wal_sender_timeout", "wal_keep_size", "max_wal_size"),
    *("logical_decoding_work_mem", "synchronous_commit", "hot_standby_feedback", "statement_timeout", "lock_timeout"),
    *("idle_in_transaction_session_timeout", "max_connections", "shared_buffers", "block_size", "TimeZone"),
)


def facts(connection: Connection) -> dict[str, str]:
    """Return the server's version and settings, for an operator who investigates a problem."""
    rows = connection.execute(
        "SELECT name, setting || coalesce(unit, '') FROM pg_catalog.pg_settings WHERE name = ANY (%s)", (list(_FACTS),)
    )
    slots = connection.execute(
        "SELECT 'slot ' || slot_name, concat_ws(' ', plugin, wal_status, CASE WHEN active THEN 'active' END) "
        "FROM pg_catalog.pg_replication_slots WHERE database = current_database()"
    )
    return {**dict(rows.fetchall()), **dict(slots.fetchall())}


def decoders(compiled: Compiled | None = COMPILED) -> Finding:
    return findings_of.decoders(are_compiled=compiled is not None, times="about six")


def _link(connection: Connection, connector: Connector) -> Iterator[Finding]:
    if connector.address.is_local:
        yield ok("connection", f"{connector.address}, {connector.machine}")
    elif not connection.pgconn.ssl_in_use:
        yield warning(
            "connection",
            f"rows and password travel to {connector.address} unencrypted",
            "add ?sslmode=verify-full&sslrootcert=… to source.url",
        )
    elif connector.address.options.get("sslmode") not in ("verify-full", "verify-ca"):
        yield warning(
            "connection",
            f"{connector.address} is reached with TLS, but its certificate is not verified",
            "add ?sslmode=verify-full&sslrootcert=… to source.url",
        )
    else:
        yield ok("connection", f"{connector.address}, with TLS")


def _server(connection: Connection, settings: Postgres, platform: Platform) -> Iterator[Finding]:
    level, slots_max, slots, senders_max, senders, keep, idle, timeout, version, effective = query_row(
        connection, _SERVER
    )
    major, minor = divmod(connection.info.server_version, 10000)
    if minor < PATCHED.get(major, 0):
        yield warning(
            "server",
            f"PostgreSQL {version} can lose rows of a transaction that runs while its table is added to a publication",
            f"upgrade to {major}.{PATCHED[major]} or later",
        )
    else:
        yield ok("server", f"PostgreSQL {version}{f', {platform.name}' if platform.is_managed else ''}")
    if not decodes(level, effective):
        yield problem("wal_level", f"is {level}; changes cannot be decoded", platform.logical_remedy())
    elif level == "logical":
        yield ok("wal_level", "is logical")
    else:
        yield ok("wal_level", f"is {level}, and becomes logical with the first slot (effective_wal_level: {effective})")
    for name, used, limit, besides in (
        ("max_replication_slots", slots, slots_max, "but a large backlog is read faster with one more"),
        ("max_wal_senders", senders, senders_max, ""),
    ):
        if used >= limit:
            ours = ", ".join(filter(None, ("no more is needed if one of them is cdcflow's", besides)))
            yield warning(
                name, f"all {limit} are in use ({ours})", platform.setting_remedy(name, str(limit + 5), restart=True)
            )
        else:
            yield ok(name, f"{used} of {limit} in use")
    if keep == "-1":
        yield warning(
            "max_slot_wal_keep_size",
            "is unlimited: while cdcflow is stopped, the server keeps log for it until its disk is full",
            platform.setting_remedy("max_slot_wal_keep_size", "50GB", note="whatever the disk can spare"),
        )
    else:
        yield ok(
            "max_slot_wal_keep_size",
            f"is {keep}: if cdcflow lags further, the slot is lost and all tables must be read again",
        )
    if idle not in (None, "", "0"):
        yield warning(
            "idle_replication_slot_timeout",
            f"is {idle}: if cdcflow is stopped for longer, the slot is lost",
            platform.setting_remedy("idle_replication_slot_timeout", "0"),
        )
    if timeout == "0":
        yield warning(
            "wal_sender_timeout",
            "is 0: after a crash of cdcflow's machine the server would keep the slot active indefinitely",
            platform.setting_remedy("wal_sender_timeout", "60s"),
        )
    if settings.failover and major < 17:
        yield problem("failover", f"needs PostgreSQL 17 or newer; this is {version}", "set source.failover: false")


def _role(role: _Role, platform: Platform) -> Iterator[Finding]:
    if role.is_superuser:
        yield warning(
            "role",
            f"{role.name} is a superuser, which is far more than a capture needs",
            "make a role for it: CREATE ROLE cdc LOGIN REPLICATION; GRANT SELECT on the tables (see docs/postgres.md)",
        )
    elif not role.may_replicate:
        yield problem("role", f"{role.name} may not replicate", platform.replication_remedy(role.name))
    elif role.replicates:
        yield ok("role", f"{role.name} may replicate")
    else:
        yield ok("role", f"{role.name} may replicate, as a member of {platform.grant}")


def _replication(connector: Connector, role: _Role) -> Iterator[Finding]:
    """Check that the server accepts a replication connection: the lines in pg_hba.conf may allow only ordinary ones."""
    if not role.may_replicate:
        return
    try:
        identify(connector)
    except CdcflowError as error:
        yield of_error("replication connection", error)
    else:
        yield ok("replication connection", "is accepted")


def _backfill_standby(connector: Connector, settings: Postgres) -> Iterator[Finding]:
    if settings.backfill.url is not None:
        reading = Connector(settings.backfill.url, connector.secret, settings.ssh)
        yield from backfill_standby_findings.findings(reading, identify(connector))


def _tables(connection: Connection, selected: Selected, role: _Role) -> Iterator[Finding]:
    yield from _ignored_findings(selected.ignored)
    if not selected.tables:
        # Only wildcards can match no table: a name without wildcards that no table has is refused before.
        yield warning(
            "tables",
            "source.tables matches no table; tables are captured when they are created",
            "check the names in source.tables (case counts)",
        )
    rels = [rel for t in selected.tables for rel in (t.rel, *t.leaves)]
    rights = {row[0]: row[1:] for row in connection.execute(_RIGHTS, ([rel.oid for rel in rels],))}
    for table in selected.tables:
        problems = [
            problem(str(table.rel.id), text, _advice(remedy)) for text, remedy in selected.refused.get(table.rel.id, ())
        ]
        problems += _rights(table, rights, role)
        yield from problems or [ok(str(table.rel.id), _about(table, connection.info.server_version))]
        yield from _cautions(table, rights, connection.info.server_version)


def _ignored_findings(ignored: Sequence[str]) -> Iterator[Finding]:
    """Return which objects a wildcard matched that are not captured; partitions and views are only counted, because
    other tables have their changes."""
    parts = [text for text in ignored if " is a partition: " in text]
    views = [text for text in ignored if " is a view: " in text]
    counted = [f"{len(parts)} partitions (through their roots)"] if parts else []
    counted += [f"{len(views)} views (through the tables that they read)"] if views else []
    if counted:
        yield ok("tables", f"not captured by themselves: {', '.join(counted)}")
    lost: dict[str, list[str]] = {}
    for text in ignored:
        if (found := _LOST_PART.fullmatch(text)) is not None:
            lost.setdefault(found[2], []).append(found[1])
        elif text not in parts and text not in views:
            yield warning("tables", f"not captured: {text}")
    for root, names in sorted(lost.items()):
        more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
        yield warning(
            "tables",
            f"not captured: {', '.join(sorted(names)[:_NAMES_SHOWN])}{more}, which became partitions of {root}; the "
            "server publishes their changes as those of that table",
            f"add {root} to source.tables",
        )


def _locked_findings(connection: Connection, settings: Postgres, selected: Selected) -> Iterator[Finding]:
    """Return the tables that no publication of cdcflow has yet, and that cannot be added while they are locked."""
    made = connection.execute("SELECT pubname FROM pg_catalog.pg_publication WHERE pubname ~ '^cdcflow_[0-9a-f]{8}$'")
    names = [settings.publication] if settings.publication else [row[0] for row in made]
    found = [publication.locked_tables(connection, name, selected.good) for name in names or [""]]
    for table in sorted(set.intersection(*(set(f) for f in found))):
        yield warning(
            str(table), f"cannot be captured yet: {found[0][table]}", "nothing: it is captured when that has ended"
        )


def _old_transaction(connection: Connection) -> Iterator[Finding]:
    """Return the transaction that keeps new tables from being captured, if any: see `publication.wait_for_older`."""
    (seconds,) = query_row(connection, _OLDEST)
    if seconds is not None and seconds >= OLD_TRANSACTION_S:
        yield warning(
            "transactions",
            f"one has been open for {seconds} s ({publication.blocker(connection)}); a table that is created now is "
            "captured only when it has ended",
            "let it end, or run SELECT pg_terminate_backend(PID)",
        )


def _advice(remedy: str) -> str | Remedy:
    """Return a refusal's remedy, as SQL if it is one whole statement."""
    text = advice(remedy)
    is_statement = text != remedy and not any(part in remedy for part in ("…", "; ", ", or "))
    return run(remedy) if is_statement else text


def _rights(table: CatalogTable, rights: Mapping[int, tuple[Any, ...]], role: _Role) -> list[Finding]:
    found = []
    name = quote_name(role.name)
    for rel in (table.rel, *table.leaves):
        if rel.oid not in rights:
            continue  # dropped since the selection
        schema, uses_schema, selects, _, is_filtered, _, _ = rights[rel.oid]
        if not uses_schema:
            found.append(
                problem(
                    str(rel.id),
                    "the role has no USAGE on its schema",
                    run(f"GRANT USAGE ON SCHEMA {quote_name(schema)} TO {name}"),
                )
            )
        if not selects:
            grant = run(f"GRANT SELECT ON {rel.sql} TO {name}")
            found.append(problem(str(rel.id), "the role may not read it", grant))
        if is_filtered and not (role.bypasses_rls or role.is_superuser):
            found.append(
                problem(
                    str(rel.id),
                    "row-level security would hide rows from the backfill",
                    run(f"ALTER ROLE {name} BYPASSRLS"),
                )
            )
    return found


_UNPUBLISHED = {"s": "PostgreSQL before 18 does not publish them", "v": "no PostgreSQL publishes virtual columns"}
"""Why generated columns are not captured, by `attgenerated`."""


def _about(table: CatalogTable, version: int) -> str:
    if key := table.names_of(table.key_numbers(version)):
        return f"key ({', '.join(key)})" + (", REPLICA IDENTITY FULL" if table.rel.identity == "f" else "")
    return "no key: all columns together identify a row, and a backfill reads it in one piece"


def _cautions(table: CatalogTable, rights: Mapping[int, tuple[Any, ...]], version: int) -> Iterator[Finding]:
    subject = str(table.rel.id)
    if not table.key_numbers(version) and table.rel.identity == "f":
        yield warning(
            subject,
            f"has no key{' that the server sends' if table.unsent(version) else ''}: a backfill reads it in one piece "
            "into memory",
            "give it a unique index of other columns, and make that its REPLICA IDENTITY, if it is large"
            if table.unsent(version)
            else f"run ALTER TABLE {table.rel.sql} ADD PRIMARY KEY (…) if it is large",
        )
    if table.leaves:
        yield warning(
            subject,
            "is partitioned: TRUNCATE, DETACH, DROP or ATTACH of a single partition is not in the stream; "
            "the daemon then reads the table again",
        )
    published = table.published_columns(version)
    hidden = [a for a in table.attributes if a.generated and not a.dropped and a not in published]
    for kind, why in _UNPUBLISHED.items():
        if names := ", ".join(a.name for a in hidden if a.generated == kind):
            yield warning(subject, f"generated columns are not captured: {names} ({why})")
    if table.rel.oid in rights and rights[table.rel.oid][6]:
        yield warning(subject, "has tables that inherit from it: they are captured as separate tables, if selected")


def _publication(connection: Connection, settings: Postgres, selected: Selected, role: _Role) -> Iterator[Finding]:
    name = settings.publication
    found = publication.read(connection, name) if name else None
    if found is not None:
        published = {e.table for e in found.entries.values()}
        for wrong in found.wrong:
            yield problem(
                f"publication {name}",
                "does not publish everything that a full copy needs",
                run(f"ALTER PUBLICATION {quote_name(found.name)} SET ({wrong})"),
            )
        missing = [t for t in selected.good if t.rel.id not in published]
        if missing and not found.broad and not role.is_superuser:
            tables = ", ".join(t.rel.sql for t in missing)
            yield from _unless_owned(
                connection,
                missing,
                f"publication {name}",
                f"ALTER PUBLICATION {quote_name(found.name)} ADD TABLE {tables}",
            )
    else:
        yield from map(at_first_start, _missing_publication(connection, name, selected, role))


def _missing_publication(
    connection: Connection, name: str | None, selected: Selected, role: _Role
) -> Iterator[Finding]:
    made = name or "cdcflow"
    statement = publication.creation(connection.info.server_version, made, selected.good)
    advice = statement if name else f"{statement}; and set source.publication: {made}"
    if role.is_superuser or not selected.good:
        return
    if not role.creates_in_database:
        grant = f"GRANT CREATE ON DATABASE {quote_name(role.database)} TO {quote_name(role.name)}"
        by_owner = f"run as an owner of the tables: {advice}"
        owns = not _other_owners(connection, selected.good)
        yield problem(
            "publication",
            f"{role.name} may not create one in database {role.database}",
            Remedy(f"run {grant}; or {by_owner}", (grant,))
            if owns
            else Remedy(f"{by_owner}; or make {role.name} their owner and run {grant}", (statement,)),
        )
    else:
        yield from _unless_owned(connection, selected.good, "publication", advice)


def _unless_owned(
    connection: Connection, tables: tuple[CatalogTable, ...] | list[CatalogTable], subject: str, advice: str
) -> Iterator[Finding]:
    owners = _other_owners(connection, tables)
    if owners:
        statement = advice.partition("; and set ")[0]
        yield problem(
            subject,
            f"only owners may publish a table: {', '.join(owners)}",
            Remedy(f"run as an owner: {advice}", (statement,)),
        )
    else:
        yield ok(subject, "can be made")


def _other_owners(connection: Connection, tables: Sequence[CatalogTable]) -> list[str]:
    """Return the owners of those tables that cdcflow's user does not own."""
    rows = connection.execute(_RIGHTS, ([t.rel.oid for t in tables],)).fetchall()
    return sorted({row[6] for row in rows if not row[4]})


def _slot(connection: Connection, settings: Postgres, role: _Role) -> Iterator[Finding]:
    if settings.slot is None:
        return
    found = slot.read(connection, settings.slot)
    subject = f"slot {settings.slot}"
    if found is None:
        yield created_at_first_start(subject)
        return
    try:
        found.check_kind(role.database)
    except CdcflowError as error:
        yield of_error(subject, error)
        return
    if found.is_lost:
        yield problem(
            subject, f"was invalidated (wal_status {found.wal_status})", "run `cdcflow run --accept-history-loss`"
        )
    else:
        yield ok(subject, f"wal_status {found.wal_status}, {'in use' if found.active_pid else 'not in use'}")
