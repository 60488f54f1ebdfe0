"""Which versions of tables the kept cuts show: Arrow's answer over all cuts equals that of plain code, cut by cut."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from cdcflow.tables.local import engine
from cdcflow.tables.port import Shown

SCHEMA = pa.schema([(name, engine._COLUMNS.field(name).type) for name in ("tables", "ids")])


def cuts(seed: int, count: int) -> pa.Table:
    """Cuts at random: tables come, go and are replaced; cuts of earlier releases have no ids, or only some."""
    chance = random.Random(seed)
    rows = []
    for number in range(count):
        names = chance.sample([f"public.t{n}" for n in range(6)], chance.randrange(7))
        entry = {"complete": True, "generation": 1}
        tables = [(n, {"path": f"public/{n}-{number // 20}", "version": number // 3, **entry}) for n in names]
        ids = [(n, f"{n}-{number // 50}") for n in names if chance.random() < 0.8]
        rows.append({"tables": tables, "ids": None if chance.random() < 0.2 else ids})
    parts = [rows[: count // 3], rows[count // 3 :]]
    return pa.concat_tables([pa.Table.from_pylist(part, schema=SCHEMA) for part in parts])


def shown_by_plain_code(rows: pa.Table) -> dict[str, Shown]:
    paths: dict[str, str] = {}
    ids: dict[str, dict[str, set[int]]] = {}
    for row in rows.to_pylist(maps_as_pydicts="strict"):
        for name, entry in row["tables"].items():
            paths.setdefault(name, entry["path"])
            id_ = (row["ids"] or {}).get(name, "")
            ids.setdefault(name, {}).setdefault(id_, set()).add(entry["version"])
    return {name: Shown(paths[name], {i: frozenset(v) for i, v in ids[name].items()}) for name in paths}


@pytest.mark.parametrize("count", [0, 1, 2, 300])
@pytest.mark.parametrize("seed", range(3))
def test_shown_versions_are_those_of_every_cut(seed: int, count: int) -> None:
    rows = cuts(seed, count)
    assert engine._shown_tables(rows) == shown_by_plain_code(rows)
