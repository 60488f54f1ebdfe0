"""Searches files for a canary: a text that is in every value that a policy protects, and must be in no file.

Every file is searched byte by byte, and in the form that its readers see: columns of Parquet, rows frames of journals
and spools, compressed texts and keys inside of JSON.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import gzip
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from tests.support.log.page_reader import RowsFrames, frames_of
from tests.support.polling import wait_until

CANARY = "c4n4ry"
MAGIC = b"cdcflow\n"
_PACKED = re.compile(rb"[A-Za-z0-9+/=_!#$%&()*;<>?@^`{|}~-]{40,}")


def canaries_in(folder: Path) -> list[str]:
    """The places below a folder where a canary is, as texts."""
    found = []
    for path in sorted(p for p in folder.rglob("*") if p.is_file() and not p.is_symlink()):
        with contextlib.suppress(FileNotFoundError):
            found += [f"{path.relative_to(folder)}: {where}" for where in places_in(_whole_content(path))]
    return found


def _whole_content(path: Path) -> bytes:
    """Return a file's content once it is whole: a running daemon may be writing it. Raises FileNotFoundError if it is
    removed."""
    content = b""

    def is_whole() -> bool:
        nonlocal content
        content = path.read_bytes()
        return content[:4] != b"PAR1" or content[-4:] == b"PAR1"

    wait_until(is_whole, f"{path.name} to be whole")
    return content


def places_in(content: bytes) -> Iterator[str]:
    """Where the canary is in a file's content."""
    if has_canary(content):
        yield "its bytes"
    if content[:2] == b"\x1f\x8b":
        yield from places_in(gzip.decompress(content))
    elif content[:4] == b"PAR1":
        yield from _in_table("Parquet", pq.read_table(pa.BufferReader(content)))
    elif content.startswith(MAGIC):
        yield from _in_frames(content)
    else:
        yield from _in_packed(content)


def has_canary(content: bytes) -> bool:
    """As text, in hexadecimal digits, in base64 (in each of its three alignments), or in UTF-16."""
    word = CANARY.encode()
    # Only the characters that no neighbouring byte changes.
    aligned = [base64.b64encode(b"x" * n + word)[n and n + 1 : (len(word) + n) * 8 // 6] for n in range(3)]
    forms = [word, word.hex().encode(), CANARY.encode("utf-16-le"), *aligned]
    return any(form in content for form in forms)


def _in_frames(content: bytes) -> Iterator[str]:
    header, frames = frames_of(content)
    yield from _in_json(header)
    reader = RowsFrames()
    for _, kind, payload in frames:
        if kind == 1:
            reader.shapes.append(json.loads(payload)["table"])
        if kind == 2:
            shape, _, rows = reader.read(payload)
            if has_canary(repr(rows).encode()):
                yield f"a rows frame of {shape['name']}"
        else:
            yield from _in_packed(payload)


def _in_json(value: Any) -> Iterator[str]:
    yield from _in_packed(json.dumps(value).encode())


def _in_packed(content: bytes) -> Iterator[str]:
    """In texts that a checkpoint stores compressed: keys, and shapes of tables."""
    for packed in _PACKED.findall(content):
        for decode in (base64.b64decode, base64.urlsafe_b64decode, base64.b85decode):
            with contextlib.suppress(binascii.Error, ValueError):
                plain = decode(packed)
                if has_canary(plain):
                    yield "a packed text"
                with contextlib.suppress(zlib.error):
                    if has_canary(zlib.decompress(plain)):
                        yield "a compressed text"
                with contextlib.suppress(pa.ArrowException, OSError), pa.ipc.open_stream(plain) as stream:
                    yield from _in_table("keys", stream.read_all())


def _in_table(what: str, table: pa.Table) -> Iterator[str]:
    for name in table.column_names:
        if has_canary(repr(table.column(name).to_pylist()).encode()):
            yield f"{what}, column {name}"
