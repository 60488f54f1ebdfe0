"""The problems of a capture, each as a sentence and with what to do about it. The worst come first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from cdcflow.daemon.interfaces.health import is_stalled
from cdcflow.daemon.interfaces.notices import stops_of
from cdcflow.model.log_budget import LEVELS
from cdcflow.model.table import word

BEHIND_S = 300
HEADROOM_SHARE_MIN = 0.2
DISK_SHARE_MIN = 0.1
DISK_FREE_MIN = 1 << 30

Level = Literal["error", "warning", "note"]
_ORDER: Mapping[Level, int] = {"error": 0, "warning": 1, "note": 2}


@dataclass(frozen=True, slots=True)
class Remark:
    """A remark about a capture. `table`: the table that it is about. `operation`: an operation that fixes it, if there
    is one."""

    level: Level
    text: str
    remedy: str | None = None
    table: str | None = None
    operation: str | None = None


def remarks(
    status: Mapping[str, Any], headroom: Mapping[str, Any], disk: Mapping[str, Any], merges: object = None
) -> list[Remark]:
    """Return all remarks about a status, its headroom and its disk."""
    found = [*_capture(status), *_headroom(headroom), *_disk(disk), *_log(status), *_tables(status)]
    found += _log_budget(status)
    found += _reading(status)
    found += _lease(status)
    found += _exclusions(status, merges)
    found += _merge_process(status)
    found += _targets(status)
    return sorted(found, key=lambda one: _ORDER[one.level])


def _active(status: Mapping[str, Any]) -> str:
    return str((status.get("lease") or {}).get("holder") or "another daemon")


def _lease(status: Mapping[str, Any]) -> Iterator[Remark]:
    error = (status.get("lease") or {}).get("error")
    if error is not None:
        yield Remark(
            "error",
            f"The lease does not answer: {error}.",
            "No daemon may capture until it does; check service.lease and the server that it names.",
        )


def _capture(status: Mapping[str, Any]) -> Iterator[Remark]:
    state = status.get("state")
    if state == "halted":
        text, _, remedy = str(status.get("reason") or "").partition("\n")
        yield Remark("error", f"The capture has ended and will not try again: {text}.", remedy.strip() or None)
    elif state == "paused":
        yield Remark("note", "The capture is paused: in the meantime the source keeps its log.", "Resume it.")
    elif state == "standby":
        yield Remark("note", f"This daemon is the standby: {_active(status)} captures.")
    elif state not in ("capturing", None):
        text, _, remedy = str(status.get("reason") or "starting").partition("\n")
        waits = "The capture is starting." if text == "starting" else f"The capture is {state}: {text}."
        yield Remark("note" if text == "starting" else "error", waits, remedy.strip() or None)
    if status.get("source_error"):
        yield Remark(
            "warning",
            f"The source did not answer when cdcflow asked for its position: {status['source_error']}.",
            "Check that the server runs and that this machine reaches it; `cdcflow doctor` shows what else it needs.",
        )
    if is_stalled(status):
        age = round(float(status["heartbeat_age_seconds"]))
        yield Remark(
            "error",
            f"The source has sent nothing for {age} s, although a heartbeat is due.",
            "Run `cdcflow doctor`; if it finds nothing, restart the daemon.",
        )
    behind = status.get("lag_seconds")
    if isinstance(behind, int | float) and behind > BEHIND_S and not is_stalled(status):
        yield Remark(
            "warning",
            f"The log lags the source by {round(behind / 60)} minutes.",
            "If cdcflow is catching up with a backlog, wait; otherwise find out what slows the daemon down: its "
            "disk or its network.",
        )
    if left := status.get("left_out"):
        names = ", ".join(left)
        yield Remark("warning", f"These tables cannot be captured: {names}.", "`cdcflow doctor` shows why.")
    for reason in (status.get("broken_contracts") or {}).values():
        yield Remark(
            "warning",
            f"The log has a schema that breaks a contract: {reason}.",
            "Change the schema back at the source, or `contracts` in the settings; rows are captured in any case.",
        )
    if stopped := (status.get("source") or {}).get("stopped"):
        yield Remark("error", f"These tables have stopped: {stopped}.", "`cdcflow doctor` shows what helps for each.")
    if changed := (status.get("source") or {}).get("cascades_not_logged"):
        yield Remark(
            "warning",
            f"Foreign keys change rows of {changed}, and the server does not log these changes.",
            "`cdcflow doctor` names the keys and the SQL that changes them.",
        )


def _headroom(headroom: Mapping[str, Any]) -> Iterator[Remark]:
    if headroom.get("lost"):
        yield Remark(
            "error",
            "The source has discarded log that cdcflow still needs.",
            "Run `cdcflow run --accept-history-loss` once: it continues from the source's present end and reads "
            "every table again.",
        )
        return
    limit, retained = headroom.get("limit_bytes"), headroom.get("retained_bytes")
    if limit and isinstance(retained, int) and limit - retained < HEADROOM_SHARE_MIN * limit:
        yield Remark(
            "warning",
            f"The source keeps {100 * retained // limit} % of the log that it may keep for cdcflow. Beyond that "
            f"it discards log that cdcflow needs.",
            "Find out why the capture lags, or raise the limit (PostgreSQL: max_slot_wal_keep_size; MySQL: "
            "binlog_expire_logs_seconds, max_binlog_total_size).",
        )
    if headroom.get("files_until_lost") == 0 and headroom.get("kept_seconds") and limit:
        yield Remark("note", "The binary log that is read now is the oldest that the server has.")


def _log_budget(status: Mapping[str, Any]) -> Iterator[Remark]:
    budget: Mapping[str, Any] = status.get("log_budget") or {}
    percent = int(100 * (budget.get("used") or 0))
    if budget.get("percent"):
        then = (
            "At 100 % cdcflow releases the log, captures from the present, and repairs the tables."
            if budget.get("then") == "release"
            else "Find out why the capture lags. At 100 % the source keeps more, as far as its own limits allow."
        )
        level: Level = "error" if percent >= LEVELS[2] else "warning"
        yield Remark(level, f"{percent} % of the budget for the source's log is used.", then)
    if budget.get("error"):
        yield Remark("warning", f"The log that the source keeps cannot be measured: {budget['error']}.")


def _reading(status: Mapping[str, Any]) -> Iterator[Remark]:
    reading: Mapping[str, Any] = status.get("reading") or {}
    if reading.get("state", "free") == "free":
        return
    until = f" until {reading['until']}" if reading.get("until") else ""
    done = "is held" if reading["state"] == "held" else f"takes {100 * reading['share']:.0f} % of the time"
    why = "; ".join(one["text"] for one in reading.get("reasons") or ())
    level: Level = "warning" if reading.get("unmeasured") else "note"
    yield Remark(level, f"Reading existing rows {done}{until}: {why}.")


def _disk(disk: Mapping[str, Any]) -> Iterator[Remark]:
    free, total = disk.get("free_bytes"), disk.get("total_bytes")
    if free is None or not total:
        return
    if free < DISK_FREE_MIN or free < DISK_SHARE_MIN * total:
        level: Level = "error" if free < DISK_FREE_MIN else "warning"
        share = 100 * free / total
        yield Remark(
            level,
            f"The disk of {disk.get('folder')} has {share:.0f} % left.",
            "Make room: `cdcflow log expire --older-than 30d` removes old segments.",
        )


def _log(status: Mapping[str, Any]) -> Iterator[Remark]:
    for one in status.get("problems") or ():
        yield Remark("error", f"{one['text'].rstrip('.')}.", one.get("remedy"))
    for field, what in (
        ("log_problem", "The log"),
        ("store_problem", "The object store"),
        ("upload_problem", "Uploads"),
    ):
        if problem := status.get(field):
            text, _, remedy = str(problem).partition("\n")
            yield Remark("error", f"{what}: {text}.", remedy.strip() or "Run `cdcflow log check`.")


def _tables(status: Mapping[str, Any]) -> Iterator[Remark]:
    tables: Mapping[str, Mapping[str, Any]] = status.get("tables") or {}
    for name, fields in sorted(tables.items()):
        reason = fields.get("reason")
        why = f": {reason}" if reason else ""
        lacks = lacks_changes(fields)
        match fields.get("state"):
            case "failed" if lacks:
                yield Remark(
                    "error",
                    f"Changes of {name} cannot leave the source, and are missing since "
                    f"{fields['gap']['before'].partition(';')[0]}{why}. The other tables continue.",
                    "Fix the cause; the table is then read again."
                    if fields["gap"].get("by") == "refused"
                    else f"Fix the cause, then run `cdcflow backfill {word(name)}`.",
                    name,
                    "backfill",
                )
            case "failed":
                yield Remark(
                    "error", f"Reading {name} failed{why}.", "Fix the cause, then read it again.", name, "backfill"
                )
            case "cancelled":
                yield Remark(
                    "warning",
                    f"Reading {name} was cancelled{why}: the log lacks rows that have not changed since.",
                    "Read it again.",
                    name,
                    "backfill",
                )
            case "paused":
                yield Remark(
                    "note", f"Reading {name} is paused; its changes are captured.", "Resume it.", name, "resume"
                )
            case _:
                pass
        if found := fields.get("shadow_difference"):
            text, _, remedy = str(found).rpartition("; ")
            yield Remark("error", f"In {name} {text}.", f"{remedy[0].upper()}{remedy[1:]}.", name)
        if (gap := fields.get("gap")) is not None and gap["proven"] is None and not lacks:
            lost = f"Changes of {name} were lost after {gap['before'].partition(';')[0]}, and its rows are unverified."
            yield Remark(
                "warning",
                f"{name} was attached, and its rows are unverified until they are compared."
                if gap.get("base")
                else lost,
                f"Run `cdcflow repair {word(name)}`.",
                name,
            )
    yield from _freshness(unproven(tables), tables)


def lacks_changes(fields: Mapping[str, Any]) -> bool:
    """Whether changes of a table are missing until it is read again, given its entry in a status."""
    gap = fields.get("gap") or {}
    return gap.get("after") == "" and not gap.get("base")


def unproven(tables: Mapping[str, Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return the tables that are read and not proven fresh, grouped by the reason: an outage has one reason for all of
    them."""
    found: dict[str, list[str]] = {}
    for name, fields in sorted(tables.items()):
        gap = fields.get("gap")
        in_doubt = gap is not None and gap["proven"] is None
        if fields.get("freshness") == "not proven" and fields.get("state") == "done" and not in_doubt:
            found.setdefault(str(fields.get("freshness_reason") or "no reason was given"), []).append(name)
    return found


def since(tables: Mapping[str, Mapping[str, Any]], names: Sequence[str]) -> str:
    """Return a text for the time since when the oldest of these tables is not proven fresh."""
    times = [tables[name].get("fresh_as_of") for name in names]
    known = [at for at in times if at is not None]
    return f"since {datetime.fromtimestamp(min(known), UTC):%Y-%m-%d %H:%M:%S}Z" if len(known) == len(times) else "yet"


def _freshness(reasons: Mapping[str, Sequence[str]], tables: Mapping[str, Mapping[str, Any]]) -> Iterator[Remark]:
    for why, names in reasons.items():
        more = "`cdcflow doctor` shows more."
        if len(names) == 1:
            yield Remark(
                "warning", f"Table {names[0]} is not proven fresh {since(tables, names)}: {why}.", more, names[0]
            )
            continue
        shown = ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
        text = f"{len(names)} tables are not proven fresh {since(tables, names)} ({shown}): {why}."
        yield Remark("warning", text, more)


def _targets(status: Mapping[str, Any]) -> Iterator[Remark]:
    targets: Mapping[str, Mapping[str, Any]] = status.get("targets") or {}
    for name, one in sorted(targets.items()):
        for reason, remedy in stops_of(one):
            todo = remedy or "Read the daemon's output; the capture continues, and the next delivery catches up"
            text = f"The target {name} is not delivered: {reason.rstrip('.')}."
            yield Remark("warning", text, f"{todo[0].upper()}{todo[1:].rstrip('.')}.")


def _merge_process(status: Mapping[str, Any]) -> Iterator[Remark]:
    process: Mapping[str, Any] = (status.get("merge") or {}).get("process") or {}
    if (failing := process.get("failing")) is not None:
        why = failing.get("reason") or f"{failing.get('kind')}, a fault in cdcflow"
        at = datetime.fromtimestamp(failing["since"], UTC)
        yield Remark(
            "warning",
            f"Merges have failed since {at:%Y-%m-%d %H:%M:%S}Z: {str(why).rstrip('.')}.",
            failing.get("remedy") or "Read the daemon's output; the capture continues, and the next merge catches up.",
        )


def _exclusions(status: Mapping[str, Any], merges: object) -> Iterator[Remark]:
    newest = merges[0] if isinstance(merges, list) and merges else {}
    known = (status.get("merge") or {}).get("excluded") or {}  # also known of tables on other machines
    for name, why in (newest.get("left_out") or known).items():
        text, _, remedy = str(why).partition("\n")
        todo = "; ".join(line.strip() for line in remedy.splitlines())
        yield Remark(
            "warning",
            f"The latest merge skipped {name}: {text}.",
            todo or "Run `cdcflow merge` and read its report.",
        )
