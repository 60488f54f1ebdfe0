"""Why a capture stops, and what to do about it: a log that cannot be read further, and requests that the server
refused.

Each error for a lost history names a way to continue that loses nothing silently. A server's refusals have numbers,
those of MySQL's and MariaDB's error references. Texts of errors about data quote the datum, so they are omitted.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from typing import TYPE_CHECKING

from cdcflow.errors import CdcflowError, ConfigurationError, HistoryLost, RightMissing, SourceUnavailable
from cdcflow.model.table import TableId, word
from cdcflow.sources.engine import errors
from cdcflow.sources.mysql.sql import quote_name

if TYPE_CHECKING:
    import pymysql


# ── a log that cannot be read further ───────────────────────────────────────────────────────────────────────────

READ_ANEW = "run `cdcflow run --accept-history-loss`, which takes a new position in the log and reads all tables again"


def history_lost(message: str, *, runbook: str = "binlog-purged") -> HistoryLost:
    return errors.history_lost(message, "takes a new position in the binary log", runbook=runbook)


class LogPurged(HistoryLost):
    """Raised when the server has removed the oldest files of its binary log, and cdcflow still needed them."""

    section = "binlog-purged"


def log_purged(message: str) -> LogPurged:
    lost = history_lost(message)
    return LogPurged(message, remedy=lost.remedy)


class ServerReadOnly(RightMissing):
    """Raised when the server takes no writes. At a start a setting is wrong; later the server is about to be replaced
    by another."""

    section = "read-only-source"


def failure_text(error: ConfigurationError, table: TableId) -> str:
    """Return why a captured table fails alone, and what to do, from the error that its rows caused."""
    text, again = errors.failure_text(error, table), f"run `cdcflow backfill {word(table)}`"
    return f"{text.removesuffix(READ_ANEW)}{again}" if text.endswith(READ_ANEW) else text


def engine_refusal(table: TableId, engine: str) -> tuple[str, str]:
    """Return why a table with an engine without transactions cannot be captured, and the statement that fixes it."""
    why = f"{table} uses the storage engine {engine}, which has no transactions"
    return why, f"ALTER TABLE {quote_name(table.schema)}.{quote_name(table.name)} ENGINE = InnoDB"


def history_refusal(table: TableId) -> tuple[str, str]:
    """Return why a system-versioned table cannot be captured, and the statement that fixes it."""
    why = f"{table} is system-versioned: its row events mix old and current rows"
    return why, f"ALTER TABLE {quote_name(table.schema)}.{quote_name(table.name)} DROP SYSTEM VERSIONING"


# ── what a server refused ──────────────────────────────────────────────────────────────────────────────────────

ACCESS_DENIED = 1045
NO_SUCH_TABLE = 1146
NO_SUCH_COLUMN = 1054
NOT_THERE = frozenset((NO_SUCH_TABLE, 1044, 1049, 1142))
"""Numbers of errors: the table, its schema, or the right to see it is missing."""
DENIED = frozenset((1044, 1142, 1143))
"""Numbers of errors: a right to a schema, a table or a column is missing."""
LOCKED = frozenset((1205, 1213))
CHANGING = frozenset((NO_SUCH_TABLE, 1615, 1684))
"""Numbers of errors: another session altered or dropped a table while `information_schema` was read, so the table is
gone, must be opened again, or was skipped."""
NO_SUCH_INDEX = 1176
NO_SUCH_FUNCTION = frozenset((1305, 1046))
"""Numbers of errors: the function does not exist. 1046: the server would search a schema for it, but no schema is
selected."""

_LACKS_GLOBAL = 1227
_GRANTS: Mapping[int, str] = {
    1044: "GRANT SELECT ON {where} TO {user}",
    1142: "GRANT {privilege} ON {where} TO {user}",
    1143: "GRANT {privilege} ON {where} TO {user}",
    1227: "GRANT {privilege} ON *.* TO {user}",
    1370: "GRANT EXECUTE ON {where} TO {user}",
    1410: "GRANT {privilege} ON *.* TO {user}",
}

# Errors that quote a value of a row, or a statement of cdcflow that contains a key.
_QUOTES = frozenset((1062, 1064, 1264, 1265, 1292, 1366, 1367, 1406, 1411, 1525, 1690, 3140, 3141, 3854, 4025))

# The request itself is correct; it may succeed shortly after.
_RETRIED = frozenset(
    (
        *(1021, 1028, 1037, 1038, 1040, 1041, 1053, 1077, 1079, 1080, 1129, 1135, 1152, 1153, 1154, 1155, 1156, 1157),
        *(1158, 1159, 1160, 1161, 1184, 1189, 1190, 1203, 1205, 1213, 1226, 1317, 1412, 1927, 1969, 3024, 3168, 3169),
        *(1615, 1684, 1814, 3170, 3572, 4031),
        *range(2000, 2060),
    )
)
_READ_ONLY = frozenset((1290, 1792, 1836))


def map_error(error: pymysql.Error, attempted: str, account: str = "") -> CdcflowError:
    """Return a server's refusal as one of cdcflow's errors, without the values that some texts quote.

    `account`: the account that the server knows this session by, if known.
    """
    number, said = parts(error)
    message = f"{attempted}: {'error' if number in _QUOTES else said} ({number})"
    if number == _LACKS_GLOBAL:
        return RightMissing(message, remedy=f"run {_grant(number, said, account)}")
    if number in _GRANTS:
        return ConfigurationError(message, remedy=f"run {_grant(number, said, account)}", runbook="right-missing")
    if number == ACCESS_DENIED:
        return ConfigurationError(
            message, remedy="see `cdcflow doctor` for the grants that are missing", runbook="right-missing"
        )
    if number in _READ_ONLY:
        return ServerReadOnly(
            message, remedy="point source.url at a server that takes writes, or set source.fence: read-only"
        )
    if number == 0 or number in _RETRIED:
        return SourceUnavailable(message)
    return ConfigurationError(message, runbook="source-refuses")


def connect_error(
    error: Exception, user: str, address: str, *, has_password: bool, has_certificate: bool = False
) -> CdcflowError:
    """Return the error for a connection that failed. `has_password`, `has_certificate`: the settings name one."""
    number, said = parts(error)
    attempted = f"connecting to {address}"
    if number == ACCESS_DENIED:
        note = "" if has_certificate else "; for a user that has to show a certificate, set source.tls.cert"
        return errors.password_refused(attempted, user, has_password=has_password, was_sent=False, note=note)
    if number in (1698, 1699, 1820, 1862, 3118, 3955):
        return ConfigurationError(
            f"{attempted}: {user} may not log in: {said}",
            remedy="do what the server's message requests"
            if has_password
            else f"{errors.SET_PASSWORD}, of a user that logs in with one",
            runbook="login-refused",
        )
    if _is_about_tls(error, said):
        return ConfigurationError(
            f"{attempted}: no secure connection: {said}",
            remedy="check source.tls (ca: the authority that signed the server's certificate); "
            "mode: off is for connections that others cannot read",
            runbook="tls",
        )
    if isinstance(error, ValueError | RuntimeError) or number == 2061:
        return ConfigurationError(
            f"{attempted}: the server requires the password in clear text, and the connection is not encrypted",
            remedy="set source.tls, or pin the server's key with source.server_public_key",
            runbook="tls",
        )
    if number == 2059:
        return ConfigurationError(
            f"{attempted}: {said}", remedy=f"give {user} another authentication plugin", runbook="login-refused"
        )
    return SourceUnavailable(f"{attempted}: {said}")


def _is_about_tls(error: Exception, said: str) -> bool:
    cause = getattr(error, "original_exception", None)
    return isinstance(cause, ssl.SSLError) or "SSL is required" in said or "SSL connection error" in said


def parts(error: Exception) -> tuple[int, str]:
    """Return an error's number (0 if it has none) and text."""
    arguments = error.args
    number = arguments[0] if arguments and isinstance(arguments[0], int) else 0
    said = arguments[1] if len(arguments) > 1 else (arguments[0] if arguments and not number else type(error).__name__)
    return number, " ".join(str(said).split())


def _grant(number: int, said: str, account: str) -> str:
    """Return the missing GRANT, as far as the server's text reveals on what and for whom."""
    user = account or _first_group(r"(?:to|for) user (\S+)", said) or "the user of source.url"
    table = _first_group(r"for table (\S+)", said)
    database = _first_group(r"to database (\S+)", said)
    where = f"{_in_backticks(database)}.*" if database else "…"
    if table:
        where = table if table.startswith("`") else f"`…`.{_in_backticks(table)}"
    # If one of several privileges suffices, the server names the least powerful one last.
    several = _first_group(r"need (?:\(at least one of\) )?the (.+?) privilege", said).split(",")
    privilege = several[-1].strip() or _first_group(r"^(\w+) command denied", said) or "…"
    return _GRANTS[number].format(user=user.rstrip(",;"), where=where, privilege=privilege)


def _first_group(pattern: str, said: str) -> str:
    found = re.search(pattern, said)
    return found[1] if found else ""


def _in_backticks(word: str) -> str:
    return "`" + word.strip("'") + "`"
