"""Opens the folder of a warehouse."""

from __future__ import annotations

from cdcflow.errors import ConfigurationError
from cdcflow.model.stores import StoreAddress
from cdcflow.tables.folders import DiskFolder, WarehouseFolder
from cdcflow.tables.paths import Warehouse

_SETTINGS = {
    "log.objects.url": "merge.warehouse",
    "log.objects": "merge.objects",
}
"""The store's client names the settings of a log in its errors. These are the corresponding settings of a warehouse.
"""


def open_folder(warehouse: Warehouse) -> WarehouseFolder:
    """Return the folder of a warehouse.

    Raises:
        ConfigurationError: only Spark reaches the warehouse, or the client of object stores is not installed.
    """
    place = warehouse.place
    if place is None:
        return DiskFolder(warehouse.folder.resolve())
    try:
        # Imported here, so that a warehouse in a folder does not need the client of object stores.
        from cdcflow.stores.bucket import Bucket
        from cdcflow.tables.bucket_folders import BucketFolder
    except ImportError as error:
        raise ConfigurationError(
            f"merging without Spark into {warehouse} needs a package that is not installed",
            remedy="run `pip install 'cdcflow[local,objects]'`",
            runbook="package-missing",
        ) from error
    url, address = str(warehouse.root), warehouse.store or StoreAddress.of_place(place)
    return BucketFolder(Bucket.of_url(url, lambda _: address, _SETTINGS), url)
