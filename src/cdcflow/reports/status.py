"""A status as text: what the capture does, and each table with its backfill, freshness and last comparison."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from cdcflow.daemon.interfaces.findings import lacks_changes, since, unproven
from cdcflow.daemon.interfaces.notices import stops_of
from cdcflow.daemon.status import verified_of
from cdcflow.model.table import word
from cdcflow.reports.parts import Part, TextTable
from cdcflow.reports.readable import age, number, percent, plain, size


def status_parts(found: Mapping[str, Any]) -> Iterator[Part]:
    """What is known of the capture, one fact per line; then its tables, and the outages that several of them share."""
    pairs = [(name, text) for name, text in pairs_of(found) if text]
    width = max(len(name) for name, _ in pairs)
    yield from (f"{name:<{width}}  {text}" for name, text in pairs)
    tables: Mapping[str, Mapping[str, Any]] = found.get("tables") or {}
    outages = {why: names for why, names in unproven(tables).items() if len(names) > 1}
    excluded = (found.get("merge") or {}).get("excluded") or {}
    if tables:
        yield ""
        rows = [
            (
                name,
                f.get("state"),
                percent(f),
                number(f.get("rows")),
                _throttle(f),
                freshness_text(f, outages),
                _last_verified(found, name),
                _remark(name, f, excluded),
            )
            for name, f in sorted(tables.items())
        ]
        yield TextTable(("table", "backfill", "read", "rows read", "throttle", "fresh", "verified", ""), rows)
    for why, names in outages.items():
        yield f"{len(names)} tables are not proven fresh {since(tables, names)}: {why}"


def _remark(table: str, fields: Mapping[str, Any], excluded: Mapping[str, str]) -> str:
    if (why := excluded.get(table)) is not None:
        text, _, remedy = why.partition("\n")
        return "\n".join((f"not in the cut: {text}", *remedy.strip().splitlines()[:1]))
    gap = fields.get("gap")
    if gap is not None and gap["proven"] is None and lacks_changes(fields):
        return f"changes missing since {gap['before'].partition(';')[0]}: {fields.get('reason') or fields.get('state')}"
    if gap is not None and gap["proven"] is None:
        if gap.get("base"):
            return f"attached, and unverified until it is compared: `cdcflow repair {word(table)}`"
        return (
            f"unverified since changes were lost after {gap['before'].partition(';')[0]}: `cdcflow repair "
            f"{word(table)}`"
        )
    return str(fields.get("reason") or fields.get("shadow_difference") or "")


def _last_verified(found: Mapping[str, Any], table: str) -> str:
    """When the table was last compared with its source, and found equal."""
    known = verified_of(found, table)
    if known["different"]:
        return f"{number(known['different'])} rows differ (`cdcflow verify {word(table)}`)"
    if known["not_compared"]:
        return f"{', '.join(known['not_compared'])} not compared (`cdcflow verify {word(table)}`)"
    at = known["verified_at"]
    return "" if at is None else f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S}Z"


def freshness_text(fields: Mapping[str, Any], outages: Collection[str] = ()) -> str:
    """Until when a table is proven fresh, or since when it is not, in a few words.

    `outages`: reasons that the report prints once for all of their tables, so they are not repeated here.
    """
    as_of = fields.get("fresh_as_of")
    proven = "" if as_of is None else f"as of {datetime.fromtimestamp(as_of, UTC):%Y-%m-%d %H:%M:%S}Z"
    match fields.get("freshness"):
        case None:
            return ""
        case "not proven":
            reason = str(fields.get("freshness_reason") or "no reason was given")
            when = "not proven" if as_of is None else f"not proven since {proven.removeprefix('as of ')}"
            return when if reason in outages else f"{when}: {reason}"
        case state:
            return f"{proven}, quiet" if state == "quiet" else proven


def _throttle(fields: Mapping[str, Any]) -> str:
    """The priority and the rate at which a table's rows are read, and where they are set."""
    if fields.get("state") not in ("waiting", "reading", "paused"):
        return ""
    rate, priority = fields.get("rate_limit"), fields.get("priority")
    limited = f"{number(rate)} rows/s" if rate else "no limit" if fields.get("rate_limit_from") == "order" else ""
    told = [f"{limited} by {fields.get('rate_limit_from')}"] if limited else []
    return ", ".join([*told, *([f"priority {priority} by order"] if priority else [])])


def pairs_of(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The names and texts of what is known; empty texts are not shown."""
    source: Mapping[str, object] = found.get("source") or {}
    speed = found.get("rows_per_second")
    return [
        ("capture", " ".join(str(found[k]) for k in ("state", "kind", "reason") if found.get(k))),
        ("remedy", str(found.get("remedy") or "") if found.get("state") == "halted" else ""),
        ("lease", _lease(found.get("lease") or {})),
        ("cut", f"{found['cut']} at offset {number(found.get('durable_offset'))}" if "cut" in found else ""),
        ("position", str(found.get("position") or "")),
        ("speed", f"{number(speed)} rows/s" if speed is not None else ""),
        ("held back", f"{number(found['held_rows'])} rows" if found.get("held_rows") else ""),
        ("lag", _lag(found)),
        ("merge", _merge(found.get("merge") or {})),
        ("consumers", _consumers(found.get("consumers") or {})),
        ("targets", "\n".join(_target(name, one) for name, one in sorted((found.get("targets") or {}).items()))),
        ("uploads", _uploads(found)),
        ("peers", _peers(found)),
        ("log", str(found.get("log_problem") or "")),
        ("gone", _problems(found)),
        ("left out", _left_out(found)),
        ("contracts", "\n".join((found.get("broken_contracts") or {}).values())),
        ("lost", str(found.get("store_problem") or "")),
        ("source keeps", size(found["retained_bytes"]) if found.get("retained_bytes") is not None else ""),
        ("reading", reading_text(found.get("reading") or {})),
        ("rows from", str(found.get("rows_from") or "")),
        ("log budget", _log_budget(found.get("log_budget") or {})),
        ("source", str(found.get("source_error") or " ".join(f"{k}={v}" for k, v in source.items()))),
    ]


def reading_text(reading: Mapping[str, Any]) -> str:
    """The pace at which existing rows are read, why it is not the full one, and until when."""
    if not reading:
        return ""
    until = f" until {reading['until']}" if reading.get("until") else ""
    share = f" to {100 * reading['share']:.0f} % of the time" if reading["state"] == "slowed" else ""
    why = "; ".join(one["text"] for one in reading["reasons"])
    return f"{reading['state']}{share}{until}" + (f": {why}" if why else "")


def _lease(lease: Mapping[str, Any]) -> str:
    """Which daemon is active, and whether this one is."""
    if not lease:
        return ""
    if "error" in lease:
        return f"does not answer: {lease['error']}"
    at = lease.get("holder_since")
    since = "" if at is None else f" since {datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S}Z"
    who = f"{lease['holder']} is active{since}" if lease.get("holder") else "no daemon is active"
    return f"{who}; this daemon is the standby" if lease.get("role") == "standby" else who


def _log_budget(budget: Mapping[str, Any]) -> str:
    """How much of the budget for the source's log is used, and what follows at its end."""
    if "used" not in budget:
        return str(budget.get("error") or "")
    bounds = [size(budget["budget_bytes"])] if budget.get("budget_bytes") else []
    bounds += [f"{budget['budget_age_seconds']:.0f} s"] if budget.get("budget_age_seconds") else []
    text = f"{100 * budget['used']:.0f} % of {' or '.join(bounds) or 'none'} is used, then {budget['then']}"
    if "released_at" in budget:
        text += f"; released at {datetime.fromtimestamp(budget['released_at'], UTC):%Y-%m-%d %H:%M:%S}Z"
    return text


def _merge(merge: Mapping[str, Any]) -> str:
    failed = f"; the last merge failed: {merge.get('reason') or merge.get('error')}" if merge.get("failed") else ""
    if (process := merge.get("process")) is not None:
        failed = f"; {_merge_process(process)}"
    if "cut" not in merge:
        return f"no cut yet{failed}" if failed else ""
    ended = datetime.fromtimestamp(merge["ended_at"], UTC)
    behind = f"{number(merge.get('behind_rows'))} rows behind"
    left = merge.get("left_out")
    without = f", without {left} {'table' if left == 1 else 'tables'}" if left else ""
    return f"cut {merge['cut']} at {ended:%Y-%m-%d %H:%M:%S}Z, {behind}{without}{failed}"


def _merge_process(process: Mapping[str, Any]) -> str:
    """What the daemon's merge process does, and what is wrong with it."""
    who = _process(process)
    doing = {"merging": f"merging {process.get('table') or ''}".rstrip(), "restarting": "its process is started again"}
    every, state = f"merging every {process['every_seconds']:g} s", str(process.get("state"))
    if (failing := process.get("failing")) is None:
        return f"{every}{who}" if state == "idle" else f"{every}{who}: {doing.get(state, state)}"
    why = failing.get("reason") or f"{failing.get('kind')}, a fault in cdcflow"
    remedy = f"\n  {failing['remedy']}" if failing.get("remedy") else ""
    return f"merges fail: {why}; {doing.get(state, state)}{who}{remedy}"


def _process(process: Mapping[str, Any]) -> str:
    if "pid" not in process:
        return ""
    return (
        f" (process {process['pid']}, {size(process.get('memory_bytes'))} of {size(process.get('memory_bytes_max'))})"
    )


def _target(name: str, target: Mapping[str, Any]) -> str:
    """How far a target is, what its process does, and what of it has stopped."""
    text = f"{name}: not delivered yet"
    if "ended_at" in target:
        ended = datetime.fromtimestamp(target["ended_at"], UTC)
        text = f"{name}: {number(target.get('behind_rows'))} rows behind, delivered {ended:%Y-%m-%d %H:%M:%S}Z"
    if target.get("waiting_tables"):
        text += f", {target['waiting_tables']} tables wait for their rows"
    if (process := target.get("process")) is not None:
        text += f"; {_delivery_process(process)}"
    stops = [f"not delivered: {why}" + (f"; {remedy}" if remedy else "") for why, remedy in stops_of(target)]
    return plain("\n  ".join([text, *stops]))


def _delivery_process(process: Mapping[str, Any]) -> str:
    every = f"delivering every {process['every_seconds']:g} s{_process(process)}"
    doing = {"idle": "", "restarting": "its process is started again", "waiting": process.get("step") or "waiting"}
    state = str(process.get("state"))
    if state == "delivering" and process.get("table"):
        state = f"at {process['table']}"
    return ": ".join(filter(None, (every, doing.get(state, state))))


def _consumers(consumers: Mapping[str, Mapping[str, Any]]) -> str:
    return "; ".join(
        f"{name} {number(one['behind_rows'])} rows behind"
        + (" (in its backfill)" if one["state"] == "backfill" else "")
        for name, one in consumers.items()
    )


def _problems(found: Mapping[str, Any]) -> str:
    return "\n".join(f"{p['text']}\n  {p['remedy']}" if p["remedy"] else p["text"] for p in found.get("problems") or ())


def _left_out(found: Mapping[str, Any]) -> str:
    names = found.get("left_out")
    return f"{', '.join(names)} (`cdcflow doctor` shows why)" if names else ""


def _uploads(found: Mapping[str, Any]) -> str:
    if "upload_offset" not in found:
        return ""
    waiting = found["upload_waiting_segments"]
    if not waiting:
        return f"all sealed segments are in the store, up to offset {number(found['upload_offset'])}"
    why = f": {found['upload_problem']}" if found["upload_problem"] else ""
    return f"{waiting} segments ({size(found['upload_waiting_bytes'])}) wait on the local disk{why}"


def _peers(found: Mapping[str, Any]) -> str:
    following = found.get("peers_following")
    if not following:
        return ""
    why = f": {found['peers_problem']}" if found["peers_problem"] else ""
    return f"{sum(following.values())} of {len(following)} store the log, {found['peers_needed']} are needed{why}"


def _lag(found: Mapping[str, Any]) -> str:
    if found.get("lag_bytes") is None:
        return ""
    behind = found.get("lag_seconds")
    return size(found["lag_bytes"]) + (f", {age(behind)}" if behind is not None else "")
