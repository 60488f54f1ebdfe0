"""PostgreSQL's regression suite: its schedule, its libraries in C, and a file run by the server's own `psql`."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.servers.postgres import PostgresServer
from tests.suites.onpostgres import DATABASE

from cdcflow.cli.demo.servers.postgres import SUPERUSER, environment

LIBRARIES = {"regress": "regress/regress.c", "refint": "spi/refint.c", "autoinc": "spi/autoinc.c"}
LEFT_OUT = frozenset(
    (
        "tablespace",  # moves the database to a tablespace, which needs that nobody is connected
        "infinite_recurse",  # overflows the server's stack, which takes minutes here
        "largeobject",  # reads a file that the suite's own driver makes
        "subscription",  # makes slots of its own
    )
)


class Suite:
    """The files of one version's suite and what they need beside them.

    `root` is what `tests.suites.fetch.regress` gives; libraries and results go to `room`, which the server's user must
    be able to read.
    """

    def __init__(self, root: Path, room: Path, server: PostgresServer) -> None:
        self._root = root
        self._room = room
        self._server = server
        room.chmod(0o755)
        (room / "results").mkdir()
        (room / "results").chmod(0o777)
        self._build()

    def groups(self) -> Iterator[list[Path]]:
        """The files as the suite's own schedule has them: those of a group may run in any order."""
        for line in (self._root / "parallel_schedule").read_text().splitlines():
            if line.startswith("test:"):
                names = [name for name in line.removeprefix("test:").split() if name not in LEFT_OUT]
                yield [file for name in names if (file := self._root / "sql" / f"{name}.sql").exists()]

    def run(self, file: Path, wait: Callable[[], None]) -> int:
        """Run a file; `wait` is called again and again until it has ended. The number of lines of its output."""
        output = self._room / "results" / f"{file.stem}.out"
        variables = {
            **environment(),
            "PGHOST": "127.0.0.1",
            "PGPORT": str(self._server.port),
            "PGUSER": SUPERUSER,
            "PGDATABASE": DATABASE,
            "PGTZ": "America/Los_Angeles",
            "PGDATESTYLE": "Postgres, MDY",
            "PGOPTIONS": "-c intervalstyle=postgres_verbose -c statement_timeout=60s -c lock_timeout=20s",
            "PG_ABS_SRCDIR": str(self._root),
            "PG_ABS_BUILDDIR": str(self._room),
            "PG_LIBDIR": str(self._room),
            "PG_DLSUFFIX": ".so",
        }
        command = [str(self._server.bin_directory / "psql"), "-X", "-a", "-q", "-d", DATABASE, "-v", "HIDE_TABLEAM=on"]
        with file.open("rb") as given, output.open("wb") as told:
            process = subprocess.Popen(
                command,
                stdin=given,
                stdout=told,
                stderr=subprocess.STDOUT,
                cwd=self._room,
                env={**os.environ, **variables},
            )
            while process.poll() is None:
                wait()
        return output.read_bytes().count(b"\n")

    def _build(self) -> None:
        include = self._include()
        for name, source in LIBRARIES.items():
            command = ["gcc", "-shared", "-fPIC", "-O1", "-w", f"-I{include}", "-o", str(self._room / f"{name}.so")]
            subprocess.run([*command, str(self._root.parent / source)], check=True, capture_output=True)
        for file in self._room.glob("*.so"):
            file.chmod(0o755)

    def _include(self) -> Path:
        found = subprocess.run(
            [self._server.bin_directory / "pg_config", "--includedir-server"],
            capture_output=True,
            text=True,
            check=False,
        )
        named = Path(found.stdout.strip() or "/nowhere")
        beside = self._server.bin_directory.parent / "include" / "server"
        return named if (named / "postgres.h").exists() else beside


__all__ = ["LEFT_OUT", "Suite"]
