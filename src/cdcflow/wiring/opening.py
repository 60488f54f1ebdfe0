"""A change log opened for questions, from settings or from where it is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cdcflow.changelog.folder import FolderReader
from cdcflow.changelog.layout import Layout
from cdcflow.config import Config, FileLog, load
from cdcflow.errors import ConfigurationError
from cdcflow.ports import LogReader
from cdcflow.wiring.logs import log_layout, log_reader, sealed_layout

if TYPE_CHECKING:
    from cdcflow.query.log import ChangeLog

SETTINGS = (".yaml", ".yml")


def opened(log: Config | Path | str, files_max: int | None = None) -> ChangeLog:
    """A log, for questions. `log`: settings or their file (by its suffix), a log's folder, or `s3://bucket/prefix`, for
    which the client finds its rights as it always does. `files_max`: one question reads no more files.

    Raises:
        ConfigurationError: there is no log.
    """
    from cdcflow import local
    from cdcflow.query.log import ChangeLog

    reader, layout = _parts(log)
    if not reader.exists():
        raise ConfigurationError(
            f"there is no change log at {reader.name}",
            remedy="start `cdcflow run` first, or name the log's folder, its s3:// URL or the settings file",
            runbook="no-log",
        )
    return ChangeLog(reader, layout, local.current_rows, files_max)


def _parts(log: Config | Path | str) -> tuple[LogReader, Layout]:
    if isinstance(log, str) and log.startswith("s3://"):
        layout = log_layout(FileLog.model_validate({"objects": {"url": log}}))
        return FolderReader(layout), layout
    if isinstance(log, Path | str):
        path = Path(log)
        if path.suffix not in SETTINGS:
            return FolderReader(path), Layout(path)
        log = load(path)
    return log_reader(log), sealed_layout(log)
