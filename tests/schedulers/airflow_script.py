"""Run in Airflow's environment: a DAG that merges and waits for the cut. Prints the tasks' results as JSON.

python airflow_script.py CONFIG SINCE TABLE…
"""

from __future__ import annotations

import json
import os
import sys
from datetime import UTC, datetime

from airflow.sdk import DAG

from cdcflow_airflow import CutSensor, MergeOperator


def dag_of(config: str, since: str, tables: list[str]) -> DAG:
    program = os.environ["CDCFLOW"]
    with DAG("shop", schedule=None, start_date=datetime(2020, 1, 1, tzinfo=UTC), catchup=False) as dag:
        merge = MergeOperator(task_id="merge", config=config, program=program, allow_excluded=True)
        wait = CutSensor(
            task_id="wait", config=config, tables=tables, since=since, program=program, poke_interval=1, timeout=3
        )
        merge >> wait
    return dag


def main(config: str, since: str, *tables: str) -> None:
    run = dag_of(config, since, list(tables)).test()
    found = {}
    for task in run.get_task_instances():
        value = task.xcom_pull(task_ids=task.task_id)
        found[task.task_id] = {"state": str(task.state), "value": value}
    sys.stdout.write("RESULT " + json.dumps(found, default=str) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
