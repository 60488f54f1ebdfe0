"""A bucket that is reached with the keys that a catalog gave for a table, and with new ones when these expire."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from cdcflow.errors import ConfigurationError
from cdcflow.model.stores import StoreAddress
from cdcflow.stores.bucket import Bucket, StoredObject
from cdcflow.tables.local.vended_keys import VendedKeys

NAMES = {"log.objects": "merge.objects"}
"""Replacements for the settings that an error of the store's client names."""

_Answer = TypeVar("_Answer")


class RenewedBucket(Bucket):
    """A bucket whose keys are renewed. Each request uses keys that are not about to expire, and is repeated with new
    ones if the store refuses them."""

    _keys: VendedKeys | None = None

    @classmethod
    def with_keys(cls, url: str, address: Callable[[str], StoreAddress], keys: VendedKeys | None) -> RenewedBucket:
        """Return the bucket at a URL. `keys`: `None` for keys of the settings or the environment, which are not
        renewed."""
        found = cls.of_url(url, address, NAMES)
        assert isinstance(found, RenewedBucket)  # noqa: S101  for mypy
        found._keys = keys
        return found

    def get(self, name: str) -> bytes:
        return self._request(lambda: super(RenewedBucket, self).get(name))

    def get_part(self, name: str, start: int, end: int) -> bytes:
        return self._request(lambda: super(RenewedBucket, self).get_part(name, start, end))

    def describe(self, name: str) -> StoredObject:
        return self._request(lambda: super(RenewedBucket, self).describe(name))

    def upload(self, name: str, content: bytes) -> None:
        self._request(lambda: super(RenewedBucket, self).upload(name, content))

    def delete(self, names: Sequence[str]) -> None:
        self._request(lambda: super(RenewedBucket, self).delete(names))

    def _prepare_request(self) -> None:
        if self._keys is not None and self._keys.is_due and self._keys.renew():
            self._stores.clear()

    def _request(self, request: Callable[[], _Answer]) -> _Answer:
        try:
            return request()
        except ConfigurationError:
            if self._keys is None or not self._keys.renew():
                raise
            self._stores.clear()
            return request()
