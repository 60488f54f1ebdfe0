"""`cdcflow dbt`: the tables of a warehouse as sources of dbt."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
import yaml

from cdcflow.cli.options import DEFAULT_CONFIG, ConfigPath
from cdcflow.config import load, seconds
from cdcflow.errors import ConfigurationError

_HEAD = "# Written by `cdcflow dbt`; run it again when the pipeline has other tables.\n"


def dbt(
    output: Annotated[
        Path | None, typer.Option(help="The file, such as models/sources.yml; replaced. Default: print it.")
    ] = None,
    warn_after: Annotated[str, typer.Option(help="dbt warns when a table is older than this.")] = "1h",
    error_after: Annotated[str, typer.Option(help="dbt fails when a table is older than this.")] = "6h",
    config: ConfigPath = DEFAULT_CONFIG,
) -> None:
    """Write a sources.yml for dbt: the tables of the latest published cut, and how fresh each of them must be.

    For dbt with the adapter for DuckDB, whose extension delta reads the tables.
    """
    from cdcflow import wiring
    from cdcflow.tables.job import moments
    from cdcflow.tables.job.dbt_sources import dbt_sources

    settings = load(config)
    if settings.merge.format != "delta":
        raise ConfigurationError(
            "these tables are Iceberg tables, and DuckDB finds those in a catalog only",
            remedy="write sources.yml by hand: `cdcflow cuts --tables` lists the tables",
        )
    place, engine = wiring.warehouse(settings), wiring.reading_engine(settings)
    found = moments.find(engine.cuts(), place, None, None)
    made = dbt_sources(found, place, warn_after_s=seconds(warn_after), error_after_s=seconds(error_after))
    text = _HEAD + yaml.safe_dump(made, sort_keys=False, width=200, allow_unicode=True)
    if output is None:
        typer.echo(text, nl=False)
        return
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{output} cannot be written: {error.strerror}") from None
    typer.echo(f"wrote {output}: {len(found.tables)} tables of cut {found.cut}")
