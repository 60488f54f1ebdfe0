"""The compiled kernels of policies and row rules against the plain ones, which are the reference: same values, same
results. Either may have computed a stored value.

`make fuzz` does this with many more; `python tests/fuzz/run_kernels.py --case SEED` replays one case.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import shutil
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCMSIV
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.privacy.columns import column_of, results_differ, spare_bytes
from tests.support.privacy.encryption import encryption_differs
from tests.support.rows.documents import documents_of, path_differs

from cdcflow.sources.privacy.kernels import COMPILED as OPENSSL
from cdcflow.sources.privacy.kernels import base64_texts, encrypt_of, hash_of
from cdcflow.sources.rows.kernels import COMPILED as PATHS
from cdcflow.sources.rows.kernels import json_text

ROOT = Path(__file__).parents[2]

EXAMPLES = settings(
    max_examples=int(os.environ.get("CDCFLOW_EXAMPLES", "60")),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
KEYS = [b"5e8ff9bf55ba3508199d22e984129be6", b"k" * 63, b"k" * 64, b"k" * 65, b"\xff" * 200]
VECTORS = [
    (b"\x0b" * 20, b"Hi There", "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"),
    (
        b"Jefe",
        b"what do ya want for nothing?",
        "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843",
    ),
    (b"\xaa" * 20, b"\xdd" * 50, "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe"),
    (bytes(range(1, 26)), b"\xcd" * 50, "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b"),
    (
        b"\xaa" * 131,
        b"Test Using Larger Than Block-Size Key - Hash Key First",
        "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54",
    ),
    (
        b"\xaa" * 131,
        b"This is a test using a larger than block-size key and a larger than block-size data. The key needs to be "
        b"hashed before being used by the HMAC algorithm.",
        "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2",
    ),
]
"""Test cases 1 to 4, 6 and 7 of RFC 4231: key, data, HMAC-SHA-256."""


def test_kernels_were_built_where_there_is_a_compiler() -> None:
    """A build that quietly fails would leave every test of the compiled kernels without anything to test."""
    assert PATHS is not None or shutil.which("cc") is None
    assert OPENSSL is not None or shutil.which("cc") is None or not Path("/usr/include/openssl/sha.h").exists()


@pytest.mark.parametrize("vector", VECTORS, ids=range(len(VECTORS)))
def test_hash_has_the_values_of_the_standard(vector: tuple[bytes, bytes, str]) -> None:
    key, data, digest = vector
    for compiled in (None, OPENSSL):
        assert hash_of(key, "k1:", compiled)(pa.array([data, None])).to_pylist() == [f"k1:{digest}", None]


@pytest.mark.parametrize("key", KEYS, ids=len)
def test_hash_of_values_of_every_length(key: bytes) -> None:
    """Values around the blocks of the hash, and keys around its block."""
    values = [bytes([n % 251]) * n for n in range(300)]
    expected = [hmac.new(key, value, hashlib.sha256).hexdigest() for value in values]
    for compiled in (None, OPENSSL):
        assert hash_of(key, "", compiled)(pa.array(values, pa.binary())).to_pylist() == expected


@given(st.integers(0, 2**60), st.sampled_from(KEYS), st.sampled_from(["", "k1:", "ä" * 30]))
@EXAMPLES
def test_both_kernels_hash_any_column_to_the_same_texts(number: int, key: bytes, prefix: str) -> None:
    assert not results_differ(column_of(number), hash_of(key, prefix, None), hash_of(key, prefix, OPENSSL))


def test_values_that_a_quick_hash_confuses_have_their_own_hash() -> None:
    """It reads parts of long values; only equal ones may share a result."""
    values = pa.array([f"0123456789{n % 977:05}{'x' * 300}" for n in range(50_000)])
    assert len(hash_of(KEYS[0], "", OPENSSL)(values).unique()) == 977
    assert not results_differ(values, hash_of(KEYS[0], "", None), hash_of(KEYS[0], "", OPENSSL))


@pytest.mark.parametrize(
    "form", ["country number {}", "{}", "user{}@example.com", "{:08}", '{{"city": "Bonn {}", "street": "Rheinweg"}}']
)
def test_few_different_values_are_recognized(form: str) -> None:
    """A quick hash that gives different values one place would make a column of few values as slow as one of many."""
    if OPENSSL is not None:
        values = pa.array([form.format(n * 7919 % 50) for n in range(5000)])
        assert OPENSSL.recent_values(values) > 4800


@given(st.integers(0, 2**60))
@EXAMPLES
def test_both_kernels_encrypt_any_column_to_the_same_texts(number: int) -> None:
    assert not encryption_differs(column_of(number), number)


def test_encrypted_values_are_those_that_are_stored() -> None:
    """The results of RFC 8452 (C.2) for no byte and for eight: what an earlier cdcflow stored stays equal."""
    key, nonce = b"\x01" + bytes(31), b"\x03" + bytes(11)
    for compiled in (None, OPENSSL):
        convert = encrypt_of(key, AESGCMSIV(key), nonce, "k1:", compiled)
        assert convert(pa.array([b"", None, b"\x01" + bytes(7)])).to_pylist() == [
            "k1:B_X0Fpu_VahADNR-pv1ADw==",
            None,
            "k1:wu8yjlxxyDuEMSITD3Nkt2HguXQn498o",
        ]


def test_kernels_agree_with_an_openssl_that_has_the_cipher(tmp_path: Path) -> None:
    """The kernel for it is compiled everywhere, and runs with OpenSSL 3.2 and later. psycopg brings such a library."""
    brought = [f for f in distribution("psycopg-binary").files or [] if f.name.startswith("libcrypto-")]
    assert OPENSSL is not None, "the kernel was not compiled: run `make setup` with OpenSSL's headers"
    assert brought, "psycopg-binary brings no libcrypto"
    (tmp_path / "libcrypto.so.3").symlink_to(Path(str(brought[0].locate())))
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests/fuzz/run_kernels.py"), "--messages", "8000"],
        env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "encrypted by OpenSSL" in done.stdout


@pytest.mark.parametrize("owners", [None, [1, 0, 1, 1, 0, 0]])
def test_bytes_of_every_remainder_become_base64(owners: list[int] | None) -> None:
    contents = [b"", None, b"\xff", b"\xfb\xff", b"\0\0\0", bytes(range(256))]
    places = None if owners is None else np.array(owners)
    plain, compiled = (base64_texts(contents, ["a:", "ä."], places, one) for one in (None, OPENSSL))
    assert plain.to_pylist() == compiled.to_pylist()
    assert OPENSSL is None or not spare_bytes(compiled)


@given(st.integers(0, 2**60))
@EXAMPLES
def test_both_kernels_find_the_same_at_any_path_of_any_document(number: int) -> None:
    """A scanner that finds another value than a parser, or accepts what is no document, would capture wrong rows."""
    assert not path_differs(*documents_of(number))


@pytest.mark.parametrize(
    ("document", "found"),
    [
        ('{"a": 1}', "1"),
        ('{"a": 1, "a": 2}', "2"),
        ('{"a": 1, "a": null}', None),
        ('{"a": {"a": 3}, "b": [1, 2.50, "x"]}', '{"a": 3}'),
        (' {"b":"\\u00e9\\ud83d\\ude00" ,"a":"K\\u00f6ln\\n\\/"} ', "Köln\n/"),
        ('{"a": 123456789012345678901234567890.50e+7}', "123456789012345678901234567890.50e+7"),
        ('{"a": []}', "[]"),
        ('{"a": false}', "false"),
        ("[1]", None),
        ('"a"', None),
        ("[" * 60 + "]" * 60, None),
    ],
)
def test_compiled_kernel_reads_usual_documents_itself(document: str, found: str | None) -> None:
    """The plain kernel would give the same, so a compiled one that refuses everything would show nowhere else."""
    if PATHS is None:
        return  # the first test here checks whether that is allowed
    assert json_text(pa.array([document]), ["a"], None).to_pylist() == [found]
    texts, left = PATHS.texts_at(pa.array([document, None, document]), ["a"])
    assert (texts.to_pylist(), left) == ([found, None, found], None)
    assert not spare_bytes(texts)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ('{"x": 1, "y": 2, "x": 3}', '{"x": 3, "y": 2}'),
        ('[{"x": 1, "x": 2}]', '[{"x": 2}]'),
        ("[1,2]", "[1, 2]"),
        ('{"x" : 1}', '{"x": 1}'),
        ("[ ]", "[]"),
        ('["\\u0041"]', '["A"]'),
        ('{"\\/": "é"}', '{"/": "é"}'),
        ("{" + ", ".join(f'"{n % 40}": {n}' for n in range(41)) + "}", None),
    ],
)
def test_value_that_is_written_differently_in_its_document(value: str, text: str | None) -> None:
    """An object or array has one text, however the source writes it: equal values stay equal."""
    found = [json_text(pa.array([f'{{"a": {value}}}']), ["a"], one).to_pylist() for one in (None, PATHS)]
    assert found[0] == found[1]
    assert text is None or found[0] == [text]


@pytest.mark.parametrize("depth", [63, 64, 65, 100_000])
def test_deep_documents_end_alike_in_both_kernels(depth: int) -> None:
    """Recursion in C without a limit would end the process."""
    for document in ("[" * depth + "]" * depth, '{"a": ' * depth + "1" + "}" * depth):
        assert not path_differs(pa.array([document]), ["a"])


@pytest.mark.parametrize(
    "document", ["", "{", "{}x", '{"a": 01}', '{"a": 1,}', "[1 2]", '{"a": "\t"}', '"\\x"', "\ufeff{}", "nan", '{"a"}']
)
@pytest.mark.parametrize("compiled", [None, PATHS], ids=["plain", "compiled"])
def test_text_that_is_no_document_stops_both_kernels(document: str, compiled: object) -> None:
    """Also after the value."""
    for text in (document, f'{{"b": [{document}], "a": 1}}' if document else "{"):
        with pytest.raises(pa.ArrowInvalid, match="not a JSON document"):
            json_text(pa.array(["{}", text]), ["a"], compiled)  # type: ignore[arg-type]  # a module


def test_surrogate_without_its_pair_has_no_text_and_stops_both_kernels() -> None:
    """It is JSON, but cannot be UTF-8. Elsewhere in the document it does no harm."""
    for compiled in (None, PATHS):
        assert json_text(pa.array(['{"b": "\\ud800", "a": "x"}']), ["a"], compiled).to_pylist() == ["x"]
        with pytest.raises(pa.ArrowInvalid, match="not a JSON document"):
            json_text(pa.array(['{"a": "\\ud800"}']), ["a"], compiled)
