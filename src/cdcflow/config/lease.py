"""The lease that decides which of several daemons is active."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, field_validator, model_validator

from cdcflow.config.addresses import mysql_url, postgres_url
from cdcflow.config.base import Settings
from cdcflow.config.logs import StoreAccess
from cdcflow.config.passwords import PasswordSetting
from cdcflow.config.sources import Tls
from cdcflow.config.units import Seconds

TTL_MIN_S = 1.0
_BUCKET = re.compile(r"s3://[^/@:?#\s]+(/[^?#]*)?")
_DATABASES = ("source", "postgres", "mysql")


def _long_enough(ttl_s: float) -> float:
    if ttl_s < TTL_MIN_S:
        raise ValueError(f"must be at least {TTL_MIN_S:g}s")
    return ttl_s


class LeaseSettings(Settings):
    """One of several daemons is active; the others are standbys, and one of them becomes active when it ends.

    All daemons of one log have the same settings here ([high-availability.md](high-availability.md)).
    """

    at: str
    """Where the lease is: `source` (a lock in the source's database), another server (`postgresql://user@host/database`,
    `mysql://user@host:3306/`, `mariadb://…`), an object store (`s3://bucket/prefix`), `kafka` (the brokers of the log),
    or `file` (the log's folder, for two daemons on one machine)."""
    name: str | None = None
    """The name of the lock in a database: one for each pipeline, the same for its daemons. Default: required, where the
    lease is in a database."""
    ttl: Annotated[Seconds, AfterValidator(_long_enough)] = 3.0
    """How long the lease lasts without a renewal; a standby becomes active within a second or two after that. A daemon
    that cannot renew it for this long stops writing."""
    password: PasswordSetting = None
    """A reference to the password for another server, or a command that prints it."""
    tls: Tls = Tls()
    objects: StoreAccess | None = None

    @property
    def kind(self) -> str:
        """`source`, `file`, `kafka`, or what the URL names: `postgres`, `mysql`, `objects`."""
        scheme, is_url, _ = self.at.partition("://")
        if not is_url:
            return self.at
        return {"s3": "objects", "mysql": "mysql", "mariadb": "mysql"}.get(scheme, "postgres")

    @field_validator("at")
    @classmethod
    def _place(cls, at: str) -> str:
        if at in ("source", "file", "kafka"):
            return at
        if at.startswith(("postgresql://", "postgres://")):
            return postgres_url(at)
        if at.startswith(("mysql://", "mariadb://")):
            return mysql_url(at)
        if _BUCKET.fullmatch(at):
            return at.rstrip("/")
        raise ValueError("must be source, file, kafka, or a URL: postgresql://…, mysql://…, mariadb://…, s3://…")

    @model_validator(mode="after")
    def _fits(self) -> LeaseSettings:
        if self.kind in _DATABASES and not self.name:
            raise ValueError("needs a name for the lock, which no other pipeline of this database has")
        if self.kind not in _DATABASES and self.name is not None:
            raise ValueError("has a name, which only a lease in a database needs")
        if self.password is not None and self.kind not in ("postgres", "mysql"):
            raise ValueError("has a password, which only a lease at another database server needs")
        if self.tls != Tls() and self.kind != "mysql":
            raise ValueError(
                "has tls, which only a lease at a MySQL or MariaDB server needs; for PostgreSQL add"
                " ?sslmode=verify-full to the URL"
            )
        if self.objects is not None and self.kind != "objects":
            raise ValueError("has objects, which only a lease in an object store (s3://bucket/prefix) needs")
        return self
