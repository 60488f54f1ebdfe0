"""Run in Dagster's environment: materialize assets, then evaluate the sensor twice. Prints the outcome as JSON.

python dagster_script.py CONFIG TABLE…
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import dagster as dg

from cdcflow_dagster import asset_key, cut_sensor, merged_assets, table_specs


def main(config: str, *tables: str) -> None:
    program = os.environ["CDCFLOW"]
    found: dict[str, Any] = {}
    with dg.DagsterInstance.ephemeral() as instance:
        assets = merged_assets(config, tables, prefix=["lake"], program=program)
        result = dg.materialize([assets], instance=instance, raise_on_error=False)
        found["success"] = result.success
        found["materialized"] = {
            "/".join(one.asset_key.path): {name: value.value for name, value in one.materialization.metadata.items()}
            for one in result.asset_materializations_for_node("cdcflow_merge")
            and result.get_asset_materialization_events()
            if one.asset_key is not None
        }
        failures = [event.message for event in result.get_step_failure_events()]
        found["failures"] = failures
    with dg.DagsterInstance.ephemeral() as instance:
        sensor = cut_sensor(config, tables, program=program)
        definitions = dg.Definitions(assets=table_specs(tables), sensors=[sensor])
        found["assets"] = sorted("/".join(key.path) for key in definitions.resolve_all_asset_keys())
        cursor, runs = None, []
        for _ in range(2):
            context = dg.build_sensor_context(instance=instance, cursor=cursor)
            data = sensor.evaluate_tick(context)
            runs.append({"events": ["/".join(e.asset_key.path) for e in data.asset_events], "skip": data.skip_message})
            cursor = data.cursor or cursor
        found["sensor"] = runs
    assert asset_key("public.orders").path == ["public", "orders"]
    sys.stdout.write("RESULT " + json.dumps(found, default=str) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
