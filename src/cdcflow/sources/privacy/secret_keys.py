"""The keys of policies: derived from secrets of the settings, each for one purpose.

A hash uses the secret itself, so that other programs can compute the same HMAC-SHA-256. The keys for encryption are
derived from it by HKDF with SHA-512: a hash of a chosen value is never one of them.
"""

from __future__ import annotations

import base64
import binascii
import os
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCMSIV
from cryptography.hazmat.primitives.hashes import SHA512
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from cdcflow.config import secret
from cdcflow.config.columns import ColumnKey
from cdcflow.errors import ConfigurationError
from cdcflow.sources.privacy.kernels import Cipher, Convert, encrypt_of, hash_of

SECRET_MIN = 32
"""The least number of characters of a secret: 32 hexadecimal digits are 128 bits."""
NONCE = bytes(12)
"""Always the same, so that equal values stay equal: with AES-GCM-SIV a nonce that is used again shows only that
(RFC 8452)."""
DATA_KEY_BYTES = 32
MAKER_DIGITS = 12
"""Hexadecimal digits of a key's fingerprint."""
PERSON_DIGITS = 32
"""Hexadecimal digits of a person's hash: 128 bits."""


@dataclass(frozen=True, slots=True)
class PolicyKey:
    """A secret and its `id`. Only `fingerprint` is ever shown, which does not reveal the secret."""

    id: str
    _secret: bytes

    def __repr__(self) -> str:
        return f"PolicyKey({self.id!r})"

    @classmethod
    def read(cls, settings: ColumnKey) -> PolicyKey:
        """Read a secret. Raises ConfigurationError if it does not exist or is too short."""
        found = secret(settings.key) or ""
        if len(found) < SECRET_MIN or len(set(found)) < SECRET_MIN // 4:
            raise ConfigurationError(
                f"tables: the key {settings.key} has less than {SECRET_MIN} characters, or always the same few",
                remedy="make one with `openssl rand -hex 32`, and keep it where the reference points",
                runbook="settings",
            )
        return cls(settings.id, found.encode())

    @property
    def prefix(self) -> str:
        return f"{self.id}:" if self.id else ""

    @property
    def fingerprint(self) -> str:
        """A text that distinguishes keys."""
        return self._derive("fingerprint", MAKER_DIGITS // 2).hex()

    def hash(self) -> Convert:
        return hash_of(self._secret, self.prefix)

    def encrypt(self) -> Convert:
        return encrypt_of(self._derive("encrypt", 32), self._cipher("encrypt"), NONCE, self.prefix)

    def decrypt(self, value: str) -> bytes:
        """Decrypt a value. Raises ValueError if it was encrypted with another key."""
        if not value.startswith(self.prefix):
            raise ValueError("another key made this value")
        return _open(self._cipher("encrypt"), value.removeprefix(self.prefix))

    def person_keys(self) -> PersonKeyMaker:
        """Return the object that creates and reads the keys of persons."""
        hashed = hash_of(self._derive("person", 32), f"{self.fingerprint}-")
        return PersonKeyMaker(hashed, self._cipher("person key"))

    def person_in(self, value: str) -> str | None:
        """Return the person for whom a value was encrypted; None if it was encrypted for no person, or if another
        policy's key wrapped the person's key."""
        person, dot, _ = value.removeprefix(self.prefix).partition(".")
        return f"{self.fingerprint}-{person}" if dot and value.startswith(self.prefix) else None

    def seal(self, text: str) -> str:
        """Encrypt a text of a checkpoint that contains keys of rows."""
        return base64.urlsafe_b64encode(self._cipher("checkpoint").encrypt(NONCE, text.encode(), None)).decode()

    def unseal(self, text: str) -> str:
        """Decrypt a text of a checkpoint. Raises ValueError if another key sealed it."""
        return _open(self._cipher("checkpoint"), text).decode()

    def _cipher(self, purpose: str) -> AESGCMSIV:
        return AESGCMSIV(self._derive(purpose, 32))

    def _derive(self, purpose: str, length: int) -> bytes:
        return HKDF(SHA512(), length, None, f"cdcflow {purpose} 1".encode()).derive(self._secret)


@dataclass(frozen=True, slots=True)
class PersonKeyMaker:
    """Creates the keys of persons for one policy's key, and wraps them with it."""

    _hash: Convert
    _cipher: Cipher

    def persons(self, values: pa.Array) -> list[str]:
        """Return the person for each value of a `key_by` column: the fingerprint of the policy's key and a
        keyed hash."""
        found: list[str] = pc.utf8_slice_codeunits(self._hash(values), 0, MAKER_DIGITS + 1 + PERSON_DIGITS).to_pylist()
        return found

    def wrapped_key(self, person: str) -> bytes:
        """Return a new key, wrapped so that it can be used for this person alone."""
        return self._cipher.encrypt(NONCE, os.urandom(DATA_KEY_BYTES), person.encode())

    def unwrap(self, person: str, wrapped: bytes) -> AESGCMSIV:
        """Return a person's wrapped key as a cipher. Raises as `data_key` does."""
        return AESGCMSIV(self.data_key(person, wrapped))

    def data_key(self, person: str, wrapped: bytes) -> bytes:
        """Unwrap a person's key. Raises ValueError if it was wrapped for a different person, or was changed."""
        try:
            return self._cipher.decrypt(NONCE, wrapped, person.encode())
        except InvalidTag:
            raise ValueError("the key of a person is damaged") from None


def decrypt_with(cipher: Cipher, value: str) -> bytes:
    """Decrypt a value that was encrypted for a person. Raises ValueError if it was not encrypted with this person's
    key."""
    return _open(cipher, value.partition(".")[2])


def _open(cipher: Cipher, text: str) -> bytes:
    try:
        return cipher.decrypt(NONCE, base64.urlsafe_b64decode(text), None)
    except (InvalidTag, binascii.Error, ValueError):
        raise ValueError("another key made this value") from None
