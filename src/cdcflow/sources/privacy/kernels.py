"""Applies each policy to a column's values, in columns. Pure.

NULL stays NULL. A value that was not sent is NULL too, and must not look like a value that was sent.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Sequence
from typing import Protocol, cast

import pyarrow as pa
import pyarrow.compute as pc

from cdcflow.model.change import Int64s
from cdcflow.sources.engine.compiled_module import compiled_module

Convert = Callable[[pa.Array], pa.Array]

MASK = "****"
_BLOCK = 64
_INNER = bytes(byte ^ 0x36 for byte in range(256))
_OUTER = bytes(byte ^ 0x5C for byte in range(256))


class Cipher(Protocol):
    """The interface of `AESGCMSIV` of the package `cryptography`."""

    def encrypt(self, nonce: bytes, data: bytes, associated_data: bytes | None) -> bytes: ...
    def decrypt(self, nonce: bytes, data: bytes, associated_data: bytes | None) -> bytes: ...


def text_of(values: pa.Array) -> pa.Array:
    """Return values as text, which is what policies hash and encrypt. Raises pa.ArrowException for types
    without one."""
    return values if pa.types.is_string(values.type) else values.cast(pa.string())


def bytes_of(values: pa.Array) -> pa.Array:
    """Return the bytes of values: their text in UTF-8, or the values themselves if they are bytes."""
    return values if pa.types.is_binary(values.type) else text_of(values).cast(pa.binary())


def nulls_of(arrow: pa.DataType) -> Convert:
    return lambda values: pa.nulls(len(values), arrow)


def constant_of(value: pa.Scalar) -> Convert:
    return lambda values: pc.if_else(values.is_valid(), value, pa.scalar(None, value.type))


def mask_of(keep_last: int) -> Convert:
    """Return a conversion to `****`, followed by the last `keep_last` characters of texts that have at least twice as
    many.

    The length of the rest is hidden.
    """
    whole = constant_of(pa.scalar(MASK))
    if not keep_last:
        return whole

    def convert(values: pa.Array) -> pa.Array:
        texts = text_of(values)
        shown = pc.binary_join_element_wise(MASK, pc.utf8_slice_codeunits(texts, -keep_last), "")
        return pc.if_else(pc.greater_equal(pc.utf8_length(texts), 2 * keep_last), shown, whole(values))

    return convert


def truncate_of(count: int) -> Convert:
    def convert(values: pa.Array) -> pa.Array:
        if pa.types.is_binary(values.type):
            return pc.binary_slice(values, 0, count)
        return pc.utf8_slice_codeunits(values, 0, count)

    return convert


class CompiledHmac(Protocol):
    """Computes HMAC-SHA-256 with one key, as text after a prefix. It returns None if the plain kernel must compute
    it."""

    def digests(self, values: pa.Array) -> pa.Array | None: ...


class CompiledOpenssl(Protocol):
    """The compiled kernels; `compiled/openssl.pyx` documents them."""

    HAS_GCM_SIV: bool

    def recent_values(self, values: pa.Array) -> int: ...

    def Hmac(self, key: bytes, prefix: str) -> CompiledHmac: ...  # noqa: N802  a class

    def encrypt_values(
        self,
        values: pa.Array,
        keys: Sequence[bytes | None],
        prefixes: Sequence[str],
        nonce: bytes,
        owners: Int64s | None = None,
    ) -> pa.Array | None: ...

    def in_base64(
        self, contents: Sequence[bytes | None], prefixes: Sequence[str], owners: Int64s | None = None
    ) -> pa.Array | None: ...


COMPILED = cast("CompiledOpenssl | None", compiled_module("cdcflow.sources.privacy.compiled.openssl"))


def hash_of(key: bytes, prefix: str, compiled: CompiledOpenssl | None = COMPILED) -> Convert:
    """Return a conversion to HMAC-SHA-256 of each value's bytes in hexadecimal digits, after a prefix."""
    plain = _plain_hash(key, prefix)
    if compiled is None:
        return plain
    hmac = compiled.Hmac(key, prefix)

    def convert(values: pa.Array) -> pa.Array:
        found = hmac.digests(bytes_of(values))
        return plain(values) if found is None else found

    return convert


def _plain_hash(key: bytes, prefix: str) -> Convert:
    """Return the plain conversion of `hash_of`, which is the reference."""
    key = hashlib.sha256(key).digest() if len(key) > _BLOCK else key
    key = key.ljust(_BLOCK, b"\0")
    # Copying the two hashes that have begun takes a third of the time of a call that begins with the key.
    inner, outer = hashlib.sha256(key.translate(_INNER)), hashlib.sha256(key.translate(_OUTER))

    def digest(value: bytes) -> str:
        first, second = inner.copy(), outer.copy()
        first.update(value)
        second.update(first.digest())
        return prefix + second.hexdigest()

    return _each_distinct(digest)


def encrypt_of(
    key: bytes, cipher: Cipher, nonce: bytes, prefix: str, compiled: CompiledOpenssl | None = COMPILED
) -> Convert:
    """Return a conversion that encrypts each value's bytes, to URL-safe base64 after a prefix. `cipher`: a cipher with
    this key."""

    def plain(values: pa.Array) -> pa.Array:
        """Encrypt without OpenSSL's AES-GCM-SIV: each distinct value once, as a Python object."""
        if values.null_count == len(values):
            return pa.nulls(len(values), pa.string())
        encoded = bytes_of(values).dictionary_encode()
        contents = [cipher.encrypt(nonce, value, None) for value in encoded.dictionary.to_pylist()]
        return base64_texts(contents, [prefix], None, compiled).take(encoded.indices)

    def convert(values: pa.Array) -> pa.Array:
        assert compiled is not None  # noqa: S101  see below
        found = compiled.encrypt_values(bytes_of(values), [key], [prefix], nonce)
        return plain(values) if found is None else found

    return plain if compiled is None or not compiled.HAS_GCM_SIV else convert


def base64_texts(
    contents: Sequence[bytes | None],
    prefixes: Sequence[str],
    owners: Int64s | None,
    compiled: CompiledOpenssl | None = COMPILED,
) -> pa.Array:
    """Return bytes as texts: URL-safe base64 after a prefix, and NULL for None.

    `owners`: for each content, the index of its prefix; None: all have the first.
    """
    found = None if compiled is None else compiled.in_base64(contents, prefixes, owners)
    if found is not None:
        return found
    places = [0] * len(contents) if owners is None else owners.tolist()
    texts = [
        None if content is None else prefixes[n] + to_base64(content)
        for content, n in zip(contents, places, strict=True)
    ]
    return pa.array(texts, pa.string())


def to_base64(encrypted: bytes) -> str:
    """Return an encrypted value as text."""
    return base64.urlsafe_b64encode(encrypted).decode()


def from_base64(text: str) -> bytes:
    """Read what `to_base64` wrote. Raises binascii.Error if it is incomplete."""
    return base64.urlsafe_b64decode(text)


def _each_distinct(of: Callable[[bytes], str]) -> Convert:
    """Return a conversion that applies a function to each distinct value of a column: such a function costs more than
    anything else here."""

    def convert(values: pa.Array) -> pa.Array:
        if values.null_count == len(values):
            return pa.nulls(len(values), pa.string())
        encoded = bytes_of(values).dictionary_encode()
        found = pa.array(map(of, encoded.dictionary.to_pylist()), pa.string(), size=len(encoded.dictionary))
        return found.take(encoded.indices)

    return convert
