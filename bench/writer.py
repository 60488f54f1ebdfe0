"""log writer: batches in memory into the journal, and a journal into a segment.

The limits are Arrow's own writers on the same batches, as often synced. The bytes are those of the sealed segment,
compared with the JSON that Debezium writes for the same rows.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from bench import peers
from bench.drain import US
from bench.harness import Budget, Child, Outcome, Party, rounds, tell
from bench.results import Line, at_least, at_most, compared
from bench.server import KEPT, Server, prepared
from bench.shapes import NARROW

ROWS = 1_000_000
JSON_ROWS = 30_000
IPC, PARQUET = "pyarrow IPC, lz4", "pyarrow Parquet, zstd"


def run(budget: Budget, transport: str) -> list[Line]:
    lines: list[Line] = []
    with tempfile.TemporaryDirectory() as folder:
        for rows_each in (1_000, 10_000):
            rows = budget.rows // rows_each * rows_each
            case = f"narrow, {rows:,} rows, {rows_each:,} a cut"
            tell(f"  writer: {case}")
            journal = _measured(Path(folder), rows, rows_each, "journal", "ipc", budget)
            lines += _lines(f"journal, {case}", IPC, journal)
        tell("  writer: sealing")
        sealed = _measured(Path(folder), rows, rows_each, "seal", "parquet", budget)
        lines += _lines(f"segment, {case}", PARQUET, sealed)
    each = [int(str(o.found["bytes"])) / o.rows for o in sealed[US]]
    for format_name, name, target in (
        ("json", "Debezium's JSON", at_most(1 / 15)),
        ("json-plain", "Debezium's JSON without schemas", None),
    ):
        if transport == "tcp" and (size := _json_bytes(format_name)) is not None:
            lines.append(compared("writer", f"segment, {case}", "bytes/row", each, [size] * len(each), name, target))
    return lines


def _measured(
    folder: Path, rows: int, rows_each: int, mode: str, limit: str, budget: Budget
) -> dict[str, list[Outcome]]:
    def party(mode: str) -> Party:
        def write() -> Outcome:
            path = folder / mode
            shutil.rmtree(path, ignore_errors=True)
            asked = {"rows": rows, "rows_each": rows_each, "path": str(path), "mode": mode}
            return Child.of("writing", asked).outcome()

        return write

    return rounds({limit: party(limit), US: party(mode)}, budget.rounds, postmaster=None)


def _lines(case: str, name: str, measured: dict[str, list[Outcome]]) -> list[Line]:
    ours, theirs = measured[US], next(o for n, o in measured.items() if n != US)
    cpu, their_cpu = [o.cpu_s_per_million for o in ours], [o.cpu_s_per_million for o in theirs]
    size = [int(str(o.found["bytes"])) / o.rows for o in ours]
    their_size = [int(str(o.found["bytes"])) / o.rows for o in theirs]
    return [
        compared("writer", case, "rows/s", [o.rate for o in ours], [o.rate for o in theirs], name, at_least(0.85)),
        compared("writer", case, "CPU s/M rows", cpu, their_cpu, name),
        compared("writer", case, "bytes/row", size, their_size, name),
    ]


def _json_bytes(format_name: str) -> float | None:
    """Bytes a change in Debezium's JSON."""
    with tempfile.TemporaryDirectory() as folder, Server() as server:
        backlog = prepared(server, Path(folder), NARROW, JSON_ROWS, 100)
        command = peers.debezium_command(server.port, backlog.rows, format_name)
        if command is None:
            return None
        server.copy_slot(KEPT)
        outcome = Child(command).outcome()
        return int(str(outcome.found["bytes"])) / int(str(outcome.found["seen"]))
