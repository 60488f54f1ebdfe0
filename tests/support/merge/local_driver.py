"""A separate process that merges without Spark again and again, without the lease that would keep two of them apart.

Arguments and output are those of `tests.support.merge.driver`. With `appends` it appends this number
of rows to the table `raced` instead, one in a commit, and prints `{"won": n}` for each.
"""

from __future__ import annotations

import json
import sys
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa

from cdcflow.config import Objects
from cdcflow.errors import SinkUnavailable
from cdcflow.log.files.layout import Layout
from cdcflow.sinks.objects.store import BucketStore
from cdcflow.stores.bucket import Bucket
from cdcflow.tables.job import job
from cdcflow.tables.job.engines import Engines
from cdcflow.tables.local import engine
from cdcflow.tables.paths import Warehouse

RACED = pa.schema([("who", pa.string()), ("n", pa.int64())])


def main(text: str) -> None:
    told = json.loads(text)
    engine.store_lease = lambda *_: nullcontext()  # type: ignore[assignment,attr-defined]  # as if each thought the other dead
    objects = Objects.model_validate(told["log"])
    address = objects.model_copy(update={"url": told["warehouse"]}).address(told["bucket"])
    place = Warehouse(told["warehouse"], address, told.get("catalog"))
    with closing(engine.LocalEngine(place, told.get("format", "delta"))) as local:
        if "appends" in told:
            append(local, told["who"], told["appends"])
        else:
            merge(local, objects, place, told)


def merge(local: engine.LocalEngine, objects: Objects, place: Warehouse, told: dict[str, Any]) -> None:
    scratch = Path(told["scratch"])
    log = Layout(scratch / "log", BucketStore(Bucket(objects), scratch / "log", 1 << 20))
    came_to = 0
    while came_to < told["until"]:
        try:
            report = job.merge(Engines(local), log, place)
        except SinkUnavailable as error:
            say({"put off": str(error).splitlines()[0]})
        else:
            came_to = report.offset
            say({"cut": report.cut, "offset": came_to, "published": report.published})


def append(local: engine.LocalEngine, who: str, count: int) -> None:
    say({"ready": True})
    sys.stdin.readline()  # all begin at once
    for n in range(count):
        while True:
            with closing(local.table(("public", "raced"))) as there:
                there.snapshot()
                try:
                    there.append(pa.table({"who": [who], "n": [n]}, schema=RACED), {}, f"{who}/{n}", 1, 1)
                    break
                except Exception as error:
                    if not local.is_conflict(error):
                        raise
        say({"won": n})
    say({"done": True})


def say(what: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
