"""A file of Airflow's folder of DAGs: merge, wait, compare. Run as a program, it prints the tasks' results as JSON.

The variables CONFIG, SINCE, TABLES (with commas), CDCFLOW, and COMPARES (1 or empty) are those of the test.
"""

from __future__ import annotations

import json
import os
import sys
from datetime import UTC, datetime

from airflow.sdk import DAG

from cdcflow_airflow import CutSensor, MergeOperator, VerifyOperator

settings = {"config": os.environ["CONFIG"], "program": os.environ["CDCFLOW"]}

with DAG("shop", schedule=None, start_date=datetime(2020, 1, 1, tzinfo=UTC), catchup=False) as dag:
    merge = MergeOperator(task_id="merge", **settings)
    wait = CutSensor(
        task_id="wait",
        tables=os.environ["TABLES"].split(","),
        since=os.environ["SINCE"],
        poke_interval=1,
        timeout=3,
        **settings,
    )
    merge >> wait
    if os.environ["COMPARES"]:
        wait >> VerifyOperator(task_id="compare", tables=os.environ["TABLES"].split(","), **settings)


def main() -> None:
    found = {}
    for task in dag.test().get_task_instances():
        found[task.task_id] = {"state": str(task.state), "value": task.xcom_pull(task_ids=task.task_id)}
    sys.stdout.write("RESULT " + json.dumps(found, default=str) + "\n")


if __name__ == "__main__":
    main()
