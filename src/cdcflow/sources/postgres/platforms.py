"""Recognizes the service that runs a PostgreSQL server, and has its replacements for ALTER SYSTEM and ALTER ROLE.

A managed service grants no superuser, so the statements for a self-managed server are refused. Each service is
recognised by a setting that only its servers have; roles alone do not count, because a dump brings them to other
servers.

Sources: the documentation of Cloud SQL, AlloyDB, Azure and Neon, looked up in November 2026; the others from general
knowledge. `docs/managed.md` lists what was tested.
"""

from __future__ import annotations

from dataclasses import dataclass

import psycopg

from cdcflow.capture.ports.findings import Remedy
from cdcflow.sources.engine.findings import run
from cdcflow.sources.postgres.connection import Connection, quote_name


@dataclass(frozen=True, slots=True)
class Platform:
    """A service, and how one sets it up for a capture.

    `signs`: settings that only its servers have. `logical`: how logical decoding is switched on. `grant`: the role that
    lets a user replicate there ("": the attribute REPLICATION). `where`: where other settings are changed.
    """

    name: str
    signs: tuple[str, ...]
    logical: str
    where: str
    grant: str = ""

    @property
    def is_managed(self) -> bool:
        return bool(self.signs)

    def logical_remedy(self) -> Remedy:
        if self.is_managed:
            return Remedy(self.logical)
        return run("ALTER SYSTEM SET wal_level = logical", then="restart the server")

    def replication_remedy(self, role: str) -> Remedy:
        """Return the remedy that lets a role replicate."""
        if self.grant:
            return run(f"GRANT {self.grant} TO {quote_name(role)}")
        return run(f"ALTER ROLE {quote_name(role)} REPLICATION")

    def setting_remedy(self, name: str, value: str, *, restart: bool = False, note: str = "") -> Remedy:
        """Return the remedy that changes one of the server's settings."""
        if self.is_managed:
            then = ", and restart the server" if restart else ""
            return Remedy(f"set {name} = {value} {self.where}{then}" + (f" ({note})" if note else ""))
        sql = f"ALTER SYSTEM SET {name} = '{value}'"
        if restart:
            return run(sql, then="restart the server", note=note)
        return run(sql, "SELECT pg_reload_conf()", note=note)


OWN = Platform("", (), "", "")
AURORA = Platform(
    "Amazon Aurora PostgreSQL",
    ("apg_plan_mgmt.use_plan_baselines", "aurora_compute_plan_id"),
    "set rds.logical_replication = 1 in the DB cluster parameter group, and reboot the writer instance",
    "in the DB cluster parameter group",
    "rds_replication",
)
RDS = Platform(
    "Amazon RDS for PostgreSQL",
    ("rds.logical_replication", "rds.extensions"),
    "set rds.logical_replication = 1 in the DB parameter group, and reboot the instance",
    "in the DB parameter group",
    "rds_replication",
)
CLOUD_SQL = Platform(
    "Google Cloud SQL for PostgreSQL",
    ("cloudsql.logical_decoding", "cloudsql.iam_authentication"),
    "set the database flag cloudsql.logical_decoding = on, which restarts the instance",
    "as a database flag of the instance",
)
ALLOYDB = Platform(
    "Google AlloyDB",
    ("alloydb.logical_decoding", "alloydb.iam_authentication"),
    "set the database flag alloydb.logical_decoding = on, which restarts the instance",
    "as a database flag of the instance",
)
AZURE = Platform(
    "Azure Database for PostgreSQL",
    ("azure.extensions", "azure.accepted_password_auth_method"),
    "set the server parameter wal_level = logical, and restart the server",
    "as a server parameter",
)
NEON = Platform(
    "Neon",
    ("neon.tenant_id", "neon.timeline_id"),
    "enable logical replication in the project's settings (it restarts the computes and cannot be undone)",
    "for the compute, by Neon's support",
)
SUPABASE = Platform(
    "Supabase",
    ("supautils.reserved_roles", "supautils.privileged_extensions"),
    "set wal_level = logical with `supabase postgres-config update`, and restart the project",
    "with `supabase postgres-config update`",
)
SERVICES = (AURORA, RDS, CLOUD_SQL, ALLOYDB, AZURE, NEON, SUPABASE)
"""The services, in the order in which they are looked for: Aurora has RDS's settings, too."""

_AURORA = "SELECT EXISTS (SELECT FROM pg_catalog.pg_proc WHERE proname = 'aurora_version')"


def platform_of(connection: Connection) -> Platform:
    """Return the service that runs this server; `OWN` if it shows no sign of one."""
    for platform in SERVICES:
        if platform is AURORA:
            row = connection.execute(_AURORA).fetchone()
            found = row is not None and bool(row[0])
        else:
            found = any(_has_setting(connection, name) for name in platform.signs)
        if found:
            return platform
    return OWN


def _has_setting(connection: Connection, name: str) -> bool:
    try:
        row = connection.execute("SELECT current_setting(%s, true)", (name,)).fetchone()
    except psycopg.errors.InsufficientPrivilege:
        return True  # it exists, and this role may not read it
    return row is not None and row[0] not in (None, "")
