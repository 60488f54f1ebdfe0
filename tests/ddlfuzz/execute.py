"""Runs a case: steps on a fresh database while a daemon captures it, then log against source."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import yaml
from tests.ddlfuzz import oracle
from tests.ddlfuzz.daemon import Daemon, Status, Stop
from tests.ddlfuzz.dialects import Beside, Error, OnPostgres, fresh
from tests.ddlfuzz.draw import COLUMNS, SETTINGS, Case
from tests.ddlfuzz.kept import Kept
from tests.ddlfuzz.kinds import COMPARE, DAEMON, Step, acted
from tests.ddlfuzz.model import Column, Model, Table
from tests.ddlfuzz.rows import ROWS
from tests.servers.mysql import MySQLServer
from tests.servers.postgres import PostgresServer

from cdcflow import wiring
from cdcflow.capture.interleave.progress import Progress
from cdcflow.config import load
from cdcflow.model.table import TableId

OWN = ("begin", "commit", "hold", "linger", "release", "rollback", "savepoint", "undo")
"""Steps that need no savepoint of their own."""
PATIENCE_S = float(os.environ.get("CDCFLOW_FUZZ_PATIENCE_S", "60"))
"""More than the time between two polls of the list of tables. A machine with other things to do needs more."""
POLL_S = 0.05
"""Each answer takes the daemon away from its work."""
HELD_S = 4.0
"""How long a commit is held at most for the daemon to have it: the daemon waits a second for it to be visible."""
WHILE_HELD = (*ROWS, *COLUMNS, "release")
"""Steps that other sessions may try while a commit is held; its end comes before any other."""
LINGER_S = 1.5
"""How long an open transaction waits at most for its rows to be sent."""
Sort = Literal["difference", "stop", "hang", "broken"]
_SQL = re.compile(
    r"\b((?:ALTER|DROP|SET GLOBAL|GRANT|UPDATE) [^;\n]*?)(?=;|\n|$| \(or |, then |, or |, which | and run | and read )"
)
_SETTING = re.compile(r"set source\.columns to \{([^:}]+): (\w+)\}")
_NO_SETTING = re.compile(r"remove (.+?) from source\.columns")
_BACKFILL = re.compile(r"cdcflow backfill ([^\s`,;]+)")


class Failure(Exception):
    """What a case found, and the kind of failure: a shrunk case must fail in the same way."""

    def __init__(self, sort: Sort, message: str) -> None:
        super().__init__(message)
        self.sort = sort


class NothingToCapture(Exception):
    """No table is left: there is nothing to compare."""


@dataclass
class Outcome:
    failure: str | None = None
    sort: Sort | None = None
    counts: Counter[str] = field(default_factory=Counter)
    stops: list[str] = field(default_factory=list)
    seconds: float = 0.0


def execute(case: Case, server: PostgresServer | MySQLServer) -> Outcome:
    """Run a case on a separate database."""
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="cdcflow-fuzz-"))
    beside = fresh(server)
    run = Run(case, beside, folder)
    try:
        run.steps()
        run.end()
    except Failure as found:
        run.outcome.failure, run.outcome.sort = str(found), found.sort
    except NothingToCapture:
        pass
    finally:
        if run.daemon is not None:
            run.daemon.kill()
        if isinstance(beside, OnPostgres):
            run.outcome.counts["streamed"] += beside.streamed()
        beside.close()
        shutil.rmtree(folder, ignore_errors=True)
    run.outcome.seconds = time.monotonic() - began
    return run.outcome


class Run:
    stops_max = 8
    """More stops than this count as one that repeats."""

    def __init__(self, case: Case, beside: Beside, folder: Path) -> None:
        self.case = case
        self.beside = beside
        self.folder = folder
        self.settings = {**SETTINGS, **case.settings}
        self.model = Model(case.server)
        self.before_transaction = self.at_savepoint = self.model
        self.kept = Kept(beside) if isinstance(beside, OnPostgres) else None
        if isinstance(beside, OnPostgres) and self.settings["memory"] == "small":
            beside.decode_in_little_memory()
        self.daemon: Daemon | None = None
        self.accept = False
        self.backfill: tuple[str, ...] = ()
        self.held_until = ""
        self.told = ""
        self.repeated = 0
        self.mended: set[str] = set()
        self.list_reads_due = 1
        """How many reads of the list of tables the daemon's status must have to show what a remedy changed."""
        self.patience_s = PATIENCE_S
        self.outcome = Outcome()
        self.path = folder / "cdcflow.yaml"
        chunk = int(self.settings["chunk"])
        backfill = {"chunk_time_target_ms": 20, "chunk_rows_max": chunk}
        source = {**beside.source, "heartbeat": "1s", "backfill": backfill}
        self.path.write_text(yaml.safe_dump({"source": source, "log": {"path": str(folder / "log")}}))

    # ── steps ───────────────────────────────────────────────────────────────────────────────────────────────

    def steps(self) -> None:
        for step in self.case.steps:
            if step.name in (*DAEMON, COMPARE):
                self._daemon_step(step.name)
            else:
                self._database_step(step)

    def _daemon_step(self, name: str) -> None:
        match name:
            case "start":
                # A new slot waits until every transaction has ended.
                if self.model.in_transaction or self.accept or not self.outcome.counts["start"]:
                    self._commit()
                self._start()
            case "wait" if self.daemon is not None:
                self._commit()
                self._wait(())
            case "compare" if self.daemon is not None:
                self._commit()
                self._wait(())
                if unmergeable := self._compare(set()):
                    raise Failure("difference", f"the merge would stop: {unmergeable[min(unmergeable)]}")
            case "stop":
                self._stop()
            case "kill" if self.daemon is not None:
                self.daemon.kill()
                self.daemon = None
        self.outcome.counts[name] += 1

    def _database_step(self, step: Step) -> None:
        found = acted(self.model, step)
        if found is None:
            self.outcome.counts["meaningless"] += 1
            return
        after, statements = found
        if self.model.held and step.name not in WHILE_HELD:
            self._release()
            self._database_step(step)
            return
        if step == Step("release", ("late",)):
            self._await_position()
        if step.name == "begin":
            self.before_transaction = self.model.copy()
        if step.name == "rollback" and self.model.is_postgres:
            after = self.before_transaction
        if step.name == "savepoint":
            self.at_savepoint = after.copy()
        if step.name == "undo":
            after = self.at_savepoint.copy()
        if self.kept is not None:
            self.kept.before(step)
        if not self._said(statements, own=step.name in OWN):
            self.outcome.counts["refused"] += 1
            return
        self.outcome.counts[step.name] += 1
        if step.name == "linger":
            self._linger()
        if step.name == "hold":
            self.held_until = self.beside.fence()
            if self.kept is not None:  # what other sessions see of its tables is not what the log has
                self.kept.lost()
        if self.kept is not None:
            self.kept.after(step)
        if not after.is_postgres and not statements[-1].startswith(("INSERT", "UPDATE", "DELETE", "BEGIN", "SET")):
            after.in_transaction = False  # DDL commits open transactions
        self.model, self.repeated = after, 0
        self.mended.clear()

    def _said(self, statements: list[str], *, own: bool) -> bool:
        """Send them to the server; False: it refused one, and all of them were rolled back."""
        nested = self.model.is_postgres and self.model.in_transaction and not own
        if nested:
            inner = [s for s in statements if s not in ("BEGIN", "COMMIT")]
            statements = ["SAVEPOINT step", *inner, "RELEASE SAVEPOINT step"]
        try:
            for statement in statements:
                self.beside.execute(statement)
                if self.kept is not None:
                    self.kept.follow()
        except Error:
            if nested:
                self.beside.execute("ROLLBACK TO SAVEPOINT step")
            elif self.model.is_postgres and "BEGIN" in statements:
                self.beside.execute("ROLLBACK")
            return False
        return True

    def _linger(self) -> None:
        """A transaction that is not large never gets there."""
        deadline = time.monotonic() + LINGER_S
        while self.daemon is not None and self.settings["memory"] == "small" and time.monotonic() < deadline:
            if any(self.folder.rglob("*.spool")):
                return
            time.sleep(POLL_S)

    def _await_position(self) -> None:
        """The daemon has the commit that is held. It may be busy with a table that the commit's session has locked."""
        deadline = time.monotonic() + HELD_S
        while self.daemon is not None and time.monotonic() < deadline:
            status = self.daemon.status()
            if status is None or (status.position and self.beside.is_past(status.position, self.held_until)):
                return
            time.sleep(POLL_S)

    def _commit(self) -> None:
        if self.model.in_transaction:
            self._database_step(Step("commit"))
        self._release()

    def _release(self) -> None:
        if self.model.held:
            self._database_step(Step("release", ("soon",)))

    # ── the daemon ──────────────────────────────────────────────────────────────────────────────────────────

    def _start(self) -> None:
        if self.daemon is None:
            self.daemon = Daemon(
                self.path,
                look_s=float(self.settings["look"]),
                small=self.settings["windows"] == "small",
                accept=self.accept,
                backfill=self.backfill,
            )
            self.accept, self.backfill = False, ()
            self.list_reads_due = 1

    def _stop(self) -> None:
        if self.daemon is not None:
            daemon, self.daemon = self.daemon, None
            stop = daemon.stop()
            if stop is None:
                return
            if stop.kind == "SourceUnavailable" and (self.model.in_transaction or self.model.held):
                # The case's own lock made the daemon wait: when it is stopped, it reports what it waited for, and
                # nothing is unverified.
                self.outcome.stops.append("stopped while it waited: " + stop.message.split("\n")[0])
                return
            self._stopped(stop)

    def _wait(self, tables: tuple[TableId, ...], anew: Mapping[TableId, int] | None = None) -> None:
        """Wait until the log has everything that is committed now, and the tables known to the daemon (`tables` at
        least) are read; those in `anew` once more since that generation. A daemon that stops with a known error is
        started again, after the remedy in its message was applied."""
        fence = self.beside.fence()
        deadline = time.monotonic() + self.patience_s
        status: Status | None = None
        read = 0
        while True:
            assert self.daemon is not None
            status = self.daemon.status()
            if status is None:
                daemon, self.daemon = self.daemon, None
                stop = daemon.ended()
                assert stop is not None
                self._stopped(stop)
                # It may have ended before it recorded the order to read tables again.
                self.backfill = self.backfill or daemon.backfill
                self._start()
                fence = self.beside.fence()
                continue
            done = sum((t["state"] == "done") + t["rows"] for t in status.tables.values())
            if done > read:  # not in vain: one more table was read, or more rows of one
                read, deadline = done, time.monotonic() + self.patience_s
            if status.position and self.beside.is_past(status.position, fence):
                if self._mend_failed(status):
                    fence = self.beside.fence()
                    continue
                generations = {name: t["generation"] for name, t in status.tables.items()}
                if self._is_read(status, tables) and all(generations[str(t)] > n for t, n in (anew or {}).items()):
                    if self.kept is not None:
                        self.kept.seen({name for name, t in status.tables.items() if t["state"] == "done"})
                    return
                if status.list_reads >= self.list_reads_due:
                    self._take_in([t for t in tables if str(t) in status.left_out], status)
            if time.monotonic() > deadline:
                states = {name: t["state"] for name, t in status.tables.items()}
                lacking = sorted(name for name in map(str, tables) if states.get(name) != "done")
                at = f"at {status.position or 'no position'} of {fence}, {states}, not read: {lacking}"
                at += f", skipped: {sorted(status.left_out)} {status.interrupted}"
                raise Failure("hang", f"waited {self.patience_s:.0f} s in vain: {at}")
            time.sleep(POLL_S)

    def _take_in(self, left_out: list[TableId], status: Status) -> None:
        """Do what `doctor` recommends for tables that are reported as skipped: then they are captured."""
        if not left_out:
            return
        source = wiring.open_source(load(self.path))
        try:
            # The last one counts of those that have the same subject: the errors.
            findings = {f.subject: f for f in sorted(source.doctor(), key=lambda f: f.level == "error")}
        finally:
            source.close()
        for table in left_out:
            found = findings.get(str(table))
            if found is None or found.level != "error":
                continue  # already fixed, and the daemon has not polled since
            if len(self.outcome.stops) > self.stops_max or not (said := _SQL.findall(found.remedy or "")):
                raise Failure("stop", f"table {table} is skipped, and no remedy ends that: {found}")
            self.outcome.stops.append(f"left out: {table}: {found.text}")
            for statement in said:
                self._said([statement], own=False)
        self.list_reads_due = self._next_list_read(status)

    def _next_list_read(self, status: Status) -> int:
        """The number of the first read that surely starts after this call: the one before may be running."""
        return status.list_reads + 2

    def _is_read(self, status: Status, tables: tuple[TableId, ...]) -> bool:
        """A table that is dropped, or skipped now, waits until the next poll of the list of tables."""
        states = {name: t["state"] for name, t in status.tables.items()}
        waiting = {name for name, state in states.items() if state not in ("done", "forgotten")}
        if waiting:
            waiting &= {str(t) for t in self.beside.columns()}
        return not waiting and all(states.get(str(t)) == "done" for t in tables)

    def _mend_failed(self, status: Status) -> bool:
        """A backfill may fail because its table was dropped and created again, or for a reason that includes a remedy:
        then the remedy is applied (True). The failure must end by the daemon's next read of the list of tables."""
        if status.list_reads < self.list_reads_due:
            return False
        failed = {name: t["reason"] for name, t in status.tables.items() if t["state"] == "failed"}
        mended = is_set = False
        for table in self.beside.columns() if failed else ():
            if (reason := failed.get(str(table))) is None:
                continue
            said = f"the backfill of {table} failed: {reason}"
            statements, settings = _SQL.findall(reason), _SETTING.findall(reason)
            backfill = _BACKFILL.findall(reason)
            if said in self.mended:
                raise Failure("hang", said)
            self.mended.add(said)
            self.outcome.stops.append(said)
            for statement in statements:
                self._said([self._with_key(statement)], own=False)
            for column, policy in settings:
                self._set_column(column, policy)
                is_set = True
            if backfill:
                self.backfill, is_set = (*self.backfill, *backfill), True
            mended = True
        if is_set:
            self._stop()
            self._start()
        elif mended:
            self.list_reads_due = self._next_list_read(status)
        return mended

    def _stopped(self, stop: Stop) -> None:
        """Apply a stop's remedy; a stop that repeats although nothing was done to the database cannot be ended."""
        if not self.beside.columns():
            raise NothingToCapture
        if self.kept is not None:
            self.kept.lost()
        head = stop.message.split("\n")[0]
        self.outcome.stops.append(f"{stop.kind}: {head}")
        if stop.kind not in ("ConfigurationError", "HistoryLost"):
            raise Failure("broken", f"{stop.kind}: {stop.message[-1500:]}")
        self.repeated = self.repeated + 1 if stop.message == self.told else 0
        self.told = stop.message
        if self.repeated and self._done_otherwise(stop):
            return
        if self.repeated >= 2 or len(self.outcome.stops) > self.stops_max:
            raise Failure("stop", f"its remedy does not end the stop: {stop.kind}: {stop.message}")
        self._commit()
        done = False
        for statement in _SQL.findall(stop.remedy):
            # One that is refused may have been executed before the stop was noticed. A stop that comes again is found
            # above.
            self._said([self._with_key(statement)], own=False)
            done = True
        if "--accept-history-loss" in stop.remedy:
            self.accept = done = True
        for column, policy in _SETTING.findall(stop.remedy):
            self._set_column(column, policy)
            done = True
        for column in _NO_SETTING.findall(stop.remedy):
            self._set_column(column, None)
            done = True
        if found := _BACKFILL.findall(stop.remedy):
            self.backfill, done = tuple(found), True
        if (
            not done and "matches no table" not in head and not self._done_otherwise(stop)
        ):  # a table was created under its name since
            raise Failure("stop", f"a stop whose remedy cannot be carried out: {stop.kind}: {stop.message}")

    def _done_otherwise(self, stop: Stop) -> bool:
        """Whether a stop that the first remedy does not end names a second one, which was applied.

        A case takes the first.
        """
        return False

    def _with_key(self, statement: str) -> str:
        """A remedy's `ADD PRIMARY KEY (…)` with the columns that an operator would write: a step that the server
        refused in the middle may have dropped the key."""
        words = re.findall(r"\w+", statement)
        keys = [table.key for name, table in self.model.tables.items() if name.rpartition(".")[2] in words]
        return statement.replace("(…)", f"({', '.join(keys[0])})") if keys else statement

    def _set_column(self, column: str, policy: str | None) -> None:
        """Set a column's policy in the settings file; None: remove it."""
        settings = yaml.safe_load(self.path.read_text())
        columns = settings["source"].setdefault("columns", {})
        if policy is None:
            columns.pop(column, None)
        else:
            columns[column] = policy
        self.path.write_text(yaml.safe_dump(settings))

    # ── the end ─────────────────────────────────────────────────────────────────────────────────────────────

    def end(self) -> None:
        """Let the log catch up, with a daemon that was started again, and compare."""
        self._commit()
        if self.daemon is not None:
            self._wait(())
        # A shape shows with the first row after it.
        for name, table in self.model.tables.items():
            for statement in _last_row(self.model, name, table):
                self._said([statement], own=True)
        if self.daemon is not None:
            self._wait(())
        self._stop()
        self._start()
        self._wait(tuple(self.beside.columns()))
        anew: set[TableId] = set()
        while True:
            self._stop()
            unmergeable = self._compare(anew)
            if not unmergeable:
                return
            # The merge's message: read the tables again, into new ones.
            self.outcome.stops.append(f"merge: {unmergeable[min(unmergeable)]}")
            anew |= unmergeable.keys()
            self.backfill = tuple(map(str, unmergeable))
            _, progress = oracle.read(wiring.log_reader(load(self.path)))
            before = {table: progress.tables[table].generation for table in unmergeable}
            self._start()
            # Its first words may come before it has begun.
            self._wait(tuple(unmergeable), before)

    def _compare(self, anew: set[TableId]) -> dict[TableId, str]:
        """Raises Failure at a difference; gives back the tables that the merge would not take, and why."""
        log = wiring.log_reader(load(self.path))
        report = log.check(deep=True)
        if not report.is_whole:
            raise Failure("broken", f"the log is damaged: {report.faults}")
        found, progress = oracle.read(log)
        unmergeable: dict[TableId, str] = {}
        sources = self.beside.columns()
        for table, columns in sorted(sources.items()):
            source = self.beside.rows(table, columns)
            if not found.get(table):
                if source:
                    raise Failure("difference", f"table {table}: nothing in the log, {len(source)} rows in the source")
                continue
            try:
                _, rows = oracle.current(found[table], progress.tables.get(table), since_backfill=table in anew)
            except oracle.Unmergeable as error:
                if table in anew:
                    raise Failure("stop", f"read again, and the same error: {error}") from None
                unmergeable[table] = str(error)
                continue
            difference = oracle.differences(rows, source, columns)
            if difference:
                raise Failure("difference", f"table {table}: {difference}")
        if self.kept is None:
            self._compare_ended({t: logged for t, logged in found.items() if t not in sources}, progress)
        elif difference := self.kept.difference(found, progress):
            raise Failure("difference", difference)
        return unmergeable

    def _compare_ended(self, ended: Mapping[TableId, oracle.Logged], progress: Progress) -> None:
        """MySQL, MariaDB: tables that the source no longer has are empty by the log."""
        for table, logged in ended.items():
            try:
                _, rows = oracle.current(logged, progress.tables.get(table))
            except oracle.Unmergeable:
                continue  # no table exists that could be read again
            if rows:
                raise Failure(
                    "difference", f"table {table}: {len(rows)} rows in the log, and the source has it no more"
                )


def _last_row(model: Model, name: str, table: Table) -> list[str]:
    """Statements that leave one more row: its key is in the last partition, where there are partitions."""
    key = 9999 if table.parts is None else max(table.parts.values()) * 1000 + 999
    if table.parts is None and name in model.parted:
        key = model.parted[name][1] * 1000 + 999
    given = {n: c for n, c in table.columns.items() if c.values == "given"}
    own = {"id": key, "alt": key * 7 + 3}
    values = [str(own.get(n) or model.literal(Column(c.type, moods=c.moods), 5)) for n, c in given.items()]
    return [
        f"DELETE FROM {name} WHERE id = {key} OR alt = {key * 7 + 3}",
        f"INSERT INTO {name} ({', '.join(given)}) VALUES ({', '.join(values)})",
    ]


__all__ = ["Failure", "NothingToCapture", "Outcome", "Run", "execute"]
