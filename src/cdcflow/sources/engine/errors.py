"""Errors that all dialects raise in the same words: about logins, old servers, lost history, policies of keys."""

from __future__ import annotations

from collections.abc import Sequence

from cdcflow.errors import ConfigurationError, HistoryLost, SourceUnavailable
from cdcflow.model.table import TableId, word

SET_PASSWORD = "set source.password: ${env:NAME} or ${file:path}"  # noqa: S105  a remedy


def failure_text(error: ConfigurationError, table: TableId) -> str:
    """Return why a captured table fails alone, and what to do, from the error that its rows caused."""
    why, remedy = str(error).splitlines()[0], error.remedy or ""
    again = f"then start again or run `cdcflow apply`, and run `cdcflow backfill {word(table)}`"
    return f"{why}; {remedy.replace('then start again', again)}"


class PasswordRefused(SourceUnavailable):
    """The server refuses the password, which may be in the middle of a rotation."""

    section = "login-refused"


def password_in_url() -> ConfigurationError:
    return ConfigurationError(
        "source.url holds a password, which would end up in logs and process lists",
        remedy="take it out and set source.password: ${env:NAME} or ${file:path}",
        runbook="settings",
    )


def password_refused(
    attempted: str, user: str, *, has_password: bool, was_sent: bool, note: str = ""
) -> PasswordRefused:
    """Return the error for a refused password.

    `has_password`: the settings name one; `was_sent`: a password was sent, whatever its origin; `note`: more about the
    settings.
    """
    if has_password:
        return PasswordRefused(
            f"{attempted}: the password of {user} is refused",
            remedy="correct what source.password refers to, or what its command prints; every try gets it again",
        )
    found = f"the password of {user} is refused" if was_sent else f"{user} is refused without a password"
    return PasswordRefused(
        f"{attempted}: {found}, and source.password is not set",
        remedy=f"{SET_PASSWORD}{note}",
    )


def server_too_old(address: object, found: str, least: str) -> ConfigurationError:
    """Return the error for a server that is too old.

    `found`: the server's name and version; `least`: the first version that cdcflow reads.
    """
    return ConfigurationError(
        f"the server at {address} is {found}; cdcflow needs {least} or newer",
        remedy="upgrade the server",
        runbook="server-version",
    )


def history_lost(message: str, new_position: str, *, runbook: str) -> HistoryLost:
    """Return the error for a server that no longer has its log since the change log's end.

    `new_position`: what cdcflow does if an operator accepts that. Every other remedy would lose changes silently.
    """
    return HistoryLost(
        message,
        remedy=f"run `cdcflow run --accept-history-loss`: it {new_position} and reads all tables again, which also "
        "finds the rows that were deleted in the meantime; or run it with `--keep-rows`, and then `cdcflow repair`, to "
        "read only the rows that differ",
        runbook=runbook,
    )


def position_lost(why: str) -> HistoryLost:
    """Return the same error for a source whose tables `cdcflow repair` cannot compare."""
    return HistoryLost(
        why,
        remedy="run with --accept-history-loss: cdcflow takes a new position, and reads every table again",
        runbook="slot-lost",
    )


def policy_of_key(
    where: object, column: str, setting: str, value: str, *, is_own: bool, instead: Sequence[str]
) -> ConfigurationError:
    """Return the error for a policy of a key's column that would store the same value for two different ones.

    `where`: the column with its type; `is_own`: source.columns has the value for this column; `instead`: possible
    values.
    """
    said = f"source.columns says {value} for it" if is_own else f"source.{setting} is {value}"
    settings = ", or to ".join(f"{{{column}: {other}}}" for other in instead)
    return ConfigurationError(
        f"{where} is part of the table's key, and {said}: rows whose keys differ in such values only would become one "
        "row",
        remedy=f"in cdcflow.yaml set source.columns to {settings}",
        runbook="value-not-representable",
    )
