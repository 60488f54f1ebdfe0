"""Connections to PostgreSQL: one way to reach the server, fixed session settings, and cdcflow's errors by what to do
next.

A value's text depends on the session's settings, and a role or a database may set them differently (hard case P67). So
every connection that cdcflow opens, for SQL and for replication, sends all of them with its first packet, where they
override those set for the role.

The password is a reference that is resolved again for every connection, so that a rotated one is picked up (P65). It
never becomes part of the address, an error or a log line.
"""

from __future__ import annotations

import contextlib
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

import psycopg
from psycopg import conninfo, pq

from cdcflow.config import Postgres, Ssh
from cdcflow.errors import CdcflowError, ConfigurationError, HistoryLost, RightMissing, SourceUnavailable
from cdcflow.sources.engine import connections, errors
from cdcflow.sources.engine.passwords import Secret
from cdcflow.sources.engine.ssh_tunnel import Tunnel
from cdcflow.sources.postgres.poolers import pooler_of
from cdcflow.sources.postgres.sqlstates import is_tried_again

Connection = psycopg.Connection[tuple[Any, ...]]

VERSION_MIN = 140000

# The settings that the text of a value depends on. They must be the same for the stream and for chunks.
VALUE_SETTINGS: Mapping[str, str] = {
    "DateStyle": "ISO,MDY",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    "extra_float_digits": "3",
    "bytea_output": "hex",
    "lc_monetary": "C",
    "quote_all_identifiers": "off",
    "search_path": "",
}

# The settings that cdcflow's statements depend on, which override those of the role. With `row_security = off` a read
# that a policy would filter is an error, instead of lacking rows (P66).
SESSION_SETTINGS: Mapping[str, str] = {
    **VALUE_SETTINGS,
    "row_security": "off",
    "statement_timeout": "0",
    "lock_timeout": "5s",
    "idle_in_transaction_session_timeout": "120s",
    "idle_session_timeout": "0",
    "default_transaction_isolation": "read committed",
    "default_transaction_read_only": "off",
    "default_transaction_deferrable": "off",
    "standard_conforming_strings": "on",
    "enable_tidscan": "on",
    "synchronize_seqscans": "off",  # rows come in the order of their tuple ids
    "max_parallel_workers_per_gather": "0",
    "jit": "off",
}

# A connection that a firewall dropped stays silent indefinitely; these detect it (P70). The address may set its own.
TRANSPORT: Mapping[str, str] = {
    "connect_timeout": "10",
    "keepalives": "1",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}


@dataclass(frozen=True, slots=True)
class Address:
    """The server's address, from the settings' url. Its text is fit for messages: it holds no secret."""

    options: Mapping[str, str]

    @classmethod
    def parse(cls, url: str) -> Address:
        try:
            options = {k: str(v) for k, v in conninfo.conninfo_to_dict(url).items() if v is not None}
        except psycopg.Error:
            # The parser's own message repeats what it read, and that may hold a password.
            raise ConfigurationError(
                f"source.url is not a PostgreSQL address{_unknown_parameters(url)}",
                remedy="write postgresql://user@host:port/database",
                runbook="settings",
            ) from None
        if "password" in options:
            raise errors.password_in_url()
        if "dbname" not in options:
            raise ConfigurationError(
                "source.url names no database", remedy="write postgresql://user@host:port/database", runbook="settings"
            )
        return cls(options)

    @property
    def host(self) -> str:
        return self.options.get("host", "") or self.options.get("hostaddr", "")

    @property
    def target_host(self) -> str:
        """The one host to connect to, if the settings name exactly one."""
        return self.options.get("hostaddr", "") or self.host

    @property
    def port(self) -> int:
        return int(self.options.get("port") or 5432)

    @property
    def is_local(self) -> bool:
        """Whether the connection never leaves this machine: it uses loopback or a socket file."""
        hosts = [h for h in self.host.split(",") if h]
        return all(h in ("localhost", "::1") or h.startswith(("127.", "/")) for h in hosts)

    @property
    def parts(self) -> str:
        """Host, port, user and database, for messages."""
        where = f"host {self.host}" if self.host else "the local socket"
        user = self.options.get("user") or "of the operating system (source.url names none)"
        return f"{where}, port {self.options.get('port', '5432')}, user {user}, database {self.options['dbname']}"

    def __str__(self) -> str:
        port = self.options.get("port", "5432")
        return f"{self.host or 'local socket'}:{port}/{self.options['dbname']}"


def _unknown_parameters(url: str) -> str:
    """Return the end of a message: the parameters after ? that the library does not know, without their values, which
    may be secrets."""
    known = {option.keyword.decode() for option in pq.Conninfo.get_defaults()} | {"ssl", "password"}
    unknown = sorted({name for name, _ in parse_qsl(url.partition("?")[2]) if name.isidentifier()} - known)
    return f": the PostgreSQL library here does not know the parameter {', '.join(unknown)}" if unknown else ""


class Connector(connections.Connector[Connection]):
    """Opens connections to one database. Thread-safe."""

    error = psycopg.Error
    address: Address

    def __init__(self, url: str, secret: Secret, ssh: Ssh | None = None) -> None:
        address = Address.parse(url)
        super().__init__(address, None if ssh is None else Tunnel(ssh, address.target_host, address.port))
        self.secret = secret

    @classmethod
    def of(cls, settings: Postgres, secret: Secret) -> Connector:
        """Return the connector to the database of these settings."""
        return cls(settings.url, secret, settings.ssh)

    def connect(self, purpose: str, **settings: str) -> Connection:
        """Return a connection for SQL in autocommit mode; `purpose` appears in the server's `application_name`.

        Raises:
            SourceUnavailable: no answer, no connection slot left, or the password is refused (it may be being rotated).
            ConfigurationError: the database or the role does not exist, or the server is too old.
        """
        return self._without_limit(self._connect(purpose, settings, {}))

    def replicate(self) -> Connection:
        """Return a connection that speaks the replication protocol. Only simple statements work on it."""
        return self._without_limit(self._connect("stream", {}, {"replication": "database"}))

    def _without_limit(self, connection: Connection) -> Connection:
        """Remove the limit on the duration of this connection's transactions, and return the connection. Decoding a
        large transaction is a transaction, too.

        The setting is not sent with the first packet, as the others are: servers before 17 do not know it, and would
        refuse.
        """
        if connection.info.server_version >= 170000:
            with mapping_errors(f"preparing a session at {self.address}"):
                connection.execute("SET transaction_timeout = 0")
        return connection

    def map_error(self, error: Exception, attempted: str) -> CdcflowError:
        assert isinstance(error, psycopg.Error)  # noqa: S101  `self.error`
        return map_error(error, attempted)

    def is_broken(self, connection: Connection) -> bool:
        return connection.broken or connection.closed

    def is_idle(self, connection: Connection) -> bool:
        return not connection.closed and connection.pgconn.transaction_status == pq.TransactionStatus.IDLE

    def is_idle_after_error(self, connection: Connection) -> bool:
        return self.is_idle(connection)

    def _break_off(self, connection: Connection) -> None:
        # Another thread may wait inside libpq: shutting the socket down wakes it with an error, closing would not.
        with contextlib.suppress(OSError, psycopg.Error):
            descriptor = socket.socket(fileno=connection.pgconn.socket)
            try:
                descriptor.shutdown(socket.SHUT_RDWR)
            finally:
                descriptor.detach()

    def _drop(self, connection: Connection) -> None:
        connection.close()

    def _connect(self, purpose: str, settings: Mapping[str, str], extra: Mapping[str, str]) -> Connection:
        self.check_open()
        startup = _startup_options({**SESSION_SETTINGS, **settings}, self.address.options.get("options", ""))
        options = {**TRANSPORT, **self.address.options, **extra, "options": startup, "client_encoding": "UTF8"}
        options["application_name"] = f"cdcflow {purpose}"

        def open_with(password: str | None) -> Connection:
            with self._route() as route:
                try:
                    return psycopg.connect(
                        **options | route,  # type: ignore[arg-type]  # libpq's own options, as text
                        password=password,
                        autocommit=True,
                        prepare_threshold=None,
                    )
                except psycopg.Error as error:
                    raise _connect_error(error, self.address, has_password=password is not None) from None

        connection = self.log_in(self.secret, open_with)
        if connection.info.server_version < VERSION_MIN:
            version = connection.info.server_version // 10000
            connection.close()
            raise errors.server_too_old(self.address, f"PostgreSQL {version}", "14")
        return self._register(connection)

    @contextlib.contextmanager
    def _route(self) -> Iterator[dict[str, str]]:
        """Provide the options that lead to the server through `source.ssh`. `host` remains, because certificates are
        compared with it."""
        if self._tunnel is None:
            yield {}
            return
        with self._tunnel.loopback_port() as port:
            yield {"hostaddr": "127.0.0.1", "port": str(port)}


def _startup_options(settings: Mapping[str, str], given: str) -> str:
    """Return the session settings as libpq's `options`. Of two values for a setting the last one counts, so cdcflow's
    come last."""
    escaped = (v.replace("\\", "\\\\").replace(" ", "\\ ") for v in settings.values())
    return " ".join([given, *(f"-c {k}={v}" for k, v in zip(settings, escaped, strict=True))]).strip()


# ── errors ──────────────────────────────────────────────────────────────────────────────────────────────────

# Texts of refusals at connection time, where libpq gives no SQLSTATE. A server that speaks another language falls
# through to SourceUnavailable, with its own words.
_NO_SUCH = (("database", "does not exist"), ("role", "does not exist"))
_TLS = ("SSL", "certificate", "TLS")
_PASSWORD_REFUSED = re.compile(
    r"(password|PAM|LDAP|RADIUS|BSD|IAM( \w+)*) authentication failed|access token has expired|no password supplied"
)
"""PAM is what Amazon RDS reports of its tokens, IAM what Cloud SQL does, and an expired token what Azure does."""
_FOREIGN = re.compile(
    r"received invalid response to SSL negotiation: [^E]|expected authentication request from server, but received [^E]"
)
"""Texts of libpq if the server at the address is not PostgreSQL. An E would begin an error of a PostgreSQL server."""


def behind_pooler(address: Address, why: str) -> ConfigurationError:
    """Return the error for an address at which a connection pooler answers, which does not pass on sessions or
    replication."""
    name, direct = pooler_of(address.host, address.options.get("port", "5432"))
    return ConfigurationError(
        f"connecting to {address}: {name} is between cdcflow and the server: {why}",
        remedy=direct,
        runbook="pooler",
    )


def _connect_error(error: psycopg.Error, address: Address, *, has_password: bool) -> CdcflowError:
    text = " ".join(str(error).split())
    attempted = f"connecting to {address}"
    if _FOREIGN.search(text):
        return ConfigurationError(
            f"{attempted}: what answers there is no PostgreSQL server (MySQL and MariaDB answer like this)",
            remedy="correct host and port in source.url; for MySQL or MariaDB set source.kind: mysql or mariadb, and "
            "write source.url as mysql://user@host:3306/",
            runbook="settings",
        )
    if _PASSWORD_REFUSED.search(text):
        return errors.password_refused(
            attempted,
            address.options.get("user", "the user"),
            has_password=has_password,
            was_sent="no password" not in text,
            note=" (without it ~/.pgpass and PGPASSWORD are used)",
        )
    if "Peer authentication failed" in text or "Ident authentication failed" in text:
        return SourceUnavailable(
            f"{attempted}: {text}",
            remedy="name a host in source.url and set source.password: ${env:NAME} or ${file:path}; or run "
            "cdcflow as the operating system's user with that name",
            runbook="login-refused",
        )
    if "no pg_hba.conf entry" in text:
        return SourceUnavailable(
            f"{attempted}: the server's pg_hba.conf does not allow this connection: {text}",
            remedy="add lines for this user, database and host (for replication connections too), then reload",
            runbook="login-refused",
        )
    if "unsupported startup parameter" in text or "bouncer config error" in text:
        return behind_pooler(address, text.rpartition("FATAL: ")[2].strip())
    if "must be superuser or replication role" in text or "permission denied to start WAL sender" in text:
        user = address.options.get("user", "the user")
        return RightMissing(
            f"{attempted}: {user} may not replicate",
            remedy=f"run ALTER ROLE {quote_name(user)} REPLICATION\n"
            f"on Amazon RDS and Aurora: run GRANT rds_replication TO {quote_name(user)}",
        )
    if "permission denied for database" in text:
        user, database = address.options.get("user", "the user"), address.options["dbname"]
        return RightMissing(
            f"{attempted}: {user} may not connect to database {database}",
            remedy=f"run GRANT CONNECT ON DATABASE {quote_name(database)} TO {quote_name(user)}",
        )
    if "max_wal_senders" in text and "(currently 0)" in text:
        return ConfigurationError(
            f"{attempted}: the server allows no WAL sender (max_wal_senders = 0)",
            remedy="set max_wal_senders = 10 and wal_level = logical, and restart the server",
            runbook="server-settings",
        )
    if "standby connections" in text or "max_wal_senders" in text:
        return SourceUnavailable(
            f"{attempted}: every WAL sender is in use",
            remedy="raise max_wal_senders, or end another consumer",
            runbook="server-full",
        )
    if any(a in text and b in text for a, b in _NO_SUCH):
        return ConfigurationError(
            f"{attempted}: {text}", remedy="set source.url to a database and user that exist", runbook="login-refused"
        )
    if any(word in text for word in _TLS) and "starting up" not in text:
        return ConfigurationError(
            f"{attempted}: no secure connection: {text}",
            remedy="check sslmode and sslrootcert in source.url",
            runbook="tls",
        )
    return SourceUnavailable(f"{attempted}: {text}")


def map_error(error: psycopg.Error, attempted: str) -> CdcflowError:
    """Return a server's refusal as one of cdcflow's errors, without its DETAIL, which may hold row values."""
    state = error.sqlstate or ""
    said = " ".join((error.diag.message_primary or str(error)).split())
    if state[:2] in ("21", "22", "23"):
        said = f"SQLSTATE {state}"  # data errors quote the datum
    message = f"{attempted}: {said}"
    match state:
        case "22021" | "22P05":
            return ConfigurationError(
                f"{attempted}: the server holds a text (a value, a name or a default) that is not valid in the "
                f"encoding of its database, so it cannot be sent as UTF-8 (SQLSTATE {state})",
                remedy="correct the text; where it is in the server's log already, then run `cdcflow run "
                "--accept-history-loss`, which begins after it and reads all tables again",
                runbook="value-not-representable",
            )
        case "42501":
            return RightMissing(message, remedy=_grant(said))
        case "25006":
            return ConfigurationError(
                message, remedy="point source.url at the primary, which can be written to", runbook="read-only-source"
            )
        case "55P03":
            return SourceUnavailable(f"{message}; something holds the table's lock (ALTER TABLE, VACUUM FULL, …)")
        case "53400" if "temp_file_limit" in said:
            return ConfigurationError(
                message,
                remedy="raise temp_file_limit for the user of source.url (ALTER ROLE … SET)",
                runbook="server-full",
            )
        case "53400":
            return ConfigurationError(
                message, remedy="drop an unused replication slot, or raise the limit", runbook="server-full"
            )
        case "":
            return SourceUnavailable(message)
    if is_tried_again(state):
        return SourceUnavailable(message)
    code = "" if said.startswith("SQLSTATE") else f" (SQLSTATE {state})"
    return ConfigurationError(f"{message}{code}", runbook="source-refuses")


def _grant(said: str) -> str:
    match said:
        case _ if "row-level security" in said:
            return "run ALTER ROLE … BYPASSRLS for the user of source.url: rows hidden by policies would be missing"
        case _ if "for schema" in said:
            return f"run GRANT USAGE ON SCHEMA {_last_word(said)} TO the user of source.url"
        case _ if "for table" in said or "for relation" in said:
            return f"run GRANT SELECT ON {_last_word(said)} TO the user of source.url"
        case _ if "replication slots" in said:
            return "run ALTER ROLE … REPLICATION for the user of source.url"
        case _ if "owner" in said:
            return "let an owner do it (see `cdcflow doctor`), or make the user of source.url a member of the owner"
    return "see `cdcflow doctor` for the grants that are missing"


def _last_word(said: str) -> str:
    return quote_name(said.split()[-1])


def mapping_errors(attempted: str) -> AbstractContextManager[None]:
    return connections.mapping_library_errors(psycopg.Error, map_error, attempted)


def query_row(
    connection: Connection, query: str, parameters: Sequence[object] | Mapping[str, object] = ()
) -> tuple[Any, ...]:
    """Return the only row of a result. Raises psycopg's errors unchanged."""
    row = connection.execute(query.encode(), parameters or None).fetchone()
    assert row is not None  # noqa: S101  such queries have one row by construction
    return row


@contextlib.contextmanager
def one_snapshot(connection: Connection) -> Iterator[None]:
    """Run all catalog queries inside in one snapshot. Otherwise a column that was dropped, or a table that was created,
    between two statements would be in one result and not in the other. If a transaction is open, its snapshot is
    used."""
    if connection.info.transaction_status != pq.TransactionStatus.IDLE:
        yield
        return
    connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    try:
        yield
    finally:
        with contextlib.suppress(psycopg.Error):
            connection.execute("ROLLBACK")


def has_no_encoding(connection: Connection) -> bool:
    """Whether the database accepts any bytes as text.

    To a session in UTF-8 such a server refuses to send bytes that are not UTF-8, and its error does not name the
    column; so sessions that send rows set no encoding, and the decoders check the bytes.
    """
    return connection.info.parameter_status("server_encoding") == "SQL_ASCII"


def history_lost(message: str, *, runbook: str = "slot-lost") -> HistoryLost:
    return errors.history_lost(message, "creates a new slot", runbook=runbook)


def quote_name(*names: str) -> str:
    """Return an identifier as SQL text, qualified when several names are given (S01: quotes are doubled)."""
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


def literal(text: str) -> str:
    """Return a string as SQL text; cdcflow's sessions have standard_conforming_strings on."""
    return "'" + text.replace("'", "''") + "'"
