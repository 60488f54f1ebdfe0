"""Catalogs of tables on loopback, for tests: Hive's metastore, from pyspark's jars, and Iceberg's REST catalog.

Iceberg publishes the REST catalog that it tests its own client with as a jar of its tests; the latest version with such
a jar is older than the client here, as a service in use may be. Both run as small programs in `java/`, and need a JDK.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.servers import ivy
from tests.servers.processes import Server

from cdcflow.demo.servers.cached import cache
from cdcflow.spark.jars import iceberg_jars, s3_jars

ICEBERG = "1.10.1"
_ARTIFACTS = (
    ivy.artifacts(f"org.apache.iceberg:iceberg-core:{ICEBERG}", "", "tests"),
    ivy.artifacts(f"org.apache.iceberg:iceberg-api:{ICEBERG}"),
    ivy.artifacts(f"org.apache.iceberg:iceberg-common:{ICEBERG}"),
    ivy.artifacts(f"org.apache.iceberg:iceberg-bundled-guava:{ICEBERG}"),
    ivy.artifacts("com.github.ben-manes.caffeine:caffeine:2.9.3"),
    ivy.artifacts("org.apache.httpcomponents.core5:httpcore5:5.3.4"),
)
_JAVA = (ivy.java(), "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_OPENED = [f"--add-opens=java.base/java.{package}=ALL-UNNAMED" for package in ("lang", "net", "util")]
"""What Hive's classes reach into."""


def rest_jars() -> list[Path]:
    """The jars of Iceberg's REST catalog, fetched if they are missing. Whole or not at all.

    Raises:
        SourceUnavailable: they could not be fetched.
    """
    target = cache() / f"iceberg-rest-{ICEBERG}"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="cdcflow-iceberg-", dir=cache()) as room:
            ivy.fetch("Iceberg's REST catalog", _ARTIFACTS, Path(room)).rename(target)
    return sorted(target.glob("*.jar"))


def _write_hadoop(folder: Path, settings: Mapping[str, str] | None) -> None:
    listed = (f"<property><name>{k}</name><value>{v}</value></property>" for k, v in (settings or {}).items())
    (folder / "core-site.xml").write_text(f"<configuration>{''.join(listed)}</configuration>")


class HiveMetastore(Server):
    """A standalone metastore, its tables in Derby. It reaches S3-compatible stores as `hadoop` settings say."""

    def __init__(self, hadoop: Mapping[str, str] | None = None, *, locks: bool = True) -> None:
        """`locks` False: those who ask for a lock get an error, as of a database that is set up by half."""
        super().__init__()
        self._locks = locks
        _write_hadoop(self.folder, hadoop)

    @property
    def uri(self) -> str:
        return f"thrift://127.0.0.1:{self.port}"

    def command(self) -> Sequence[str]:
        settings = {
            "javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={self.folder}/db;create=true",
            "datanucleus.schema.autoCreateAll": "true",
            "hive.metastore.schema.verification": "false",
            "hive.metastore.warehouse.dir": f"{self.folder}/warehouse",
            "derby.system.home": str(self.folder),
            "datanucleus.connectionPoolingType": "HikariCP",  # which pyspark has
        }
        options = [f"-D{name}={value}" for name, value in settings.items()]
        program = Path(__file__).parent / "java" / "Metastore.java"
        new = ["new"] if self._locks and not (self.folder / "db").exists() else []
        classpath = ":".join([str(self.folder), f"{ivy.pyspark_jars()}/*", *s3_jars()])
        return [*_JAVA, *_OPENED, *options, "-cp", classpath, str(program), str(self.port), *new]


class RestCatalog(Server):
    """Iceberg's REST catalog, its tables in SQLite. Files of tables are stored below `warehouse`, which may be in an
    S3-compatible store that it reaches as `hadoop` settings describe."""

    def __init__(self, warehouse: str, hadoop: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self._warehouse = warehouse
        self._jars = [] if hadoop is None else s3_jars()
        _write_hadoop(self.folder, hadoop)

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def command(self) -> Sequence[str]:
        sqlite = [jar for jar in iceberg_jars() if "sqlite" in Path(jar).name]
        # Those of S3 first: Iceberg's tests have their own class of S3A.
        classpath = [str(self.folder), *self._jars, f"{ivy.pyspark_jars()}/*", *map(str, rest_jars()), *sqlite]
        program = Path(__file__).parent / "java" / "RestCatalog.java"
        database = str(self.folder / "catalog.db")
        return [*_JAVA, "-cp", ":".join(classpath), str(program), str(self.port), database, self._warehouse]


def main() -> int:
    rest_jars()
    return 0


__all__ = ["HiveMetastore", "RestCatalog", "rest_jars"]


if __name__ == "__main__":
    sys.exit(main())
