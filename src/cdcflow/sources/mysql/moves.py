"""Moves a log to the server at another address: finds out what that server is, and whether it has every change.

    same    the log's server at another address, upgraded in place, or a replica that took its place: one that has the
            log's transactions
    other   a server with the same tables and other transactions: a restored dump, a replica without GTIDs

A gap is no obstacle: the log continues at a new position, and the tables are compared. A server that lacks transactions
which the log has is refused, unless an operator requests the comparison.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cdcflow.capture.ports.moves import Target
from cdcflow.errors import ConfigurationError, HistoryLost
from cdcflow.sources.engine.moves import COMPARISON, first_line, lagging
from cdcflow.sources.mysql.errors import LogPurged
from cdcflow.sources.mysql.gtids import Flavor
from cdcflow.sources.mysql.preparation import BeginPosition

_ANOTHER = "other-log"
_ERRANT = "errant-transactions"


@dataclass(frozen=True, slots=True)
class MysqlRoute:
    """The relation of the server at the address to the log. `text`: how that is known, or why there will be a gap.
    `begun`: where the log continues without a gap (None: at a new position)."""

    kind: Target
    text: str
    begun: BeginPosition | None = None

    @property
    def has_gap(self) -> bool:
        return self.begun is None


def find(again: Callable[[], BeginPosition], *, compares: bool) -> MysqlRoute:
    """Return the route to a server. `again` checks there that the log can continue without a gap (`Preparation.again`).

    Raises:
        ConfigurationError: the log cannot continue there; or the server lacks transactions that the log has, and no
            comparison was requested.
    """
    try:
        begun = again()
    except LogPurged as error:
        return MysqlRoute("same", first_line(error))
    except HistoryLost as error:
        if error.runbook != _ERRANT and not compares:
            raise lagging(error) from None
        return MysqlRoute("same", first_line(error))
    except ConfigurationError as error:
        if error.runbook != _ANOTHER:
            raise
        return MysqlRoute("other", first_line(error))
    if compares:
        return MysqlRoute("same", COMPARISON)
    if begun.by_gtid:
        return MysqlRoute("same", "it has every transaction of the log by GTID, and keeps those after it", begun)
    place = begun.position.start
    return MysqlRoute("same", f"its binary log has everything since {place.file} at byte {place.pos}", begun)


def steps(route: MysqlRoute, marks: str) -> list[str]:
    """Describe what a move along this route creates and changes, for operators. `marks`: the table of marks; "" if none
    is written."""
    found = [f"table {marks} is created there, unless it exists"] if marks else []
    return [*found, "the log records the server" + (", and a gap after its end" if route.has_gap else "")]


_NAMES = {"mysql": "server_uuid", "mariadb": "server_id"}


def server_text(flavor: Flavor, version: str, server: str) -> str:
    """Describe a server for operators. `version`: "" if it is unknown."""
    name = {"mysql": "MySQL", "mariadb": "MariaDB"}[flavor]
    return f"{name}{' ' if version else ''}{version}, {_NAMES[flavor]} {server}"
