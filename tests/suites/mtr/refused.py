"""Statements of a suite that are skipped, each with the reason.

Either no capture can follow them (changes that the session keeps out of the log), or they change the server for the
tests that come after (its users, its log's files, its life).
"""

from __future__ import annotations

import re

_PASSED_OVER = re.compile(
    r"""
      \bsql_log_bin\b                                       # the session keeps its changes out of the log
    | \b(?:pseudo_|server_id|gtid_|log_bin|binlog_|rpl_|slave_|replica_|super_read_only|read_only|skip_networking)
    | ^\s*(?:SHUTDOWN|RESTART|KILL|RESET\s+(?:MASTER|BINARY|SLAVE|REPLICA|PERSIST)|PURGE\s)  # its life, its log
    | ^\s*(?:CHANGE\s+(?:MASTER|REPLICATION)|(?:START|STOP)\s+(?:SLAVE|REPLICA|ALL|GROUP))
    | ^\s*(?:BINLOG|CLONE|LOCK\s+INSTANCE|BACKUP\s|XA\s)
    | ^\s*FLUSH\s+(?:TABLES?\b.*\bWITH\s+READ\s+LOCK|BINARY|LOGS|MASTER)
    | ^\s*(?:UN)?INSTALL\s
    | \bmysql\.(?:user|global_priv|db|tables_priv|plugin|innodb_\w+|gtid_\w+|proc|event|servers|component)\b
    | ^\s*(?:DROP|ALTER|RENAME)\s+USER\b.*\broot\b
    | ^\s*(?:REVOKE|SET\s+PASSWORD)\b
    | ^\s*(?:DROP|CREATE|ALTER)\s+(?:DATABASE|SCHEMA)\b.*\b(?:mysql|sys|cdcflow)\b
    | \bmax_(?:connections|prepared_stmt_count|user_connections)\b | \boffline_mode\b | \binit_connect\b
    | \brequire_secure_transport\b | \binnodb_(?:read_only|force_recovery|fast_shutdown)\b
    """,
    re.IGNORECASE | re.VERBOSE | re.DOTALL,
)


def is_refused(statement: str) -> bool:
    """Whether a statement is passed over."""
    return _PASSED_OVER.search(statement[:4000]) is not None


__all__ = ["is_refused"]
