"""A plan as text: what changed settings will do to a capture and its tables, and what that costs."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from cdcflow.config import Config
from cdcflow.reports.parts import Part, TextTable
from cdcflow.reports.readable import age, number, size

if TYPE_CHECKING:  # these modules load the capture, which drawing a plan does not need
    from cdcflow.capture.plan import Plan, TablePlan

_Line = tuple[str, str]


def plan_parts(found: Plan) -> Iterator[Part]:
    """What settings will do: the settings and the tables that change, what that costs, and what is refused."""
    changed = [t for t in found.tables if t.action != "unchanged"]
    if not found.has_changes:
        yield f"Nothing changes: {len(found.tables)} tables are captured as in the settings file."
    if found.settings:
        rows = [(c.name, c.before or "", c.now or "", _how(c.taken)) for c in found.settings]
        yield TextTable(("setting", "in use", "file", "applied"), rows, title="Settings")
        yield ""
    if changed:
        tables = [(t.name, t.action, *_size(t), t.why) for t in changed]
        yield TextTable(("table", "what", "rows", "bytes", "why"), tables, title="Tables")
        yield f"{len(found.tables) - len(changed)} tables do not change.\n"
    warnings = [("warning", w) for w in found.warnings]
    for what, text in (*_cost(found), *_merges(found), *_of_merges(found), *warnings, *_refusals(found)):
        yield f"{what}: {text}"


def merging_lines(settings: Config, merging: bool) -> Iterator[str]:
    """A line about the merges of `cdcflow run` with these settings; nothing if it does not merge."""
    if merging:
        who = f"by `cdcflow run`, every {settings.merge.every:g} s, in a separate process"
        yield f"merging: {who}; a new process begins with changed settings of `merge`"


def delivery_lines(settings: Config, delivers: Collection[str]) -> Iterator[str]:
    """A line for each target that names the command which delivers to it. `delivers`: the targets of `cdcflow run`."""
    for name, target in settings.targets.items():
        what = f"target {name} ({target.kind}), {', '.join(target.tables)}"
        if name in delivers:
            yield f"delivering: {what}: by `cdcflow run`, every {target.every:g} s, in a separate process"
        else:
            yield f"delivering: {what}: only by `cdcflow deliver`"


def _size(table: TablePlan) -> tuple[str, str]:
    return (number(table.rows), size(table.bytes)) if table.is_read else ("", "")


def _how(taken: str) -> str:
    return {"running": "at once", "next cut": "at the next cut", "merge": "by the next merge"}.get(taken, taken)


def _refusals(found: Plan) -> list[_Line]:
    lines = []
    for refusal in found.refused:
        lines.append(("refused", refusal.text))
        if refusal.remedy:
            lines.append(("  remedy", refusal.remedy))
    return lines


def _merges(found: Plan) -> list[_Line]:
    """The tables of the warehouse that change with the captured tables in the plan."""
    changed = [t for t in found.tables if t.action not in ("unchanged", "added")]
    if any(t.merged is None for t in changed):
        names = ", ".join(t.name for t in changed)
        return [("merges", f"{names}, if they have current-state tables (cdcflow did not inspect the warehouse)")]
    names = ", ".join(t.name for t in changed if t.merged)
    return [("merges", f"{names}: this affects the current-state tables")] if names else []


def _of_merges(found: Plan) -> list[_Line]:
    """The effects of changed settings about tables of the warehouse, and their cost."""
    return [(c.name, c.why) for c in found.settings if c.taken == "merge" and c.why]


def _cost(found: Plan) -> list[_Line]:
    cost = found.cost
    if not found.reads:
        return []
    rows = number(cost.rows) if cost.rows is not None else f"at least {number(cost.rows_at_least)}"
    amount = size(cost.bytes) if cost.bytes is not None else f"at least {size(cost.bytes_at_least)}"
    unknown = "unknown (nothing was read lately to estimate it from, or the server has no statistics)"
    took = unknown if cost.seconds is None else f"about {age(cost.seconds)}, as fast as rows were read lately"
    kept = "unknown" if cost.log_bytes is None else f"about {size(cost.log_bytes)}"
    return [
        ("to read", f"{rows} rows, {amount}, by the server's statistics"),
        ("time", took),
        ("log that the source writes in that time", kept),
        *_limits(found),
    ]


def _limits(found: Plan) -> list[_Line]:
    if found.limits is None:
        return []
    each = [f"{age(one.age_s) if one.age_s else size(one.bytes)} ({one.name})" for one in found.limits]
    return [("log that the source keeps, at most", ", ".join(each) or "no limit (docs/budget.md)")]
