"""PostgreSQL's regression suite: its schedule, its libraries in C, and a file run by the server's own `psql`."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from tests.servers.postgres import PostgresServer
from tests.suites.fetch import headers, regress
from tests.suites.onpostgres import DATABASE

from cdcflow.demo.servers.postgres import SUPERUSER, binary_directory, environment

LIBRARIES = {"regress": "regress/regress.c", "refint": "spi/refint.c", "autoinc": "spi/autoinc.c"}
UNSCHEDULED = ("numeric_big",)
"""Files that the schedule of a version does not run, because they take long."""
OLDER = "15"
"""The suite whose libraries are built where those of a later suite do not compile with the server's headers."""
# Later headers no longer include one another as those did that an older suite's sources were written for.
_INCLUDED = ("-include", "postgres.h", "-include", "utils/array.h")


class Suite:
    """The files of one version's suite and their dependencies.

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
                yield self._files(line.removeprefix("test:").split())
        yield self._files(UNSCHEDULED)

    def _files(self, names: Iterable[str]) -> list[Path]:
        return [file for name in names if (file := self._root / "sql" / f"{name}.sql").exists()]

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
        command = [str(_psql(self._server)), "-X", "-a", "-q", "-d", DATABASE, "-v", "HIDE_TABLEAM=on"]
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
        flags = ["-shared", "-fPIC", "-O1", "-w", f"-I{self._include()}", *_INCLUDED]
        for name, source in LIBRARIES.items():
            library = self._room / f"{name}.so"
            if not _is_compiled(self._root.parent / source, library, flags):
                older = regress(OLDER).parent / source
                if not _is_compiled(older, library, flags):
                    raise RuntimeError(f"neither suite's {source} compiles with {flags}")
            library.chmod(0o755)

    def _include(self) -> Path:
        beside = self._server.bin_directory.parent / "include" / "server"
        return beside if (beside / "postgres.h").exists() else headers(str(self._server.version // 10000))


def _is_compiled(source: Path, library: Path, flags: list[str]) -> bool:
    command = ["gcc", *flags, "-o", str(library), str(source)]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


def _psql(server: PostgresServer) -> Path:
    """The server's own program; an installation without one takes another release's."""
    own = server.bin_directory / "psql"
    return own if own.exists() else binary_directory() / "psql"


__all__ = ["Suite"]
