"""Whether values are encrypted alike by both kernels: with a policy's key, and with the keys of persons."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

import pyarrow as pa
from cryptography.hazmat.primitives.ciphers.aead import AESGCMSIV
from tests.support.privacy.columns import persons_of, results_differ

from cdcflow.sources.privacy.kernels import COMPILED, encrypt_of
from cdcflow.sources.privacy.key_file import KeyFile
from cdcflow.sources.privacy.person_keys import PersonEncryption
from cdcflow.sources.privacy.secret_keys import NONCE, PolicyKey

KEY = PolicyKey("k1", b"5e8ff9bf55ba3508199d22e984129be6")
ERASED = 7
_DATA_KEY = bytes(range(32))


@cache
def _person_encryptions() -> tuple[PersonEncryption, PersonEncryption]:
    """A plain and a compiled one with the same keys of persons; person 7 is erased."""
    file = KeyFile(Path(tempfile.mkdtemp()) / "person-keys")
    file.create()
    file.erase(KEY.person_keys().persons(pa.array([str(ERASED)])))
    return PersonEncryption(KEY, file, None), PersonEncryption(KEY, file, COMPILED)


def encryption_differs(values: pa.Array, seed: int) -> str | None:
    """How the results of the two kernels differ for a column, alone and with persons."""
    cipher = AESGCMSIV(_DATA_KEY)
    difference = results_differ(
        values,
        encrypt_of(_DATA_KEY, cipher, NONCE, "k1:", None),
        encrypt_of(_DATA_KEY, cipher, NONCE, "k1:", COMPILED),
    )
    if difference is not None:
        return difference
    persons = persons_of(seed, len(values))
    plain, compiled = (one.convert(values, persons) for one in _person_encryptions())
    return None if plain.equals(compiled) else f"{values.type}, {len(values)} values with persons: the results differ"
