"""A database with a running daemon, its tables merged in this process, and the command that compares them."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import structlog
import yaml
from tests.servers.mysql import MySQLDatabase
from tests.servers.postgres import Database
from tests.support.polling import PATIENCE_S, wait_for, wait_until
from typer.testing import CliRunner

from cdcflow import local, wiring
from cdcflow.cli.app import app
from cdcflow.config import FileLog, load
from cdcflow.daemon.interfaces.control_socket import ask
from cdcflow.errors import ConfigurationError
from cdcflow.model.table import TableId
from cdcflow.tables.paths import Warehouse
from cdcflow.testing.folded import folded_log

Execute = Callable[..., list[tuple[Any, ...]]]
"""Runs statements, and gives the rows of the last one."""
_runner = CliRunner()


class ComparedShop:
    """A folder with a settings file, whose daemon may run. `name` of a table: without its schema."""

    def __init__(self, folder: Path, source: dict[str, Any], schema: str, execute: Execute) -> None:
        self.folder = folder
        self.schema = schema
        self.execute = execute
        self.file = folder / "cdcflow.yaml"
        self.output = folder / "daemon.log"
        self.daemon: subprocess.Popen[bytes] | None = None
        self.settings: dict[str, Any] = {
            "source": source,
            "log": {"path": "log", "seal": {"age_max": "300ms"}},
            "merge": {"warehouse": "warehouse", "engine": "local"},
        }
        self.write()

    def write(self) -> None:
        """The settings file, as `settings` are now."""
        self.file.write_text(yaml.safe_dump(self.settings))

    @classmethod
    @contextmanager
    def on_postgres(cls, database: Database, folder: Path) -> Iterator[ComparedShop]:
        source = {"kind": "postgres", "url": database.url, "tables": ["public.*"], "heartbeat": "1s"}

        def execute(*statements: str) -> list[tuple[Any, ...]]:
            with database.session() as connection:
                for statement in statements:
                    done = connection.execute(statement.encode())
                return done.fetchall() if done.description else []

        with cls(folder, source, "public", execute)._closing() as shop:
            yield shop

    @classmethod
    @contextmanager
    def on_mysql(cls, database: MySQLDatabase, folder: Path) -> Iterator[ComparedShop]:
        kind = str(database.server.flavor)
        source = {
            "kind": kind,
            "url": database.url,
            "tables": [f"{database.name}.*"],
            "heartbeat": "1s",
            "tls": {"mode": "off"},
        }
        with cls(folder, source, database.name, database.execute)._closing() as shop:
            yield shop

    @contextmanager
    def _closing(self) -> Iterator[ComparedShop]:
        try:
            yield self
        finally:
            if self.daemon is not None:
                self.daemon.kill()
                self.daemon.wait()

    # ── the daemon ──────────────────────────────────────────────────────────────────────────────────────────

    def start(self, *tables: str, options: Sequence[str] = ()) -> None:
        """Begin to capture, until these tables are read."""
        command = [sys.executable, "-m", "cdcflow.cli", "run", "--json", *options]
        with self.output.open("ab") as file:
            self.daemon = subprocess.Popen(command, cwd=self.folder, stdout=file, stderr=subprocess.STDOUT)
        for table in tables:
            self.wait_until_done(table)

    def wait_until_done(self, table: str) -> None:
        """Until all of its rows are read."""
        name = f"{self.schema}.{table}"
        self.wait_until(lambda status: bool(status["tables"][name]["state"] == "done"), name)

    def refused(self) -> str:
        """The message of a daemon that ends because history is lost."""
        command = [sys.executable, "-m", "cdcflow.cli", "run"]
        ended = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, timeout=PATIENCE_S)
        assert ended.returncode == 65, ended.stdout + ended.stderr
        return ended.stderr

    def stop(self) -> None:
        assert self.daemon is not None
        self.daemon.send_signal(signal.SIGTERM)
        assert self.daemon.wait(PATIENCE_S) == 0, self.output.read_text()
        self.daemon = None

    def kill(self) -> None:
        assert self.daemon is not None
        self.daemon.kill()
        self.daemon.wait()
        self.daemon = None

    def wait_until(self, wished: Callable[[dict[str, Any]], bool], what: str) -> None:
        def holds() -> bool:
            assert self.daemon is not None
            assert self.daemon.poll() is None, self.output.read_text()
            status = ask(self.folder / "log", {"op": "status"})
            with contextlib.suppress(KeyError):
                return status is not None and wished(dict(status))
            return False

        wait_until(holds, what, more=self.output.read_text)

    # ── the copy ────────────────────────────────────────────────────────────────────────────────────────────

    def merge(self) -> None:
        config = load(self.file)
        assert isinstance(config.log, FileLog)
        merged = config.merge
        local.merge(
            wiring.log_layout(config.log),
            wiring.warehouse(config),
            table_format=merged.format,
            policies=wiring.policies(config),
        )

    @property
    def warehouse(self) -> Warehouse:
        """Where its tables are."""
        return wiring.warehouse(load(self.file))

    def merge_until(self, table: str, wished: Callable[[pa.Table], bool]) -> pa.Table:
        """Merge until a table is as wished."""

        def merged() -> pa.Table | None:
            self.merge()
            with contextlib.suppress(ConfigurationError):  # no segment is sealed yet
                return local.read_cut(self.warehouse).get(f"{self.schema}.{table}")
            return None

        what = f"table {table} to be merged as wished"
        found = wait_for(merged, lambda found: found is not None and wished(found), what)
        assert found is not None
        return found

    def merge_until_there(self, table: str) -> None:
        """Merge until a table is in the warehouse, with any content."""

        def is_there() -> bool:
            self.merge()
            return (self.folder / "warehouse" / self.schema / table).exists()

        wait_until(is_there, f"table {table} in the warehouse")

    def edit(self, table: str, changed: Callable[[pa.Table], pa.Table]) -> None:
        """Change a merged table's rows, as a faulty merge would; the next merge publishes them."""
        with closing(local.local_engine(self.warehouse, load(self.file).merge.format)) as engine:
            there = engine.table((self.schema, table))
            there.snapshot()
            there.rewrite(changed(there.rows()), {"edited": table}, 100)

    def move_away(self, table: str) -> None:
        """Delete a merged table's folder, as messages instruct operators to do."""
        there = self.folder / "warehouse" / self.schema / table
        there.rename(there.with_name(f"{table} before"))

    def assert_copies_equal_source(self, table: str, columns: Sequence[str], query: str = "") -> None:
        """Check that log and merged table have the source's rows, once no session writes. It shares no code with
        `cdcflow verify`: each would show a fault of the other. `query`: which rows these are, if not all."""
        source = sorted(tuple(row) for row in self.execute(query or f"SELECT {', '.join(columns)} FROM {table}"))

        def logged() -> list[tuple[Any, ...]]:
            rows = folded_log(self.folder / "log").get(TableId(self.schema, table), {}).values()
            return sorted(tuple(row.values[name] for name in columns) for row in rows for _ in range(row.count))

        wait_for(logged, lambda found: found == source, f"the {len(source)} rows of {table} in the log")
        self.assert_table_equals(table, columns, source)

    def assert_table_equals(self, table: str, columns: Sequence[str], source: Sequence[tuple[Any, ...]]) -> None:
        """Check that the merged table gets these rows. Until then it may lack columns."""
        self.merge_until(
            table,
            lambda rows: (
                set(columns) <= set(rows.column_names)
                and sorted(zip(*(rows[name].to_pylist() for name in columns), strict=True)) == source
            ),
        )

    # ── the commands ────────────────────────────────────────────────────────────────────────────────────────

    def verify(self, *arguments: str, code: int | None = None) -> dict[str, Any]:
        """The report of `cdcflow verify`: each table's, by its name and what it was compared with."""
        said = self.said("verify", "--json", *arguments, code=code)
        report = json.loads(said.splitlines()[-1])
        return {f"{t['table'].partition('.')[2]}/{t['against']}": t for t in report["tables"]}

    def said(self, *arguments: str, code: int | None = 0) -> str:
        result = _runner.invoke(app, [*arguments, "--config", str(self.file)])
        structlog.reset_defaults()  # a command sends its lines to a stream that ends with it
        assert code is None or result.exit_code == code, result.output
        return result.stdout

    def said_both(self, *arguments: str, code: int) -> str:
        """A command's output, including its errors."""
        result = _runner.invoke(app, [*arguments, "--config", str(self.file)])
        structlog.reset_defaults()
        assert result.exit_code == code, result.output
        return result.output

    def said_error(self, *arguments: str) -> str:
        """The output of a command that fails."""
        result = _runner.invoke(app, [*arguments, "--config", str(self.file)])
        structlog.reset_defaults()
        assert result.exit_code not in (0, 70), result.output
        return result.stderr
