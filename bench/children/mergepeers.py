"""A peer of the merge benches without Spark: delta-rs or PyIceberg's `upsert`, on the log's own files."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bench.children.merging import COLUMNS, answer


def main() -> int:
    asked = json.loads(sys.argv[1])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    party = DeltaRs() if asked["format"] == "delta" else PyIceberg()
    answer(answers, {"merge": party.merge, "rows": party.rows}, lambda: 0)
    return 0


def newest(file: str) -> pa.Table:
    """The latest change of each key."""
    found = pq.ParquetFile(file).read(["_offset", *COLUMNS])
    last = found.group_by("id").aggregate([("_offset", "max")])["_offset_max"]
    return found.filter(pc.is_in(found["_offset"], last)).select(list(COLUMNS))


def table_of(file: str) -> str:
    return Path(file).name.split(".")[1]


def told(rows: pa.Table) -> dict[str, Any]:
    return {
        "rows": len(rows),
        "sum": str(sum(i * q for i, q in zip(*(rows[c].to_pylist() for c in ("id", "qty")), strict=True))),
    }


class DeltaRs:
    def __init__(self) -> None:
        self._target = Path()

    def merge(self, files: list[str], target: str) -> None:
        from deltalake import DeltaTable, write_deltalake

        self._target = Path(target)
        for file in files:
            path, rows = str(self._target / table_of(file)), newest(file)
            if not DeltaTable.is_deltatable(path):
                write_deltalake(path, rows)
                continue
            merging = DeltaTable(path).merge(rows, "t.id = s.id", source_alias="s", target_alias="t")
            merging.when_matched_update_all().when_not_matched_insert_all().execute()

    def rows(self, table: str) -> dict[str, Any]:
        from deltalake import DeltaTable

        return told(DeltaTable(str(self._target / table)).to_pyarrow_table())


class PyIceberg:
    def __init__(self) -> None:
        self._catalog: Any = None

    def merge(self, files: list[str], target: str) -> None:
        from pyiceberg.catalog.sql import SqlCatalog

        if self._catalog is None:
            Path(target).mkdir()
            self._catalog = SqlCatalog("peer", uri=f"sqlite:///{target}/catalog.db", warehouse=target)
            self._catalog.create_namespace("shop")
        for file in files:
            name, rows = ("shop", table_of(file)), newest(file)
            if not self._catalog.table_exists(name):
                self._catalog.create_table(name, rows.schema).append(rows)
                continue
            self._catalog.load_table(name).upsert(rows, join_cols=["id"])

    def rows(self, table: str) -> dict[str, Any]:
        return told(self._catalog.load_table(("shop", table)).scan().to_arrow())


if __name__ == "__main__":
    sys.exit(main())
