"""The samples of the daemon's metrics: where each is in a status (`cdcflow status --json`).

Each function here returns the samples of one metric, or, given a path or a name, a function that does. Unknown values
are omitted.
"""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from cdcflow.version import __version__

TABLES_MAX = 100
"""With more tables than this `metrics_per_table: auto` omits the series per table."""
_ENTRIES_MAX = {"consumers": 100, "targets": 100}
"""How many entries of a section have series. The other sections have as many entries as the settings name."""

CAPTURE_STATES = ("capturing", "waiting", "paused", "halted", "stopped", "standby")
TABLE_STATES = ("waiting", "reading", "done", "paused", "cancelled", "failed", "forgotten")
FRESHNESS = ("fresh", "quiet", "not proven")
CAUSES = ("outage", "uncovered", "backfill", "late")
MERGE_STATES = ("starting", "waiting", "merging", "idle", "restarting")
MERGE_ENDS = ("failed", "killed", "memory", "silent", "stuck")

Sample = tuple[tuple[str, ...], float]
Found = Callable[[Mapping[str, Any]], Iterable[Sample]]


def number_at(*path: str) -> Found:
    """Return a function that finds the number at this path of a status; nothing if there is no number."""
    return lambda status: _number((), _value_at(status, path))


def by_label(*path: str) -> Found:
    """Return a function that finds a number for each name in the mapping at this path."""

    def samples(status: Mapping[str, Any]) -> Iterator[Sample]:
        for label, count in sorted((_value_at(status, path) or {}).items()):
            yield from _number((str(label),), count)

    return samples


def per_entry(section: str, *path: str) -> Found:
    """Return a function that finds a number for each entry of a section (a consumer, a target), at a path below it."""

    def samples(status: Mapping[str, Any]) -> Iterator[Sample]:
        for name, entry in _entries(status, section):
            yield from _number((name,), _value_at(entry, path))

    return samples


def _entries(status: Mapping[str, Any], section: str) -> list[tuple[str, Any]]:
    """Return the entries of a section, sorted; not all of them if there are too many for separate series."""
    return sorted((status.get(section) or {}).items())[: _ENTRIES_MAX.get(section)]


def _value_at(value: Any, path: Iterable[str]) -> Any:  # Any: values of JSON
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _number(labels: tuple[str, ...], value: object) -> Iterator[Sample]:
    if isinstance(value, bool | int | float) or (isinstance(value, str) and value.isdigit()):
        yield labels, float(value)


def build(status: Mapping[str, Any]) -> Iterator[Sample]:
    yield (__version__, platform.python_version(), str(status.get("source_kind", ""))), 1.0


def capture_state(status: Mapping[str, Any]) -> Iterator[Sample]:
    for state in CAPTURE_STATES:
        yield (state,), float(status.get("state") == state)


def lease_active(status: Mapping[str, Any]) -> Iterator[Sample]:
    if lease := status.get("lease"):
        yield (), float(lease["role"] == "active")


def lease_up(status: Mapping[str, Any]) -> Iterator[Sample]:
    if lease := status.get("lease"):
        yield (), float("error" not in lease)


def _tables(status: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    return status.get("tables") or {}


def tables_in_doubt(status: Mapping[str, Any]) -> Iterator[Sample]:
    gaps = [fields.get("gap") for fields in _tables(status).values()]
    if _tables(status):
        yield (), float(sum(gap is not None and gap["proven"] is None for gap in gaps))


def count_by(field: str, names: tuple[str, ...]) -> Found:
    """Return a function that counts how many tables have each of these values in a field."""

    def samples(status: Mapping[str, Any]) -> Iterator[Sample]:
        counts = Counter(str(fields.get(field)) for fields in _tables(status).values())
        if _tables(status):
            yield from (((name,), float(counts[name])) for name in names)

    return samples


def over_tables(field: str, of: Callable[[list[float]], float]) -> Found:
    """Return a function that computes one number over all tables that have the field."""

    def samples(status: Mapping[str, Any]) -> Iterator[Sample]:
        numbers = [float(v) for t in _tables(status).values() if isinstance(v := t.get(field), int | float)]
        if numbers:
            yield (), of(numbers)

    return samples


def _verified_numbers(status: Mapping[str, Any], field: str) -> dict[str, list[float]]:
    """Return a number that comparisons stored, for each table that was ever compared."""
    known = status.get("verified") or {}
    return {table: [one[field] for one in kinds.values() if field in one] for table, kinds in known.items()}


def oldest_verified(status: Mapping[str, Any]) -> Iterator[Sample]:
    if times := [min(at) for at in _verified_numbers(status, "at").values() if at]:
        yield (), min(times)


def tables_verified(status: Mapping[str, Any]) -> Iterator[Sample]:
    if "verified" in status:
        yield (), float(sum(bool(at) for at in _verified_numbers(status, "at").values()))


def tables_different(status: Mapping[str, Any]) -> Iterator[Sample]:
    if "verified" in status:
        yield (), float(sum(any(keys) for keys in _verified_numbers(status, "different").values()))


def table_verified(status: Mapping[str, Any]) -> Iterator[Sample]:
    times = _verified_numbers(status, "at")
    for table, _ in _each_table(status):
        if times.get(table):
            yield (table,), min(times[table])


def least_progress(status: Mapping[str, Any]) -> Iterator[Sample]:
    reading = [t for t in _tables(status).values() if t.get("state") in ("waiting", "reading", "paused")]
    if _tables(status):
        shares = [(t.get("units_done") or 0) / t["units"] if t.get("units") else 0.0 for t in reading]
        yield (), min(1.0, *shares, 1.0)


def merge_state(status: Mapping[str, Any]) -> Iterator[Sample]:
    process: Mapping[str, Any] | None = (status.get("merge") or {}).get("process")
    if process is not None:
        yield from (((state,), float(process.get("state") == state)) for state in MERGE_STATES)


def merge_failing(status: Mapping[str, Any]) -> Iterator[Sample]:
    process: Mapping[str, Any] | None = (status.get("merge") or {}).get("process")
    if process is not None:
        yield (), float(process.get("failing") is not None)


def notifications(status: Mapping[str, Any]) -> Iterator[Sample]:
    for name, entry in _entries(status, "notifications"):
        for outcome in ("sent", "failed"):
            yield from _number((name, outcome), entry.get(outcome))


def transform_rows(status: Mapping[str, Any]) -> Iterator[Sample]:
    for name, entry in _entries(status, "transforms"):
        for direction in ("in", "out"):
            yield from _number((name, direction), entry.get(f"rows_{direction}"))


def target_ends(status: Mapping[str, Any]) -> Iterator[Sample]:
    for name, entry in _entries(status, "targets"):
        for cause, count in sorted((_value_at(entry, ("process", "ends")) or {}).items()):
            yield from _number((name, str(cause)), count)


def per_table(field: str) -> Found:
    def samples(status: Mapping[str, Any]) -> Iterator[Sample]:
        for table, fields in _each_table(status):
            yield from _number((table,), fields.get(field))

    return samples


def per_table_and(field: str, names: tuple[str, ...]) -> Found:
    def samples(status: Mapping[str, Any]) -> Iterator[Sample]:
        for table, fields in _each_table(status):
            if fields.get(field) is not None:
                yield from (((table, name), float(fields.get(field) == name)) for name in names)

    return samples


def _each_table(status: Mapping[str, Any]) -> Iterable[tuple[str, Mapping[str, Any]]]:
    """Return the tables, if they may have separate series; empty otherwise."""
    tables = _tables(status)
    wanted = status.get("metrics_per_table", "auto")
    if wanted == "never" or (wanted == "auto" and len(tables) > TABLES_MAX):
        return ()
    return tables.items()
