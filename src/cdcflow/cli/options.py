"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from cdcflow.config import Config, load
from cdcflow.errors import ConfigurationError

ConfigPath = Annotated[
    Path,
    typer.Option("--config", "-c", envvar="CDCFLOW_CONFIG", help="The settings file.", show_default=True),
]
ConfigPaths = Annotated[
    list[Path],
    typer.Option("--config", "-c", envvar="CDCFLOW_CONFIG", help="The settings file; several: their logs together."),
]
OnMaster = Annotated[
    str | None, typer.Option("--on", help="Have a Spark cluster's executors do it: spark://host:port, or local[2].")
]
Json = Annotated[bool, typer.Option("--json", help="For machines: JSON on stdout.")]
Now = Annotated[
    bool, typer.Option("--now", help="Read at once, whatever hours, budget and limits source.backfill sets.")
]
DEFAULT_CONFIG = Path("cdcflow.yaml")


def settings_by_name(configs: Sequence[Path], attempted: str) -> dict[str, Config]:
    """Load several settings files, and return the settings by the names of the files."""
    found: dict[str, Config] = {}
    for path in configs:
        if path.stem in found:
            raise ConfigurationError(
                f"{attempted}: two settings files are called {path.stem}",
                remedy="give the files different names: a log is called as its settings file is",
            )
        found[path.stem] = load(path)
    return found
