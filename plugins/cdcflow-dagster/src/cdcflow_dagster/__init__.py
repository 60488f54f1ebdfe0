"""cdcflow in Dagster: `merged_assets` for jobs that merge, `cut_sensor` for tables that a daemon merges."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import dagster as dg

__all__ = ["asset_key", "cut_sensor", "merged_assets", "table_specs"]

FINDINGS = 1
_NO_CUT = "cut was published"


def asset_key(table: str, prefix: Sequence[str] = ()) -> dg.AssetKey:
    """The asset of a table: `public.orders` is `[*prefix, public, orders]`."""
    return dg.AssetKey([*prefix, *table.split(".", 1)])


def table_specs(
    tables: Iterable[str], *, prefix: Sequence[str] = (), group: str | None = None, deps: Sequence[Any] = ()
) -> list[dg.AssetSpec]:
    """The assets of tables that a daemon merges. `cut_sensor` reports when they change."""
    kinds = {"cdcflow"}
    return [dg.AssetSpec(asset_key(name, prefix), group_name=group, deps=deps, kinds=kinds) for name in tables]


def merged_assets(
    config: str,
    tables: Sequence[str],
    *,
    name: str = "cdcflow_merge",
    prefix: Sequence[str] = (),
    group: str | None = None,
    program: str = "cdcflow",
) -> dg.AssetsDefinition:
    """The tables of a pipeline as assets that one step materializes together: `cdcflow merge --once`.

    All of them are in one cut. The step fails if one of them was excluded from it, after it has reported the others.
    Tables of the pipeline that are not in `tables` are merged, too.
    """

    @dg.multi_asset(specs=table_specs(tables, prefix=prefix, group=group), name=name)
    def merge() -> Iterator[dg.MaterializeResult[Any]]:
        report = _run(program, ["merge", "--once", "--config", config], (0, FINDINGS))
        found = {one["name"]: one for one in report["tables"]}
        for table in tables:
            one = found.get(table)
            if one is not None and one["left_out"] is None:
                metadata = {"cut": report["cut"], "version": one["version"], "changes": one["changes"]}
                yield dg.MaterializeResult(
                    asset_key=asset_key(table, prefix), metadata={**metadata, "whole": one["complete"]}
                )
        for table in tables:
            why = "the log has no such table" if table not in found else found[table]["left_out"]
            if why is not None:
                raise dg.Failure(f"{table} is not in cut {report['cut']}: {why}")

    return merge


def cut_sensor(
    config: str,
    tables: Sequence[str],
    *,
    name: str = "cdcflow_cuts",
    prefix: Sequence[str] = (),
    minimum_interval_seconds: int = 30,
    program: str = "cdcflow",
) -> dg.SensorDefinition:
    """Report each published cut as materializations of those tables whose version changed since the previous one.

    Assets that follow can be materialized by Dagster's own conditions. A table that is excluded from the cut, or that
    does not have all of its rows, is not reported.
    """

    @dg.sensor(name=name, minimum_interval_seconds=minimum_interval_seconds)
    def report(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        cut = _latest_cut(program, config)
        if cut is None:
            return dg.SkipReason("no cut is published yet")
        before: dict[str, int] = json.loads(context.cursor) if context.cursor else {}
        now = {one: cut["tables"][one] for one in tables if cut["tables"].get(one, {}).get("complete")}
        versions = {one: table["version"] for one, table in now.items()}
        events = [
            dg.AssetMaterialization(
                asset_key(one, prefix),
                metadata={"cut": cut["cut"], "version": version, "commit_clock": cut["commit_clock"]},
            )
            for one, version in versions.items()
            if before.get(one) != version
        ]
        if not events:
            return dg.SkipReason(f"no table has changed in cut {cut['cut']}")
        return dg.SensorResult(asset_events=events, cursor=json.dumps({**before, **versions}))

    return report


def _latest_cut(program: str, config: str) -> dict[str, Any] | None:
    """The latest published cut with its tables; None if there is none yet."""
    try:
        return dict(_run(program, ["cuts", "--tables", "--config", config], (0,)))
    except dg.Failure as failure:
        if _NO_CUT in (failure.description or ""):
            return None
        raise


def _run(program: str, arguments: Sequence[str], accepted: Sequence[int]) -> Any:
    """What a command prints with `--json`. Raises Failure, with its errors, if the exit code is not accepted."""
    done = subprocess.run([program, *arguments, "--json"], capture_output=True, text=True, check=False)
    if done.returncode not in accepted:
        said = (done.stderr or done.stdout).strip()
        raise dg.Failure(f"cdcflow {arguments[0]} ended with {done.returncode}:\n{said}")
    return json.loads(done.stdout)
