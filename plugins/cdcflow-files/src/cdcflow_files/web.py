"""Files at URLs, and at the URLs of lists, as items of a poll.

    HEAD ──▶ ETag, Last-Modified, Content-Length: whether it may have changed
    GET  ──▶ the content, with the same three, so that what was read is what was seen

If a server sends neither ETag nor Last-Modified, the content is read at each poll, and its hash compared.
Last-Modified has whole seconds: a file that was changed less than two seconds before the answer may change again
with the same headers, so it is read at a later poll.

Headers with secrets are sent to the hosts that the settings name, never to those of a list or of a redirection.
"""

from __future__ import annotations

import hashlib
import http.client
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from email.message import Message
from email.utils import parsedate_to_datetime
from functools import partial
from pathlib import Path
from urllib.parse import urljoin, urlsplit

import pyarrow as pa

from cdcflow.errors import SourceUnavailable
from cdcflow.ports import Finding, secret
from cdcflow.sources.polled import Changing, Item, Unfit
from cdcflow_files.formats import ending_of, format_of, read_file
from cdcflow_files.items import check_size, make_item
from cdcflow_files.settings import SCHEMA, FilesSettings, is_web_address

ANSWER_WITHIN_S = 30.0
AT_ONCE = 8
LIST_BYTES_MAX = 8 << 20
SETTLED_S = 2.0
"""The age that Last-Modified must have, in seconds before the answer, to prove that the file has not changed since.
"""
_BLOCK_BYTES = 1 << 20
_WITHOUT_HEAD = (403, 405, 501)
_AGAIN = "the table continues when the URL answers with a file"


class _Refused(Exception):
    """The error for a URL that does not answer with a file. Its text is the reason, without a secret."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """The facts about a file in an answer's headers. `print`: a text that changes with the content; "" if no header
    has one. `is_settled`: False if the content may still change without a change of the headers."""

    print: str
    is_settled: bool


class WebFiles:
    """Implements `cdcflow.sources.polled.Poller` for URLs."""

    def __init__(self, settings: FilesSettings) -> None:
        self._settings = settings

    @property
    def name(self) -> str:
        return "web"

    def items(self) -> Sequence[Item]:
        """The files that answer, in the order of the settings. A file that does not answer stops only its own table.

        Raises:
            SourceUnavailable: no URL answers.
        """
        with ThreadPoolExecutor(AT_ONCE) as threads:
            listed = [found for items in threads.map(self._listed, self._lists()) for found in items]
            alone = [(table, url) for table, urls in self._settings.urls.items() for url in urls]
            urls = list(dict.fromkeys([*alone, *(one for one in listed if not isinstance(one, Item))]))
            items = [*(one for one in listed if isinstance(one, Item)), *threads.map(self._item, urls)]
        failed = [one for one in items if one is not None and one.print.startswith("refused")]
        if failed and len(failed) == len(items):
            raise SourceUnavailable(
                f"reading {failed[0].name}: {failed[0].print.removeprefix('refused: ')}",
                remedy="check source.urls and source.lists, and that this machine reaches the servers",
                runbook="source-unavailable",
            )
        return [one for one in items if one is not None]

    def doctor(self) -> Iterator[Finding]:
        addresses = [url for urls in self._settings.urls.values() for url in urls] + list(self._settings.lists.values())
        for url in addresses:
            try:
                self._look(url)
            except _Refused as why:
                yield Finding("error", url, str(why), "correct source.urls or source.lists, or publish the file")
            else:
                yield Finding("ok", url, "answers")

    def _lists(self) -> list[tuple[str, str]]:
        return list(self._settings.lists.items())

    def _listed(self, one: tuple[str, str]) -> list[tuple[str, str] | Item]:
        """Return each URL of a list with its table; if the list cannot be read, an item that stops the table with the
        reason."""
        table, address = one
        try:
            with self._answer("GET", address) as answer:
                content = answer.read(LIST_BYTES_MAX + 1)
            if len(content) > LIST_BYTES_MAX:
                raise _Refused(f"the list has more than {LIST_BYTES_MAX >> 20} MiB")
            urls = list(dict.fromkeys(_urls(content, address)))
        except _Refused as why:
            return [self._stopping(table, address, str(why))]
        return [(table, url) for url in urls]

    def _item(self, one: tuple[str, str]) -> Item | None:
        """Return the item of the file at a URL; None if the file may still be changing, so that a later poll reads
        it."""
        table, url = one
        try:
            seen = self._look(url)
            print_ = seen.print or self._hash_of(url)
        except _Refused as why:
            return self._stopping(table, url, str(why))
        if not seen.is_settled:
            return None
        name = table.removeprefix(f"{SCHEMA}.")
        return make_item(self._settings, name, url, print_, partial(self._read, url, print_))

    def _stopping(self, table: str, url: str, why: str) -> Item:
        def read(types: Mapping[str, pa.DataType]) -> pa.Table:
            raise Unfit(why, _AGAIN)

        return make_item(self._settings, table.removeprefix(f"{SCHEMA}."), url, f"refused: {why}", read)

    def _look(self, url: str) -> _Seen:
        try:
            with self._answer("HEAD", url) as answer:
                return _seen(answer.headers)
        except _Refused as why:
            if not str(why).endswith(tuple(f"answered {code}" for code in _WITHOUT_HEAD)):
                raise
        with self._answer("GET", url) as answer:
            return _seen(answer.headers)

    def _hash_of(self, url: str) -> str:
        digest = hashlib.sha256()
        with self._answer("GET", url) as answer:
            for block in _blocks(answer):
                digest.update(block)
        return digest.hexdigest()

    def _read(self, url: str, print_: str, types: Mapping[str, pa.DataType]) -> pa.Table:
        path = urlsplit(url).path
        digest, size = hashlib.sha256(), 0
        with tempfile.TemporaryDirectory(prefix="cdcflow-files-") as folder:
            file = Path(folder) / f"content{ending_of(path)}"
            try:
                with self._answer("GET", url) as answer, file.open("wb") as target:
                    now = _seen(answer.headers).print
                    for block in _blocks(answer):
                        size += len(block)
                        check_size(self._settings, size)
                        digest.update(block)
                        target.write(block)
            except _Refused as why:
                raise Unfit(str(why), _AGAIN) from None
            if (now or digest.hexdigest()) != print_:
                raise Changing
            return read_file(file, types, self._settings.csv)

    @contextmanager
    def _answer(self, method: str, url: str) -> Iterator[http.client.HTTPResponse]:
        """Raises:
        _Refused: no answer, or not a file's.
        """
        request = urllib.request.Request(url, method=method, headers={"Accept-Encoding": "identity"})  # noqa: S310
        if _host(url) in self._settings.hosts:
            for name, reference in self._settings.headers.items():
                request.add_unredirected_header(name, secret(reference) or "")
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_WITHIN_S) as answer:  # noqa: S310  http and https only
                if answer.headers.get("Content-Encoding", "identity") != "identity":
                    raise _Refused("it is sent with a Content-Encoding, which was not requested")
                yield answer
        except urllib.error.HTTPError as error:
            raise _Refused(f"it answered {error.code}") from None
        except urllib.error.URLError as error:
            why = error.reason
            text = why.strerror or type(why).__name__ if isinstance(why, OSError) else type(why).__name__
            raise _Refused(f"no answer: {text}") from None
        except (http.client.HTTPException, OSError, ValueError) as error:
            raise _Refused(f"no whole answer: {type(error).__name__}") from None


def _seen(headers: Message) -> _Seen:
    tag, modified = headers.get("ETag", ""), headers.get("Last-Modified", "")
    if not tag and not modified:
        return _Seen("", True)
    changed, now = _time(modified), _time(headers.get("Date", ""))
    is_settled = changed is None or now is None or (now - changed).total_seconds() >= SETTLED_S
    return _Seen(" ".join(("web", tag, modified, headers.get("Content-Length", ""))), is_settled)


def _time(text: str) -> datetime | None:
    try:
        found = parsedate_to_datetime(text)
    except ValueError:
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def _blocks(answer: http.client.HTTPResponse) -> Iterator[bytes]:
    """Yield the content of an answer.

    Raises:
        _Refused: the answer ends before its length.
    """
    left = int(answer.headers.get("Content-Length") or 0)
    while block := answer.read(_BLOCK_BYTES):
        left -= len(block)
        yield block
    if left > 0:
        raise _Refused("no whole answer: it ended early")


def _urls(content: bytes, address: str) -> Iterator[str]:
    """Yield the URLs in a list, which has one per line. A relative URL is resolved against the URL of the list."""
    try:
        lines = content.decode().splitlines()
    except UnicodeDecodeError:
        raise _Refused("the list is not UTF-8 text") from None
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        url = urljoin(address, text)
        if not is_web_address(url):
            raise _Refused(f"line {number} of the list is not the URL of a file, or has a secret in it")
        if format_of(urlsplit(url).path) is not None:
            yield url


def _host(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"
