"""A party that merges in the mode that it is told, by Spark or without; see `bench.children.merging`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from bench.children.merging import answer


def main() -> int:
    asked = json.loads(sys.argv[1])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what Java prints is no answer
    from cdcflow.merge.policy import Policies, TablePolicy

    if asked["engine"] == "local":
        from cdcflow import local

        def merged_here(log: str, warehouse: str, mode: Any) -> dict[str, Any]:
            policies = Policies(TablePolicy(mode))
            return {"cut": local.merge(log, warehouse, table_format=asked["format"], policies=policies).cut}

        answer(answers, {"merge": merged_here}, lambda: 0)
        return 0
    from cdcflow.spark import merge, session

    more = {} if asked["format"] == "delta" else {"table_formats": [asked["format"]]}
    spark = session(name="bench", scratch=Path(asked["scratch"]), memory="3g", **more)

    def merged_by_spark(log: str, warehouse: str, mode: Any) -> dict[str, Any]:
        policies = Policies(TablePolicy(mode))
        return {"cut": merge(spark, log, warehouse, table_format=asked["format"], policies=policies).cut}

    answer(answers, {"merge": merged_by_spark}, lambda: len(spark.sparkContext.statusTracker().getJobIdsForGroup(None)))
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
