"""tables, log: a log's changes by Spark, as a data source and as a plan, and a plain read of the same files."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from bench.harness import Budget, Failed, tell
from bench.mergelog import SealedLog, rows, table
from bench.mergeparties import Party, files_of, in_turn, ratio
from bench.results import Line, at_most

STEP = 500_000
"""Rows of a segment."""

WAYS = {"plan": "read_log", "source": "data source"}
LOOKS = {"log, all columns": ("log", ""), "log, two columns": ("log", "id, qty"), "feed, all columns": ("feed", "")}
AIMS = {
    "plan": {"log, all columns": 1.5, "log, two columns": 1.5, "feed, all columns": 1.7},
    "source": {"log, all columns": 2.5, "log, two columns": 7.0, "feed, all columns": 2.5},
}
"""Relative to the plain read. Spark has a source in Python read all columns, even if a query needs only some."""


def read_log(table_format: str, budget: Budget) -> list[Line]:
    size = budget.rows
    found: dict[str, dict[str, list[dict[str, Any]]]] = {k: {p: [] for p in (*WAYS, "parquet")} for k in LOOKS}
    with tempfile.TemporaryDirectory() as folder:
        room = Path(folder)
        party = Party("this checkout", None, room / "scratch", table_format, module="tables")
        log = SealedLog(room / "log")
        for first in range(0, size, STEP):
            log.segment({table("large"): rows(np.arange(first, min(first + STEP, size)), first)}, "c")
        files = files_of(log)
        try:
            for number in range(budget.rounds + 1):
                for look, (shape, columns) in LOOKS.items():
                    tell(f"  tables: {size:,} rows of a log, {look}")
                    given = {"log": str(log.root), "shape": shape, "columns": columns}
                    asked = in_turn(
                        number,
                        source=lambda given=given: party.ask("log_source", **given),
                        plan=lambda given=given: party.ask("log_plan", **given),
                        parquet=lambda columns=columns: party.ask("log_parquet", files=files, columns=columns),
                    )
                    if len({figures["rows"] for figures in asked.values()}) > 1:
                        raise Failed("the ways of reading a log have not the same number of rows")
                    for name, figures in asked.items() if number else ():
                        found[look][name].append(figures)
        finally:
            party.close()
    return [
        ratio(
            f"the log's changes by Spark, {size:,} rows, {look}, {said}",
            "s",
            told[way],
            told["parquet"],
            "spark.read.parquet of the same files",
            at_most(AIMS[way][look]),
        )
        for look, told in found.items()
        for way, said in WAYS.items()
    ]
