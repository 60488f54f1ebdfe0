"""A driver of its own that appends rows to a Delta table in a store, each in a commit: `appenddriver.py '{…}'`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from cdcflow.config import Objects
from cdcflow.spark import session, stores


def main(text: str) -> None:
    told = json.loads(text)
    scratch = Path(told["scratch"])
    spark = session(cores=1, memory="1g", scratch=scratch, s3=True, settings=told["spark"])
    stores.reach(spark, Objects.model_validate(told["log"]).address(told["bucket"]))
    table = f"delta.`{told['warehouse']}/raced`"
    spark.sql(f"SELECT count(*) FROM {table}").collect()
    sys.stdout.write('{"ready": true}\n')
    sys.stdout.flush()
    sys.stdin.readline()  # both begin at once
    for number in range(told["rows"]):
        spark.sql(f"INSERT INTO {table} VALUES ('{told['who']}', {number})")
        sys.stdout.write(json.dumps({"appended": number}) + "\n")
        sys.stdout.flush()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
