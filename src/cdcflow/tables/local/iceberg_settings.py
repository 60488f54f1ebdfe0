"""Translate the properties of an Iceberg catalog from Spark's names, as in `merge.catalog`, to PyIceberg's. Pure.

    {type: jdbc, uri: "jdbc:postgresql://host/db", jdbc.user: …}  ──▶  ("jdbc", {uri: postgresql+psycopg://…})
    {type: rest, uri: …, credential: …, rest.auth.type: …}        ──▶  ("rest", {uri: …, …}) and what proves identity

Both engines must open the same catalog. So if a property determines which catalog is opened, or which names it has, and
PyIceberg has no counterpart of it, it is not dropped: the catalog is left to Spark, with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import parse_qsl, unquote, urlsplit

from cdcflow.tables.formats.iceberg import catalog_type

CatalogType = Literal["rest", "jdbc", "hive", "glue"]

_TYPES: Mapping[str, CatalogType] = {"rest": "rest", "jdbc": "jdbc", "hive": "hive", "glue": "glue"}
_FILE_CLASSES = {
    "org.apache.iceberg.hadoop.HadoopFileIO",
    "org.apache.iceberg.aws.s3.S3FileIO",
    "org.apache.iceberg.io.ResolvingFileIO",
}
"""Java classes for access to files which reach the same files as PyIceberg, in an S3-compatible store or a folder."""

_AWS = {
    "rest.access-key-id": "client.access-key-id",
    "rest.secret-access-key": "client.secret-access-key",
    "rest.session-token": "client.session-token",
}
_IDENTITY = ("credential", "token")
_OAUTH = ("scope", "audience", "resource")
_POSTGRES: Mapping[str, str] = {
    "sslmode": "sslmode",
    "sslrootcert": "sslrootcert",
    "sslcert": "sslcert",
    "sslkey": "sslkey",
    "connectTimeout": "connect_timeout",
    "ApplicationName": "application_name",
}
"""The parameters of PostgreSQL's JDBC driver, each with its name in libpq."""

_OF_JAVA = {"socketTimeout", "tcpKeepAlive", "loginTimeout", "retryable_status_codes", "strict-mode", "schema-version"}
"""JDBC properties that are ignored, because they concern only Java's client, or tables that it creates."""

CONNECT_WITHIN_S = 10


class OnlyForSpark(Exception):
    """The error for a catalog that PyIceberg cannot open as Spark does; the message is the reason."""


@dataclass(frozen=True, slots=True)
class OAuth:
    """How a client proves its identity to a REST catalog. `credential`: `id:secret`, or a secret alone; a token is
    requested with it from `server`. `token`: a fixed token."""

    server: str
    credential: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    more: Mapping[str, str] = field(default_factory=dict)
    """Further parameters of a request for a token: scope, audience, resource."""


@dataclass(frozen=True, slots=True)
class SqlAddress:
    """A database with the tables of Iceberg's JDBC catalog. `query`: parameters of the driver."""

    driver: str
    database: str
    host: str | None = None
    port: int | None = None
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    query: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CatalogSettings:
    """The settings of a catalog that PyIceberg can open. `properties`: in PyIceberg's names, without what proves
    identity to a REST or SQL catalog. `secrets`: values that no message may contain."""

    type: CatalogType
    properties: Mapping[str, str] = field(repr=False)
    oauth: OAuth | None = None
    sql: SqlAddress | None = None
    secrets: tuple[str, ...] = field(default=(), repr=False)

    @property
    def package(self) -> str | None:
        """The package that a client of this kind of catalog needs in addition to PyIceberg."""
        if self.type == "hive":
            return "thrift"
        return "boto3" if self.type == "glue" or "rest.sigv4-enabled" in self.properties else None


def catalog_settings(given: Mapping[str, str], location: str) -> CatalogSettings:
    """Return the settings of the catalog with these properties. `location`: the warehouse's location, which Spark gives
    to a catalog without the property `warehouse`.

    Raises:
        OnlyForSpark: PyIceberg cannot open it as Spark does.
    """
    type_ = _type(given)
    io = given.get("io-impl")
    if io is not None and io not in _FILE_CLASSES:
        raise OnlyForSpark(f"the catalog's files are read by {io}")
    rest = {name: value for name, value in given.items() if name not in ("type", "catalog-impl", "io-impl")}
    rest.setdefault("warehouse", location)
    secrets = tuple(value for name, value in given.items() if is_secret(name) and value)
    match type_:
        case "rest":
            properties, oauth = _rest(rest)
            return CatalogSettings(type_, properties, oauth=oauth, secrets=secrets)
        case "jdbc":
            sql, properties = _jdbc(rest)
            return CatalogSettings(type_, properties, sql=sql, secrets=secrets)
        case "hive":
            if "uri" not in rest:
                raise OnlyForSpark("the catalog has no uri, and only Spark's own settings name the metastore")
            # Spark's client of Hive 2.3 stores the same types.
            return CatalogSettings(type_, {"hive.hive2-compatible": "true", **rest}, secrets=secrets)
        case "glue":
            return CatalogSettings(type_, rest, secrets=secrets)


def is_secret(name: str) -> bool:
    """Return whether the value of a property proves identity."""
    return any(part in name for part in ("password", "secret")) or name.endswith(
        ("token", "credential", "ccess-key-id")
    )


def _type(given: Mapping[str, str]) -> CatalogType:
    type_ = catalog_type(given)
    found = _TYPES.get(type_)
    if found is None:
        raise OnlyForSpark(f"the catalog is {'a' if 'catalog-impl' in given else 'of type'} {type_ or None}")
    return found


def _rest(given: Mapping[str, str]) -> tuple[dict[str, str], OAuth | None]:
    if "uri" not in given:
        raise OnlyForSpark("the REST catalog has no uri")
    found = {_AWS.get(name, name): value for name, value in given.items()}
    found["uri"] = found["uri"].rstrip("/")
    found.pop("snapshot-loading-mode", None)  # all snapshots are needed
    match found.pop("rest.auth.type", None):
        case "sigv4":
            found["rest.sigv4-enabled"] = "true"
        case None | "oauth2" | "none":
            pass
        case other:
            raise OnlyForSpark(f"rest.auth.type is {other}")
    server = found.pop("oauth2-server-uri", f"{found['uri']}/v1/oauth/tokens")
    credential, token = (found.pop(name, None) or None for name in _IDENTITY)
    more = {name: value for name in _OAUTH if (value := found.pop(name, None))}
    if credential is None and token is None:
        return found, None
    return found, OAuth(server, credential, token, {"scope": "catalog", **more})


def _jdbc(given: Mapping[str, str]) -> tuple[SqlAddress, dict[str, str]]:
    uri = given.get("uri", "").removeprefix("jdbc:")
    parameters = {name.removeprefix("jdbc."): value for name, value in given.items() if name.startswith("jdbc.")}
    properties = {n: v for n, v in given.items() if not n.startswith("jdbc.") and n not in ("uri", "clients")}
    if parameters.pop("init-catalog-tables", "true") == "false":
        properties["init_catalog_tables"] = "false"
    if uri.startswith("sqlite:"):
        path = uri.removeprefix("sqlite:").partition("?")[0]
        return SqlAddress("sqlite", path.removeprefix("file:"), query={"timeout": "60"}), properties
    url = urlsplit(uri)
    if url.scheme != "postgresql" or not url.hostname:
        raise OnlyForSpark("the catalog's database is neither PostgreSQL (jdbc:postgresql://host/database) nor SQLite")
    if "," in url.netloc:
        raise OnlyForSpark("the catalog's uri names several hosts")
    parameters = {**dict(parse_qsl(url.query)), **parameters}
    query = {"connect_timeout": str(CONNECT_WITHIN_S)}
    user, password = parameters.pop("user", None), parameters.pop("password", None)
    if parameters.pop("ssl", "false") == "true":
        query["sslmode"] = "verify-full"
    if (schema := parameters.pop("currentSchema", None)) is not None:
        query["options"] = f"-csearch_path={schema}"
    for name, value in parameters.items():
        if name in _POSTGRES:
            query[_POSTGRES[name]] = value
        elif name not in _OF_JAVA:
            raise OnlyForSpark(f"the catalog has the JDBC property {name}")
    database = unquote(url.path.lstrip("/")) or user or ""
    return SqlAddress("postgresql+psycopg", database, url.hostname, url.port, user, password, query), properties
