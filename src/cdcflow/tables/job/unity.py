"""Names of Delta tables in Unity Catalog: each is registered there as an external table, by Unity's REST API.

    table created ──▶ GET tables/main.shop.orders ── 404 ───────────────▶ POST tables: location and columns
                                                  ── this location ─────▶ nothing to do
                                                  ── another location ──▶ the table is excluded from the cut

An entry contains the table's location and a list of its columns. Rows and versions are in the table itself, so no
commit changes an entry, and a deleted entry loses nothing: the next merge registers the table again.

The API registers tables and deletes them, but cannot change an entry's columns. After a schema change the entry is
therefore kept, and a warning names the way to update it. With `replace` it is deleted and created again, which loses
the rights that were granted on it. Deleting an external table deletes no file.
"""

from __future__ import annotations

import http.client
import json
import re
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

import structlog

from cdcflow.errors import ConfigurationError, SinkUnavailable
from cdcflow.model.table import TableId
from cdcflow.tables.formats.delta import metastore_name
from cdcflow.tables.merge.refusals import CannotFollow
from cdcflow.tables.merge.target import FormatColumn
from cdcflow.tables.paths import Unity, Warehouse, table_path

WAIT_S = 30.0
CHECKED_EVERY_S = 300.0
"""How long an entry is taken to exist after it was seen, so that a merge every second does not request it each time."""

TYPES: Mapping[str, tuple[str, str]] = {
    "boolean": ("BOOLEAN", "boolean"),
    "tinyint": ("BYTE", "byte"),
    "smallint": ("SHORT", "short"),
    "int": ("INT", "integer"),
    "bigint": ("LONG", "long"),
    "float": ("FLOAT", "float"),
    "double": ("DOUBLE", "double"),
    "date": ("DATE", "date"),
    "timestamp": ("TIMESTAMP", "timestamp"),
    "timestamp_ntz": ("TIMESTAMP_NTZ", "timestamp_ntz"),
    "string": ("STRING", "string"),
    "binary": ("BINARY", "binary"),
}
"""For each of Spark's texts for types: Unity's name of the type, and its name in Spark's JSON."""

_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
_TEXTS = {"type": "array", "elementType": "string", "containsNull": True}
_CODE = re.compile(r"[A-Z][A-Z_]{0,60}")

_log = structlog.get_logger()
_seen: dict[tuple[str, str], tuple[float, Sequence[FormatColumn]]] = {}
_seen_lock = threading.Lock()


class UnityNames:
    """The registration of a warehouse's tables in Unity Catalog. May be used from several threads.

    Every call may raise SinkUnavailable (the catalog does not answer), ConfigurationError (it denies access, or has no
    catalog of that name) or CannotFollow (the name belongs to a different table).
    """

    def __init__(self, unity: Unity, warehouse: Warehouse) -> None:
        self._warehouse = warehouse
        self._unity = unity

    def check(self, table: TableId) -> None:
        """Check that the name of a table that does not exist yet is free."""
        self._entry(*self._names(table), table)

    def keep(self, table: TableId, columns: Sequence[FormatColumn]) -> None:
        """Register an existing table, unless it is registered already."""
        schema, name = self._names(table)
        seen = (self._unity.uri, f"{self._unity.catalog}.{schema}.{name} {self._location(table)}")
        with _seen_lock:
            when, known = _seen.get(seen, (0.0, ()))
        if known == columns and time.monotonic() - when < CHECKED_EVERY_S:
            return
        entry = self._entry(schema, name, table)
        if entry is not None and _comparable(entry.get("columns") or ()) != _comparable(_columns(columns)):
            entry = self._with_other_columns(schema, name, entry)
        if entry is None:
            self._create_schema(schema)
            self._create(schema, name, table, columns)
        with _seen_lock:
            _seen[seen] = (time.monotonic(), columns)

    def _names(self, table: TableId) -> tuple[str, str]:
        return metastore_name(table_path(table), self._unity.prefix)

    def _location(self, table: TableId) -> str:
        return _url(self._warehouse.location_of(table_path(table)))

    def _entry(self, schema: str, name: str, table: TableId) -> Mapping[str, Any] | None:
        """Return the table's entry; `None` if the name is free."""
        found = self._call("GET", f"tables/{self._unity.catalog}.{schema}.{name}", missing=True)
        if found is None:
            return None
        there = str(found.get("storage_location") or "no location (a view)").rstrip("/")
        if _url(there) != self._location(table):
            raise self._name_taken(schema, name, table, there)
        return found

    def _name_taken(self, schema: str, name: str, table: TableId, there: str) -> CannotFollow:
        remedy = (
            "set merge.catalog.prefix, so that this warehouse has its own schemas, or remove that name from the catalog"
        )
        if _url(there).startswith(_url(self._warehouse.location_of(())) + "/"):
            remedy = (
                "Unity Catalog does not distinguish names that differ in case: leave one of the two tables out of"
                " source.tables, or merge without merge.catalog"
            )
        full = f"{self._unity.catalog}.{schema}.{name}"
        return CannotFollow(
            f"registering table {table} in Unity Catalog: {full} is another table's, at {there}", remedy=remedy
        )

    def _with_other_columns(self, schema: str, name: str, entry: Mapping[str, Any]) -> Mapping[str, Any] | None:
        full = f"{self._unity.catalog}.{schema}.{name}"
        if not self._unity.replace:
            _log.warning(
                "entry in Unity Catalog has other columns than the table",
                table=full,
                remedy="MSCK REPAIR TABLE … SYNC METADATA in Databricks, or merge.catalog.replace",
            )
            return entry
        self._call("DELETE", f"tables/{full}", missing=True)
        _log.info("entry in Unity Catalog replaced, its columns have changed", table=full)
        return None

    def _create_schema(self, schema: str) -> None:
        full = f"{self._unity.catalog}.{schema}"
        if self._call("GET", f"schemas/{full}", missing=True) is not None:
            return
        body = {"name": schema, "catalog_name": self._unity.catalog}
        if self._call("POST", "schemas", body, taken=True) is None:
            self._call("GET", f"schemas/{full}")  # another merge was faster

    def _create(self, schema: str, name: str, table: TableId, columns: Sequence[FormatColumn]) -> None:
        body = {
            "name": name,
            "catalog_name": self._unity.catalog,
            "schema_name": schema,
            "table_type": "EXTERNAL",
            "data_source_format": "DELTA",
            "storage_location": self._location(table),
            "columns": _columns(columns),
        }
        if self._call("POST", "tables", body, taken=True) is not None:
            _log.info("table registered in Unity Catalog", table=f"{self._unity.catalog}.{schema}.{name}")
        elif self._entry(schema, name, table) is None:
            raise self._unavailable("answers that a table both exists and does not")

    def _call(
        self, method: str, path: str, body: object = None, *, missing: bool = False, taken: bool = False
    ) -> Mapping[str, Any] | None:
        """Send a request and return the answer. Return `None` for the answer that the entry does not exist (with
        `missing`), or that it exists already (with `taken`)."""
        headers = {"Accept": "application/json", "Content-Type": "application/json"}
        if self._unity.token:
            headers["Authorization"] = f"Bearer {self._unity.token}"
        url = f"{self._unity.uri}/api/2.1/unity-catalog/{urllib.parse.quote(path)}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url, data, headers, method=method)  # noqa: S310  http(s), by config
        try:
            with _OPENER.open(request, timeout=WAIT_S) as answer:
                found = json.loads(answer.read() or b"{}")
        except urllib.error.HTTPError as error:
            code = _error_code(error)
            if missing and error.code == HTTPStatus.NOT_FOUND:
                return None
            if taken and (error.code == HTTPStatus.CONFLICT or code.endswith("_ALREADY_EXISTS")):
                return None
            raise self._refusal(method, path, error.code, code) from None
        except (OSError, http.client.HTTPException) as error:
            raise self._unavailable(f"does not answer ({type(error).__name__})") from None
        except ValueError:
            raise ConfigurationError(
                f"registering tables in Unity Catalog: the server at {self._unity.uri} is not a Unity Catalog",
                remedy="correct merge.catalog.uri",
                runbook="catalog-refuses",
            ) from None
        return found if isinstance(found, dict) else {}

    def _refusal(self, method: str, path: str, status: int, code: str) -> ConfigurationError | SinkUnavailable:
        told = f"{status}{f' {code}' if code else ''}"
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status in (
            HTTPStatus.REQUEST_TIMEOUT,
            HTTPStatus.TOO_MANY_REQUESTS,
        ):
            return self._unavailable(f"answered {told} to {method} {path}")
        if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            return ConfigurationError(
                f"registering tables in Unity Catalog at {self._unity.uri}: it denies access to {path} ({told})",
                remedy="correct merge.catalog.token, or grant its owner USE CATALOG, USE SCHEMA, CREATE SCHEMA and"
                " CREATE TABLE, and CREATE EXTERNAL TABLE on the external location of the warehouse",
                runbook="catalog-refuses",
            )
        return ConfigurationError(
            f"registering tables in Unity Catalog at {self._unity.uri}: it refuses {method} {path} ({told})",
            remedy=f"check that catalog {self._unity.catalog} exists, and that an external location has the warehouse",
            runbook="catalog-refuses",
        )

    def _unavailable(self, what: str) -> SinkUnavailable:
        return SinkUnavailable(
            f"registering tables in Unity Catalog: {self._unity.uri} {what}",
            remedy="make sure that the catalog runs, then merge again; nothing is lost",
            runbook="catalog-unreachable",
        )


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Refuses redirections, which would send the token to another server."""

    def redirect_request(self, *_: Any) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirects)


def _error_code(error: urllib.error.HTTPError) -> str:
    """Return the code in an answer, without its text, which may repeat what was sent."""
    try:
        found = str(json.loads(error.read() or b"{}").get("error_code", ""))
    except (ValueError, AttributeError, OSError):
        return ""
    return found if _CODE.fullmatch(found) else ""


def _url(place: str) -> str:
    """Return a location as Unity names it: `s3://` and `file:///`, without a slash at the end."""
    if place.startswith("/"):
        return f"file://{place.rstrip('/')}"
    return re.sub(r"^s3a:", "s3:", re.sub(r"^file:/(?!/)", "file:///", place)).rstrip("/")


def _columns(columns: Sequence[FormatColumn]) -> list[dict[str, Any]]:
    """Return columns as Unity lists them. Each list is a list of strings, because cdcflow writes no other."""
    found = []
    for position, column in enumerate(columns):
        text = "array<string>" if column.type is None else column.type
        decimal = _DECIMAL.fullmatch(text)
        if column.type is None:
            name, in_json = "ARRAY", json.dumps(_TEXTS)
        elif decimal is not None:
            name, in_json = "DECIMAL", json.dumps(text)
        else:
            name, in_json = TYPES[text][0], json.dumps(TYPES[text][1])
        precision, scale = (0, 0) if decimal is None else map(int, decimal.groups())
        found.append(
            {
                "name": column.name,
                "type_name": name,
                "type_text": text,
                "type_json": in_json,
                "type_precision": precision,
                "type_scale": scale,
                "position": position,
                "nullable": True,
            }
        )
    return found


def _comparable(columns: Sequence[Mapping[str, Any]]) -> list[tuple[object, ...]]:
    """Return the parts of columns that are compared. Other parts differ although the columns are the same: servers
    write the texts of types in several ways."""
    ordered = sorted(columns, key=lambda column: int(column.get("position") or 0))
    return [
        (
            str(column.get("name")).lower(),
            column.get("type_name"),
            column.get("type_precision") or 0,
            column.get("type_scale") or 0,
        )
        for column in ordered
    ]
