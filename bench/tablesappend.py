"""tables, append: a log's changes as a table of mode `append`, and Spark's read and write of the same rows."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from bench.harness import Budget, Failed, tell
from bench.mergelog import SealedLog, rows, table
from bench.mergeparties import Party, files_of, in_turn, ratio
from bench.results import Line, at_least

AIM = 0.8
ENGINES = {"spark": "Spark", "local": "without Spark"}
TURNS = {"a new table": "r", "after existing rows": "u"}
"""The written rows, and the changes' kind; each has half of the rows."""


def append(table_format: str, budget: Budget) -> list[Line]:
    """`budget.rows`: changes of both turns together."""
    count = budget.rows // len(TURNS)
    found: dict[str, dict[str, list[dict[str, Any]]]] = {t: {p: [] for p in (*ENGINES, "write")} for t in TURNS}
    with tempfile.TemporaryDirectory() as folder:
        room = Path(folder)
        parties = {
            name: Party(f"cdcflow, {said}", None, room / f"scratch {name}", table_format, name, module="tables")
            for name, said in ENGINES.items()
        }
        try:
            for number in range(budget.rounds + 1):
                _round(parties, room / str(number), count, number, found)
        finally:
            for party in parties.values():
                party.close()
    return [
        ratio(
            f"append, {count:,} changes, {turn}, {said}",
            "rows/s",
            figures[engine],
            figures["write"],
            "Spark's own read and write",
            at_least(AIM),
            rows=count,
        )
        for turn, figures in found.items()
        for engine, said in ENGINES.items()
    ]


def _round(
    parties: dict[str, Party], room: Path, count: int, number: int, found: dict[str, dict[str, list[dict[str, Any]]]]
) -> None:
    """One that warms up where `number` is 0."""
    log, spark, target = SealedLog(room / "log"), parties["spark"], room / "written" / "large"
    target.parent.mkdir()
    for turn, kind in TURNS.items():
        tell(f"  tables: append, {count:,} changes, {turn}")
        before = len(files_of(log))
        log.segment({table("large"): rows(np.arange(count), number)}, kind)
        new = {"files": files_of(log)[before:], "is_new": not before}
        asked = {
            name: lambda name=name, party=party: party.ask(
                "merge", log=str(log.root), warehouse=str(room / name), mode="append"
            )
            for name, party in parties.items()
        }
        told = in_turn(number, **asked, write=lambda new=new: spark.ask("write", target=str(target), **new))
        for name, figures in told.items() if number else ():
            found[turn][name].append(figures)
    tables = [*(room / name / "shop" / "large" for name in parties), target]
    there = [spark.ask("count", table=str(path))["rows"] for path in tables]
    if set(there) != {count * len(TURNS)}:
        raise Failed(f"the tables have {there} rows")
