"""Where a warehouse is, and where things lie in it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote, urlsplit

from cdcflow.config.base import URL
from cdcflow.errors import ConfigurationError
from cdcflow.model.stores import StoreAddress
from cdcflow.model.table import TableId

if TYPE_CHECKING:
    from cdcflow.config import Merge

CUTS = "_cdcflow_cuts"
LEASE = "_cdcflow.lock"
VIEWS = "_cdcflow_views"
"""Where SQL lies for people who read without cdcflow."""
STATE = ("_cdcflow_views", "upkeep.json")
"""When tables were looked after."""
UPKEEP_LEASE = "_cdcflow_upkeep.lock"
DATABASES = "_cdcflow_databases"
"""Where a metastore's databases are told to lie; our tables lie elsewhere."""

_WITH_HOST = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


@dataclass(frozen=True, slots=True)
class Metastore:
    """A Hive metastore that knows Delta tables by name. `uri`: `thrift://host:port`; None: as Spark's own settings say.
    `prefix` begins the name of each database."""

    uri: str | None = None
    prefix: str = ""

    @classmethod
    def configured(cls, merge: Merge) -> Metastore | None:
        """The one that `merge.catalog` names; None: Delta tables are known by path, or the tables are Iceberg's."""
        if merge.format != "delta" or merge.catalog is None:
            return None
        return cls(merge.catalog.get("uri"), merge.catalog.get("prefix", ""))


@dataclass(frozen=True, slots=True)
class Warehouse:
    """A place for tables: a folder of this machine, or a URL that Hadoop knows (`s3a://…`, `hdfs://…`).

    `store`: how the bucket of a URL is reached (None: as the session's own settings say). `catalog`: properties of the
    Iceberg catalog that knows the tables, as Iceberg names them (None: one of the warehouse's own, in its folder).
    `metastore`: where Delta tables are known by name (None: by path only).
    """

    root: Path | str
    store: StoreAddress | None = None
    catalog: Mapping[str, str] | None = field(default=None, repr=False)  # it may hold a password
    metastore: Metastore | None = None

    @classmethod
    def of(cls, warehouse: Warehouse | Path | str) -> Warehouse:
        """A warehouse from its place, or itself.

        Raises:
            ConfigurationError: a path that was a URL once; a folder of that name would be made, and nobody would look
                there.
        """
        if isinstance(warehouse, Warehouse):
            return warehouse
        text = str(warehouse)
        if not URL.match(text):
            return cls(Path(text))
        if isinstance(warehouse, Path) or not _WITH_HOST.match(text):
            raise ConfigurationError(
                f"the warehouse {text} is neither a folder nor a whole URL",
                remedy="name it as text: s3a://bucket/path",
                runbook="merge-session",
            )
        scheme, place = text.split("://", 1)
        if scheme == "file":
            return cls(Path(unquote(urlsplit(text).path)))
        return cls(f"{'s3a' if scheme == 's3' else scheme}://{place.rstrip('/')}")

    @property
    def is_local(self) -> bool:
        """It is a folder of this machine."""
        return isinstance(self.root, Path)

    @property
    def folder(self) -> Path:
        """The folder.

        Raises:
            ConfigurationError: it is none of this machine's.
        """
        if not isinstance(self.root, Path):
            raise ConfigurationError(
                f"the warehouse {self.root} is a URL, and only Spark merges there",
                remedy="set merge.engine to spark or auto, or merge into a folder",
                runbook="merge-session",
            )
        return self.root

    @property
    def bucket(self) -> str | None:
        """The bucket of a URL in an S3-compatible store."""
        found = urlsplit(str(self.root)) if not self.is_local else None
        return found.netloc if found is not None and found.scheme == "s3a" else None

    def at(self, path: Sequence[str]) -> str:
        """Where something in it is, in full."""
        if isinstance(self.root, Path):
            return str(self.root.resolve().joinpath(*path))
        return "/".join((self.root, *path))

    def __str__(self) -> str:
        return str(self.root)


def table_path(table: TableId) -> tuple[str, str]:
    """A table's path inside its warehouse. No name can reach outside, be hidden, or be another's (hard case S11)."""
    return _safe(table.schema), _safe(table.name)


def table_at(path: str) -> TableId:
    """The table whose path, with `/` between its parts, this is."""
    schema, name = (unquote(part.replace("~", "%")) for part in path.split("/"))
    return TableId(schema, name)


def _safe(name: str) -> str:
    # `~` marks what was unsafe: a `%` would be taken for an escape of their own by some readers of URIs.
    escaped = quote(name, safe="").replace("~", "%7E").replace("%", "~")
    return escaped if escaped[:1] not in (".", "_") else f"~{ord(escaped[0]):02X}{escaped[1:]}"
