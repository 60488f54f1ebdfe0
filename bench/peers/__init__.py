"""Peers that are built or fetched on first use into the cache; those that are unavailable here are skipped.

`debezium` needs a JDK and Maven, `go-pglogrepl` and `go-mysql` need Go. All fetch their libraries through their usual
clients.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

from bench.harness import tell

_SOURCES = Path(__file__).parent
_CACHE = _SOURCES.parent.parent / ".cache" / "bench"
_PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/local/go/bin"])

# What Debezium's documentation and our own trials give as its quickest: large batches, a short pause, a parallel
# collector. Records stay objects: no converter's time is counted.
TUNED: Mapping[str, str] = {"max.batch.size": "20000", "max.queue.size": "100000", "poll.interval.ms": "5"}
PROMPT: Mapping[str, str] = {"poll.interval.ms": "1"}


def _tried(name: str, build: Callable[[], Path]) -> Path | None:
    try:
        return build()
    except (OSError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", b"") or b""
        tell(f"  {name} cannot be built here and sits out: {error} {said.decode(errors='replace')[-300:]}")
        return None


def _program(name: str) -> str:
    found = shutil.which(name, path=_PATH)
    if found is None:
        raise FileNotFoundError(f"no {name}")
    return found


def _run(command: list[str], directory: Path) -> None:
    subprocess.run(command, cwd=directory, check=True, capture_output=True, env={**os.environ, "PATH": _PATH})


def _is_newer(made: Path, *sources: Path) -> bool:
    return made.exists() and all(made.stat().st_mtime >= s.stat().st_mtime for s in sources)


def go_drain() -> Path | None:
    """The Go peer of the PostgreSQL benches."""
    return _go("go-pglogrepl", "Go pglogrepl")


def go_mysql() -> Path | None:
    """The Go peer of the MySQL benches."""
    return _go("go-mysql", "go-mysql")


@cache
def _go(folder: str, name: str) -> Path | None:
    def build() -> Path:
        made, source = _CACHE / folder, _SOURCES / folder
        if not _is_newer(made, *source.iterdir()):
            tell(f"  building {name} (once) …")
            _CACHE.mkdir(parents=True, exist_ok=True)
            _run([_program("go"), "build", "-o", str(made), "."], source)
        return made

    return _tried(name, build)


@cache
def deltalake_path() -> Path | None:
    """The folder with delta-rs' Python package, which is not a dependency of cdcflow's."""

    def build() -> Path:
        folder = _CACHE / "deltalake"
        if not (folder / "deltalake").exists():
            tell("  fetching deltalake (once) …")
            folder.mkdir(parents=True, exist_ok=True)
            _run([sys.executable, "-m", "pip", "install", "-q", "--target", str(folder), "deltalake"], folder)
        return folder

    return _tried("deltalake", build)


@cache
def debezium_classes() -> Path | None:
    """The folder of Debezium's jars (`lib`) and of the runner (`classes`)."""

    def build() -> Path:
        folder, source = _CACHE / "debezium", _SOURCES / "debezium"
        pom, runner = source / "pom.xml", source / "Drain.java"
        if not _is_newer(folder / "lib", pom):
            tell("  fetching Debezium (once) …")
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            shutil.copy(pom, folder)
            copy = ["dependency:copy-dependencies", "-DincludeScope=runtime", "-DoutputDirectory=lib"]
            _run([_program("mvn"), "-q", "-B", *copy], folder)
            (folder / "lib").touch()
        if not _is_newer(folder / "classes" / "Drain.class", runner):
            (folder / "classes").mkdir(exist_ok=True)
            _run([_program("javac"), "-cp", "lib/*", "-d", "classes", str(runner)], folder)
        return folder

    return _tried("Debezium", build)


def spelled(options: Mapping[str, str]) -> dict[str, str]:
    """Options as `debezium_command` takes them."""
    return {name.replace(".", "_"): value for name, value in options.items()}


def debezium_mysql_command(port: int, changes: int, folder: Path, tables: str, **options: str) -> list[str] | None:
    """The command that reads `changes` changes of a MySQL server; `folder` keeps its position."""
    classes = debezium_classes()
    if classes is None:
        return None
    settings = {
        "name": "bench",
        "connector.class": "io.debezium.connector.mysql.MySqlConnector",
        "offset.storage": "org.apache.kafka.connect.storage.FileOffsetBackingStore",
        "offset.storage.file.filename": f"{folder}/offsets",
        "offset.flush.interval.ms": "60000",
        "schema.history.internal": "io.debezium.storage.file.history.FileSchemaHistory",
        "schema.history.internal.file.filename": f"{folder}/history",
        "database.hostname": "127.0.0.1",
        "database.port": str(port),
        "database.user": "root",
        "database.password": "",
        "database.server.id": "5401",
        "database.ssl.mode": "disabled",
        "topic.prefix": "bench",
        "table.include.list": tables,
        "snapshot.mode": "no_data",
        "tombstones.on.delete": "false",
        **{name.replace("_", "."): value for name, value in options.items()},
    }
    return _java(classes, "connect", changes, settings)


def debezium_command(port: int, changes: int, format_name: str = "connect", **options: str) -> list[str] | None:
    """The command that reads `changes` changes of the bench's slot; `options` are Debezium's with `_` for `.`."""
    folder = debezium_classes()
    if folder is None:
        return None
    settings = {
        "name": "bench",
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "offset.storage": "org.apache.kafka.connect.storage.MemoryOffsetBackingStore",
        "offset.flush.interval.ms": "60000",
        "database.hostname": "127.0.0.1",
        "database.port": str(port),
        "database.user": "postgres",
        "database.password": "none",
        "database.dbname": "postgres",
        "topic.prefix": "bench",
        "plugin.name": "pgoutput",
        "slot.name": "bench",
        "publication.name": "bench",
        "publication.autocreate.mode": "disabled",
        "schema.include.list": "public",
        "snapshot.mode": "no_data",
        "tombstones.on.delete": "false",
        **{name.replace("_", "."): value for name, value in options.items()},
    }
    return _java(folder, format_name, changes, settings)


def _java(folder: Path, format_name: str, changes: int, settings: Mapping[str, str]) -> list[str]:
    java = ["java", "-Xmx2g", "-XX:+UseParallelGC", "-cp", f"{folder}/classes:{folder}/lib/*", "Drain"]
    return [*java, format_name, str(changes), *(f"{k}={v}" for k, v in settings.items())]
