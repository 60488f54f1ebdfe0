"""Repairs: rows that differ are read again through the log, until a comparison finds the tables equal."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from cdcflow import wiring
from cdcflow.config import Config
from cdcflow.daemon.interfaces.control_socket import ask
from cdcflow.daemon.requests.comparisons import record_comparison
from cdcflow.errors import ConfigurationError, SourceUnavailable
from cdcflow.log.maintenance import state_files
from cdcflow.model.table import word
from cdcflow.tables.verify.report import Against, Report, TableReport

LOG: Sequence[Against] = ("log",)
TABLES: Sequence[Against] = ("tables",)
KEYS_MAX = 20_000
ROUNDS_MAX = 5
"""How many times at most the rows that differ are repaired and compared again.

More than once, because a report names only some of many rows, and a table may get a column with the first row.
"""
SHOWN = 5
"""How many rows of a table that still differ are shown."""
KEYS_AT_ONCE = 500
"""The maximum number of keys in one command.

A command is sent as one line to the control socket, and is in the log's checkpoints until it is done.
"""
LOOK_EVERY_S = 0.2
ANSWER_WITHIN_S = 75


class Tell(Protocol):
    """Reports a step or a problem to an operator."""

    def __call__(self, text: str, *, is_problem: bool) -> None: ...


@dataclass(frozen=True, slots=True)
class Doubt:
    """Why a table is unverified. `before`: the position where changes began to be lost ("": unknown).

    `base`: the name of the base, if the table's rows were loaded another way and attached; otherwise "".
    """

    before: str
    base: str


class Repairs:
    """Repairs of rows through a running daemon. `show`: shows comparisons; `tell`: progress and problems, as text."""

    def __init__(self, settings: Config, show: Callable[[Report], None], tell: Tell) -> None:
        self._settings = settings
        self._folder = settings.log.folder
        self._show = show
        self._tell = tell

    def repair(self, tables: Sequence[str], against: Sequence[Against] | None) -> bool:
        """Repair these tables (empty: all), and return whether all are equal to the source. `against`: the copy to
        compare; `None`: the tables, and for unverified tables the log.

        Raises:
            ConfigurationError: no daemon runs.
        """
        status = ask(self._folder, {"op": "status"})
        if status is None:
            raise _no_daemon()
        doubtful = _in_doubt(status, tables)
        others = _others(status, tables, doubtful)
        # All of them, as in the source: the daemon may not know yet of a table that was added or dropped.
        named = others if tables or doubtful else ()
        clean = [self._repair_all(named, against or TABLES, {})] if others else []
        if doubtful:
            clean.append(self._repair_in_doubt(doubtful, against))
        return all(clean)

    def _repair_in_doubt(self, doubtful: Mapping[str, Doubt], against: Sequence[Against] | None) -> bool:
        """Repair tables that are unverified, comparing with the log if it is whole."""
        if against is not None:
            return self._repair_all(list(doubtful), against, doubtful)
        alone = [name for name, doubt in doubtful.items() if doubt.base]
        by_log = [name for name in doubtful if name not in alone]
        clean = []
        if by_log:
            from_log = self._compare(by_log, LOG)
            left = [t.table for t in from_log.tables if t.verdict == "not compared"]
            alone += left
            by_log = [name for name in by_log if name not in left]
            clean = [self._repair_all(by_log, LOG, doubtful, from_log)] if by_log else []
        clean += [self._repair_all(alone, TABLES, doubtful)] if alone else []
        return all(clean)

    def _repair_all(
        self,
        names: Sequence[str],
        against: Sequence[Against],
        doubtful: Mapping[str, Doubt],
        first: Report | None = None,
    ) -> bool:
        """Repair until nothing differs; return whether it succeeded.

        No `names`: all tables. `first`: an existing comparison.
        """
        report = first or self._compare(names, against)
        found = {(table.table, table.against): table for table in report.tables if not names or table.table in names}
        unnamed: set[str] = set()
        for _ in range(ROUNDS_MAX):
            wrong = [table for table in found.values() if table.verdict == "different" and table.table not in unnamed]
            mended = {table.table for table in wrong if self._repair_table(table, _known_until(doubtful, table))}
            unnamed |= {table.table for table in wrong} - mended
            if not mended:
                break
            again = self._compare(sorted(mended), against, SHOWN)
            found |= {(table.table, table.against): table for table in again.tables}
        self._show(Report(tuple(found.values()), report.seconds))
        proven = [
            self._prove(name, doubt.base, [table for table in found.values() if table.table == name])
            for name, doubt in doubtful.items()
            if name in names
        ]
        return all(table.verdict == "equal" for table in found.values()) and all(proven)

    def _compare(self, tables: Sequence[str], against: Sequence[Against], shown: int = 0) -> Report:
        return wiring.run_verification(
            self._settings,
            tables,
            against=against,
            differences_max=shown,
            keys_max=KEYS_MAX,
            watch=lambda table: record_comparison(self._settings, table),
        )

    def _prove(self, name: str, base: str, found: Sequence[TableReport]) -> bool:
        """Mark a table as verified, if these comparisons found it equal in all of its columns. Return whether it was
        marked."""
        if not found or any(table.verdict not in ("equal", "equal but for") for table in found):
            self._tell(
                f"{name} remains unverified: repair the rest, or run `cdcflow backfill {word(name)}` to read all of it",
                is_problem=True,
            )
            return False
        if missing := sorted({column for table in found for column in table.missing_columns}):
            self._tell(
                f"{name} remains unverified: the copy does not have {', '.join(missing)} yet;"
                f" run `cdcflow backfill {word(name)}` to read all of it",
                is_problem=True,
            )
            return False
        epoch = min(table.epoch for table in found)
        about = {"base": base} if base else {}
        answer = ask(
            self._folder,
            {"op": "proven", "tables": [name], "position": found[-1].position, "epoch": epoch, **about},
            timeout_s=ANSWER_WITHIN_S,
        )
        if answer is None:
            raise _no_daemon()
        outcome = answer["tables"][name]
        # A concurrent command may have done the same, or a backfill has read the table.
        if outcome["outcome"] == "refused":
            self._tell(
                f"{name} remains unverified: {outcome['reason']}; run `cdcflow repair {word(name)}` again",
                is_problem=True,
            )
            return False
        self._tell(f"{name} is verified", is_problem=False)
        return True

    def _repair_table(self, table: TableReport, known_until: str | None) -> bool:
        """Have the rows of a table repaired, and wait until they are in the log. False if they cannot be named.

        `known_until`: where changes began to be lost.
        """
        if not table.keys:
            self._tell(
                f"{table.table} has no key to name rows by: run `cdcflow backfill {word(table.table)}` to read all of"
                " it",
                is_problem=True,
            )
            return False
        known = state_files.of_verified(self._folder).get(table.table, {}).get(table.against, {})
        position = known_until or known.get("position")
        until = {"known_until": position} if position else {}
        for first in range(0, len(table.keys), KEYS_AT_ONCE):
            keys = [list(key) for key in table.keys[first : first + KEYS_AT_ONCE]]
            self._order({"op": "repair", "tables": [table.table], "keys": keys, **until})
            self._wait(table.table)
        self._tell(f"{table.table}: {len(table.keys):,} rows were read again", is_problem=False)
        return True

    def _order(self, request: Mapping[str, object]) -> None:
        answer = ask(self._folder, request, timeout_s=ANSWER_WITHIN_S)
        if answer is None:
            raise _no_daemon()
        for name, one in answer["tables"].items():
            if one["outcome"] != "ordered":
                raise ConfigurationError(
                    f"repairing {name}: {one.get('reason') or one['outcome']}",
                    remedy=f"run `cdcflow backfill {word(name)}` to read all of it",
                    runbook="order-refused",
                )

    def _wait(self, table: str) -> None:
        """Wait until the daemon has read every requested row of a table, durably."""
        while True:
            status: Mapping[str, Any] | None = ask(self._folder, {"op": "status"})
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


def _known_until(doubtful: Mapping[str, Doubt], table: TableReport) -> str | None:
    doubt = doubtful.get(table.table)
    return None if doubt is None else doubt.before or None


def _no_daemon() -> ConfigurationError:
    return ConfigurationError(
        "no daemon runs on this log, and only a daemon can repair rows",
        remedy="start `cdcflow run`, then repair again",
        runbook="no-daemon",
    )
