"""A fleet: where its members publish what they do, and the settings file of `cdcflow fleet`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from cdcflow.config.access import AccessToken, ServerTls, check_tokens
from cdcflow.config.base import URL, Settings, is_host_and_port
from cdcflow.config.logs import StoreAccess
from cdcflow.config.references import SecretReference
from cdcflow.config.units import Seconds

EVERY_MIN_S, EVERY_MAX_S = 1.0, 600.0
NAME_CHARACTERS_MAX = 100
_BUCKET = re.compile(r"s3://[^/@:?#\s]+(/[^?#]*)?")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_PAGE = re.compile(r"https?://[^\s/@?#]+(/[^\s@?#]*)?")


def _often_enough(every_s: float) -> float:
    if not EVERY_MIN_S <= every_s <= EVERY_MAX_S:
        raise ValueError(f"must be from {EVERY_MIN_S:g}s to {EVERY_MAX_S / 60:g}m")
    return every_s


def _valid_name(name: str) -> str:
    if _NAME.fullmatch(name) is None or len(name) > NAME_CHARACTERS_MAX:
        raise ValueError(
            f"must be at most {NAME_CHARACTERS_MAX} letters, digits, dots, underscores and hyphens, such as shop-eu"
        )
    return name


FleetInterval = Annotated[Seconds, AfterValidator(_often_enough)]
PipelineName = Annotated[str, AfterValidator(_valid_name)]


class FleetRegister(Settings):
    """A place where members publish what they do: a folder, or a prefix of a bucket."""

    at: Path | str
    """A folder, or a prefix of a bucket (`s3://bucket/prefix`), which all members and `cdcflow fleet` reach
    ([fleet.md](fleet.md))."""
    objects: StoreAccess | None = None

    @field_validator("at", mode="before")
    @classmethod
    def _folder_or_bucket(cls, at: object) -> object:
        # A Path would lose one of a URL's slashes and become a folder of that name.
        if not isinstance(at, str):
            return at
        if at.startswith("file:///"):
            return Path(at.removeprefix("file://"))
        if not URL.match(at):
            return Path(at)
        if _BUCKET.fullmatch(at) is None:
            raise ValueError("must be a folder, or a URL such as s3://bucket/prefix")
        return at.rstrip("/")

    @model_validator(mode="after")
    def _store_has_keys(self) -> Self:
        if self.objects is not None and isinstance(self.at, Path):
            raise ValueError("has objects, which only a place in an object store (s3://bucket/prefix) needs")
        return self


class FleetMembership(FleetRegister):
    """How this pipeline appears on the page of a fleet: `cdcflow run`, and `cdcflow merge --every` on other machines,
    publish their state there ([fleet.md](fleet.md))."""

    name: PipelineName
    """The pipeline's name on the fleet's page. Its daemon, its standby and its merges share this name, and no other
    pipeline has it."""
    every: FleetInterval = 15.0
    """How often the state is published. A member that has published nothing for three times as long, and at least 30
    s, is shown as silent."""
    page: str | None = None
    """The URL of this daemon's own page, for a link from the fleet's. Default: no link."""

    @field_validator("page")
    @classmethod
    def _web_page(cls, page: str | None) -> str | None:
        return _checked_url(page)


class FleetMember(Settings):
    """A daemon that `cdcflow fleet` queries over HTTP, instead of reading what it publishes."""

    name: PipelineName
    """The pipeline's name on the page. `members` is a list:
    `[{name: shop, url: "https://shop.internal:8079", token: "${file:/run/secrets/shop}"}]`."""
    url: str
    """The address of the daemon's page, `http://` or `https://`."""
    token: SecretReference = None
    """A reference to one of the daemon's tokens, with the role `read`; it is read again at each request, and shown
    nowhere. Default: no token."""
    ca: Path | None = None
    """The file with the certificate authority of the daemon's certificate, in PEM. Default: the system's authorities.
    """

    @field_validator("url")
    @classmethod
    def _web_page(cls, url: str) -> str | None:
        return _checked_url(url)

    @model_validator(mode="after")
    def _has_a_certificate(self) -> Self:
        if self.ca is not None and not self.url.startswith("https://"):
            raise ValueError("has ca, and its url is not https://")
        return self


def _checked_url(url: str | None) -> str | None:
    if url is not None and _PAGE.fullmatch(url) is None:
        raise ValueError("must be a URL such as https://host:8079/, without user, password or query")
    return url


class Fleet(Settings):
    """The settings file of `cdcflow fleet`: where its members are, and who may see the page."""

    registers: tuple[FleetRegister, ...] = ()
    members: tuple[FleetMember, ...] = ()
    every: FleetInterval = 15.0
    """How often registers are read and members are queried."""
    listen: str = "127.0.0.1:8070"
    """`host:port` for the page, the API and metrics; needs `pip install 'cdcflow[service]'`. An address that other
    machines reach needs tokens."""
    hosts: tuple[str, ...] = ()
    """Host names that requests may use, in addition to `localhost`, `listen`'s own and addresses; others get 421."""
    tokens: tuple[AccessToken, ...] = ()
    tls: ServerTls | None = None
    requests_per_second_max: float | None = Field(None, gt=0)
    """How many requests a second each token may send, or each address if it sends no token
    ([http.md](http.md#limits)). Default: no limit."""

    @field_validator("listen", mode="before")
    @classmethod
    def _host_and_port(cls, listen: object) -> object:
        # A port alone is a number in YAML, and so are some texts with colons.
        if isinstance(listen, str) and is_host_and_port(listen):
            return listen
        raise ValueError("must be host:port, such as 127.0.0.1:8070")

    @model_validator(mode="after")
    def _has_members(self) -> Self:
        if not self.registers and not self.members:
            raise ValueError("has neither registers nor members: set one of them, or both")
        check_tokens(self.listen, self.tokens, "tokens")
        return self
