"""cdcflow in Airflow: `CutSensor`, `MergeOperator`, `VerifyOperator`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from airflow.sdk import BaseOperator, BaseSensorOperator, Context
from airflow.sdk.bases.sensor import PokeReturnValue

from cdcflow_airflow.command import FINDINGS, CommandFailed, latest_cut, missing_from, run

__all__ = ["CommandFailed", "CutSensor", "MergeOperator", "VerifyOperator"]


class CutSensor(BaseSensorOperator):
    """Wait until the latest published cut shows the source at a time, or later, with every row of the tables.

    `config`: the settings file of the pipeline; the machine that runs the task must reach its warehouse. `tables`:
    those that must be whole; by default all of the cut. `since`: by default the end of the run's data interval; a run
    without one waits for any cut. The result is the cut: its number, its `commit_clock`, and each table's version.
    """

    template_fields: Sequence[str] = ("config", "tables", "since")

    def __init__(
        self,
        *,
        config: str,
        tables: Sequence[str] = (),
        since: str | datetime | None = None,
        program: str = "cdcflow",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.config = config
        self.tables = tables
        self.since = since
        self.program = program

    def poke(self, context: Context) -> PokeReturnValue:
        since: Any = self.since or context.get("data_interval_end")
        if isinstance(since, str):
            since = datetime.fromisoformat(since)
        cut = latest_cut(self.program, self.config)
        missing = missing_from(cut, since, self.tables)
        if missing is not None or cut is None:
            self.log.info("waiting: %s", missing)
            return PokeReturnValue(is_done=False)
        versions = {name: table["version"] for name, table in cut["tables"].items()}
        found = {"cut": cut["cut"], "commit_clock": cut["commit_clock"], "versions": versions}
        return PokeReturnValue(is_done=True, xcom_value=found)


class MergeOperator(BaseOperator):
    """Merge the log up to its latest sealed cut, and publish that cut: `cdcflow merge --once`.

    Fails if a table was excluded from the cut, unless `allow_excluded`. The result: the cut's number, whether this run
    published it, and the number of changes of each table that had some.
    """

    template_fields: Sequence[str] = ("config",)

    def __init__(self, *, config: str, allow_excluded: bool = False, program: str = "cdcflow", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.config = config
        self.allow_excluded = allow_excluded
        self.program = program

    def execute(self, context: Context) -> dict[str, Any]:
        _, report = run(self.program, ["merge", "--once", "--config", self.config], accepted=(0, FINDINGS))
        excluded = {one["name"]: one["left_out"] for one in report["tables"] if one["left_out"] is not None}
        if excluded and not self.allow_excluded:
            reasons = "\n".join(f"{name}: {why}" for name, why in sorted(excluded.items()))
            raise RuntimeError(f"tables are not in cut {report['cut']}:\n{reasons}")
        changes = {one["name"]: one["changes"] for one in report["tables"] if one["changes"]}
        return {
            "cut": report["cut"],
            "published": report["published"],
            "changes": changes,
            "excluded": sorted(excluded),
        }


class VerifyOperator(BaseOperator):
    """Compare the source's rows with the copy's: `cdcflow verify`. Fails if a row differs, or if a table could not be
    compared."""

    template_fields: Sequence[str] = ("config", "tables")

    def __init__(
        self,
        *,
        config: str,
        tables: Sequence[str] = (),
        against: str = "tables",
        program: str = "cdcflow",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.config = config
        self.tables = tables
        self.against = against
        self.program = program

    def execute(self, context: Context) -> None:
        arguments = ["verify", *self.tables, "--against", self.against, "--config", self.config]
        code, report = run(self.program, arguments, accepted=(0, FINDINGS))
        if code == FINDINGS:
            raise RuntimeError(f"source and copy differ, or were not compared:\n{report}")
