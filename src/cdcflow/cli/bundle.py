"""`cdcflow bundle`: one file with what a maintainer needs to analyse a problem, without secrets and row values."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from cdcflow.cli import output
from cdcflow.cli.options import DEFAULT_CONFIG, ConfigPath, Json
from cdcflow.config import load
from cdcflow.daemon.support_bundle import write_bundle
from cdcflow.reports.readable import size


def bundle(
    config: ConfigPath = DEFAULT_CONFIG,
    to: Annotated[Path | None, typer.Option("--output", "-o", help="The file to write; it must not exist yet.")] = None,
    events: Annotated[
        Path | None, typer.Option(help="The file with the daemon's log; the bundle takes its last 2,000 lines.")
    ] = None,
    json_: Json = False,
) -> None:
    """Write what a maintainer needs into one .tar.gz: no secrets, no row values. Lists its contents."""
    settings = load(config)
    stamp = datetime.fromtimestamp(time.time(), UTC).strftime("%Y%m%dT%H%M%SZ")
    path = to or Path(f"cdcflow-bundle-{stamp}.tar.gz")
    made = write_bundle(path, settings, events, stamp)
    if json_:
        files = [{"name": p.name, "bytes": count, "text": p.text} for p, count in made]
        output.print_json({"path": str(path), "files": files})
        return
    typer.echo(f"{path} ({size(path.stat().st_size)}) holds")
    for part, count in made:
        typer.echo(f"  {part.name:<16} {size(count):>9}  {part.text}")
    typer.echo(
        "No secrets and no values of rows are in it; names of tables and columns are. Read it before you send it."
    )
