"""Connection poolers that may answer instead of a server: the pooler's name, and the server's own address. Pure.

A pooler shares sessions among clients, and does not pass the replication protocol on. Only its refusals reveal that it
exists, and only the host's name reveals which one it is. The Auth Proxy of Cloud SQL and AlloyDB is no pooler: it
passes on bytes.
"""

from __future__ import annotations

_SUPABASE = (
    "set source.url to the direct connection (host db.<project>.supabase.co, port 5432), not to the pooler's address"
)
_KNOWN = (
    ("-pooler.", "", "Neon's pooler (PgBouncer)", "set source.url to the direct host name: the same without -pooler"),
    ("", ".pooler.supabase.com", "Supabase's pooler (Supavisor)", _SUPABASE),
    (".proxy-", ".rds.amazonaws.com", "Amazon RDS Proxy", "set source.url to the endpoint of the instance or cluster"),
)
"""Known poolers: a text that the host's name contains, a text that it ends with, the pooler's name, and the remedy: the
server's own address."""


def pooler_of(host: str, port: str) -> tuple[str, str]:
    """Return the name of the pooler at this address, and what to set instead."""
    for part, end, name, direct in _KNOWN:
        if part in host and host.endswith(end):
            return name, direct
    if host.endswith(".postgres.database.azure.com") and port == "6432":
        return "Azure's PgBouncer", "set source.url to port 5432 of the same host"
    return "a connection pooler (PgBouncer or the like)", "set source.url to the address of the server itself"
