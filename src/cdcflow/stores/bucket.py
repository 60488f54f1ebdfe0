"""The one module that uses the object store's client library: a few calls, and its errors as cdcflow's.

Nothing here retries for long: the caller knows whether waiting is acceptable. A write whose answer was lost may have
succeeded, so `put_new` may report that an object exists already when this very call has written it; the caller
compares.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError
from obstore.store import AzureStore, GCSStore, S3Store

from cdcflow.config import Objects
from cdcflow.errors import CdcflowError, ConfigurationError
from cdcflow.model.stores import StoreAddress, StorePlace, place_in_store
from cdcflow.stores import refusals

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import AzureConfig, ClientConfig, GCSConfig, RetryConfig, S3Config

    AnyStore = S3Store | GCSStore | AzureStore

CONNECT_WITHIN = timedelta(seconds=5)
ANSWER_WITHIN = timedelta(seconds=30)
TRANSFER_WITHIN = timedelta(minutes=10)
STREAM_BYTES = 1 << 20
ONE_REQUEST_BYTES = 64 << 20
PART_BYTES = 16 << 20  # at most 10,000 of them
LISTED_AT_ONCE = 1000
RETRIES_MAX = 2


class AlreadyThere(Exception):
    """Raised when an object of that name exists already."""


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object's size, the store's tag of its content ("" if it has none), and when it was written, in seconds since
    1970 by the store's clock."""

    bytes: int
    tag: str = ""
    modified: float = field(default=0.0, compare=False)


@dataclass(frozen=True, slots=True)
class Digests:
    """A file's sha256, and the tag that a plain S3 store gives it when this module uploads it."""

    sha256: str
    tag: str

    @classmethod
    def of(cls, path: Path) -> Digests:
        """Read a file once, and return its digests. The tag is the MD5 of the content, or that of its parts' MD5s and
        their number."""
        size = path.stat().st_size
        part_bytes = PART_BYTES if size > ONE_REQUEST_BYTES else max(size, 1)
        digest = hashlib.sha256()
        parts: list[bytes] = []
        with path.open("rb") as file:
            while True:
                part, left = hashlib.md5(usedforsecurity=False), part_bytes
                while left and (block := file.read(min(STREAM_BYTES, left))):
                    digest.update(block)
                    part.update(block)
                    left -= len(block)
                if left == part_bytes and parts:
                    break
                parts.append(part.digest())
        if size > ONE_REQUEST_BYTES:
            together = hashlib.md5(b"".join(parts), usedforsecurity=False).hexdigest()
            return cls(digest.hexdigest(), f"{together}-{len(parts)}")
        return cls(digest.hexdigest(), parts[0].hex())


class Bucket:
    """One prefix of a bucket. May be used from several threads.

    Every call may raise SinkUnavailable (away, slow; try again) or ConfigurationError (no such bucket, no right).
    """

    def __init__(self, settings: Objects) -> None:
        self._begin(settings.url, settings.address, {})

    @classmethod
    def of_url(cls, url: str, address: Callable[[str], StoreAddress], names: Mapping[str, str] | None = None) -> Bucket:
        """Open the prefix of a bucket that a URL names.

        `address` returns how the bucket is reached, with the current keys; `names`: the names of `log.objects` and its
        settings in these settings.
        """
        bucket = cls.__new__(cls)
        bucket._begin(url, address, names or {})
        return bucket

    def _begin(self, url: str, address: Callable[[str], StoreAddress], names: Mapping[str, str]) -> None:
        self._address = address
        self._names = names
        self._stores: dict[timedelta, AnyStore] = {}
        self.name = url.rstrip("/")

    @property
    def address(self) -> StoreAddress:
        """The address with which another client reaches the bucket, with the current keys."""
        return self._address(_place_of(self.name).bucket)

    def put_new(self, name: str, content: bytes | Path) -> None:
        """Write an object, only if none of this name exists. A store of S3's kind compares its sha256.

        A file of more than `ONE_REQUEST_BYTES` is uploaded in parts, so that memory does not hold it. In that case an
        object that another process writes between the check and the end of the upload is replaced.

        Raises:
            AlreadyThere: it exists; nothing was written.
        """
        with self._asking("writing", name):
            store = self._store(TRANSFER_WITHIN)
            if isinstance(content, Path) and content.stat().st_size > ONE_REQUEST_BYTES:
                if self._is_there(name):
                    raise AlreadyThere(f"{self.name}/{name}")
                obstore.put(store, name, content, use_multipart=True, chunk_size=PART_BYTES, max_concurrency=4)
            else:
                obstore.put(store, name, content, mode="create")

    def put(self, name: str, content: bytes) -> None:
        """Write an object, replacing an existing one."""
        with self._asking("writing", name):
            obstore.put(self._store(ANSWER_WITHIN), name, content, use_multipart=False)

    def upload(self, name: str, content: bytes) -> None:
        """Write an object of any size, in parts if it is large; it is whole or does not exist."""
        with self._asking("writing", name):
            is_large = len(content) > ONE_REQUEST_BYTES
            store = self._store(TRANSFER_WITHIN)
            obstore.put(store, name, content, use_multipart=is_large, chunk_size=PART_BYTES, max_concurrency=4)

    def get_part(self, name: str, start: int, end: int) -> bytes:
        """Return a part of an object, from byte `start` to before byte `end`; less if the object ends before.

        Raises FileNotFoundError if it does not exist, EOFError if it ends before the part begins.
        """
        with self._asking("reading", name):
            try:
                return obstore.get_range(self._store(TRANSFER_WITHIN), name, start=start, end=end).to_bytes()
            except BaseError as error:
                if not refusals.is_beyond_end(error):
                    raise
        raise EOFError(f"{self.name}/{name} ends before byte {start}")

    def describe(self, name: str) -> StoredObject:
        """Return an object's size, tag and time. Raises FileNotFoundError if it does not exist."""
        with self._asking("reading", name):
            return _describe(obstore.head(self._store(ANSWER_WITHIN), name))

    def get(self, name: str) -> bytes:
        """Return the content of a small object. Raises FileNotFoundError if it does not exist."""
        with self._asking("reading", name):
            return obstore.get(self._store(ANSWER_WITHIN), name).bytes().to_bytes()

    def fetch(self, name: str, target: Path) -> str:
        """Copy an object into a file; return its sha256. Raises FileNotFoundError if it does not exist."""
        digest = hashlib.sha256()
        with self._asking("reading", name), target.open("wb") as file:
            for block in obstore.get(self._store(TRANSFER_WITHIN), name).stream(min_chunk_size=STREAM_BYTES):
                digest.update(block)
                file.write(block)
        return digest.hexdigest()

    def hash_of(self, name: str) -> str:
        """Return an object's sha256, computed by reading it. Raises FileNotFoundError if it does not exist."""
        digest = hashlib.sha256()
        with self._asking("reading", name):
            for block in obstore.get(self._store(TRANSFER_WITHIN), name).stream(min_chunk_size=STREAM_BYTES):
                digest.update(block)
        return digest.hexdigest()

    def folders(self, name: str) -> list[str]:
        """The names of the folders in a folder; one request lists a thousand."""
        with self._asking("listing", name):
            found = obstore.list_with_delimiter(self._store(ANSWER_WITHIN), name)
        return [prefix.rstrip("/").rpartition("/")[2] for prefix in found["common_prefixes"]]

    def list_objects(self, name: str) -> dict[str, StoredObject]:
        """All objects under a folder, by their names in it."""
        return dict(self.each_listed(name))

    def each_listed(self, name: str, after: str = "") -> Iterator[tuple[str, StoredObject]]:
        """Return the objects under a folder one after another, ordered by name: memory holds one page of the listing.

        `name`: "" for all objects of the prefix. `after`: only those whose names in the folder sort after this one.
        """
        folder = name.rstrip("/") + "/" if name else ""
        begin = folder + after if after else None
        with self._asking("listing", name):
            for page in obstore.list(self._store(ANSWER_WITHIN), folder, offset=begin, chunk_size=LISTED_AT_ONCE):
                for found in page:
                    # A store may ignore where the listing is to begin, as Azure's older versions do.
                    if begin is None or found["path"] > begin:
                        yield found["path"].removeprefix(folder), _describe(found)

    def delete(self, names: Sequence[str]) -> None:
        """Remove objects; missing ones count as removed."""
        if not names:
            return
        with self._asking("removing", names[0]):
            store = self._store(ANSWER_WITHIN)
            try:
                obstore.delete(store, list(names))
            except FileNotFoundError as error:
                if not refusals.is_missing(error):
                    raise
                # Azure and Google report a missing object, and do not report which others were removed.
                for name in names:
                    self._delete_one(store, name)

    @staticmethod
    def _delete_one(store: AnyStore, name: str) -> None:
        try:
            obstore.delete(store, name)
        except FileNotFoundError as error:
            if not refusals.is_missing(error):
                raise

    def _is_there(self, name: str) -> bool:
        try:
            obstore.head(self._store(ANSWER_WITHIN), name)
        except FileNotFoundError:
            return False
        return True

    def _prepare_request(self) -> None:
        """Do nothing. A subclass whose keys change clears `_stores` here, before each request."""

    def _store(self, within: timedelta) -> AnyStore:
        self._prepare_request()
        found = self._stores.get(within)
        if found is None:
            found = self._stores[within] = _open_store(self.name, self.address, within)
        return found

    @contextmanager
    def _asking(self, doing: str, name: str) -> Iterator[None]:
        """Convert the library's errors to cdcflow's."""
        attempt = f"{doing} {self.name}/{name}"
        try:
            yield
        except (AlreadyExistsError, PreconditionError):
            raise AlreadyThere(f"{self.name}/{name}") from None
        except FileNotFoundError as error:
            if error.filename is not None:
                raise  # one of cdcflow's files
            if refusals.is_missing(error):
                raise FileNotFoundError(2, "no such object", f"{self.name}/{name}") from None
            raise self._refusal(attempt, error) from None
        except BaseError as error:
            raise self._refusal(attempt, error) from None

    def _refusal(self, attempt: str, error: Exception) -> CdcflowError:
        found = refusals.refused_or_away(attempt, error, self.address.endpoint, self.address.kind)
        if isinstance(found, ConfigurationError):
            self._stores.clear()  # so that a changed secret is read again
        if found.remedy is None or not self._names:
            return found
        return type(found)(
            str(found).partition("\n")[0], remedy=self._with_configured_names(found.remedy), runbook=found.runbook
        )

    def _with_configured_names(self, text: str) -> str:
        for name, ours in self._names.items():
            text = text.replace(name, ours)
        return text


def _describe(found: ObjectMeta) -> StoredObject:
    return StoredObject(found["size"], (found["e_tag"] or "").strip('"'), found["last_modified"].timestamp())


def _place_of(url: str) -> StorePlace:
    found = place_in_store(url)
    assert found is not None  # noqa: S101  the settings accept no other URL
    return found


def _open_store(url: str, address: StoreAddress, within: timedelta) -> AnyStore:
    client: ClientConfig = {"connect_timeout": CONNECT_WITHIN, "timeout": within}
    if address.endpoint is not None and address.endpoint.startswith("http://"):
        client["allow_http"] = True
    retry: RetryConfig = {"max_retries": RETRIES_MAX, "retry_timeout": timedelta(seconds=10)}
    prefix = _place_of(url).key.strip("/") or None
    bucket = address.bucket
    match address.kind:
        case "s3":
            return S3Store(bucket, prefix=prefix, config=_of_s3(address), client_options=client, retry_config=retry)
        case "gs":
            return GCSStore(bucket, prefix=prefix, config=_of_gs(address), client_options=client, retry_config=retry)
        case "az":
            return AzureStore(bucket, prefix=prefix, config=_of_az(address), client_options=client, retry_config=retry)


def _of_s3(address: StoreAddress) -> S3Config:
    config: S3Config = {"checksum_algorithm": "SHA256", "region": address.region}
    if address.endpoint is not None:
        config["endpoint"] = address.endpoint
    if address.access_key is not None and address.secret_key is not None:
        config["access_key_id"], config["secret_access_key"] = address.access_key, address.secret_key
        if address.session_token is not None:
            config["session_token"] = address.session_token
    return config


def _of_gs(address: StoreAddress) -> GCSConfig:
    config: GCSConfig = {}
    if address.endpoint is not None:
        config["base_url"] = address.endpoint.rstrip("/")
    if address.secret_key is not None:
        config["service_account_key"] = address.secret_key
    return config


def _of_az(address: StoreAddress) -> AzureConfig:
    config: AzureConfig = {}
    if address.endpoint is not None:
        config["endpoint"] = address.endpoint
    if address.access_key is not None:
        config["account_name"] = address.access_key
    if address.secret_key is not None:
        config["account_key"] = address.secret_key
    return config
