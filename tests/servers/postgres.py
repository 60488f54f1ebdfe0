"""The demo's PostgreSQL server with operations for tests: stop, kill and change it; temporary databases."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import psycopg
from psycopg import sql
from tests.support.polling import wait_until

from cdcflow.demo.servers import postgres
from cdcflow.demo.servers.postgres import HBA, SUPERUSER, binaries, environment


class PostgresServer(postgres.PostgresServer):
    """A private PostgreSQL server. A context manager: inside it the server runs, afterwards it is removed.

    All local users may connect as superuser through the loopback unless `write_hba` restricts it.
    """

    # ── life ────────────────────────────────────────────────────────────────────────────────────────────────

    def start(self, **settings: str) -> None:
        """Start the server and wait until it answers. `settings` stay for later starts; an empty one is reset."""
        self._settings = {k: v for k, v in {**self._settings, **settings}.items() if v != ""}
        super().start()

    def stop(self, *, immediate: bool = False) -> None:
        """Stop the server: with a checkpoint, or at once as after a crash of its machine's power."""
        self._end(signal.SIGQUIT if immediate else signal.SIGINT)

    def kill(self) -> None:
        """SIGKILL to every process of the server at the same time: nothing in its memory reaches the disk."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                # The postmaster is stopped first, so that it starts no new child and cannot signal the old ones.
                self._process.send_signal(signal.SIGSTOP)
                for child in self._children():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(child, signal.SIGKILL)
            self._process.kill()
            self._process.wait(30)
        self._forget()

    def restart(self, *, immediate: bool = False, **settings: str) -> None:
        self.stop(immediate=immediate)
        self.start(**settings)

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    # ── use ─────────────────────────────────────────────────────────────────────────────────────────────────

    def psql(self, script: str, database: str = "postgres") -> str:
        """Run a script with the server's own `psql`, stopping at its first error; returns what it prints."""
        done = subprocess.run(
            [self.bin_directory / "psql", "-X", "-q", "-At", "-v", "ON_ERROR_STOP=1", "-f", "-"],
            input=script,
            capture_output=True,
            text=True,
            env={**environment(), "PGHOST": "127.0.0.1", "PGPORT": str(self.port), "PGUSER": SUPERUSER}
            | {"PGDATABASE": database},
            timeout=600,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"psql failed: {done.stderr.strip()}")
        return done.stdout

    def reload(self, **settings: str) -> None:
        """Change settings of the running server that need no restart; an empty one is reset."""
        self._settings = {k: v for k, v in {**self._settings, **settings}.items() if v != ""}
        self._write_settings()
        self._reload()

    def run(self, program: str, *options: str | Path) -> str:
        """Run one of the server's programs as the user that it belongs to, in its directory; returns its output."""
        done = subprocess.run(
            [self.bin_directory / program, *options],
            capture_output=True,
            text=True,
            cwd=self.directory,
            env=environment(),
            check=False,
            **self._user.process(),
        )
        if done.returncode != 0:
            raise RuntimeError(f"{program} failed: {done.stdout}{done.stderr}")
        return str(done.stdout)

    def data_checksums(self) -> bool:
        """Whether its pages have checksums. The server is stopped."""
        return "Data page checksum version:           0" not in self.run("pg_controldata", "-D", self.data)

    @contextlib.contextmanager
    def holding_commits(self) -> Iterator[None]:
        """Inside, commits wait for a standby that does not exist: they are in the WAL, but no session sees them."""
        self.reload(synchronous_standby_names="nobody")
        try:
            self._wait_until_commits_hang()
            yield
        finally:
            self.reload(synchronous_standby_names="")

    def write_hba(self, *lines: str) -> None:
        """Replace `pg_hba.conf` (who may connect, and how) and load it. No lines: all local users may, as at first."""
        self._own_file(self.data / "pg_hba.conf", "\n".join(lines or HBA) + "\n")
        if self.is_running:
            self._reload()

    def create_database(self, name: str) -> Database:
        with self.connect() as connection:
            connection.execute(sql.SQL("CREATE DATABASE {} TEMPLATE template0").format(sql.Identifier(name)))
        return Database(self, name)

    # ── inside ──────────────────────────────────────────────────────────────────────────────────────────────

    def _reload(self) -> None:
        """SIGHUP, and wait until the postmaster has logged it: sessions that begin now use the new files."""
        assert self._process is not None
        heard = self.log.read_text(errors="replace").count("received SIGHUP")
        self._process.send_signal(signal.SIGHUP)
        wait_until(
            lambda: self.log.read_text(errors="replace").count("received SIGHUP") > heard,
            "PostgreSQL to reload its settings",
            pause_max_s=0.005,
            more=self.log_tail,
        )

    def _wait_until_commits_hang(self) -> None:
        """Commit something until it hangs: the checkpointer, not the postmaster, applies the setting, with a delay."""
        deadline = time.monotonic() + 60
        waits = "SELECT wait_event IS NOT DISTINCT FROM 'SyncRep' FROM pg_stat_activity WHERE pid = %s"
        with self.connect() as watching, self.connect() as trying:
            trying.execute("SET synchronous_commit = on")
            hangs = False
            while not hangs:
                if time.monotonic() > deadline:
                    raise RuntimeError(f"PostgreSQL's commits do not wait for a standby:\n{self.log_tail()}")
                trying.pgconn.send_query(b"SELECT pg_logical_emit_message(true, 'trying', '')")
                while not hangs and trying.pgconn.is_busy():
                    time.sleep(0.002)
                    trying.pgconn.consume_input()
                    hangs = watching.execute(waits, (trying.info.backend_pid,)).fetchone() == (True,)
                if hangs:
                    trying.cancel()
                while trying.pgconn.get_result():
                    pass

    def _children(self) -> Sequence[int]:
        assert self._process is not None
        pid = self._process.pid
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
        return [int(child) for child in text.split()]


@dataclass(frozen=True, slots=True)
class Database:
    """One database of a private server."""

    server: PostgresServer
    name: str

    @property
    def url(self) -> str:
        return self.server.url(self.name)

    def url_as(self, user: str) -> str:
        return self.server.url(self.name, user)

    def connect(self, **options: Any) -> psycopg.Connection[tuple[Any, ...]]:
        return self.server.connect(self.name, **options)

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        return self.server.execute(statement, self.name)

    @contextlib.contextmanager
    def session(self, **options: Any) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
        """A session that is closed, not committed, at the end: open transactions are rolled back."""
        connection = self.connect(**options)
        try:
            yield connection
        finally:
            connection.close()

    def drop(self) -> None:
        """Remove the database with its slots and sessions."""
        with self.server.connect() as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s AND pid <> pg_backend_pid()",
                (self.name,),
            )

            def are_dropped() -> bool:
                drops = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = %s"
                with contextlib.suppress(psycopg.errors.ObjectInUse):
                    connection.execute(drops, (self.name,))
                    return True
                return False

            wait_until(are_dropped, "the database's slots to be free")
            name = sql.Identifier(self.name)
            connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(name))


@contextlib.contextmanager
def of_other_identity(
    bin_directory: Path | None = None, settings: Mapping[str, str] | None = None
) -> Iterator[PostgresServer]:
    """A server of a separate initdb, which runs inside: all those that start from one template have one identity."""
    with (
        mock.patch.object(postgres, "_TEMPLATES", postgres._Templates()),
        PostgresServer(bin_directory, settings) as made,
    ):
        yield made


def upgrade(old: PostgresServer, new: PostgresServer) -> None:
    """Stop both servers, and have pg_upgrade turn `old` into `new`, which starts."""
    old.stop()
    new.stop()
    sums = [server.data_checksums() for server in (old, new)]
    if sums[0] != sums[1]:
        new.run("pg_checksums", "--enable" if sums[0] else "--disable", "-D", new.data)
    folders = ("-b", old.bin_directory, "-B", new.bin_directory, "-d", old.data, "-D", new.data)
    try:
        new.run("pg_upgrade", "-U", SUPERUSER, "--no-sync", *folders)
    except RuntimeError as error:
        logs = (new.data / "pg_upgrade_output.d").rglob("*.log")
        raise RuntimeError(f"{error}\n" + "\n".join(log.read_text()[-1500:] for log in sorted(logs))) from None
    new.start()


def forget_attribute_versions(database: Database) -> None:
    """Remove an option of columns that 17.12 writes and that only later releases of 18 know: a pg_upgrade to one before
    fails with `unrecognized parameter "pg_attver"`. Writes to the database."""
    found = "FROM unnest(attoptions) AS option WHERE option NOT LIKE 'pg_attver=%'"
    database.execute(
        f"UPDATE pg_attribute SET attoptions = (SELECT array_agg(option) {found}) "
        "WHERE array_to_string(attoptions, ',') LIKE '%pg_attver=%'"
    )


__all__ = ["Database", "PostgresServer", "binaries", "forget_attribute_versions", "of_other_identity", "upgrade"]
