"""How the object store of a warehouse is reached: one that is compatible with S3, Google's or Azure's."""

from __future__ import annotations

import re
from typing import ClassVar
from urllib.parse import urlsplit

from pydantic import field_validator

from cdcflow.config.logs import StoreAccess
from cdcflow.config.references import SecretReference, secret
from cdcflow.model.stores import StoreAddress, StoreKind, StorePlace


class WarehouseStore(StoreAccess):
    """How the object store of a warehouse is reached; each kind of store has its own keys."""

    account: str | None = None
    """Azure: the name of the storage account. Default: the one in the URL, `abfss://container@account…`."""
    account_key: SecretReference = None
    """Azure: a reference to a key of the account. Without it: `AZURE_*` of the environment, then the machine's managed
    identity; a merge by Spark uses Spark's own settings."""
    service_account: SecretReference = None
    """Google Cloud Storage: a reference to the JSON of a service account's key, such as `${file:key.json}`. Without it:
    `GOOGLE_*` of the environment, then the machine's service account; a merge by Spark uses Spark's own settings."""

    _KEYS: ClassVar[dict[str, StoreKind]] = {
        "access_key": "s3",
        "secret_key": "s3",
        "account": "az",
        "account_key": "az",
        "service_account": "gs",
    }

    @field_validator("endpoint")
    @classmethod
    def _http(cls, endpoint: str | None) -> str | None:
        if endpoint is not None and re.fullmatch(r"https?://[^/@\s]+(/[^@?#\s]*)?", endpoint) is None:
            raise ValueError("must look like https://host:port, without user")
        return endpoint

    def check(self, place: StorePlace) -> None:
        """Check that the keys are of the kind of store that a warehouse is in. Raises ValueError."""
        if place.kind != "az" and urlsplit(self.endpoint or "").path not in ("", "/"):
            raise ValueError("has objects.endpoint with a path, which only Azure has: its account")
        for name, kind in self._KEYS.items():
            if getattr(self, name) is not None and kind != place.kind:
                raise ValueError(f"has objects.{name}, which a warehouse in this kind of store does not have")
        if place.kind == "az" and self.account is not None and place.account not in (None, self.account):
            raise ValueError("has objects.account, and the URL names another account")
        if place.kind == "az" and self.account_key is not None and (self.account or place.account) is None:
            raise ValueError("has objects.account_key without objects.account")

    def address_of(self, place: StorePlace) -> StoreAddress:
        """Return how a bucket in this store is reached, with the current keys."""
        match place.kind:
            case "s3":
                return self.address(place.bucket)
            case "gs":
                key = secret(self.service_account)
                return StoreAddress(place.bucket, self.endpoint, secret_key=key, kind="gs")
            case "az":
                account = self.account or place.account
                key = secret(self.account_key)
                endpoint = self.endpoint or place.endpoint
                return StoreAddress(place.bucket, endpoint, access_key=account, secret_key=key, kind="az")
