"""Collections that programs write to over HTTP: what `cdcflow serve` accepts, and from whom."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from cdcflow.config.access import AccessToken, ServerTls, check_tokens
from cdcflow.config.base import Settings, is_host_and_port
from cdcflow.config.units import Bytes, Seconds

_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")


class Collection(Settings):
    """A collection: the table `push.<name>` of the log."""

    name: str
    """`serve.collections` is a list; each is the table `push.<name>`: a-z, 0-9 and `_`."""
    key: tuple[str, ...] = Field(min_length=1)
    """The properties that identify a row."""
    json_schema: dict[str, Any] | Path
    """The properties of a row, as JSON Schema, or the name of a file that holds it ([serve.md](serve.md#schemas))."""

    @field_validator("name")
    @classmethod
    def _is_a_name(cls, name: str) -> str:
        if _NAME.fullmatch(name) is None:
            raise ValueError("must be a name of a-z, 0-9 and _, beginning with a letter, at most 63 of them")
        return name

    @field_validator("key")
    @classmethod
    def _once_each(cls, key: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(key)) < len(key):
            raise ValueError("names a property twice")
        return key


class Idempotency(Settings):
    """How long an `Idempotency-Key` is remembered: for `age`, and at most the latest `keys` of them."""

    age: Seconds = 86400.0
    """How long an `Idempotency-Key` is remembered."""
    keys: int = Field(100_000, gt=0, le=10_000_000)
    """The maximum number of remembered keys: the latest."""


class Serve(Settings):
    """The HTTP API of collections. Without `tokens` it is read-only, and only for this machine."""

    listen: str = "127.0.0.1:8080"
    """`host:port` of the API. An address that other machines reach needs tokens."""
    hosts: tuple[str, ...] = ()
    """Host names that requests may use, in addition to `localhost`, `listen`'s own and addresses; others get 421."""
    tokens: tuple[AccessToken, ...] = ()
    tls: ServerTls | None = None
    requests_per_second_max: float | None = Field(None, gt=0)
    """How many requests a second each token may send, or each address if it sends no token
    ([http.md](http.md#limits)). Default: no limit."""
    collections: tuple[Collection, ...] = Field(min_length=1)
    request_bytes_max: Bytes = 16 << 20
    """A larger body is refused."""
    idempotency: Idempotency = Idempotency()

    @field_validator("listen", mode="before")
    @classmethod
    def _host_and_port(cls, listen: object) -> object:
        # A port alone is a number in YAML, and so are some texts with colons.
        if isinstance(listen, str) and is_host_and_port(listen):
            return listen
        raise ValueError("must be host:port, such as 127.0.0.1:8080")

    @field_validator("collections")
    @classmethod
    def _names_differ(cls, collections: tuple[Collection, ...]) -> tuple[Collection, ...]:
        names = [one.name for one in collections]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"has two collections named {twice[0]}: give each its own name")
        return collections

    @model_validator(mode="after")
    def _asks_who_is_there(self) -> Self:
        check_tokens(self.listen, self.tokens, "serve.tokens")
        return self


class Push(Settings):
    """The source of a log that `cdcflow serve` writes: programs, not a database."""

    kind: Literal["push"]
