"""Connections to MySQL and MariaDB: connecting, fixed session settings, and mapping errors to the next step.

The only module that uses pymysql to connect. TLS is verified unless the settings turn this off, and a password never
travels where another party could read it: without TLS only its hash is sent, or it is encrypted with a key that the
settings pin. Files of this machine are never sent, whatever a server requests (hard case S05).

Every session sets everything that a value's text and a query's result depend on, whatever the user's defaults are. The
password is a reference that is resolved again for every connection (P65); it appears in no address, error or log line.
"""

from __future__ import annotations

import contextlib
import re
import socket
import ssl
import struct
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import parse_qs, unquote, urlsplit

import pymysql
from pymysql.constants import CLIENT, COMMAND

from cdcflow.config import MySQL
from cdcflow.config.certificates import load_certificate
from cdcflow.errors import CdcflowError, ConfigurationError, SourceUnavailable
from cdcflow.sources.engine import connections, errors
from cdcflow.sources.engine.passwords import Secret
from cdcflow.sources.engine.ssh_tunnel import Tunnel
from cdcflow.sources.mysql.errors import connect_error, map_error
from cdcflow.sources.mysql.sql import quote_name

Connection: TypeAlias = pymysql.Connection
Row = tuple[Any, ...]

VERSION_MIN: Mapping[str, tuple[int, int]] = {"mysql": (8, 0), "mariadb": (10, 11)}
NAMES: Mapping[str, str] = {"mysql": "MySQL", "mariadb": "MariaDB"}

CONNECT_TIMEOUT_S = 10
READ_TIMEOUT_S = 120.0
HANDSHAKE_TIMEOUT_S = 20.0
"""The handshake's timeout. If a URL names a PostgreSQL server by mistake, each side waits for the other to begin: this
ends the wait."""

# What cdcflow's statements, their transactions and the texts of values depend on: everything that a session inherits
# from the server's global settings, or gets from `init_connect`, and that would change what cdcflow reads or writes.
SESSION_SETTINGS: Mapping[str, str] = {
    # pymysql sets it too, but relies on the server's greeting, which does not report the global setting.
    "autocommit": "1",
    # CHAIN would begin another transaction after each, on an old snapshot; RELEASE would end the session.
    "completion_type": "'NO_CHAIN'",
    "time_zone": "'+00:00'",
    # Without ALLOW_INVALID_DATES MySQL compares no key with a date like 2024-02-31, which other sessions may store:
    # error 1525, or not found if it is one of several.
    "sql_mode": "'NO_BACKSLASH_ESCAPES,NO_ENGINE_SUBSTITUTION,ALLOW_INVALID_DATES'",
    "sql_select_limit": "18446744073709551615",  # less would cut a chunk off silently
    "sql_auto_is_null": "0",
    # Keys are sorted by their whole length, which never exceeds this.
    "max_sort_length": "16384",
    "sort_buffer_size": "4194304",
    "big_tables": "0",
    "sql_big_selects": "1",
    "sql_safe_updates": "0",
    "lock_wait_timeout": "5",
    "innodb_lock_wait_timeout": "5",
    "net_write_timeout": "600",
    "net_read_timeout": "120",
    "wait_timeout": "28800",
    "group_concat_max_len": "1073741824",
}
OF_FLAVOR: Mapping[str, Mapping[str, str]] = {
    "mysql": {
        "max_execution_time": "0",
        "information_schema_stats_expiry": "0",
    },
    "mariadb": {
        "max_statement_time": "0",
        "idle_transaction_timeout": "0",
        "idle_readonly_transaction_timeout": "0",
        "idle_write_transaction_timeout": "0",
        "system_versioning_asof": "DEFAULT",
        "old_mode": "''",
        "tmp_disk_table_size": "18446744073709551615",
    },
}
SINCE: Mapping[tuple[int, int, int], Mapping[str, str]] = {
    (8, 0, 13): {"use_secondary_engine": "OFF"},  # its copy of a table may differ from what a snapshot shows
    # A generated primary key is an ordinary column in the binary log.
    (8, 0, 30): {"show_gipk_in_create_table_and_information_schema": "1"},
}
"""Session settings of MySQL, by the version that introduced them."""


@dataclass(frozen=True, slots=True)
class Address:
    """The server's address, from the settings' url. Its text holds no secret and may appear in messages."""

    host: str
    port: int
    user: str
    socket: str | None

    @classmethod
    def parse(cls, url: str) -> Address:
        try:
            parts = urlsplit(url)
            port = parts.port or 3306
        except ValueError:
            parts, port = urlsplit(""), 0
        if parts.scheme not in ("mysql", "mariadb") or parts.path not in ("", "/"):
            # Do not quote the value: it may hold a password.
            raise ConfigurationError(
                "source.url is not the address of a server",
                remedy="write mysql://user@host:3306/ (tables are named by source.tables)",
                runbook="settings",
            )
        if parts.password is not None:
            raise errors.password_in_url()
        options = parse_qs(parts.query)
        if unknown := sorted(options.keys() - {"socket"}):
            raise ConfigurationError(
                f"source.url has the parameter {', '.join(unknown)}, which is not known",
                remedy="only ?socket=path is; the rest are separate settings (see docs/mysql.md)",
                runbook="settings",
            )
        where = options["socket"][0] if "socket" in options else None
        return cls(parts.hostname or "localhost", port, unquote(parts.username or "root"), where)

    @property
    def is_local(self) -> bool:
        """Whether the connection never leaves this machine: it uses loopback or a socket file."""
        return self.socket is not None or self.host in ("localhost", "::1") or self.host.startswith("127.")

    @property
    def parts(self) -> str:
        """Host, port and user, for messages."""
        where = f"socket {self.socket}" if self.socket else f"host {self.host}, port {self.port}"
        return f"{where}, user {self.user}"

    def __str__(self) -> str:
        return self.socket or f"{self.host}:{self.port}"


class OneServer:
    """The server that the first of several connections was opened to. Thread-safe.

    An address may lead elsewhere after a failover, or to one of several servers each time. A chunk that is read from
    one server has positions that mean nothing in the binary log of another.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._identity: str | None = None
        self.is_replaced = False
        """Whether a later connection led to another server."""

    def check(self, address: Address, identity: str) -> None:
        """Raise SourceUnavailable for a connection to another server: the next start finds out what the other server
        has."""
        with self._lock:
            self._identity = self._identity or identity
        if self._identity != identity:
            self.is_replaced = True
            raise SourceUnavailable(
                f"connecting to {address}: another server answers ({identity}) than before ({self._identity}); "
                "connecting again",
                remedy="nothing if the server was replaced; let the address lead to one server, not to several in turn",
            )


class Connector(connections.Connector[Connection]):
    """Opens connections to one address. Thread-safe.

    `one_server`: all connections of this connector, and of the connectors that share it, must lead to this server.
    None: after a failover, connections may lead to another server.
    """

    error = pymysql.Error
    address: Address

    def __init__(self, settings: MySQL, secret: Secret, one_server: OneServer | None = None) -> None:
        self.settings = settings
        self.flavor = settings.kind
        self.secret = secret
        self.account = ""
        self._one_server = one_server
        address = Address.parse(settings.url)
        super().__init__(address, None if settings.ssh is None else Tunnel(settings.ssh, address.host, address.port))

    @property
    def leads_elsewhere(self) -> bool:
        """Whether the address has led to another server since the first connection."""
        return self._one_server is not None and self._one_server.is_replaced

    def again(self) -> Connector:
        """Return another connector with the same settings and the same `one_server`."""
        return Connector(self.settings, self.secret, self._one_server)

    def to(self, url: str) -> Connector:
        """Return a connector to another address, with the same user's password, TLS and SSH server."""
        return Connector(self.settings.model_copy(update={"url": url}), self.secret)

    def connect(self, purpose: str, *, read_timeout_s: float = READ_TIMEOUT_S) -> Connection:
        """Return a connection in autocommit mode with its session set up; the server lists it with this `purpose`.

        Raises:
            SourceUnavailable: no answer, no connection slot left, or the password is refused (it may be being rotated).
            ConfigurationError: no secure connection, another kind of server, or one that is too old.
        """
        self.check_open()
        connection = self.log_in(self.secret, lambda password: self._open_with(password, purpose, read_timeout_s))
        try:
            self._check_server(connection)
            with mapping_errors(f"preparing a session at {self.address}"):
                query(connection, "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ WRITE")
                query(connection, _set_session(session_settings(self.flavor, connection.get_server_info())))
                if self._one_server is not None:
                    self._one_server.check(self.address, _identity(connection))
                self.account = self.account or account_of(connection)
        except BaseException:
            connection.close()
            raise
        return self._register(connection)

    def map_error(self, error: Exception, attempted: str) -> CdcflowError:
        assert isinstance(error, pymysql.Error)  # noqa: S101  `self.error`
        return map_error(error, attempted, self.account)

    def is_broken(self, connection: Connection) -> bool:
        return not connection.open

    def is_idle(self, connection: Connection) -> bool:
        return bool(connection.open)

    def _break_off(self, connection: Connection) -> None:
        # Another thread may be waiting in `recv`: shutting the socket down wakes it with an error, closing it would
        # not.
        if connection._sock is not None:
            with contextlib.suppress(OSError):
                connection._sock.shutdown(socket.SHUT_RDWR)

    def _drop(self, connection: Connection) -> None:
        with contextlib.suppress(pymysql.Error, OSError):
            # Not `close`: it would wait for the server, which may be gone.
            connection._force_close()

    def _open_with(self, password: str | None, purpose: str, read_timeout_s: float) -> Connection:
        try:
            connection = self._login(
                host=self.address.host,
                port=self.address.port,
                unix_socket=self.address.socket,
                user=self.address.user,
                password=(password or "").encode(),
                charset="utf8mb4",
                autocommit=True,
                local_infile=False,
                connect_timeout=CONNECT_TIMEOUT_S,
                read_timeout=min(read_timeout_s, HANDSHAKE_TIMEOUT_S),
                write_timeout=60,
                program_name=f"cdcflow {purpose}",
                **self._security(),
            )
        except (pymysql.Error, ValueError, RuntimeError) as error:
            if self._is_postgres():
                raise ConfigurationError(
                    f"connecting to {self.address}: a PostgreSQL server answers there",
                    remedy="correct host and port in source.url; for PostgreSQL set source.kind: postgres, and write "
                    "source.url as postgresql://user@host:5432/database",
                    runbook="settings",
                ) from None
            raise connect_error(
                error,
                self.address.user,
                str(self.address),
                has_password=password is not None,
                has_certificate=self.settings.tls.cert is not None,
            ) from None
        connection._read_timeout = read_timeout_s
        _keep_alive(connection)
        return connection

    def _login(self, **options: Any) -> Connection:  # Any: pymysql's keyword arguments differ in type
        if self._tunnel is None:
            return pymysql.connect(**options)
        connection: Connection = pymysql.connect(**options, defer_connect=True)
        with self._tunnel.connected_socket() as link:
            connection.connect(link)
        return connection

    def _is_postgres(self) -> bool:
        """Whether a PostgreSQL server answers at the address: it answers a request for encryption with one letter."""
        if self.address.socket is not None:
            return False
        with contextlib.suppress(OSError, CdcflowError), self._bare_socket() as link:
            link.settimeout(2)
            link.sendall(struct.pack("!II", 8, 80877103))
            return link.recv(16) in (b"S", b"N")
        return False

    @contextlib.contextmanager
    def _bare_socket(self) -> Iterator[socket.socket]:
        if self._tunnel is None:
            with socket.create_connection((self.address.host, self.address.port), CONNECT_TIMEOUT_S) as link:
                yield link
        else:
            with self._tunnel.connected_socket() as link, link:
                yield link

    def _security(self) -> dict[str, Any]:  # Any: keyword arguments of pymysql differ in type
        tls = self.settings.tls
        if tls.mode != "off":
            try:
                context = ssl.create_default_context(cafile=None if tls.ca is None else str(tls.ca))
            except (OSError, ssl.SSLError) as error:
                raise ConfigurationError(
                    f"source.tls.ca {tls.ca} cannot be read: {error.strerror}", runbook="tls"
                ) from None
            context.check_hostname = tls.mode == "verify"
            if tls.cert is not None:
                load_certificate(context, tls.cert, tls.key, "source.tls")
            return {"ssl": context}
        # Without a key pymysql would request one from the server, and encrypt the password for any server that answers.
        # With a value that is not a key it raises instead; a password that the server has cached needs no key.
        key = self.settings.server_public_key
        pinned = b"none is pinned" if key is None else _key(key)
        plain = dict.fromkeys(("mysql_clear_password", "mysql_old_password", "dialog"), _NeverInTheClear)
        return {"ssl_disabled": True, "server_public_key": pinned, "auth_plugin_map": plain}

    def _check_server(self, connection: Connection) -> None:
        text = connection.get_server_info()
        flavor = "mariadb" if "MariaDB" in text else "mysql"
        if flavor != self.flavor:
            raise ConfigurationError(
                f"the server at {self.address} is {NAMES[flavor]}, and source.kind is {self.flavor}",
                remedy=f"set source.kind: {flavor} (a log that began with the other kind cannot be continued)",
                runbook="server-version",
            )
        version = version_of(text)
        if version < VERSION_MIN[flavor]:
            least = ".".join(map(str, VERSION_MIN[flavor]))
            found = f"{NAMES[flavor]} {'.'.join(map(str, version))}"
            raise errors.server_too_old(self.address, found, least)
        if connection.client_flag & CLIENT.LOCAL_FILES:
            raise ConfigurationError(
                "pymysql would send files of this machine to the server; cdcflow never does",
                runbook="server-asks-for-files",
            )


def _identity(connection: Connection) -> str:
    """Return a text that distinguishes servers at one address: replicas have different ids."""
    host, port, server_id = query_row(connection, "SELECT @@GLOBAL.hostname, @@GLOBAL.port, @@GLOBAL.server_id")
    return f"{host}:{port}, server_id {server_id}"


def session_settings(flavor: str, version: str) -> dict[str, str]:
    """Return the settings of each session at a server of this version (as the server reports it)."""
    settings = {**SESSION_SETTINGS, **OF_FLAVOR[flavor]}
    if flavor == "mysql":
        for since, more in SINCE.items():
            settings |= more if full_version_of(version) >= since else {}
    return settings


def _set_session(settings: Mapping[str, str]) -> str:
    return "SET " + ", ".join(f"SESSION {name} = {value}" for name, value in settings.items())


class _NeverInTheClear:
    """Replaces the login methods that send the password in clear text."""

    def __init__(self, connection: Connection) -> None:
        raise pymysql.err.OperationalError(2061, "the server requires the password in clear text")


def version_of(text: str) -> tuple[int, int]:
    """Return major and minor version from the server's version text (older MariaDB prepends 5.5.5-)."""
    found = re.match(r"(?:5\.5\.5-)?(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def full_version_of(text: str) -> tuple[int, int, int]:
    """Return major, minor and patch version from the server's version text."""
    found = re.match(r"(?:5\.5\.5-)?(\d+)\.(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2]), int(found[3])) if found else (*version_of(text), 0)


def _key(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigurationError(
            f"source.server_public_key {path} cannot be read: {error.strerror}", runbook="settings"
        ) from None


def _keep_alive(connection: Connection) -> None:
    """Enable TCP keepalives, which detect a connection that a firewall forgot; it would stay silent (P70)."""
    options = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 30_000}
    with contextlib.suppress(OSError):
        for name, value in options.items():
            if hasattr(socket, name):
                connection._sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


# ── queries ─────────────────────────────────────────────────────────────────────────────────────────────────


def query(connection: Connection, statement: str) -> list[Row]:
    """Run one statement and return its rows, for small results. Raises pymysql's errors unchanged."""
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return list(cursor.fetchall())


def query_row(connection: Connection, statement: str) -> Row:
    """Return the only row of a result."""
    rows = query(connection, statement)
    if len(rows) != 1:
        raise SourceUnavailable(f"the server answered with {len(rows)} rows to a query for one")
    return rows[0]


def account_of(connection: Connection) -> str:
    """Return the account under which the server knows this session, as a GRANT names it.

    The server's refusals name the machine that cdcflow connects from instead, and that name may have no grants.
    """
    name, _, host = str(query_row(connection, "SELECT CURRENT_USER()")[0]).rpartition("@")
    return f"{quote_name(name)}@{quote_name(host)}"


def at_once(connection: Connection, *statements: str) -> list[list[Row]]:
    """Run statements one after another without a wait in between: all are sent before the first answer is read."""
    texts = [statement.encode() for statement in statements]
    # A packet: its length in three bytes, its number 0, the command, the text.
    connection._write_bytes(b"".join(struct.pack("<IB", len(t) + 1, COMMAND.COM_QUERY) + t for t in texts))
    answers: list[list[Row]] = []
    failed: pymysql.Error | None = None
    for _ in statements:
        connection._next_seq_id = 1
        try:
            connection._read_query_result()
        except pymysql.Error as error:
            failed = failed or error
            if not connection.open:
                break
        else:
            answers.append(list(connection._result.rows or ()))
    if failed is not None:
        raise failed
    return answers


def mapping_errors(attempted: str) -> AbstractContextManager[None]:
    return connections.mapping_library_errors(pymysql.Error, map_error, attempted)
