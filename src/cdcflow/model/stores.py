"""Object stores: the place in a store that a URL names, and how to reach it; passed from one client to another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

StoreKind = Literal["s3", "gs", "az"]

SCHEMES: Mapping[str, StoreKind] = {
    "s3": "s3",
    "s3a": "s3",
    "s3n": "s3",
    "gs": "gs",
    "az": "az",
    "abfs": "az",
    "abfss": "az",
}
"""The schemes of URLs that name objects, and the kind of store. Several schemes of one kind name the same object."""

_AZURE = "core.windows.net"


@dataclass(frozen=True, slots=True)
class StorePlace:
    """A place in an object store, named by a URL.

    `bucket`: in Azure the container. `key`: the rest of the URL, an object's name or a prefix, without a slash at the
    beginning. `server`: in Azure the host that the URL names, `account.dfs.core.windows.net`.
    """

    kind: StoreKind
    bucket: str
    key: str = ""
    server: str | None = None

    @property
    def root(self) -> str:
        """The URL of the bucket."""
        if self.kind != "az":
            return f"{self.kind}://{self.bucket}"
        return f"az://{self.bucket}" if self.server is None else f"abfss://{self.bucket}@{self.server}"

    @property
    def account(self) -> str | None:
        """The storage account in Azure, if the URL names it."""
        return None if self.server is None else self.server.partition(".")[0]

    @property
    def endpoint(self) -> str | None:
        """The endpoint of an Azure cloud other than the public one; None for the public cloud, and for other stores."""
        if self.server is None or self.server.endswith(f".{_AZURE}"):
            return None
        return f"https://{self.server.replace('.dfs.', '.blob.', 1)}"


def place_in_store(url: str) -> StorePlace | None:
    """Return the place in an object store that a URL names; `None` for anything else, such as a path or `hdfs://…`."""
    scheme, separator, rest = url.partition("://")
    kind = SCHEMES.get(scheme) if separator else None
    if kind is None:
        return None
    host, _, key = rest.partition("/")
    container, at, server = host.partition("@")
    return StorePlace(kind, container, key, server) if kind == "az" and at else StorePlace(kind, host, key)


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """How a bucket is reached. Without keys a client uses its own way of finding credentials.

    `endpoint`: a URL; None: the cloud's own endpoint. `access_key`, `secret_key`: for S3 its two keys; for Azure the
    storage account and its key; for Google Cloud Storage only `secret_key`, the JSON of a service account's key.
    `session_token`: the token of temporary keys of S3.
    """

    bucket: str
    endpoint: str | None = None
    region: str = "us-east-1"
    access_key: str | None = field(default=None, repr=False)
    secret_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    kind: StoreKind = "s3"

    @classmethod
    def of_place(cls, place: StorePlace) -> StoreAddress:
        """Return the address that a URL alone gives."""
        return cls(place.bucket, place.endpoint, access_key=place.account, kind=place.kind)

    def for_place(self, place: StorePlace) -> StoreAddress:
        """Return the address of another bucket in the same store. If the bucket is in another store, return the address
        that its URL alone gives."""
        if place.kind != self.kind or place.account not in (None, self.access_key):
            return self.of_place(place)
        return replace(self, bucket=place.bucket)
