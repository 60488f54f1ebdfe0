"""A Trino server on loopback, which reads our tables in a bucket: Iceberg tables by the names of a REST catalog, Delta
tables by their places. Its archive is fetched at the first use. It needs a newer Java than everything else here.
"""

from __future__ import annotations

import base64
import datetime as dt
import fcntl
import json
import os
import re
import tarfile
import tempfile
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

from tests.servers import ivy
from tests.servers.processes import Server
from tests.servers.readers import Store

from cdcflow.demo.servers.cached import cache
from cdcflow.errors import SourceUnavailable

TRINO = "476"
JAVA_MIN = 24
PLUGINS = ("iceberg", "delta-lake")
_OPENED = ("java.nio", "java.lang")
_STARTING = ("SERVER_STARTING_UP", "NO_NODES_AVAILABLE")
"""Errors of a server that answers and is not ready."""

_HEADERS = {
    "X-Trino-User": "tests",
    "X-Trino-Time-Zone": "UTC",
    "X-Trino-Client-Capabilities": "PARAMETRIC_DATETIME",  # otherwise times end with milliseconds
}


class Trino(Server):
    """Its catalogs: `lake`, Iceberg tables of a REST catalog, and `delta`, tables that `register` adds."""

    def __init__(self, store: Store, catalog_uri: str) -> None:
        super().__init__()
        in_store = {
            "fs.native-s3.enabled": "true",
            "s3.endpoint": store.endpoint,
            "s3.region": "us-east-1",
            "s3.path-style-access": "true",
            "s3.aws-access-key": store.key,
            "s3.aws-secret-key": store.secret,
        }
        self._write(
            "config.properties",
            {
                "coordinator": "true",
                "node-scheduler.include-coordinator": "true",
                "http-server.http.port": str(self.port),
                "discovery.uri": f"http://127.0.0.1:{self.port}",
                "catalog.config-dir": str(self.folder / "catalog"),
                "plugin.dir": str(_program() / "plugin"),
                "query.max-memory-per-node": "200MB",
                "memory.heap-headroom-per-node": "200MB",
            },
        )
        rest = {"iceberg.catalog.type": "rest", "iceberg.rest-catalog.uri": catalog_uri}
        self._write("catalog/lake.properties", {"connector.name": "iceberg", **rest, **in_store})
        metastore = {
            "hive.metastore": "file",
            "hive.metastore.catalog.dir": "local:///metastore",
            "fs.native-local.enabled": "true",
            "local.location": str(self.folder),
            "delta.register-table-procedure.enabled": "true",
        }
        self._write("catalog/delta.properties", {"connector.name": "delta_lake", **metastore, **in_store})

    def _write(self, name: str, properties: Mapping[str, str]) -> None:
        file = self.folder / name
        file.parent.mkdir(exist_ok=True)
        file.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))

    def command(self) -> Sequence[str]:
        given = {
            "node.environment": "tests",
            "node.id": "one",
            "node.bind-ip": "127.0.0.1",
            "node.internal-address": "127.0.0.1",
            "node.data-dir": str(self.folder),
            "jdk.attach.allowAttachSelf": "true",
            "config": str(self.folder / "config.properties"),
        }
        opened = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED]
        native = ["--enable-native-access=ALL-UNNAMED", "--add-modules=jdk.incubator.vector"]
        options = [f"-D{name}={value}" for name, value in given.items()]
        java = ["-Xmx1g", "-XX:+UseG1GC", "-XX:TieredStopAtLevel=1", *opened, *native]
        return [str(_java()), *java, *options, "-cp", f"{_program()}/lib/*", "io.trino.server.TrinoServer"]

    def register(self, schema: str, name: str, place: str) -> None:
        """Add a Delta table, at a place in the bucket, to the catalog `delta`."""
        self.ask(f"CREATE SCHEMA IF NOT EXISTS delta.{schema}")
        self.ask(f"CALL delta.system.register_table('{schema}', '{name}', '{place}')")

    def ask(self, sql: str, patience_s: float = 120) -> list[dict[str, Any]]:
        """The rows of a query, in Python's types. AssertionError: it failed."""
        until = time.monotonic() + patience_s
        while True:
            found = self._asked(sql)
            if not isinstance(found, str):
                return found
            assert found.startswith(_STARTING), found
            assert time.monotonic() < until, found
            time.sleep(0.5)

    def _asked(self, sql: str) -> list[dict[str, Any]] | str:
        """The rows, or the error's name and text."""
        uri, body = f"http://127.0.0.1:{self.port}/v1/statement", sql.encode()
        columns: list[dict[str, Any]] = []
        rows: list[list[Any]] = []
        while uri:
            request = urllib.request.Request(uri, body or None, _HEADERS)
            with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310  loopback
                said = json.load(answer)
            if "error" in said:
                return f"{said['error']['errorName']}: {said['error']['message']}"
            columns = said.get("columns") or columns
            rows += said.get("data") or []
            uri, body = said.get("nextUri", ""), b""
        casts = [(column["name"], _cast(column["type"])) for column in columns]
        return [{n: None if v is None else cast(v) for (n, cast), v in zip(casts, row, strict=True)} for row in rows]


def _cast(type_: str) -> Callable[[Any], Any]:
    """How a value in an answer becomes one of Python's."""
    match re.sub(r"\(.*?\)", "", type_):
        case "decimal":
            return Decimal
        case "date":
            return dt.date.fromisoformat
        case "timestamp":
            return dt.datetime.fromisoformat
        case "timestamp with time zone":
            return lambda text: dt.datetime.fromisoformat(text.replace(" UTC", "+00:00"))
        case "varbinary":
            return base64.b64decode
        case _:
            return lambda value: value


def _java() -> Path:
    """A Java that is new enough, of those that are installed.

    Raises:
        SourceUnavailable: no installed one is.
    """
    for home in (Path(os.environ.get("JAVA_HOME", "/")), *sorted(Path("/usr/lib/jvm").glob("*"))):
        said = (home / "release").read_text() if (home / "release").exists() else ""
        version = re.search(r'JAVA_VERSION="(\d+)', said)
        if version is not None and int(version[1]) >= JAVA_MIN:
            return home / "bin/java"
    raise SourceUnavailable(f"Trino {TRINO} needs Java {JAVA_MIN} or newer, below /usr/lib/jvm or as JAVA_HOME")


def _program() -> Path:
    """The folder of the server, with those plugins that are used; fetched if it is missing.

    Raises:
        SourceUnavailable: it could not be fetched.
    """
    place = cache() / f"trino-{TRINO}"
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            with tempfile.TemporaryDirectory(prefix="cdcflow-trino-", dir=cache()) as room:
                asked = [ivy.artifacts(f"io.trino:trino-server:{TRINO}", kind="tar.gz")]
                (archive,) = ivy.fetch("Trino", asked, Path(room)).glob("*.tar.gz")
                with tarfile.open(archive) as packed:
                    packed.extractall(room, filter="data")
                _keep_used(Path(room) / f"trino-server-{TRINO}").rename(place)
    return place


def _keep_used(program: Path) -> Path:
    """The same folder, with copies of only those files that are used: plugins share files."""
    kept = program.parent / "kept"
    for folder in ("lib", *(f"plugin/{name}" for name in PLUGINS)):
        for file in (program / folder).iterdir():
            (kept / folder).mkdir(parents=True, exist_ok=True)
            file.rename(kept / folder / file.name)
    return kept


__all__ = ["TRINO", "Trino"]
