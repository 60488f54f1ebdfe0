"""Reads a settings file: once, into frozen models, reporting every mistake with its line in the file."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import yaml
from pydantic import ValidationError

from cdcflow.config.base import Settings
from cdcflow.config.fleet import Fleet
from cdcflow.config.folders import rebase, rebase_fleet
from cdcflow.config.mistakes import mistake
from cdcflow.config.plugins import plugged_models
from cdcflow.config.setting_paths import SettingMarks, compose_file, location, note_marks
from cdcflow.config.sources import DayBudgetSettings, LoadLimitSettings
from cdcflow.config.whole import Config
from cdcflow.errors import ConfigurationError

_Model = TypeVar("_Model", bound=Settings)


def without_reading_limits(config: Config) -> Config:
    """Return the settings without those that hold or slow the reading of rows."""
    backfill = config.database.backfill.model_copy(
        update={"hours": None, "per_day": DayBudgetSettings(), "limits": LoadLimitSettings(log_budget_used=None)}
    )
    return config.model_copy(update={"source": config.database.model_copy(update={"backfill": backfill})})


def load(path: Path | str) -> Config:
    """Read a settings file. Relative paths in it are resolved against its folder.

    Raises:
        ConfigurationError: one line per mistake, each with its line in the file.
    """
    path = Path(path)
    return rebase(_read(path, Config), path.parent.absolute())


def load_fleet(path: Path | str) -> Fleet:
    """Read the settings file of `cdcflow fleet`, as `load` reads that of a pipeline."""
    path = Path(path)
    return rebase_fleet(_read(path, Fleet), path.parent.absolute())


def _read(path: Path, model: type[_Model]) -> _Model:
    node = compose_file(path)
    marks: SettingMarks = {}
    note_marks(path, node, (), marks)
    document: object = None
    try:
        document = yaml.SafeLoader("").construct_document(node)
        return model.model_validate(document)
    except ValidationError as error:
        plugged = plugged_models(document)
        lines = [
            mistake(path, marks, tuple(e["loc"]), e["type"], e["msg"], e["input"], plugged, model)
            for e in error.errors()
        ]
        raise ConfigurationError("\n".join(lines)) from None
    except yaml.constructor.ConstructorError as error:
        raise ConfigurationError(
            f"{location(path, error.problem_mark)}: this value cannot be read; enclose it in quotes"
        ) from None
