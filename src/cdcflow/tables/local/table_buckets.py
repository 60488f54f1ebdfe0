"""The buckets that have a catalog's Iceberg tables. A bucket is opened once, and once more for each table that has
separate keys."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cdcflow.model.stores import StoreAddress, StorePlace
from cdcflow.tables.local.vended_keys import ACCESS, SECRET, TOKEN, VendedKeys

if TYPE_CHECKING:
    from cdcflow.tables.bucket_folders import BucketFolder

BUCKETS = "cdcflow.buckets"
"""The name of the catalog property that holds the `TableBuckets`."""

_REGIONS = ("s3.region", "client.region")

Identifier = tuple[str, ...]


class TableBuckets:
    """The buckets of a catalog's tables, each opened once per owner of keys. May be used from several threads."""

    def __init__(self, address: StoreAddress | None, properties: Mapping[str, str]) -> None:
        """`address`: how the warehouse's bucket is reached; `properties`: the catalog's."""
        self._address = address
        self._properties = properties
        self._folders: dict[tuple[Identifier, str], BucketFolder] = {}  # by owner and the bucket's URL
        self._keys: dict[Identifier, VendedKeys] = {}
        self._lock = threading.Lock()

    def keys_of(
        self, identifier: Identifier, given: Mapping[str, str], load: Callable[[], Mapping[str, str]]
    ) -> Identifier:
        """Record the keys that came with a table, if there are any. Return the owner whose keys open the buckets: the
        table, or () for the warehouse."""
        if ACCESS not in given:
            return ()
        with self._lock:
            found = self._keys.setdefault(identifier, VendedKeys(given, load))
        found.offer(given)
        return identifier

    def folder(self, place: StorePlace, owner: Identifier = ()) -> BucketFolder:
        """Return the folder of a bucket, opened with the keys of `owner`."""
        from cdcflow.tables.bucket_folders import BucketFolder
        from cdcflow.tables.local.renewed_bucket import RenewedBucket

        with self._lock:
            found = self._folders.get((owner, place.root))
            if found is None:
                keys = self._keys.get(owner)
                opened = RenewedBucket.with_keys(place.root, lambda _: self._address_of(place, keys), keys)
                location = place.root.replace("s3://", "s3a://", 1)
                found = self._folders[owner, place.root] = BucketFolder(opened, location)
        return found

    def close(self) -> None:
        """End the threads of requests."""
        with self._lock:
            for folder in self._folders.values():
                folder.close()

    def _address_of(self, place: StorePlace, keys: VendedKeys | None) -> StoreAddress:
        given = StoreAddress.of_place(place)
        found = given if self._address is None else self._address.for_place(place)
        if place.kind != "s3":
            return found
        return _with_properties(_with_properties(found, self._properties), {} if keys is None else keys.given)


def _with_properties(address: StoreAddress, properties: Mapping[str, str]) -> StoreAddress:
    """Return an address, changed as far as these properties, in Iceberg's names, specify it."""
    more: dict[str, Any] = {}
    if ACCESS in properties and SECRET in properties:
        token = properties.get(TOKEN)
        address = replace(address, access_key=properties[ACCESS], secret_key=properties[SECRET], session_token=token)
    if (endpoint := properties.get("s3.endpoint")) is not None:
        more["endpoint"] = endpoint
    if (region := next((properties[name] for name in _REGIONS if name in properties), None)) is not None:
        more["region"] = region
    return replace(address, **more) if more else address
