"""`cdcflow init`: a settings file to begin with, for each kind of database."""

from __future__ import annotations

import json
import sys
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from cdcflow.config.template import DatabaseKind, template
from cdcflow.errors import ConfigurationError

UNIT = "cdcflow@.service"
_PROGRAM = "/opt/cdcflow/bin/cdcflow"


def init(
    path: Annotated[Path, typer.Argument(help="Where to write it.")] = Path("cdcflow.yaml"),
    kind: Annotated[
        DatabaseKind, typer.Option(help="The database that changes are captured from.")
    ] = DatabaseKind.postgres,
    systemd: Annotated[
        bool, typer.Option("--systemd", help="Print a systemd unit for `cdcflow run` instead (docs/systemd.md).")
    ] = False,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print a JSON Schema of the settings instead, for editors.")
    ] = False,
) -> None:
    """Write a commented settings file. An existing one is never overwritten."""
    if schema:
        from cdcflow.config.json_schema import settings_schema

        typer.echo(json.dumps(settings_schema(), indent=2, ensure_ascii=False))
        return
    if systemd:
        typer.echo(unit(), nl=False)
        return
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(template(kind))
    except FileExistsError:
        raise ConfigurationError(f"{path} exists already", remedy="edit it, or name another file") from None
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror}") from None
    typer.echo(f"wrote {path}; set source.url and source.tables in it, then run `cdcflow doctor`")


def unit() -> str:
    """Return the text of the systemd unit. It starts the `cdcflow` in the directory of this process's Python
    interpreter."""
    text = files("cdcflow").joinpath("packaging", UNIT).read_text(encoding="utf-8")
    return text.replace(_PROGRAM, str(Path(sys.executable).parent / "cdcflow"))
