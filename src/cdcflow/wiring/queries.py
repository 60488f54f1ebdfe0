"""Opens a change log for queries, from settings or from its location."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cdcflow.config import Config, FileLog, KafkaLog, load
from cdcflow.errors import CdcflowError, ConfigurationError
from cdcflow.log.files.layout import Layout
from cdcflow.log.maintenance.consumer_files import FOLDER, ConsumerFiles, states
from cdcflow.log.read.folder import FolderReader
from cdcflow.log.read.log_reader import LogReader
from cdcflow.wiring.logs import log_id, log_layout, log_reader, sealed_layout

if TYPE_CHECKING:
    from cdcflow.log.query.consumer import States
    from cdcflow.log.query.several_logs import Logs
    from cdcflow.log.query.subscribed import SubscribedLog

SETTINGS = (".yaml", ".yml")


def open_for_queries(log: Config | Path | str, files_max: int | None = None) -> SubscribedLog:
    """Return a log, opened for queries. `log`: settings or their file (recognized by its suffix), a log's folder, or
    `s3://bucket/prefix`, for which the client finds credentials in its usual way. `files_max`: the limit on files that
    one query may read.

    Raises:
        ConfigurationError: there is no log.
    """
    from cdcflow import local
    from cdcflow.log.query.subscribed import SubscribedLog

    reader, layout, place = _parts(log)
    if not reader.exists():
        raise ConfigurationError(
            f"there is no change log at {reader.name}",
            remedy="start `cdcflow run` first, or name the log's folder, its s3:// URL or the settings file",
            runbook="no-log",
        )
    return SubscribedLog(reader, layout, local.current_rows, files_max, partial(_states, layout, place))


def open_several_logs(logs: Mapping[str, Config | Path | str], silent_after_s: float) -> Logs:
    """Several named logs, to be read as one.

    Raises:
        ConfigurationError: there is no log, or a name is not valid.
    """
    from cdcflow.log.query.several_logs import Logs

    ids: dict[str, Callable[[], str]] = {}
    for name, log in logs.items():
        _, layout, place = _parts(log)
        ids[name] = place.log_id or partial(_id_of, layout)
    return Logs({name: open_for_queries(log) for name, log in logs.items()}, ids, silent_after_s)


def _id_of(layout: Layout) -> str:
    return layout.log_file().log_id


@dataclass(frozen=True, slots=True)
class _Place:
    """The folder in which a log's consumers are stored (None: this machine has no such folder), and a function that
    returns the log's id if its layout cannot (otherwise None)."""

    folder: Path | None = None
    log_id: Callable[[], str] | None = None


def _parts(log: Config | Path | str) -> tuple[LogReader, Layout, _Place]:
    if isinstance(log, str) and log.startswith("s3://"):
        layout = log_layout(FileLog.model_validate({"objects": {"url": log}}))
        return FolderReader(layout), layout, _Place()
    if isinstance(log, Path | str):
        path = Path(log)
        if path.suffix not in SETTINGS:
            return FolderReader(path), Layout(path), _Place(path / FOLDER)
        log = load(path)
    place = _Place(consumers_folder(log), partial(log_id, log) if isinstance(log.log, KafkaLog) else None)
    return log_reader(log), sealed_layout(log), place


def consumers_folder(config: Config) -> Path | None:
    """Return the folder with the consumers of the configured log; `None` if the log has no folder on this machine."""
    if isinstance(config.log, FileLog) and not config.log.has_directory:
        return None
    return config.log.folder / FOLDER


def _states(layout: Layout, place: _Place, named: Path | str | None) -> States:
    if named is not None:
        return ConsumerFiles(Path(named), layout, f" --state {shlex.quote(str(named))}", place.log_id)
    if place.folder is None:
        raise ConfigurationError(
            f"looking for consumers of {layout.name}: the log has no folder on this machine to keep them in",
            remedy="name a folder for them: --state ./consumers (in Python state=...)",
        )
    return ConsumerFiles(place.folder, layout, "", place.log_id)


def consumers_status(config: Config, durable_offset: object) -> dict[str, Any]:
    """Return the progress of each consumer that is stored in the configured log's folder, keyed by name; {} if there is
    none."""
    folder = consumers_folder(config)
    if folder is None or not isinstance(durable_offset, int):
        return {}
    try:
        found = states(folder)
    except (CdcflowError, OSError):
        return {}  # `cdcflow consumer ls` reports the reason
    return {
        one.name: {
            "state": "backfill" if one.is_in_backfill else "changes",
            "offset": one.committed.offset,
            "behind_rows": one.behind(durable_offset),
        }
        for one in found
    }
