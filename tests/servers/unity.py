"""A Unity Catalog on loopback, for tests: schemas and external tables, as the open specification of its REST API has
them. No server of it is in a package; Unity's own and Databricks' may be stricter than this one.

    with UnityCatalog(token="…") as server:
        warehouse = Warehouse(folder, unity=Unity(server.uri, "main", "…"))

Names are stored in lower case, whatever the request has. A deleted entry deletes no file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import unquote, urlsplit

from tests.servers.http_threads import ThreadedServer

PREFIX = "/api/2.1/unity-catalog/"
TABLE = {"name", "catalog_name", "schema_name", "table_type", "columns"}
"""What a table must have."""
COLUMN = {"name", "type_text", "type_json", "type_name", "position", "nullable"}
TYPES = {"BOOLEAN", "BYTE", "SHORT", "INT", "LONG", "FLOAT", "DOUBLE", "DATE", "TIMESTAMP", "TIMESTAMP_NTZ", "STRING"}
TYPES |= {"BINARY", "DECIMAL", "ARRAY"}

Answer = tuple[int, Mapping[str, Any]]


class UnityCatalog(ThreadedServer):
    """`requests`: those so far, as "METHOD path". `fails`: what each request is answered instead, if that is set."""

    def __init__(self, token: str = "", catalog: str = "main") -> None:
        super().__init__(lambda *given: _Handler(self, *given))
        self.token = token
        self.catalog = catalog
        self.schemas: dict[str, Mapping[str, Any]] = {}
        self.tables: dict[str, Mapping[str, Any]] = {}
        self.requests: list[str] = []
        self.fails: Answer | None = None

    def answer(self, method: str, path: str, body: Mapping[str, Any], authorization: str) -> Answer:
        self.requests.append(f"{method} {path}")
        if self.fails is not None:
            return self.fails
        if self.token and authorization != f"Bearer {self.token}":
            return _error(401, "UNAUTHENTICATED")
        kind, _, name = path.partition("/")
        match method, kind:
            case "GET", "schemas" | "tables":
                found = (self.schemas if kind == "schemas" else self.tables).get(name.lower())
                return _error(404, f"{kind[:-1].upper()}_NOT_FOUND") if found is None else (200, found)
            case "DELETE", "tables":
                found = self.tables.pop(name.lower(), None)
                return _error(404, "TABLE_NOT_FOUND") if found is None else (200, {})
            case "POST", "schemas":
                return self._create(self.schemas, f"{body['catalog_name']}.{body['name']}", body)
            case "POST", "tables":
                if wrong := self._wrong(body):
                    return _error(400, "INVALID_ARGUMENT", wrong)
                full = f"{body['catalog_name']}.{body['schema_name']}.{body['name']}"
                if ".".join(full.split(".")[:2]).lower() not in self.schemas:
                    return _error(404, "SCHEMA_NOT_FOUND")
                return self._create(self.tables, full, body)
        return _error(404, "ENDPOINT_NOT_FOUND")

    def _create(self, into: dict[str, Mapping[str, Any]], name: str, body: Mapping[str, Any]) -> Answer:
        if body["catalog_name"] != self.catalog:
            return _error(404, "CATALOG_NOT_FOUND")
        if name.lower() in into:
            return _error(409, "ALREADY_EXISTS")
        into[name.lower()] = {**body, "name": body["name"].lower()}
        return 200, into[name.lower()]

    @staticmethod
    def _wrong(body: Mapping[str, Any]) -> str:
        """What the specification does not allow in a table; "" if nothing."""
        if missing := TABLE - body.keys():
            return f"missing {missing}"
        if (body["table_type"], body.get("data_source_format")) != ("EXTERNAL", "DELTA"):
            return "not an external Delta table"
        if "://" not in body.get("storage_location", ""):
            return "no location"
        for position, column in enumerate(body["columns"]):
            if missing := COLUMN - column.keys():
                return f"a column misses {missing}"
            json.loads(column["type_json"])
            if column["position"] != position or column["type_name"] not in TYPES:
                return "a column's position or type"
        return ""


def _error(status: int, code: str, message: str = "") -> Answer:
    return status, {"error_code": code, "message": message}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, catalog: UnityCatalog, *given: Any) -> None:
        self._catalog = catalog
        super().__init__(*given)

    def _serve(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        path = unquote(urlsplit(self.path).path).removeprefix(PREFIX)
        status, found = self._catalog.answer(self.command, path, body, self.headers.get("Authorization", ""))
        content = json.dumps(found).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = do_DELETE = _serve  # noqa: N815  the names are the library's

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the name is the library's
        """Prints nothing."""
