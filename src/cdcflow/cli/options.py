"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

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
