"""Values that are encrypted for persons: each person has a data key, and without it nothing reads their values.

A person is a value of the column that a policy's `key_by` names. Their key is random, made when their first value is
encrypted, and stored wrapped by the policy's key. Destroying what is stored erases every copy of their values at once:
in the log, in tables, in topics, in backups.

    value of key_by ─▶ person (a keyed hash) ─▶ PersonKeys.use ─▶ wrapped key ─▶ data key ─▶ encrypted value
                                                     │
                              erased ────────────────┴──────────────────────────────────────▶ NULL
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Generic, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from cdcflow.errors import ConfigurationError
from cdcflow.model.change import Int64s
from cdcflow.sources.privacy.kernels import COMPILED, Cipher, CompiledOpenssl, base64_texts, bytes_of
from cdcflow.sources.privacy.secret_keys import NONCE, PERSON_DIGITS, PolicyKey

CIPHERS_MAX = 16384
"""How many persons' ciphers stay in memory: about 10 MB."""

Wrap = Callable[[str], bytes]
Key = TypeVar("Key")


class PersonKeys(Protocol):
    """Wrapped keys of persons, by hashes of the persons, and which persons are erased. Several processes may use the
    same store at a time. `key_file.KeyFile` implements it in a file; a key service can implement it instead."""

    def identity(self) -> str:
        """Return a text that distinguishes this store of keys from others; "" if it was not created yet."""
        ...

    def create(self) -> None:
        """Create the store of keys, empty and durable, unless it exists."""
        ...

    def use(self, persons: Sequence[str], new: Wrap) -> AbstractContextManager[Mapping[str, bytes | None]]:
        """Provide the wrapped keys of these persons; None for an erased person. No `erase` returns before the context
        ends.

        `new` creates the key of a person who has none; it is durable when the context begins.

        Raises:
            ConfigurationError: the keys do not exist, or were replaced since they were opened.
            SinkUnavailable: the keys cannot be read or written at present.
        """
        ...

    def find(self, person: str) -> bytes | None:
        """Return the wrapped key of one person; None if the person is erased. Raises KeyError if the person is
        unknown."""
        ...

    def erase(self, persons: Sequence[str]) -> None:
        """Destroy the keys of these persons, and never create others for them.

        On return this is durable, and every process knows it before it encrypts anything else.
        """
        ...

    def makers(self) -> frozenset[str]:
        """Return the fingerprints of the policies' keys that wrapped the remaining keys."""
        ...

    def close(self) -> None: ...


class PersonEncryption:
    """Converts the values of a policy with the keys of their persons. Thread-safe."""

    def __init__(self, key: PolicyKey, keys: PersonKeys, compiled: CompiledOpenssl | None = COMPILED) -> None:
        self._keys = keys
        self._maker = key.person_keys()
        self._prefix = key.prefix
        self._without_person = key.encrypt()
        self._compiled = compiled if compiled is not None and compiled.HAS_GCM_SIV else None
        self._data_keys = _Unwrapped(self._maker.data_key)
        self._ciphers = _Unwrapped[Cipher](self._maker.unwrap)

    def convert(self, values: pa.Array, persons: pa.Array) -> pa.Array:
        """Encrypt each value with the key of the person in the same row; the result is NULL if that person is erased.

        A value without a person is encrypted with the policy's key. Each distinct pair is encrypted once.
        """
        if values.null_count == len(values):
            return pa.nulls(len(values), pa.string())
        content, owners = bytes_of(values).dictionary_encode(), bytes_of(persons).dictionary_encode()
        is_null = content.is_null().to_numpy(zero_copy_only=False)
        count = len(content.dictionary)
        owner = owners.indices.fill_null(-1).to_numpy(zero_copy_only=False)[~is_null].astype(np.int64)
        pairs, numbers = np.unique(
            owner * count + content.indices.filter(pa.array(~is_null)).to_numpy(), return_inverse=True
        )
        # An owner of -1 (none) comes first, and stays -1 when it is divided.
        pair_owner, pair_content = np.divmod(pairs, count)
        made = self._encrypt(content.dictionary.take(pa.array(pair_content)), owners.dictionary, pair_owner)
        where = np.zeros(len(values), np.int64)
        where[~is_null] = numbers
        return made.take(pa.array(where, mask=is_null))

    def _encrypt(self, values: pa.Array, people: pa.Array, owner: Int64s) -> pa.Array:
        """Encrypt each value with the key of its owner: an index into `people`, ascending; -1 if it has no owner."""
        alone = int(np.searchsorted(owner, 0))
        owners, numbers = np.unique(owner[alone:], return_inverse=True)
        persons = self._maker.persons(people.take(pa.array(owners))) if len(owners) else []
        prefixes = [f"{self._prefix}{person[-PERSON_DIGITS:]}." for person in persons]
        with self._keys.use(persons, self._maker.wrapped_key) as wrapped:
            texts = self._with_keys(
                values[alone:], [(person, wrapped[person]) for person in persons], prefixes, numbers
            )
        return pa.concat_arrays([self._without_person(values[:alone]), texts])

    def _with_keys(
        self, values: pa.Array, persons: Sequence[tuple[str, bytes | None]], prefixes: Sequence[str], owners: Int64s
    ) -> pa.Array:
        """Encrypt each value with the key of its owner: an index into `persons`, which are the persons and their
        wrapped keys."""
        if self._compiled is not None:
            keys = [self._data_keys.of(*person) for person in persons]
            found = self._compiled.encrypt_values(values, keys, prefixes, NONCE, owners)
            if found is not None:
                return found
        ciphers = [self._ciphers.of(*person) for person in persons]
        # Without OpenSSL's AES-GCM-SIV, encrypt each distinct pair once, as a Python object.
        contents = [
            None if (cipher := ciphers[n]) is None else cipher.encrypt(NONCE, value, None)
            for value, n in zip(values.to_pylist(), owners.tolist(), strict=True)
        ]
        return base64_texts(contents, prefixes, owners)


class _Unwrapped(Generic[Key]):
    """Caches the unwrapped keys of the most recent persons."""

    def __init__(self, unwrap: Callable[[str, bytes], Key]) -> None:
        self._unwrap = unwrap
        self._known: dict[str, tuple[bytes, Key]] = {}

    def of(self, person: str, wrapped: bytes | None) -> Key | None:
        """Return the key of a person; None if the person is erased."""
        if wrapped is None:
            self._known.pop(person, None)
            return None
        known = self._known.get(person)
        if known is not None and known[0] == wrapped:
            return known[1]
        if len(self._known) >= CIPHERS_MAX:
            self._known.clear()
        key = self._unwrap(person, wrapped)
        self._known[person] = wrapped, key
        return key


def missing_person_keys(found: str) -> ConfigurationError:
    return ConfigurationError(
        found,
        remedy="restore the file, or set person_keys to where it is; if it is lost, give each policy with key_by a "
        "new id: its tables are read again with new keys, earlier values cannot be decrypted, and erasures must be "
        "repeated",
        runbook="person-keys",
    )
