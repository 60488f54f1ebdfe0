"""A private MySQL or MariaDB server: in a temporary directory, gone afterwards.

Programs are searched in this order: the environment variable CDCFLOW_MYSQLD (CDCFLOW_MARIADBD), which names one;
`mysqld` (`mariadbd`) on PATH; and the package that a make target has unpacked into the cache (`cached`). Nothing
outside the server's directory is touched, and root is not required; under root the server runs as an ordinary user.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pymysql

from cdcflow.demo.servers import cached
from cdcflow.demo.servers.processes import OrdinaryUser, ServerProcess, Templates, Watcher, free_port
from cdcflow.errors import ConfigurationError, SourceUnavailable

Flavor = Literal["mysql", "mariadb"]
SUPERUSER = "root"
READY_WITHIN_S = 180.0  # a machine may be very busy
PACKAGES: Mapping[Flavor, tuple[str, str]] = {
    "mysql": ("mysql-server-core", "sid"),  # only Debian's unstable suite has MySQL
    "mariadb": ("mariadb-server-core", "stable"),
}
"""The Debian packages, each with its suite, that a make target unpacks into the cache for machines without a server.
"""
VARIABLES: Mapping[Flavor, str] = {"mysql": "CDCFLOW_MYSQLD", "mariadb": "CDCFLOW_MARIADBD"}

# What a capture needs; and quick, for a server that runs for minutes: no fsync (a killed process loses nothing, the
# operating system keeps the pages), little memory, small files. An empty value omits the setting.
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
    """A server program: how to start it, the directory that it was installed to, and its version's text."""

    flavor: Flavor
    command: tuple[str, ...]
    base: Path
    version: str

    def arguments(self) -> list[str]:
        """Options for the locations of the program's own files."""
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


def find_installation(flavor: Flavor) -> Installation:
    """Return the server program of this flavor.

    Raises:
        ConfigurationError: it is not on this machine; the message explains how to get it.
    """
    found = _from_environment(flavor) or _on_path(flavor) or _in_cache(flavor)
    if found is None:
        name, program = {
            "mysql": ("MySQL 8.4 or newer", "mysqld"),
            "mariadb": ("MariaDB 10.11 or newer", "mariadbd"),
        }[flavor]
        raise ConfigurationError(
            f"{name} is not on this machine: install it so that {program} is on PATH, name its server program in "
            f"{VARIABLES[flavor]}, or run `make demo SOURCE={flavor}` in a checkout of cdcflow, which fetches it"
        )
    return found


def _from_environment(flavor: Flavor) -> Installation | None:
    program = os.environ.get(VARIABLES[flavor])
    if not program:
        return None
    found = _installation_of(Path(program))
    if found is None or found.flavor != flavor:
        raise ConfigurationError(f"{VARIABLES[flavor]} names {program}, which is not a server program of {flavor}")
    return found


def _on_path(flavor: Flavor) -> Installation | None:
    path = os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin:/usr/libexec"
    for name in ("mysqld",) if flavor == "mysql" else ("mariadbd", "mysqld"):
        program = shutil.which(name, path=path)
        found = _installation_of(Path(program).resolve()) if program else None
        if found is not None and found.flavor == flavor:
            return found
    return None


def _installation_of(program: Path) -> Installation | None:
    version = _version((str(program),))
    return None if version is None else Installation(version[0], (str(program),), program.parent.parent, version[1])


def _version(command: Sequence[str]) -> tuple[Flavor, str] | None:
    try:
        said = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True, cwd="/").stdout  # noqa: S603
    except (OSError, subprocess.CalledProcessError):
        return None
    found = re.search(r"Ver ([0-9][^ ]*)", said)
    return ("mariadb" if "MariaDB" in said else "mysql", found[1] if found else "")


def _in_cache(flavor: Flavor) -> Installation | None:
    root = cached.package_directory(*PACKAGES[flavor])
    return None if root is None else unpacked_package(flavor, root)


def unpacked_package(flavor: Flavor, root: Path) -> Installation | None:
    """Return the server program of a Debian package that was unpacked into a directory; `None` if it does not
    run here."""
    command = cached.command(root, f"usr/sbin/{'mysqld' if flavor == 'mysql' else 'mariadbd'}")
    version = _version(command)
    return None if version is None else Installation(flavor, command, root / "usr", version[1])


def _environment() -> dict[str, str]:
    return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C.UTF-8", "TZ": "UTC", "HOME": "/"}


class _Templates(Templates[Installation, Path]):
    server = "mysql"

    def _make(self, installed: Installation, user: OrdinaryUser, place: Path) -> Path:
        self._initialize(installed, user, place)
        return place / "data"

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
        # At start MariaDB removes files that look like left-over temporary tables; in /tmp they may be another
        # server's.
        options = ["--innodb_log_file_size=64M", f"--datadir={data}", f"--tmpdir={place}"]
        made = ["--no-defaults", "--bootstrap", *options]
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
            raise SourceUnavailable(
                f"initializing with {command[0]} failed: {(done.stderr or done.stdout).strip()[-2000:]}"
            )


def _system_tables(installed: Installation) -> str:
    """Return the statements that create MariaDB's own tables, with a superuser without a password."""
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
            raise ConfigurationError(f"{installed.base} holds no {name} to make MariaDB's own tables with")
        scripts.append(path.read_text(errors="replace"))
    return "\n".join(["CREATE DATABASE mysql;", "USE mysql;", "SET @auth_root_socket = NULL;", *scripts])


_TEMPLATES = _Templates()


class MySQLServer(ServerProcess):
    """A private MySQL or MariaDB server. A context manager: the server runs inside the `with` block, and is gone
    afterwards.

    `settings` add to or replace `SETTINGS` and `OF_FLAVOR`; an empty value omits one. `installation` is the program
    (None: what `find_installation` finds). The superuser `root` connects from this machine without a password.

    Raises:
        ConfigurationError: there is no such program here, or no user to run it as.
        SourceUnavailable: it did not start; the message has the end of its log.
    """

    def __init__(
        self, flavor: Flavor, settings: Mapping[str, str] | None = None, installation: Installation | None = None
    ) -> None:
        self.flavor = flavor
        self.installation = installation or find_installation(flavor)
        self._user = OrdinaryUser.choose(flavor)
        self._template = _TEMPLATES.of(self.installation, self._user)
        self.directory = Path(tempfile.mkdtemp(prefix=f"cdcflow-{flavor}-"))
        self.data = self.directory / "data"
        self.socket = self.directory / "socket"
        self.log = self.directory / "server.log"
        self.port = free_port()
        self._settings = {**SETTINGS, **OF_FLAVOR[flavor], **(settings or {})}

    def start(self) -> None:
        """Start the server and wait until it answers."""
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
        self._watcher = Watcher(self._process.pid, "KILL", [self.directory, *_TEMPLATES.places()])
        self._wait_until_ready(self._process)

    def close(self) -> None:
        """End the server, and remove its directory."""
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    # ── use ─────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def version(self) -> str:
        """The version as the server reports it: 9.7.4, 10.11.14-MariaDB-…"""
        return self.installation.version

    def url(self, user: str = SUPERUSER) -> str:
        return f"mysql://{user}@127.0.0.1:{self.port}/"

    def connect(self, database: str | None = None, **options: Any) -> pymysql.Connection:
        """Return a pymysql connection in autocommit mode; `options` are pymysql's (user, password, autocommit, …)."""
        merged = {"user": SUPERUSER, "password": "", "autocommit": True, "connect_timeout": 10, **options}
        if not merged["password"] and "ssl" not in merged:
            merged.setdefault("ssl_disabled", True)  # preparing TLS takes 40 ms of CPU: it loads all authorities
        return pymysql.connect(host="127.0.0.1", port=self.port, database=database, charset="utf8mb4", **merged)

    def execute(self, *statements: str, database: str | None = None) -> list[tuple[Any, ...]]:
        """Run statements as superuser, one after another in one session, and return the last one's rows."""
        with contextlib.closing(self.connect(database)) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return list(cursor.fetchall())

    def binlog(self) -> tuple[str, int]:
        """File and position at which the binlog ends."""
        newer = self.flavor == "mysql"
        row = self.execute("SHOW BINARY LOG STATUS" if newer else "SHOW MASTER STATUS")[0]
        return str(row[0]), int(row[1])

    # ── inside ──────────────────────────────────────────────────────────────────────────────────────────────

    def _create(self) -> list[str]:
        """Create the data directory; return options for the first start."""
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

    def _wait_until_ready(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + READY_WITHIN_S
        while time.monotonic() < deadline and process.poll() is None:
            with contextlib.suppress(pymysql.Error, OSError):
                if self.execute("SELECT @@datadir")[0][0].rstrip("/") == str(self.data):
                    return
            time.sleep(0.05)
        raise SourceUnavailable(f"{self.flavor} did not start; the end of {self.log}:\n{self.log_tail()}")
