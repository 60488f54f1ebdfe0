"""The registers of a fleet, as the settings name them."""

from __future__ import annotations

from pathlib import Path

from cdcflow.config import FleetRegister, StoreAccess
from cdcflow.fleet.registers import ReportBucket, ReportFolder, ReportRegister
from cdcflow.wiring.logs import client_library


def fleet_register(settings: FleetRegister, setting: str = "service.fleet") -> ReportRegister:
    """Return the register that these settings name; nothing is read yet. `setting`: their name, for errors.

    Raises:
        ConfigurationError: it is in a bucket, and the client library is not installed.
    """
    if isinstance(settings.at, Path):
        return ReportFolder(settings.at)
    with client_library(setting):
        from cdcflow.stores.bucket import Bucket
    access = settings.objects or StoreAccess()
    names = {"log.objects.url": f"{setting}.at", "log.objects": f"{setting}.objects"}
    return ReportBucket(Bucket.of_url(settings.at, access.address, names))
