"""Where things lie in a warehouse."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote, unquote

from cdcflow.config.base import URL
from cdcflow.errors import ConfigurationError
from cdcflow.model.table import TableId

CUTS = "_cdcflow_cuts"
LEASE = "_cdcflow.lock"


def local_warehouse(warehouse: Path | str) -> Path:
    """The warehouse's folder.

    Raises:
        ConfigurationError: it is a URL. A folder of that name would be made, and nobody would look there.
    """
    if URL.match(str(warehouse)):
        raise ConfigurationError(
            f"the warehouse {warehouse} is a URL, and cdcflow merges into a local folder only",
            remedy="name a folder in merge.warehouse; copy it, or mount the other place there",
        )
    return Path(warehouse)


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
