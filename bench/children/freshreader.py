"""A plain reader of tables, without cdcflow: delta-rs by path, or PyIceberg by a catalog.

Argument: `format`, `tables` (Delta: addresses; Iceberg: names), `options` (of the store, or of the catalog), `since`
(an id), `times` (a file with one line `table id nanoseconds` for each time it saw a later id, when its query had
ended). It polls each table in turn, and reads the ids after the latest that it has seen wherever there is a new
version. Prints a line once it has opened all tables. SIGTERM ends it in good order.
"""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from bench.children.usage import Clock, given, tell

POLL_S = 0.05

Poll = Callable[[int], int]
"""The latest id of a table that is greater than this one; this one if its version is unchanged."""


def delta(address: str, options: dict[str, str]) -> Poll:
    from deltalake import DeltaTable, QueryBuilder

    table = DeltaTable(address, storage_options=options)
    seen = [-1]

    def poll(since: int) -> int:
        table.update_incremental()
        if (version := table.version()) == seen[0]:
            return since
        seen[0] = version
        found = QueryBuilder().register("t", table).execute(f"SELECT max(id) AS id FROM t WHERE id > {since}")
        (latest,) = pa.table(found.read_all()).column("id").to_pylist()
        return since if latest is None else int(latest)

    return poll


def iceberg(catalog: Any, name: str) -> Poll:
    from pyiceberg.expressions import GreaterThan

    table = catalog.load_table(name)
    seen: list[int | None] = [None]

    def poll(since: int) -> int:
        table.refresh()
        if (version := table.metadata.current_snapshot_id) == seen[0]:
            return since
        seen[0] = version
        ids = table.scan(row_filter=GreaterThan("id", since), selected_fields=("id",)).to_arrow().column("id")
        return max((n for n in ids.to_pylist()), default=since)

    return poll


def _name_in(uri: str) -> str:
    """The name that the catalog's tables are listed under."""
    from sqlalchemy import create_engine, text

    with create_engine(uri).connect() as connection:
        ((name,),) = connection.execute(text("SELECT DISTINCT catalog_name FROM iceberg_tables")).all()
    return str(name)


def main() -> None:
    asked = given()
    options: Any = asked["options"]
    tables: Any = asked["tables"]
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    if asked["format"] == "iceberg":
        from pyiceberg.catalog import load_catalog

        catalog = load_catalog(_name_in(options["uri"]), **options)
        polls = [iceberg(catalog, name) for name in tables]
    else:
        polls = [delta(address, options) for address in tables]
    seen = [int(str(asked["since"]))] * len(polls)
    clock, turns = Clock(), 0
    print(json.dumps({"opened": len(polls)}), flush=True)
    with open(str(asked["times"]), "w", buffering=1) as file:
        while not ended.is_set():
            turns += 1
            for number, poll in enumerate(polls):
                if (found := poll(seen[number])) > seen[number]:
                    seen[number] = found
                    file.write(f"{number} {found} {time.monotonic_ns()}\n")
            ended.wait(POLL_S)
    tell({**clock.stop(), "rows": turns, "seen": seen})


if __name__ == "__main__":
    main()
