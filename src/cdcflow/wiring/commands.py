"""The audit records of operators' commands, of repairs, and of gaps, in a log."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from cdcflow.capture.interleave.progress import (
    CommandRecord,
    GapRecord,
    RepairRecord,
    commands_of,
    gaps_of,
    repairs_of,
)
from cdcflow.config import Config
from cdcflow.log.read import reader
from cdcflow.wiring.logs import log_reader, sealed_layout

_Record = TypeVar("_Record", CommandRecord, RepairRecord, GapRecord)


def commands_in_log(config: Config, limit: int) -> list[CommandRecord]:
    """Return the latest commands that the configured log has recorded, oldest first."""
    return _latest(config, commands_of, limit)


def repairs_in_log(config: Config, limit: int) -> list[RepairRecord]:
    """Return the latest repairs that the configured log has recorded, oldest first."""
    return _latest(config, repairs_of, limit)


def gaps_in_log(config: Config, limit: int) -> list[GapRecord]:
    """Return the latest gaps that the configured log has recorded, oldest first."""
    return _latest(config, gaps_of, limit)


def _latest(config: Config, records_of: Callable[[Mapping[str, Any]], Iterable[_Record]], limit: int) -> list[_Record]:
    """Return the latest records, oldest first. Each checkpoint has only the latest ones of its time; older ones are in
    the checkpoints of sealed segments."""
    found: dict[int, _Record] = {}
    for progress in _checkpoints(config):
        found |= {one.number: one for one in records_of(progress) if one.number not in found}
        if min(found, default=1) == 1 or len(found) >= limit:
            break
    return [found[number] for number in sorted(found)][-limit:]


def _checkpoints(config: Config) -> Iterator[Mapping[str, Any]]:
    """Yield the progress of checkpoints in the log, latest first."""
    yield log_reader(config).newest_checkpoint().progress
    layout = sealed_layout(config)
    if layout.exists():
        for segment in reversed(reader.list_segments(layout)):
            yield segment.last_checkpoint().progress
