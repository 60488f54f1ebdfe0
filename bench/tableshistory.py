"""tables, history: many changes onto fewer keys, kept as versions, compared with the same changes onto current rows.

Four million changes onto a million existing rows; half of the changes leave the longest column unchanged, and each is a
separate transaction. The peers keep versions, too, but not what a change omits (`bench.children.versions`).
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from bench.harness import Budget, Failed, tell
from bench.mergelog import SealedLog, rows, table
from bench.mergeparties import Asked, Party, files_of, in_turn, ratio
from bench.results import Line, at_most

CHANGES_EACH = 4
"""Changes for each existing row."""

AIM = 2.0
SEGMENTS = 4
ENGINES = "local", "spark"
MODES = "history", "current"
PEERS = {"versions": "staged changes, one MERGE", "versions_streamed": "the same from Debezium JSON, a stream"}


def history(table_format: str, budget: Budget) -> list[Line]:
    """`budget.rows`: changes."""
    keys = budget.rows // CHANGES_EACH
    case = f"history, {budget.rows:,} changes onto {keys:,} keys"
    tell(f"  tables: {case}")
    found: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        room = Path(folder)
        parties = {
            engine: Party(engine, None, room / f"scratch {engine}", table_format, engine, module="tables")
            for engine in ENGINES
        }
        try:
            for number in range(budget.rounds + 1):
                told = _Round(parties, room / str(number), table_format, keys, number).told(budget.rows)
                for name, figures in told.items() if number else ():
                    found.setdefault(name, []).append(figures)
        finally:
            for party in parties.values():
                party.close()
    lines = []
    for engine in ENGINES:
        ours = found[f"{engine} history"]
        lines.append(ratio(f"{case}, {engine}", "s", ours, found[f"{engine} current"], "current", at_most(AIM)))
        lines += [ratio(f"{case}, {engine}", "s", ours, found[name], peer) for name, peer in PEERS.items()]
    return lines


class _Round:
    """All parties' tables of one round, each with the initial rows."""

    def __init__(self, parties: dict[str, Party], room: Path, table_format: str, keys: int, number: int) -> None:
        self._parties = parties
        self._room = room
        self._format = table_format
        self._keys = keys
        self._number = number
        self._log = SealedLog(room / "log", has_transactions=True)
        (room / "events").mkdir()

    def told(self, changes: int) -> dict[str, dict[str, Any]]:
        """The costs of the changes for each party.

        Raises:
            Failed: the versions are not as many.
        """
        shape = table("large")
        self._log.segment({shape: rows(np.arange(self._keys), self._number)}, "r")
        for ask in self._asked(0).values():
            ask()
        before = len(_files(self._log))
        _change(self._log, self._keys, changes, self._number)
        told = in_turn(self._number, **self._asked(before))
        places = [self._room / "spark history" / "shop" / "large", self._room / "local history" / "shop" / "large"]
        places += [self._target(name) for name in PEERS]
        versions = [self._parties["spark"].ask("count", table=str(place))["rows"] for place in places]
        if len(set(versions)) > 1:
            raise Failed(f"the histories have {versions} versions")
        return told

    def _asked(self, before: int) -> dict[str, Asked]:
        """Each party with the files of changes after the first `before`."""
        files, spark = _files(self._log)[before:], self._parties["spark"]
        events = str(self._room / "events")
        spark.ask("debezium", files=files, target=f"{events}/{before}")
        asked: dict[str, Asked] = {}
        for engine, party in self._parties.items():
            for mode in MODES:
                given = {"log": str(self._log.root), "warehouse": str(self._room / f"{engine} {mode}"), "mode": mode}
                asked[f"{engine} {mode}"] = lambda party=party, given=given: party.ask("merge", **given)
        more = {"versions": {"files": files}, "versions_streamed": {"events": events}}
        for name, given in more.items():
            asked[name] = lambda name=name, given=given: spark.ask(
                name, target=str(self._target(name)), table_format=self._format, **given
            )
        return asked

    def _target(self, name: str) -> Path:
        return self._room / name / "large"


def _files(log: SealedLog) -> list[str]:
    """Files of changes, without those of transactions."""
    return [file for file in files_of(log) if Path(file).name != "transactions.parquet"]


def _change(log: SealedLog, keys: int, count: int, seed: int) -> None:
    chance, shape = np.random.default_rng(seed), table("large")
    for number in range(SEGMENTS):
        ids = chance.integers(0, keys, count // SEGMENTS)
        log.segment({shape: rows(ids, number)}, "u", unchanged=("doc",) if number % 2 else ())
