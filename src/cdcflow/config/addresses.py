"""Checks whether a source's `url` can be an address at all, before any connection: its parts, never its secrets.
Pure."""

from __future__ import annotations

import difflib
import re
from urllib.parse import parse_qsl, urlsplit

from cdcflow.config.references import without_password

POSTGRES_EXAMPLE = "postgresql://user@host:5432/database"
MYSQL_EXAMPLE = "mysql://user@host:3306/"

_POSTGRES = re.compile(
    r"postgres(?:ql)?://(?:[^@/?]*@)?(?P<hosts>[^/?]*)(?:/(?P<database>[^?]*))?(?:\?(?P<options>.*))?"
)
_HOST = re.compile(r"(?P<name>\[[0-9A-Fa-f:.%]+\]|[^:\[\]]*)(?::(?P<port>[^:]*))?")
# The parameters in common use. Others may be valid too, so only a name that closely resembles one of these is
# reported as a mistake here; the library reports any other at the first connection.
_PARAMETERS = (
    *("application_name", "channel_binding", "connect_timeout", "dbname", "gssencmode", "host", "hostaddr"),
    *("keepalives", "load_balance_hosts", "options", "passfile", "port", "require_auth", "service"),
    *("sslcert", "sslcrl", "sslkey", "sslmode", "sslnegotiation", "sslpassword", "sslrootcert"),
    *("target_session_attrs", "tcp_user_timeout", "user"),
)

_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")


def postgres_url(url: str) -> str:
    """Return the url, if it can be a PostgreSQL server's. Otherwise raise a ValueError that explains why not, without
    repeating it."""
    if not re.match(r"postgres(ql)?://", url):
        raise ValueError(f"must look like {POSTGRES_EXAMPLE}")
    without_password(url)
    found = _POSTGRES.fullmatch(url)
    if found is None:
        raise ValueError(f"is not a PostgreSQL address; write {POSTGRES_EXAMPLE}")
    _check_escapes(url)
    options = dict(parse_qsl(found["options"] or "", keep_blank_values=True))
    for name in sorted(options.keys() - set(_PARAMETERS)):
        if near := difflib.get_close_matches(name, _PARAMETERS, n=1, cutoff=0.85):
            raise ValueError(f"has the parameter {name}; did you mean {near[0]}?")
    for host in found["hosts"].split(","):
        _check_host(host)
    if not (found["database"] or options.get("dbname")):
        raise ValueError(f"names no database; write {POSTGRES_EXAMPLE}")
    return url


def mysql_url(url: str) -> str:
    """Return the url, if it can be a MySQL or MariaDB server's. Otherwise raise a ValueError that explains why not,
    without repeating it."""
    if not re.match(r"(mysql|mariadb)://", url):
        raise ValueError(f"must look like {MYSQL_EXAMPLE}")
    without_password(url)
    _check_escapes(url)
    try:
        parts = urlsplit(url)
    except ValueError:
        raise ValueError(f"is not a server's address; write {MYSQL_EXAMPLE}") from None
    _check_host(parts.netloc.rpartition("@")[2])
    if parts.path not in ("", "/"):
        raise ValueError(f"names a database; write {MYSQL_EXAMPLE}, and name tables in source.tables")
    unknown = sorted(dict(parse_qsl(parts.query, keep_blank_values=True)).keys() - {"socket"})
    if unknown:
        raise ValueError(
            f"has the parameter {', '.join(unknown)}, but the only known one is socket; everything else is a "
            f"separate setting, such as source.tls"
        )
    return url


def is_one_host(url: str) -> bool:
    """Whether a url that was checked names exactly one host, reached over TCP."""
    authority, _, query = url.partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    named = authority.partition("://")[2].partition("/")[0].rpartition("@")[2]
    host = options.get("host") or options.get("hostaddr") or named
    return bool(host) and "," not in host and "/" not in host and "%2F" not in host.upper() and "socket" not in options


def _check_escapes(url: str) -> None:
    if _BAD_ESCAPE.search(url):
        raise ValueError("has a % that is not followed by two hexadecimal digits; write %25 for the character itself")


def _check_host(host: str) -> None:
    found = _HOST.fullmatch(host)
    if found is None:
        raise ValueError("has a host that cannot be read; write host:port, an IPv6 address in brackets")
    port = found["port"]
    if port and not (port.isdecimal() and 0 < int(port) < 1 << 16):
        raise ValueError("has a port that is not a number from 1 to 65535")
