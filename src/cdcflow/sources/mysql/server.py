"""What a server must be for a capture, each shortcoming with what mends it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from cdcflow.config import MySQL
from cdcflow.errors import ConfigurationError
from cdcflow.sources.mysql import place
from cdcflow.sources.mysql.connection import Connection, query


@dataclass(frozen=True, slots=True)
class Shortcoming:
    """Something at the server that stands in the way of an exact capture."""

    subject: str
    text: str
    remedy: str


def variables(connection: Connection, *names: str) -> dict[str, Any]:
    """Global variables by name, as text; those that the server does not have are left out."""
    listed = ", ".join(f"'{name}'" for name in names)
    rows = query(connection, f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({listed})")
    return {str(name).lower(): value for name, value in rows}


ASKED = (
    *("log_bin", "binlog_format", "binlog_row_image", "binlog_row_metadata", "binlog_order_commits", "gtid_mode"),
    *("enforce_gtid_consistency", "log_slave_updates", "log_replica_updates", "read_only", "super_read_only"),
    *("binlog_expire_logs_seconds", "expire_logs_days", "max_binlog_total_size", "version", "server_id"),
    *("binlog_row_value_options", "binlog_legacy_event_pos", "sql_log_bin", "require_secure_transport"),
    *("binlog_storage_engine", "binlog_row_event_fragment_threshold"),
)

ROW_EVENT_BYTES_MAX = 1 << 30
"""MariaDB 12.3 and later cut larger row events into PARTIAL_ROW_DATA events, which are not read: at this size nothing
is cut that a packet could carry whole."""


def shortcomings(connection: Connection, settings: MySQL) -> Iterator[Shortcoming]:
    """What makes a capture impossible, or wrong."""
    found = variables(connection, *ASKED)
    if found.get("log_bin") != "ON":
        yield Shortcoming(
            "log_bin",
            "is OFF: the server writes no binary log, so its changes are nowhere to be read",
            "set log_bin in the server's configuration, and restart it",
        )
        return
    if engine := found.get("binlog_storage_engine"):
        yield Shortcoming(
            "binlog_storage_engine",
            f"is {engine}: the server keeps its binary log inside {engine} and gives its events no file and no byte, "
            "which cdcflow needs to find its place again",
            "take binlog_storage_engine out of the server's configuration, and restart it",
        )
        return
    if int(found.get("binlog_row_event_fragment_threshold") or ROW_EVENT_BYTES_MAX) < ROW_EVENT_BYTES_MAX:
        yield Shortcoming(
            "binlog_row_event_fragment_threshold",
            f"is {found['binlog_row_event_fragment_threshold']}: the server cuts larger row events into fragments, "
            "which cdcflow does not read",
            f"run SET GLOBAL binlog_row_event_fragment_threshold = {ROW_EVENT_BYTES_MAX}{_also(settings)}",
        )
    if found.get("binlog_format", "ROW") != "ROW":
        yield Shortcoming(
            "binlog_format",
            f"is {found['binlog_format']}: rows that statements change are not in the log",
            "run SET GLOBAL binlog_format = 'ROW' (and in the server's configuration), and renew open sessions",
        )
    if found.get("binlog_row_metadata") != "FULL":
        yield Shortcoming(
            "binlog_row_metadata",
            f"is {found.get('binlog_row_metadata')}: the log does not name the columns of its rows",
            f"run {_persist(settings)} binlog_row_metadata = 'FULL'{_also(settings)}",
        )
    if filters := place.end(connection, settings.kind).filters:
        yield Shortcoming(
            "binary log",
            f"leaves databases out ({filters}): their changes are lost to every reader",
            "take binlog_do_db and binlog_ignore_db out of the server's configuration, and restart it",
        )
    if settings.kind == "mysql":
        yield from _order(found, settings)


def _order(found: dict[str, Any], settings: MySQL) -> Iterator[Shortcoming]:
    has_gtids = found.get("gtid_mode") == "ON"
    if settings.fence == "marks" and found.get("binlog_order_commits") == "OFF":
        remedy = "run SET PERSIST binlog_order_commits = ON"
        yield Shortcoming(
            "binlog_order_commits",
            "is OFF: commits become visible in another order than that of the log, so a written mark fences nothing",
            f"{remedy}, or set source.fence: read-only" if has_gtids else remedy,
        )
    if settings.fence == "read-only" and not has_gtids:
        yield Shortcoming(
            "gtid_mode",
            f"is {found.get('gtid_mode')}: without GTIDs nothing tells what is visible, unless marks are written",
            "set source.fence: marks, or switch GTIDs on (SET PERSIST gtid_mode = OFF_PERMISSIVE, ON_PERMISSIVE, ON)",
        )


def _persist(settings: MySQL) -> str:
    return "SET PERSIST" if settings.kind == "mysql" else "SET GLOBAL"


def _also(settings: MySQL) -> str:
    return "" if settings.kind == "mysql" else " (and in the server's configuration)"


def check(connection: Connection, settings: MySQL) -> None:
    """Raises ConfigurationError with everything that is in the way."""
    found = list(shortcomings(connection, settings))
    if found:
        raise ConfigurationError(
            "; ".join(f"{s.subject} {s.text}" for s in found), remedy=";\n  ".join(s.remedy for s in found)
        )
