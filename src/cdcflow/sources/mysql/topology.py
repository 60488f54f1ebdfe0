"""Finds out which other servers have the same data: whether this one is a replica, a member of a Galera cluster or of a
group.

A replica's binary log has what it replicates only with `log_replica_updates` (`log_slave_updates`, which is OFF in
MariaDB unless it is set). Without it a capture would silently miss every change of the primary. The same holds for the
members of a Galera cluster.

The members of a replication group (MySQL) give a transaction the same GTID. Those of a Galera cluster do only with
`wsrep_gtid_mode`; otherwise equal GTIDs of two members are different transactions.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

import pymysql

from cdcflow.capture.ports.findings import Finding
from cdcflow.sources.engine.findings import run, warning
from cdcflow.sources.mysql.connection import Connection, full_version_of, query
from cdcflow.sources.mysql.gtids import Flavor

ASKED = (
    *("log_slave_updates", "log_replica_updates", "gtid_strict_mode", "gtid_slave_pos", "server_id"),
    *("wsrep_on", "wsrep_gtid_mode", "wsrep_cluster_name"),
    *("group_replication_group_name", "group_replication_single_primary_mode"),
)
"""The variables that the functions here need."""
_REPLICA_STATUS = (8, 0, 22)
"""The MySQL version that introduced SHOW REPLICA STATUS."""


def variables(connection: Connection) -> dict[str, str]:
    """Return the values of `ASKED`, without variables that the server does not have."""
    listed = ", ".join(f"'{name}'" for name in ASKED)
    rows = query(connection, f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({listed})")
    return {str(name).lower(): str(value) for name, value in rows}


def has_foreign_changes(connection: Connection, flavor: Flavor, found: Mapping[str, str]) -> bool:
    """Whether the server currently applies changes that were committed at another server."""
    return is_in_galera(found) or is_replica(connection, flavor)


def is_replica(connection: Connection, flavor: Flavor) -> bool:
    """Whether the server currently replicates from another server; False if cdcflow may not see that."""
    with contextlib.suppress(pymysql.Error):
        if flavor == "mariadb":
            return any(int(value) > 0 for _, value in query(connection, "SHOW GLOBAL STATUS LIKE 'Slaves_running'"))
        is_new = full_version_of(connection.get_server_info()) >= _REPLICA_STATUS
        return bool(query(connection, "SHOW REPLICA STATUS" if is_new else "SHOW SLAVE STATUS"))
    return False


def logs_foreign_changes(found: Mapping[str, str]) -> bool:
    """Whether the server's binary log has changes that were committed at another server."""
    return found.get("log_replica_updates", found.get("log_slave_updates", "ON")) == "ON"


def is_in_galera(found: Mapping[str, str]) -> bool:
    return found.get("wsrep_on") == "ON"


def has_own_gtids(found: Mapping[str, str]) -> bool:
    """Whether equal GTIDs of this server and of other servers with the same data are different transactions."""
    return is_in_galera(found) and found.get("wsrep_gtid_mode") != "ON"


def findings(connection: Connection, flavor: Flavor) -> Iterator[Finding]:
    """Return facts to know before another server takes this one's place."""
    found = variables(connection)
    if is_in_galera(found):
        yield _galera(found)
    elif flavor == "mariadb" and found.get("gtid_strict_mode") != "ON" and _has_replicas(connection, found):
        yield warning(
            "gtid_strict_mode",
            "is OFF: a replica accepts writes that its primary does not have, and a capture stops when that replica is "
            "promoted",
            run("SET GLOBAL gtid_strict_mode = ON", note="on every server, and in its configuration"),
        )
    if found.get("group_replication_group_name"):
        yield _group(found)


def _has_replicas(connection: Connection, found: Mapping[str, str]) -> bool:
    """Whether the server has replicas, or was a replica."""
    connected = query(connection, "SHOW GLOBAL STATUS LIKE 'Slaves_connected'")
    return bool(found.get("gtid_slave_pos")) or any(int(value) > 0 for _, value in connected)


def _galera(found: Mapping[str, str]) -> Finding:
    text = (
        f"the server is a member of Galera cluster {found.get('wsrep_cluster_name')}, which cdcflow is not tested with"
    )
    if has_own_gtids(found):
        return warning(
            "Galera",
            f"{text}; its members give one transaction different GTIDs, so the capture cannot continue at another",
            "set wsrep_gtid_mode = ON, with one wsrep_gtid_domain_id, in the configuration of every member",
        )
    return warning("Galera", f"{text}; point source.url at one member, not at a balancer")


def _group(found: Mapping[str, str]) -> Finding:
    name = found["group_replication_group_name"]
    if found.get("group_replication_single_primary_mode") == "OFF":
        return warning(
            "group replication",
            f"the server is a member of group {name}, which has several primaries: cdcflow is not tested with that; "
            "point source.url at one member, not at a router that chooses one",
        )
    return warning(
        "group replication",
        f"the server is a member of group {name}: point source.url at its primary; the capture continues at the "
        "next one by GTIDs",
    )
