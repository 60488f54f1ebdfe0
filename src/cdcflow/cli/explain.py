"""`cdcflow explain`: what a version of a table contains, and the origin of a row's values."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from cdcflow.cli import output
from cdcflow.cli.options import DEFAULT_CONFIG, ConfigPath, Json
from cdcflow.cli.table_commands import key_of
from cdcflow.config import load
from cdcflow.errors import ConfigurationError
from cdcflow.reports.explanation import explanation_lines


def explain(
    table: Annotated[str, typer.Argument(help="As schema.table, or schema.table@version.")],
    key: Annotated[
        str | None, typer.Option(help="A row's key: also show the change that gave each of its values.")
    ] = None,
    config: ConfigPath = DEFAULT_CONFIG,
    json: Json = False,
) -> None:
    """Show which transactions, cuts and segments a version of a table contains.

    Without a version, the latest one that a published cut shows.
    """
    from cdcflow import wiring
    from cdcflow.tables.job.explanation import explain as explained

    settings = load(config)
    name, _, version = table.partition("@")
    if version and not version.isdecimal():
        raise ConfigurationError(
            f"explaining {table}: a version is a whole number",
            remedy=f"write {name}@7, for example",
            runbook="settings",
        )
    found = explained(
        wiring.log_reader(settings),
        wiring.reading_engine(settings).cuts(),
        name,
        int(version) if version else None,
        None if key is None else key_of(key),
        wiring.sealed_bounds(settings),
        lambda source, offset: wiring.is_in_quarantine(settings, source, offset),
        wiring.log_id(settings),
    )
    if json:
        output.print_json(asdict(found))
    else:
        output.show(explanation_lines(found))
