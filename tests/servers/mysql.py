"""The demo's MySQL or MariaDB server with operations for tests: stop and change it; temporary databases.

Where no server is installed, a package of Debian is fetched and unpacked, once: `python -m tests.servers.mysql`. The
variables CDCFLOW_MYSQLD and CDCFLOW_MARIADBD may also name a suite of Debian to take it from (`debian:bookworm`).
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import pymysql
from pymysql.constants import CLIENT
from tests.servers import debian
from tests.support.polling import PATIENCE_S, wait_until

from cdcflow.demo.servers import mysql
from cdcflow.demo.servers.mysql import PACKAGES, VARIABLES, Flavor, Installation, find_installation, unpacked_package
from cdcflow.errors import ConfigurationError

FLAVORS: tuple[Flavor, ...] = ("mariadb", "mysql")
FOREVER_MS = 3_600_000


@cache
def installation(flavor: Flavor) -> Installation:
    """The server program of this flavor; a Debian package is fetched where none is installed.

    Raises:
        ConfigurationError: it is missing, and cannot be fetched; the message says what to do.
    """
    named = os.environ.get(VARIABLES[flavor], "")
    if named.startswith("debian:"):
        return fetched(flavor, named.removeprefix("debian:"))
    try:
        return find_installation(flavor)
    except ConfigurationError:
        if named:
            raise
        return fetched(flavor)


def fetched(flavor: Flavor, suite: str | None = None) -> Installation:
    """The server program of a suite of Debian; fetched once. ConfigurationError: it is unavailable."""
    package, usual = PACKAGES[flavor]
    suite = suite or usual
    try:
        found = unpacked_package(flavor, debian.unpacked(package, suite))
        if found is None:
            raise debian.NotToBeHad(f"the package {package} of Debian {suite} does not run here")
    except debian.NotToBeHad as error:
        raise ConfigurationError(
            f"no {flavor} here: {error}; install one, or name its server program in {VARIABLES[flavor]}"
        ) from None
    return found


class _InLowerCase(Installation):
    def arguments(self) -> list[str]:
        return [*super().arguments(), "--lower_case_table_names=1"]


class MySQLServer(mysql.MySQLServer):
    """A private MySQL or MariaDB server. A context manager: inside it the server runs, afterwards it is removed.

    `settings` add to or replace the starter's; an empty value leaves one out. `in_lower_case`: it keeps names of tables
    in lower case, which MySQL has to know before it creates its own. `installed`: its program. The superuser `root`
    connects from this machine without a password.
    """

    def __init__(
        self,
        flavor: Flavor,
        settings: Mapping[str, str] | None = None,
        *,
        in_lower_case: bool = False,
        installed: Installation | None = None,
    ) -> None:
        found = installed or installation(flavor)
        if in_lower_case:
            found = _InLowerCase(found.flavor, found.command, found.base, found.version)
        super().__init__(flavor, settings, found)

    # ── life ────────────────────────────────────────────────────────────────────────────────────────────────

    def start(self, **settings: str) -> None:
        """Start the server and wait until it answers. `settings` stay for later starts; an empty one is omitted."""
        self._settings = {**self._settings, **settings}
        super().start()

    def stop(self) -> None:
        """Stop the server in good order."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(60)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(30)
        self._forget()

    def restart(self, **settings: str) -> None:
        self.stop()
        self.start(**settings)

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    # ── use ─────────────────────────────────────────────────────────────────────────────────────────────────

    def script(self, text: str, database: str | None = None) -> None:
        """Run several statements with semicolons between them as superuser."""
        connection = self.connect(database, client_flag=CLIENT.MULTI_STATEMENTS)
        with contextlib.closing(connection), connection.cursor() as cursor:
            cursor.execute(text)
            while cursor.nextset():
                pass

    def create_database(self, name: str) -> MySQLDatabase:
        self.execute(f"CREATE DATABASE `{name}` CHARACTER SET utf8mb4")
        return MySQLDatabase(self, name)

    def holding_statements(self) -> tuple[str, str]:
        """What makes every commit wait for a semi-synchronous replica after its sync of the binary log, and what ends
        that."""
        if self.flavor == "mariadb":
            name, peer = "rpl_semi_sync_master", "slave"
        else:
            name, peer = "rpl_semi_sync_source", "replica"
            with contextlib.suppress(pymysql.err.OperationalError):  # it already exists
                self.execute("INSTALL PLUGIN rpl_semi_sync_source SONAME 'semisync_source.so'")
        begin = (
            f"SET GLOBAL {name}_wait_point = 'AFTER_SYNC', {name}_wait_no_{peer} = ON, "
            f"{name}_timeout = {FOREVER_MS}, {name}_enabled = ON"
        )
        return begin, f"SET GLOBAL {name}_enabled = OFF"

    def waits_for_replica(self, statement: str) -> bool:
        """Whether the commit of this statement is in the binary log, and waits for a replica to have it."""
        sessions = self.execute("SHOW FULL PROCESSLIST")
        return any(
            str(state).startswith("Waiting for semi-sync ACK") and info == statement
            for *_, state, info in (row[:8] for row in sessions)
        )


@dataclass(frozen=True, slots=True)
class MySQLDatabase:
    """One database (schema) of a private server. The binlog is the whole server's."""

    server: MySQLServer
    name: str

    @property
    def url(self) -> str:
        return self.server.url()

    def connect(self, **options: Any) -> pymysql.Connection:
        return self.server.connect(self.name, **options)

    def execute(self, *statements: str) -> list[tuple[Any, ...]]:
        return self.server.execute(*statements, database=self.name)

    @contextlib.contextmanager
    def session(self, **options: Any) -> Iterator[pymysql.Connection]:
        """A session that is closed, not committed, at the end: open transactions are rolled back."""
        connection = self.connect(**options)
        try:
            yield connection
        finally:
            connection.close()

    @contextlib.contextmanager
    def holding_commit(self, statement: str, *before: str) -> Iterator[Callable[[], None]]:
        """Inside, `statement` is in the binary log and not committed in the engine, for a semi-synchronous replica that
        never comes. The value releases it. Every other commit of the server waits for it. `before`: what its session
        executes first.

        No other session may commit in the meantime: one that came first would be held in its place."""
        server = self.server
        begin, end = server.holding_statements()
        server.execute(begin)
        writer = threading.Thread(target=self.execute, args=(*before, statement))
        writer.start()
        let_go = threading.Event()

        def release() -> None:
            if not let_go.is_set():
                let_go.set()
                server.execute(end)
                writer.join(PATIENCE_S)

        try:
            # The end of the log is not asked for: MariaDB does not tell it while two commits wait.
            what = "the statement to wait for a replica; did another commit come before it?"
            wait_until(lambda: server.waits_for_replica(statement), what)
            yield release
        finally:
            release()
        if writer.is_alive():
            raise RuntimeError("the statement still waits, although nothing holds commits back")

    def drop(self) -> None:
        self.server.execute(f"DROP DATABASE IF EXISTS `{self.name}`")


def main(arguments: Sequence[str]) -> int:
    """Print which servers of these flavors (none: of all) are available; fetch what is not installed. 1: one is
    unavailable, and the message says why."""
    missing = 0
    for flavor in FLAVORS:
        if arguments and flavor not in arguments:
            continue
        try:
            found = installation(flavor)
        except ConfigurationError as error:
            missing = 1
            print(error, file=sys.stderr)
        else:
            print(f"{flavor} {found.version}: {found.base}")
    return missing


__all__ = ["FLAVORS", "Flavor", "MySQLDatabase", "MySQLServer", "fetched", "installation"]

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
