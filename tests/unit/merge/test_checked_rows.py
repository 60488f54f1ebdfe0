"""The rows that a range would write, and the range without some of them: as the merge itself leaves them."""

from __future__ import annotations

import os
import random
import zlib
from collections import Counter
from contextlib import closing
from typing import Any

import pytest
from tests.support.log.hand_log import HandLog
from tests.support.merge.embedded_engine import EmbeddedWarehouse
from tests.support.merge.histories import make_world, write_round

from cdcflow.model.sqltypes import name_sql
from cdcflow.model.table import OFFSET
from cdcflow.tables.merge import checked_rows
from cdcflow.tables.merge.statement import Folding

SEED = int(os.environ.get("CDCFLOW_CHECKED_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)

Row = tuple[Any, ...]


class CheckedWarehouse(EmbeddedWarehouse):
    """Keeps a part of the rows out, and compares with what the table would be with them."""

    kept_out = 0

    def fold(self, name: str, folding: Folding) -> None:
        target = folding.layout.target
        listed = ", ".join([*(name_sql(c.name) for c in target.columns), OFFSET])
        identity = checked_rows.identity_positions(folding)

        def rows() -> Counter[Row]:
            return Counter(_hashable(row) for row in self.run(f"SELECT {listed} FROM {name}"))

        def is_bad(row: Row) -> bool:
            return zlib.crc32(repr(row[-2]).encode()) % 3 == 0

        def known(row: Row) -> Row:
            return tuple(row[i] for i in identity) if identity else row[:-1]

        before = rows()
        self.run("BEGIN TRANSACTION")
        super().fold(name, folding)
        after = rows()
        self.run("ROLLBACK")
        sql = checked_rows.rows_to_write(folding, name, broadcast=False)
        written = Counter(_hashable(row) for row in self.run(f"SELECT {listed} FROM ({sql})"))
        assert written == after - before
        bad = {known(row) for row in written if is_bad(row)}
        shown = [*(f"{name_sql(target.columns[i].name)} AS c{i}" for i in identity), f"{OFFSET} AS o"]
        offsets = ", ".join(str(row[-1]) for row in written if is_bad(row)) or "NULL"
        view = self._view("kept_out", f"SELECT {', '.join(shown)} FROM ({sql}) WHERE {OFFSET} IN ({offsets})")
        super().fold(name, checked_rows.without_rows(folding, view))
        assert rows() == Counter({row: count for row, count in after.items() if known(row) not in bad})
        self.kept_out += len(bad)


def _hashable(row: Row) -> Row:
    return tuple(tuple(value) if isinstance(value, list) else value for value in row)


@pytest.mark.parametrize("marks", [False, True])
def test_range_without_some_rows_leaves_the_others_as_the_whole_range_does(tmp_path: Any, marks: bool) -> None:
    """Partial rows, key changes, truncates, tables without a key: a row that is kept out takes its older version
    along, and nothing else changes."""
    world, log = make_world(SEED, 30), HandLog(tmp_path / "log")
    with closing(CheckedWarehouse(marks=marks)) as warehouse:
        for round_ in range(4):
            first = len(log.written)
            write_round(world, log, round_)
            for name in world.tables:
                warehouse.merge(name, [w for w in log.written[first:] if w[0].id.name == name])
    assert warehouse.kept_out > 20, SEED
