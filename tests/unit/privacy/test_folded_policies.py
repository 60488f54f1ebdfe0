"""Random changes under random policies fold to the rows that the same changes without policies fold to, with each value
replaced in plain Python."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCMSIV
from cryptography.hazmat.primitives.hashes import SHA512
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from cdcflow.config.columns import TableRules
from cdcflow.log.fold.fold import FoldedRow, Key, fold
from cdcflow.model.change import ChangeBatch
from cdcflow.model.table import Column, Identity, Table, TableId
from cdcflow.model.types import ColumnType
from cdcflow.sources.privacy import shapes
from cdcflow.sources.privacy.rules import PolicyRules
from cdcflow.testing.folded import changes_of

SECRET = "5e8ff9bf55ba3508199d22e984129be6"  # noqa: S105  of this test
SEEDS = int(os.environ.get("CDCFLOW_POLICY_SEEDS", "60"))
Plain = Callable[[Any], Any]


def DROP(value: Any) -> Any:  # noqa: N802  a mark that is compared
    raise AssertionError


def hashed(value: Any) -> str:
    return hmac.new(SECRET.encode(), str(value).encode(), hashlib.sha256).hexdigest()


def encrypted(value: Any) -> str:
    key = HKDF(SHA512(), 32, None, b"cdcflow encrypt 1").derive(SECRET.encode())
    return "k1:" + base64.urlsafe_b64encode(AESGCMSIV(key).encrypt(bytes(12), str(value).encode(), None)).decode()


HASH: tuple[object, Plain] = ({"hash": "${env:POLICY_KEY}"}, hashed)
ENCRYPT: tuple[object, Plain] = ({"encrypt": {"key": "${env:POLICY_KEY}", "id": "k1"}}, encrypted)
FOR_TEXT: list[tuple[object, Plain] | None] = [
    HASH,
    ENCRYPT,
    None,
    ("drop", DROP),
    ("null", lambda value: None),
    ("mask", lambda value: "****"),
    ({"mask": {"keep_last": 2}}, lambda value: "****" + (str(value)[-2:] if len(str(value)) >= 4 else "")),
    ({"constant": "17"}, lambda value: type(value)("17")),
    ({"truncate": 3}, lambda value: value[:3]),
]
FOR_KEYS = [HASH, ENCRYPT, None]
FOR_NUMBERS = [one for one in FOR_TEXT if one is None or one[0] != {"truncate": 3}]
TYPES = {"text": pa.string(), "integer": pa.int32()}


def table_of(dice: random.Random) -> Table:
    kinds = [dice.choice(list(TYPES)) for _ in range(dice.randint(2, 5))]
    columns = tuple(Column(f"c{i}", i, ColumnType(kind, TYPES[kind])) for i, kind in enumerate(kinds))
    key = tuple(c.name for c in columns[: dice.choice([0, 1, 1, 2])])
    return Table(
        TableId("public", "t"), 1, columns, key, Identity.FULL if dice.random() < 0.5 or not key else Identity.KEY
    )


def value_of(dice: random.Random, column: Column, key: bool) -> Any:
    if not key and dice.random() < 0.2:
        return None
    return (
        dice.randint(0, 5) * 1111 if column.type.source == "integer" else dice.choice(["", "ab", "Ünïcode", "c4n4ry"])
    )


def changes(dice: random.Random, table: Table) -> pa.RecordBatch:
    """Changes of a table, as a source's decoder makes them."""
    rows: list[dict[str, Any]] = []
    for _ in range(dice.randint(1, 40)):
        row = {c.name: value_of(dice, c, c.name in table.key) for c in table.columns}
        others = [c.name for c in table.columns if c.name not in table.key]
        match dice.choice("cccruuudt" if table.key else "cccrddt"):
            case "d":
                lost = others if table.identity is Identity.KEY else []
                rows.append({**row, **dict.fromkeys(lost), "_op": "d", "_unchanged": lost or None})
            case "t":
                rows.append({"_op": "t"})
            case "u":
                left = [name for name in others if dice.random() < 0.3]
                rows.append({**row, **dict.fromkeys(left), "_op": "u", "_unchanged": left or None})
                if table.identity is Identity.FULL and dice.random() < 0.7:
                    rows[-1]["_before"] = row
            case op:
                rows.append({**row, "_op": op})
    return pa.RecordBatch.from_pylist(rows, schema=table.change_schema)


def folded(table: Table, rows: pa.RecordBatch) -> dict[Key, FoldedRow]:
    offsets = pa.array(np.arange(rows.num_rows))
    logged = pa.Table.from_batches([rows]).append_column("_offset", offsets)
    return fold({}, changes_of(table, logged), table.key_columns, keyed=bool(table.key))


def multiset(table: Table, rows: Mapping[Key, FoldedRow], plain: Mapping[str, Plain]) -> list[str]:
    """Each row with its values replaced, as often as it occurs."""
    found = []
    for row in rows.values():
        kept = {name: value for name, value in sorted(row.values.items()) if plain.get(name) is not DROP}
        values = {
            name: value if value is None or name not in plain else plain[name](value) for name, value in kept.items()
        }
        missing = sorted(name for name in row.missing if plain.get(name) is not DROP)
        found += [repr((values, missing, row.offset if table.key else 0))] * row.count
    return sorted(found)


def is_equal(seed: int) -> bool:
    dice = random.Random(seed)
    table = table_of(dice)
    chosen: dict[str, tuple[object, Plain]] = {}
    for column in table.columns:
        able = FOR_KEYS if column.name in table.key else FOR_TEXT if column.type.source == "text" else FOR_NUMBERS
        if (one := dice.choice(able)) is not None:
            chosen[column.name] = one
    chosen.pop(table.columns[-1].name, None)
    rules = PolicyRules(
        {"public.*": TableRules.model_validate({"columns": {name: one[0] for name, one in chosen.items()}})}
    )
    rows = changes(dice, table)
    left = ChangeBatch(table, np.arange(rows.num_rows), rows)
    private = rules.shape(table)
    if private is not None:
        left = private.changes(left)
    expected = multiset(table, folded(table, rows), {name: one[1] for name, one in chosen.items()})
    return multiset(left.table, folded(left.table, left.rows), {}) == expected


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLICY_KEY", SECRET)


def test_changes_under_policies_fold_to_the_rows_with_replaced_values() -> None:
    """Whatever the key, the old rows and the columns that an update omits: `is_equal(seed)` repeats one."""
    assert [seed for seed in range(SEEDS) if not is_equal(seed)] == []


def test_planted_faults_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison can fail."""
    unchanged = shapes.PrivateTable._unchanged_names
    monkeypatch.setattr(shapes.PrivateTable, "_unchanged_names", lambda self, lists: pa.nulls(len(lists), lists.type))
    assert [seed for seed in range(SEEDS) if not is_equal(seed)]
    monkeypatch.setattr(shapes.PrivateTable, "_unchanged_names", unchanged)
    monkeypatch.setattr(shapes.PrivateTable, "_convert", lambda self, name, values: values)
    with pytest.raises((pa.ArrowException, TypeError, AssertionError)):
        assert [seed for seed in range(SEEDS) if not is_equal(seed)] == []
