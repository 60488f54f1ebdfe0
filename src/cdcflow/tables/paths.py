"""The location of a warehouse, and its layout."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote, urlsplit

from cdcflow.config.base import URL
from cdcflow.errors import ConfigurationError
from cdcflow.model.stores import StoreAddress, StorePlace, place_in_store
from cdcflow.model.table import TableId

if TYPE_CHECKING:
    from cdcflow.config import Merge

CUTS = "_cdcflow_cuts"
LEASE = "_cdcflow.lock"
VIEWS = "_cdcflow_views"
"""The folder of SQL for readers without cdcflow."""
STATE = ("_cdcflow_views", "upkeep.json")
"""The file that records when each table was last maintained."""
UPKEEP_LEASE = "_cdcflow_upkeep.lock"
DATABASES = "_cdcflow_databases"
"""The folder that a metastore's databases get as their location. The tables are elsewhere."""

_WITH_HOST = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


@dataclass(frozen=True, slots=True)
class Metastore:
    """A Hive metastore in which Delta tables are registered. `uri`: `thrift://host:port`; `None`: as Spark's own
    settings specify. The name of each database begins with `prefix`."""

    uri: str | None = None
    prefix: str = ""

    @classmethod
    def from_settings(cls, merge: Merge) -> Metastore | None:
        """Return the metastore that `merge.catalog` names; `None` if Delta tables are known by path only, or the tables
        are Iceberg's."""
        if merge.format != "delta" or merge.catalog is None or merge.catalog.get("type") != "hive":
            return None
        return cls(merge.catalog.get("uri"), merge.catalog.get("prefix", ""))


@dataclass(frozen=True, slots=True)
class Unity:
    """A Unity Catalog in which Delta tables are registered, by the address of its server, without a slash at the end.

    `catalog`: the catalog of that server that gets the schemas; their names begin with `prefix`. `replace`: an entry
    whose columns have changed is deleted and created again.
    """

    uri: str
    catalog: str
    token: str | None = field(default=None, repr=False)
    prefix: str = ""
    replace: bool = False


@dataclass(frozen=True, slots=True)
class Warehouse:
    """A place for tables: a folder of this machine, or a URL that Hadoop knows (`s3a://…`, `hdfs://…`).

    `store`: how to reach the bucket of a URL (`None`: as the session's own settings specify). `catalog`: properties,
    named as Iceberg names them, of the Iceberg catalog that has the tables (`None`: the warehouse has its own catalog,
    in its folder). `metastore`, `unity`: where Delta tables are registered by name (`None`: by path only).
    """

    root: Path | str
    store: StoreAddress | None = None
    catalog: Mapping[str, str] | None = field(default=None, repr=False)  # it may hold a password
    metastore: Metastore | None = None
    unity: Unity | None = None

    @classmethod
    def of(cls, warehouse: Warehouse | Path | str) -> Warehouse:
        """Return a warehouse from its location, or the warehouse itself.

        Raises:
            ConfigurationError: a `Path` built from a URL. It would name a local folder, where no reader expects the
                tables.
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
        """Whether the warehouse is a folder of this machine."""
        return isinstance(self.root, Path)

    @property
    def folder(self) -> Path:
        """The warehouse's folder.

        Raises:
            ConfigurationError: the warehouse is not a folder of this machine.
        """
        if not isinstance(self.root, Path):
            raise ConfigurationError(
                f"the warehouse {self.root} is a URL, and only Spark merges there",
                remedy="set merge.engine to spark or auto, or merge into a folder",
                runbook="merge-session",
            )
        return self.root

    @property
    def place(self) -> StorePlace | None:
        """The place in an object store that the warehouse's URL names; `None` for a folder, and for URLs of other
        kinds."""
        return None if self.is_local else place_in_store(str(self.root))

    @property
    def bucket(self) -> str | None:
        """The bucket that the warehouse's URL names in an S3-compatible store; `None` for other warehouses."""
        place = self.place
        return place.bucket if place is not None and place.kind == "s3" else None

    def location_of(self, path: Sequence[str]) -> str:
        """Return the full path or URL of something in the warehouse, given its path there."""
        if isinstance(self.root, Path):
            return str(self.root.resolve().joinpath(*path))
        return "/".join((self.root, *path))

    def __str__(self) -> str:
        return str(self.root)


def table_path(table: TableId) -> tuple[str, str]:
    """Return a table's path inside its warehouse. No name can reach outside, be hidden, or collide with another (hard
    case S11)."""
    return _safe(table.schema), _safe(table.name)


def table_at(path: str) -> TableId:
    """Return the table with this path, whose parts are separated by `/`."""
    schema, name = (unquote(part.replace("~", "%")) for part in path.split("/"))
    return TableId(schema, name)


def _safe(name: str) -> str:
    # `~` marks what was unsafe: some readers of URIs would decode a `%` as an escape.
    escaped = quote(name, safe="").replace("~", "%7E").replace("%", "~")
    return escaped if escaped[:1] not in (".", "_") else f"~{ord(escaped[0]):02X}{escaped[1:]}"
