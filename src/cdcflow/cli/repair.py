"""`cdcflow repair`: find the rows that differ, and have the daemon repair exactly these through the log."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cdcflow.cli import failure
from cdcflow.cli.options import DEFAULT_CONFIG, ConfigPath, Now
from cdcflow.cli.verify import Against, kinds_of, leave_word, tell
from cdcflow.config import Config, load, without_reading_limits
from cdcflow.daemon.interfaces.control_socket import ask
from cdcflow.errors import ConfigurationError, SourceUnavailable
from cdcflow.log.maintenance import state_files
from cdcflow.model.table import word
from cdcflow.reports import readable
from cdcflow.tables.verify.report import Report

if TYPE_CHECKING:
    from cdcflow.tables.verify.report import TableReport

KEYS_MAX = 20_000
ROUNDS_MAX = 5
"""How often differing rows are repaired.

A report names only the first of many rows, and a column may come with the first row.
"""
SHOWN = 5
"""How many rows of a table that still differ are shown."""
KEYS_AT_ONCE = 500
"""How many keys one command names.

A command is one line of the control socket, and in the log's checkpoints until it is done.
"""
LOOK_EVERY_S = 0.2
ANSWER_WITHIN_S = 75


def repair(
    tables: Annotated[list[str] | None, typer.Argument(help="As schema.table; none means all captured tables.")] = None,
    against: Annotated[
        Against | None,
        typer.Option(
            help="Repair what differs in the log, in the tables, or in both: by default in the tables, and of"
            " unverified ones in the log."
        ),
    ] = None,
    now: Now = False,
    config: ConfigPath = DEFAULT_CONFIG,
) -> None:
    """Find the rows that differ, read them again through the log, and compare again.

    Rows that the source does not have are deleted. Nothing else is read or written. A table that is unverified, because
    changes of it were lost, becomes verified when it is found equal. Exits with 1 when a row still differs, or a table
    could not be compared.
    """
    from cdcflow.daemon.events import send_structlog_to

    settings = without_reading_limits(load(config)) if now else load(config)
    status = ask(settings.log.folder, {"op": "status"})
    if status is None:
        raise _no_daemon()
    send_structlog_to(sys.stderr)
    doubtful = _in_doubt(status, tables or ())
    others = _others(status, tables or (), doubtful)
    # All of them, as in the source: the daemon may not know yet of a table that was added or dropped.
    named = others if tables or doubtful else ()
    clean = [_repair_all(settings, named, against or Against.tables, {})] if others else []
    if doubtful:
        clean.append(_repaired_in_doubt(settings, doubtful, against))
    if not all(clean):
        raise typer.Exit(failure.FINDINGS)


@dataclass(frozen=True, slots=True)
class Doubt:
    """Why a table is unverified. `before`: the position where changes began to be lost ("": unknown).

    `base`: identifies its rows, if they were loaded another way.
    """

    before: str
    base: str


def _in_doubt(status: Mapping[str, Any], names: Sequence[str]) -> dict[str, Doubt]:
    """The tables among these (empty: all) that are unverified."""
    found = {}
    for name, known in (status.get("tables") or {}).items():
        gap = known.get("gap")
        is_open = gap is not None and gap.get("after") == "" and not gap.get("base")  # it must be read again
        if gap is not None and gap["proven"] is None and not is_open and (not names or name in names):
            found[name] = Doubt(str(gap["before"]), str(gap.get("base", "")))
    return found


def _others(status: Mapping[str, Any], names: Sequence[str], doubtful: Mapping[str, Doubt]) -> list[str]:
    captured = [name for name, known in (status.get("tables") or {}).items() if known.get("state") != "forgotten"]
    return [name for name in names or captured if name not in doubtful]


def _repaired_in_doubt(settings: Config, doubtful: Mapping[str, Doubt], against: Against | None) -> bool:
    """Repair tables that are unverified, comparing with the log if it is whole."""
    if against is not None:
        return _repair_all(settings, list(doubtful), against, doubtful)
    alone = [name for name, doubt in doubtful.items() if doubt.base]
    by_log = [name for name in doubtful if name not in alone]
    clean = []
    if by_log:
        from_log = _compare(settings, by_log, Against.log)
        left = [t.table for t in from_log.tables if t.verdict == "not compared"]
        alone += left
        by_log = [name for name in by_log if name not in left]
        clean = [_repair_all(settings, by_log, Against.log, doubtful, from_log)] if by_log else []
    clean += [_repair_all(settings, alone, Against.tables, doubtful)] if alone else []
    return all(clean)


def _repair_all(
    settings: Config,
    names: Sequence[str],
    against: Against,
    doubtful: Mapping[str, Doubt],
    first: Report | None = None,
) -> bool:
    """Repair until nothing differs; return whether it succeeded.

    No `names`: all tables. `first`: an existing comparison.
    """
    report = first or _compare(settings, names, against)
    found = {(table.table, table.against): table for table in report.tables if not names or table.table in names}
    unnamed: set[str] = set()
    for _ in range(ROUNDS_MAX):
        wrong = [table for table in found.values() if table.verdict == "different" and table.table not in unnamed]
        mended = {table.table for table in wrong if _repair_table(settings, table, _known_until(doubtful, table))}
        unnamed |= {table.table for table in wrong} - mended
        if not mended:
            break
        again = _compare(settings, sorted(mended), against, SHOWN)
        found |= {(table.table, table.against): table for table in again.tables}
    tell(Report(tuple(found.values()), report.seconds))
    proven = [
        _proven(settings, name, doubt.base, [table for table in found.values() if table.table == name])
        for name, doubt in doubtful.items()
        if name in names
    ]
    return all(table.verdict == "equal" for table in found.values()) and all(proven)


def _compare(settings: Config, tables: Sequence[str], against: Against, shown: int = 0) -> Report:
    from cdcflow import wiring

    return wiring.run_verification(
        settings,
        tables,
        against=kinds_of(against),
        differences_max=shown,
        keys_max=KEYS_MAX,
        watch=lambda table: leave_word(settings, table),
    )


def _known_until(doubtful: Mapping[str, Doubt], table: TableReport) -> str | None:
    doubt = doubtful.get(table.table)
    return None if doubt is None else doubt.before or None


def _proven(settings: Config, name: str, base: str, found: Sequence[TableReport]) -> bool:
    """Mark a table as verified that was found equal, in all of its columns."""
    if not found or any(table.verdict not in ("equal", "equal but for") for table in found):
        typer.echo(
            f"{name} remains unverified: repair the rest, or run `cdcflow backfill {word(name)}` to read all of it",
            err=True,
        )
        return False
    if missing := sorted({column for table in found for column in table.missing_columns}):
        typer.echo(
            f"{name} remains unverified: the copy does not have {', '.join(missing)} yet;"
            f" run `cdcflow backfill {word(name)}` to read all of it",
            err=True,
        )
        return False
    epoch = min(table.epoch for table in found)
    about = {"base": base} if base else {}
    answer = ask(
        settings.log.folder,
        {"op": "proven", "tables": [name], "position": found[-1].position, "epoch": epoch, **about},
        timeout_s=ANSWER_WITHIN_S,
    )
    if answer is None:
        raise _no_daemon()
    outcome = answer["tables"][name]
    # A concurrent command may have done the same, or a backfill has read the table.
    if outcome["outcome"] == "refused":
        typer.echo(f"{name} remains unverified: {outcome['reason']}; run `cdcflow repair {word(name)}` again", err=True)
        return False
    typer.echo(f"{name} is verified")
    return True


def _repair_table(settings: Config, table: TableReport, known_until: str | None) -> bool:
    """Have the rows of a table repaired, and wait until they are in the log. False if they cannot be named.

    `known_until`: where changes began to be lost.
    """
    if not table.keys:
        typer.echo(
            f"{table.table} has no key to name rows by: run `cdcflow backfill {word(table.table)}` to read all of it",
            err=True,
        )
        return False
    known = state_files.of_verified(settings.log.folder).get(table.table, {}).get(table.against, {})
    position = known_until or known.get("position")
    until = {"known_until": position} if position else {}
    for first in range(0, len(table.keys), KEYS_AT_ONCE):
        keys = [list(key) for key in table.keys[first : first + KEYS_AT_ONCE]]
        _order(settings, {"op": "repair", "tables": [table.table], "keys": keys, **until})
        _wait(settings, table.table)
    typer.echo(f"{table.table}: {readable.number(len(table.keys))} rows were read again")
    return True


def _order(settings: Config, request: Mapping[str, object]) -> None:
    answer = ask(settings.log.folder, request, timeout_s=ANSWER_WITHIN_S)
    if answer is None:
        raise _no_daemon()
    for name, one in answer["tables"].items():
        if one["outcome"] != "ordered":
            raise ConfigurationError(
                f"repairing {name}: {one.get('reason') or one['outcome']}",
                remedy=f"run `cdcflow backfill {word(name)}` to read all of it",
                runbook="order-refused",
            )


def _wait(settings: Config, table: str) -> None:
    """Wait until the daemon has read every requested row of a table, durably."""
    while True:
        status: Mapping[str, Any] | None = ask(settings.log.folder, {"op": "status"})
        if status is None:
            raise SourceUnavailable(
                f"the daemon ended while it read rows of {table} again; the command is kept",
                remedy="start `cdcflow run` again, then run `cdcflow verify`",
                runbook="no-daemon",
            )
        state = status.get("tables", {}).get(table, {}).get("state")
        if state == "done":
            return
        if state not in ("waiting", "reading"):
            raise ConfigurationError(
                f"repairing {table}: its rows could not be read again (state: {state})",
                remedy=f"check `cdcflow status`, then run `cdcflow backfill {word(table)}`",
                runbook="order-refused",
            )
        time.sleep(LOOK_EVERY_S)


def _no_daemon() -> ConfigurationError:
    return ConfigurationError(
        "no daemon runs on this log, and only a daemon can repair rows",
        remedy="start `cdcflow run`, then repair again",
        runbook="no-daemon",
    )
