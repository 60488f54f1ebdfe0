"""A real MySQL or MariaDB server of one's own, for tests and the demo: in a temporary directory, gone afterwards.

Programs are looked for in this order: the environment variable CDCFLOW_MYSQLD (CDCFLOW_MARIADBD), which names one or,
as `debian:bookworm`, a suite of Debian; `mysqld` (`mariadbd`) on PATH; and on Debian a package unpacked into the user's
cache (`cdcflow.testing.debian`). Nothing outside the server's directory is touched, and nobody needs to be root; under
root the server runs as an ordinary user.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, Self

import pymysql
from pymysql.constants import CLIENT

from cdcflow.testing import debian
from cdcflow.testing.servers import OrdinaryUser, Watcher, free_port

Flavor = Literal["mysql", "mariadb"]
FLAVORS: tuple[Flavor, ...] = ("mariadb", "mysql")
SUPERUSER = "root"
FOREVER_MS = 3_600_000

# What a capture wants; and quick for tests: no fsync (a killed process loses nothing, the operating system keeps the
# pages), little memory, small files. An empty value leaves the setting out.
SETTINGS: Mapping[str, str] = {
    "server_id": "1",
    "log_bin": "binlog",
    "binlog_format": "ROW",
    "binlog_row_image": "FULL",
    "binlog_row_metadata": "FULL",
    "sync_binlog": "0",
    "innodb_flush_log_at_trx_commit": "2",
    "innodb_flush_method": "nosync",
    "innodb_doublewrite": "OFF",
    "innodb_buffer_pool_size": "64M",
    "skip_name_resolve": "ON",
    "bind_address": "127.0.0.1",
    "default_time_zone": "+00:00",
    "character_set_server": "utf8mb4",
    "local_infile": "OFF",
    "max_connections": "100",
}
OF_FLAVOR: Mapping[Flavor, Mapping[str, str]] = {
    "mysql": {
        "gtid_mode": "ON",
        "enforce_gtid_consistency": "ON",
        "innodb_redo_log_capacity": "64M",
        "performance_schema": "OFF",
        "mysqlx": "OFF",
        "binlog_format": "",  # ROW anyway, and deprecated
        "auto_generate_certs": "OFF",
        "secure_file_priv": "NULL",
    },
    "mariadb": {"innodb_log_file_size": "64M"},
}
_FIRST = (
    "SET sql_log_bin = 0; CREATE USER IF NOT EXISTS root@'127.0.0.1'; "
    "GRANT ALL PRIVILEGES ON *.* TO root@'127.0.0.1' WITH GRANT OPTION;"
)


@dataclass(frozen=True, slots=True)
class Installation:
    """A server program: how it is started, the directory that it was installed to, and its version's text."""

    flavor: Flavor
    command: tuple[str, ...]
    base: Path
    version: str

    def arguments(self) -> list[str]:
        """Options that say where the program's own files are."""
        shares = [self.base / "share" / inner for inner in (self.flavor, "mysql", "")]
        found = {
            "basedir": self.base,
            "lc_messages_dir": next(share for share in shares if (share / "english").exists()),
            "plugin_dir": next((p for p in self._plugins() if p.exists()), None),
        }
        return [f"--{name}={path}" for name, path in found.items() if path is not None]

    def _plugins(self) -> list[Path]:
        inner = ("plugin",) if self.flavor == "mysql" else ("plugin", f"../{self.flavor}19/plugin")
        return [self.base / "lib" / "mysql" / part for part in inner]


@cache
def installation(flavor: Flavor) -> Installation:
    """The server program of this flavor; a Debian package is fetched where none is installed.

    Raises:
        RuntimeError: there is none, and it cannot be fetched; the message says what to do.
    """
    try:
        return _named(flavor) or _on_path(flavor) or _unpacked(flavor)
    except debian.NotToBeHad as error:
        name = {"mysql": "MySQL 8.4 or newer", "mariadb": "MariaDB 10.11 or newer"}[flavor]
        raise RuntimeError(
            f"no {name} here: {error}; install one, or name its server program in {_variable(flavor)}"
        ) from None


def _variable(flavor: Flavor) -> str:
    return {"mysql": "CDCFLOW_MYSQLD", "mariadb": "CDCFLOW_MARIADBD"}[flavor]


def _named(flavor: Flavor) -> Installation | None:
    program = os.environ.get(_variable(flavor))
    if not program:
        return None
    if program.startswith("debian:"):
        return _unpacked(flavor, program.removeprefix("debian:"))
    found = _installed(Path(program))
    if found is None or found.flavor != flavor:
        raise RuntimeError(f"{_variable(flavor)} names {program}, which is no server program of {flavor}")
    return found


def _on_path(flavor: Flavor) -> Installation | None:
    path = os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin:/usr/libexec"
    for name in ("mysqld",) if flavor == "mysql" else ("mariadbd", "mysqld"):
        program = shutil.which(name, path=path)
        found = _installed(Path(program).resolve()) if program else None
        if found is not None and found.flavor == flavor:
            return found
    return None


def _installed(program: Path) -> Installation | None:
    version = _version((str(program),))
    return None if version is None else Installation(version[0], (str(program),), program.parent.parent, version[1])


def _version(command: Sequence[str]) -> tuple[Flavor, str] | None:
    try:
        said = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True, cwd="/").stdout  # noqa: S603
    except (OSError, subprocess.CalledProcessError):
        return None
    found = re.search(r"Ver ([0-9][^ ]*)", said)
    return ("mariadb" if "MariaDB" in said else "mysql", found[1] if found else "")


def _unpacked(flavor: Flavor, suite: str | None = None) -> Installation:
    # Only Debian's unstable suite has MySQL.
    package, usual = {"mysql": ("mysql-server-core", "sid"), "mariadb": ("mariadb-server-core", "stable")}[flavor]
    suite = suite or usual
    root = debian.unpacked(package, suite)
    command = debian.command(root, f"usr/sbin/{'mysqld' if flavor == 'mysql' else 'mariadbd'}")
    version = _version(command)
    if version is None:
        raise debian.NotToBeHad(f"the package {package} of Debian {suite} does not run here")
    return Installation(flavor, command, root / "usr", version[1])


def _environment() -> dict[str, str]:
    return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C.UTF-8", "TZ": "UTC", "HOME": "/"}


class _Templates:
    """One initialised data directory per installation and process; every server starts from a copy of it."""

    def __init__(self) -> None:
        self._root: Path | None = None
        self._made: dict[Installation, Path] = {}

    def of(self, installed: Installation, user: OrdinaryUser) -> Path:
        if installed not in self._made:
            if self._root is None:
                self._root = Path(tempfile.mkdtemp(prefix="cdcflow-mysql-template-"))
                self._root.chmod(0o755)
                atexit.register(shutil.rmtree, self._root, ignore_errors=True)
            place = self._root / str(len(self._made))
            place.mkdir(mode=0o755)
            user.own(place)
            self._initialize(installed, user, place)
            self._made[installed] = place / "data"
        return self._made[installed]

    def places(self) -> list[Path]:
        """What is to be removed when this process is gone."""
        return [] if self._root is None else [self._root]

    def _initialize(self, installed: Installation, user: OrdinaryUser, place: Path) -> None:
        data = place / "data"
        if installed.flavor == "mysql":
            made = ["--no-defaults", "--initialize-insecure", "--innodb_redo_log_capacity=64M", f"--datadir={data}"]
            # The file would give every copy the same server_uuid.
            self._run([*installed.command, *made, *installed.arguments()], user, "")
            (data / "auto.cnf").unlink()
            return
        data.mkdir()
        user.own(data)
        # MariaDB removes what it takes for left-over temporary tables when it starts; in /tmp those may be another's.
        beside = ["--innodb_log_file_size=64M", f"--datadir={data}", f"--tmpdir={place}"]
        made = ["--no-defaults", "--bootstrap", *beside]
        self._run([*installed.command, *made, *installed.arguments()], user, _system_tables(installed))

    def _run(self, command: list[str], user: OrdinaryUser, given: str) -> None:
        done = subprocess.run(  # noqa: S603  fixed program, no shell
            command,
            input=given,
            capture_output=True,
            text=True,
            errors="replace",
            cwd="/",
            env=_environment(),
            check=False,
            **user.process(),
        )
        if done.returncode != 0:
            raise RuntimeError(f"initializing with {command[0]} failed: {(done.stderr or done.stdout).strip()[-2000:]}")


def _system_tables(installed: Installation) -> str:
    """The statements that make MariaDB's own tables, with a superuser without a password."""
    share = installed.base / "share"
    names = ("mysql_system_tables.sql", "mysql_performance_tables.sql", "mysql_system_tables_data.sql")
    scripts = []
    for name in names:
        places = [
            share / inner / kind
            for inner in ("mysql", "mariadb", "")
            for kind in (name, name.replace("mysql_", "mariadb_", 1))
        ]
        path = next((p for p in places if p.exists()), None)
        if path is None:
            raise RuntimeError(f"{installed.base} holds no {name} to make MariaDB's own tables with")
        scripts.append(path.read_text(errors="replace"))
    return "\n".join(["CREATE DATABASE mysql;", "USE mysql;", "SET @auth_root_socket = NULL;", *scripts])


_TEMPLATES = _Templates()


class MySQLServer:
    """A MySQL or MariaDB server of one's own. A context manager: inside it runs, afterwards it is gone.

    `settings` add to or replace `SETTINGS` and `OF_FLAVOR`; an empty value leaves one out. `directory` is where data,
    socket and server log go (None: a temporary one, removed at the end). The superuser `root` connects from this
    machine without a password.
    """

    def __init__(
        self, flavor: Flavor, settings: Mapping[str, str] | None = None, directory: Path | None = None
    ) -> None:
        self.flavor = flavor
        self.installation = installation(flavor)
        self._user = OrdinaryUser.choose(flavor)
        self._template = _TEMPLATES.of(self.installation, self._user)
        self._temporary = directory is None
        self.directory = directory or Path(tempfile.mkdtemp(prefix=f"cdcflow-{flavor}-"))
        self.data = self.directory / "data"
        self.socket = self.directory / "socket"
        self.log = self.directory / "server.log"
        self.port = free_port()
        self._settings = {**SETTINGS, **OF_FLAVOR[flavor], **(settings or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: Watcher | None = None

    # ── life ────────────────────────────────────────────────────────────────────────────────────────────────

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def start(self, **settings: str) -> None:
        """Start the server and wait until it answers. `settings` stay for later starts; an empty one is left out."""
        self._settings = {**self._settings, **settings}
        first = [] if self.data.exists() else self._create()
        self._write_settings()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603  fixed program, no shell
                [*self.installation.command, f"--defaults-file={self.directory / 'my.cnf'}", *first],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd="/",
                env=_environment(),
                **self._user.process(),
            )
        directories = [*([self.directory] if self._temporary else []), *_TEMPLATES.places()]
        self._watcher = Watcher(self._process.pid, "KILL", directories)
        self._wait_until_ready()

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

    def kill(self) -> None:
        """SIGKILL: nothing in its memory reaches the disk."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(30)
        self._forget()

    def restart(self, **settings: str) -> None:
        self.stop()
        self.start(**settings)

    def close(self) -> None:
        """End the server, and remove the directory if it is a temporary one."""
        if self._temporary:
            self.kill()
            shutil.rmtree(self.directory, ignore_errors=True)
        else:
            self.stop()

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    # ── use ─────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def version(self) -> str:
        """As the server says it: 9.7.4, 10.11.14-MariaDB-…"""
        return self.installation.version

    def url(self, user: str = SUPERUSER) -> str:
        return f"mysql://{user}@127.0.0.1:{self.port}/"

    def connect(self, database: str | None = None, **options: Any) -> pymysql.Connection:
        """A pymysql connection in autocommit mode; `options` are pymysql's (user, password, autocommit, …)."""
        merged = {"user": SUPERUSER, "password": "", "autocommit": True, "connect_timeout": 10, **options}
        return pymysql.connect(host="127.0.0.1", port=self.port, database=database, charset="utf8mb4", **merged)

    def execute(self, *statements: str, database: str | None = None) -> list[tuple[Any, ...]]:
        """Run statements as superuser, one after another in one session; returns the last one's rows."""
        with contextlib.closing(self.connect(database)) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return list(cursor.fetchall())

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

    def binlog(self) -> tuple[str, int]:
        """File and position at which the binlog ends."""
        newer = self.flavor == "mysql"
        row = self.execute("SHOW BINARY LOG STATUS" if newer else "SHOW MASTER STATUS")[0]
        return str(row[0]), int(row[1])

    def holding_statements(self) -> tuple[str, str]:
        """What makes every commit wait for a semi-synchronous replica behind its sync of the binary log, and what ends
        that."""
        if self.flavor == "mariadb":
            name, peer = "rpl_semi_sync_master", "slave"
        else:
            name, peer = "rpl_semi_sync_source", "replica"
            with contextlib.suppress(pymysql.err.OperationalError):  # it is there already
                self.execute("INSTALL PLUGIN rpl_semi_sync_source SONAME 'semisync_source.so'")
        begin = (
            f"SET GLOBAL {name}_wait_point = 'AFTER_SYNC', {name}_wait_no_{peer} = ON, "
            f"{name}_timeout = {FOREVER_MS}, {name}_enabled = ON"
        )
        return begin, f"SET GLOBAL {name}_enabled = OFF"

    def log_tail(self, lines: int = 30) -> str:
        """The last lines of the server's own log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:]) if self.log.exists() else ""

    # ── inside ──────────────────────────────────────────────────────────────────────────────────────────────

    def _create(self) -> list[str]:
        """Make the data directory; returns options for the first start."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self._user.own(self.directory)
        copy: Sequence[str | Path] = ["/bin/cp", "-a", "--sparse=always", self._template, self.data]
        subprocess.run(copy, check=True, cwd="/", **self._user.process())  # noqa: S603  fixed program, no shell
        first = self.directory / "first.sql"
        first.write_text(_FIRST.replace("; ", ";\n") + "\n")
        self._user.own(first)
        return [f"--init-file={first}"]

    def _write_settings(self) -> None:
        places = {
            "port": str(self.port),
            "datadir": str(self.data),
            "socket": str(self.socket),
            "pid_file": str(self.directory / "pid"),
            "tmpdir": str(self.directory),
        }
        lines = [f"{k} = {v}" for k, v in {**self._settings, **places}.items() if v != ""]
        lines += [argument.removeprefix("--") for argument in self.installation.arguments()]
        path = self.directory / "my.cnf"
        path.write_text("\n".join(["[mysqld]", *lines]) + "\n")
        path.chmod(0o600)
        self._user.own(path)

    def _wait_until_ready(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and self._process.poll() is None:
            with contextlib.suppress(pymysql.Error, OSError):
                if self.execute("SELECT @@datadir")[0][0].rstrip("/") == str(self.data):
                    return
            time.sleep(0.02)
        raise RuntimeError(f"{self.flavor} did not start; the end of {self.log}:\n{self.log_tail()}")

    def _forget(self) -> None:
        self._process = None
        if self._watcher is not None:
            self._watcher.dismiss()
            self._watcher = None


@dataclass(frozen=True, slots=True)
class MySQLDatabase:
    """One database (schema) of a server of our own. The binlog is the whole server's."""

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
        """A session that is closed, not committed, at the end: what it left open is rolled back."""
        connection = self.connect(**options)
        try:
            yield connection
        finally:
            connection.close()

    @contextlib.contextmanager
    def holding_commit(self, statement: str) -> Iterator[Callable[[], None]]:
        """Inside, `statement` is in the binary log and not committed in the engine, for a semi-synchronous replica that
        never comes. The value lets it go. Every other commit of the server waits behind it."""
        server = self.server
        begin, end = server.holding_statements()
        before = server.binlog()
        server.execute(begin)
        writer = threading.Thread(target=self.execute, args=(statement,))
        writer.start()
        let_go = threading.Event()

        def release() -> None:
            if not let_go.is_set():
                let_go.set()
                server.execute(end)
                writer.join(20)

        try:
            deadline = time.monotonic() + 20
            while server.binlog() == before:
                if time.monotonic() > deadline:
                    raise RuntimeError("the statement did not reach the binary log")
                time.sleep(0.02)
            yield release
        finally:
            release()
        if writer.is_alive():
            raise RuntimeError("the statement still waits, although nothing holds commits back")

    def drop(self) -> None:
        self.server.execute(f"DROP DATABASE IF EXISTS `{self.name}`")


def main() -> int:
    """Say which servers there are; fetch what is not installed. 1: one is not to be had, and the message says why."""
    missing = 0
    for flavor in FLAVORS:
        try:
            found = installation(flavor)
        except RuntimeError as error:
            missing = 1
            print(error, file=sys.stderr)  # noqa: T201  what the command is for
        else:
            print(f"{flavor} {found.version}: {found.base}")  # noqa: T201  what the command is for
    return missing


__all__ = ["FLAVORS", "Flavor", "MySQLDatabase", "MySQLServer", "OF_FLAVOR", "SETTINGS", "SUPERUSER", "installation"]

if __name__ == "__main__":
    sys.exit(main())
