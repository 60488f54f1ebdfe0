"""`cdcflow repair`: find the rows that differ, and have the daemon mend just these through the log."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cdcflow.cli import failure, output
from cdcflow.cli.options import DEFAULT_CONFIG, ConfigPath
from cdcflow.cli.verify import Against, kinds_of, leave_word, tell
from cdcflow.config import Config, load
from cdcflow.errors import ConfigurationError, SourceUnavailable
from cdcflow.service import last_words
from cdcflow.service.control import ask

if TYPE_CHECKING:
    from cdcflow.verify.report import Report, TableReport

KEYS_MAX = 20_000
KEYS_AT_ONCE = 500
"""One order names so many keys: it is one line of the control socket, and in the log's checkpoints until it is done."""
LOOK_EVERY_S = 0.2
ANSWER_WITHIN_S = 75


def repair(
    tables: Annotated[list[str] | None, typer.Argument(help="As schema.table; none means all captured tables.")] = None,
    against: Annotated[Against, typer.Option(help="Mend what differs in the log, in the tables, or in both.")] = (
        Against.tables
    ),
    config: ConfigPath = DEFAULT_CONFIG,
) -> None:
    """Find the rows that differ, read them again through the log, and compare again.

    Rows that the source does not have are deleted. Nothing else is read or written. Exits with 1 when a row still
    differs, or a table could not be compared.
    """
    from cdcflow.cli.events import send_structlog_to

    settings = load(config)
    if ask(settings.log.folder, {"op": "ping"}) is None:
        raise _no_daemon()
    send_structlog_to(sys.stderr)
    found = _compared(settings, tuple(tables or ()), against)
    wrong = [table for table in found.tables if table.verdict == "different"]
    if not wrong:
        tell(found)
        raise typer.Exit(0 if found.is_clean else failure.FINDINGS)
    mended = [table for table in wrong if _mended(settings, table)]
    again = _compared(settings, sorted({table.table for table in mended}), against) if mended else None
    if again is not None:
        tell(again)
    if again is None or not again.is_clean or len(mended) < len(wrong):
        raise typer.Exit(failure.FINDINGS)


def _compared(settings: Config, tables: Sequence[str], against: Against) -> Report:
    from cdcflow import wiring

    return wiring.verified(
        settings,
        tables,
        against=kinds_of(against),
        differences_max=0,
        keys_max=KEYS_MAX,
        watch=lambda table: leave_word(settings, table),
    )


def _mended(settings: Config, table: TableReport) -> bool:
    """Order the rows of a table, and wait until the log has them. False: they cannot be named."""
    if not table.keys:
        typer.echo(
            f"{table.table} has no key to name rows by: run `cdcflow backfill {table.table}` to read all of it",
            err=True,
        )
        return False
    known = last_words.of_verified(settings.log.folder).get(table.table, {}).get(table.against, {})
    until = {"known_until": known["position"]} if known.get("position") else {}
    for first in range(0, len(table.keys), KEYS_AT_ONCE):
        keys = [list(key) for key in table.keys[first : first + KEYS_AT_ONCE]]
        _order(settings, {"op": "repair", "tables": [table.table], "keys": keys, **until})
        _wait(settings, table.table)
    typer.echo(f"{table.table}: {output.number(len(table.keys))} rows were read again")
    return True


def _order(settings: Config, request: Mapping[str, object]) -> None:
    answer = ask(settings.log.folder, request, timeout_s=ANSWER_WITHIN_S)
    if answer is None:
        raise _no_daemon()
    for name, one in answer["tables"].items():
        if one["outcome"] != "ordered":
            raise ConfigurationError(
                f"repairing {name}: {one.get('reason') or one['outcome']}",
                remedy=f"run `cdcflow backfill {name}` to read all of it",
                runbook="order-refused",
            )


def _wait(settings: Config, table: str) -> None:
    """Until the daemon has read every row that was ordered of a table, and has it on disk."""
    while True:
        status: Mapping[str, Any] | None = ask(settings.log.folder, {"op": "status"})
        if status is None:
            raise SourceUnavailable(
                f"the daemon ended while it read rows of {table} again; the order is kept",
                remedy="start `cdcflow run` again, then run `cdcflow verify`",
                runbook="no-daemon",
            )
        state = status.get("tables", {}).get(table, {}).get("state")
        if state == "done":
            return
        if state not in ("waiting", "reading"):
            raise ConfigurationError(
                f"repairing {table}: its rows could not be read again (state: {state})",
                remedy=f"look at `cdcflow status`, then run `cdcflow backfill {table}`",
                runbook="order-refused",
            )
        time.sleep(LOOK_EVERY_S)


def _no_daemon() -> ConfigurationError:
    return ConfigurationError(
        "no daemon runs on this log, and only a daemon can mend rows",
        remedy="start `cdcflow run`, then repair again",
        runbook="no-daemon",
    )
