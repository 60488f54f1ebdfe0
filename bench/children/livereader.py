"""A reader that calls `read_live` again and again, until it has seen a row.

Argument: `log` (as in cdcflow.yaml), `warehouse`, `table`, `engine` (spark or local), `format`, `scratch`; `there` and
`last` (ids): once the log has the first one it merges, reads a few times and reports that in a line; it ends when it
has seen the other. `times` names a file with one line `id nanoseconds` per call: the latest id, and when the call had
ended.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

WARM_CALLS = 5
WAITED_S_MAX = 120.0


def main() -> int:
    asked = json.loads(sys.argv[1])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what Java prints is no answer
    from cdcflow.config import FileLog
    from cdcflow.wiring import log_layout

    layout = log_layout(FileLog.model_validate(asked["log"]))
    merge, newest = (_by_spark if asked["engine"] == "spark" else _without_spark)(layout, asked)
    _until_merged(merge, newest, asked["there"])
    for _ in range(WARM_CALLS):
        newest()
    answers.write(json.dumps({"ready": True}) + "\n")
    answers.flush()
    times: list[tuple[int, int]] = []
    seconds = 0.0
    while not times or times[-1][0] < asked["last"]:
        began = time.perf_counter()
        found = newest()
        seconds += time.perf_counter() - began
        times.append((found, time.monotonic_ns()))
    with open(asked["times"], "w") as file:
        file.writelines(f"{newest_id} {ns}\n" for newest_id, ns in times)
    answers.write(json.dumps({"calls": len(times), "call_s": seconds / len(times)}) + "\n")
    answers.flush()
    return 0


Merge, Newest = Callable[[], object], Callable[[], int]


def _by_spark(layout: Any, asked: dict[str, Any]) -> tuple[Merge, Newest]:
    from cdcflow.spark import merge, read_live, session

    spark = session(
        name="bench",
        scratch=Path(asked["scratch"]),
        s3="objects" in asked["log"],
        table_formats=[asked["format"]],
    )

    def newest() -> int:
        rows = read_live(spark, layout, asked["warehouse"])[asked["table"]]
        return int(rows.selectExpr("max(id) AS id").collect()[0].id)

    return lambda: merge(spark, layout, asked["warehouse"], table_format=asked["format"]), newest


def _without_spark(layout: Any, asked: dict[str, Any]) -> tuple[Merge, Newest]:
    import pyarrow.compute as pc

    from cdcflow.local import merge, read_live

    def newest() -> int:
        rows = read_live(layout, asked["warehouse"])[asked["table"]]
        found = pc.max(rows["id"]).as_py()
        assert isinstance(found, int)
        return found

    return lambda: merge(layout, asked["warehouse"], table_format=asked["format"]), newest


def _until_merged(merge: Merge, newest: Newest, there: int) -> None:
    """Merge until the table has the row with the id `there`."""
    until = time.monotonic() + WAITED_S_MAX
    while True:
        merge()
        try:
            if newest() >= there:
                return
        except KeyError as error:  # no segment yet, or rows are still to be read
            if time.monotonic() > until:
                raise SystemExit(f"{error} did not come") from error
        time.sleep(0.5)


if __name__ == "__main__":
    sys.exit(main())
