"""A separate driver that merges again and again, without the lease that would keep two of them apart.

    python driver.py '{"log": {…}, "warehouse": "s3a://…", "format": "delta", "until": 400, …}'

Prints a JSON line for each merge, `{"cut": …}` or `{"put off": why}`; ends when a merge has reached offset `until`.
`branch_rows`: Iceberg tables with at least this many rows change on a branch.
"""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from pathlib import Path

from cdcflow.config import Objects
from cdcflow.errors import SinkUnavailable
from cdcflow.log.files.layout import Layout
from cdcflow.sinks.objects.store import BucketStore
from cdcflow.spark import engine, job, session
from cdcflow.spark.formats import iceberg_branch
from cdcflow.stores.bucket import Bucket
from cdcflow.tables.paths import Warehouse


def main(text: str) -> None:
    told = json.loads(text)
    engine.lease = lambda *_: nullcontext()  # type: ignore[attr-defined]  # as if each thought the other dead
    iceberg_branch.ROWS_MIN = told.get("branch_rows", iceberg_branch.ROWS_MIN)
    scratch = Path(told["scratch"])
    objects = Objects.model_validate(told["log"])
    log = Layout(scratch / "log", BucketStore(Bucket(objects), scratch / "log", 1 << 20))
    settings = {
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=256m",
        "spark.sql.shuffle.partitions": "1",
        **told["spark"],
    }
    spark = session(cores=1, memory="1g", scratch=scratch, s3=True, table_formats=[told["format"]], settings=settings)
    address = objects.model_copy(update={"url": told["warehouse"]}).address(told["bucket"])
    place = Warehouse(told["warehouse"], address, told["catalog"])
    came_to = 0
    while came_to < told["until"]:
        try:
            report = job.merge(spark, log, place, table_format=told["format"])
        except SinkUnavailable as error:
            said: dict[str, object] = {"put off": str(error).splitlines()[0]}
        else:
            came_to = report.offset
            said = {"cut": report.cut, "offset": came_to, "published": report.published}
        sys.stdout.write(json.dumps(said) + "\n")
        sys.stdout.flush()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
