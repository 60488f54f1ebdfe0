"""`cdcflow timeline`: what happened to a pipeline, as text or as a picture."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Annotated

import typer

from cdcflow.cli import output
from cdcflow.cli.options import DEFAULT_CONFIG, ConfigPath, Json
from cdcflow.config import load, seconds
from cdcflow.errors import ConfigurationError
from cdcflow.reports.timeline import timeline_lines

WHOLE = "all"


def timeline(
    since: Annotated[
        str, typer.Option(help="The beginning: a time in UTC (2026-11-30T06:00), an age (24h), or all.")
    ] = "24h",
    until: Annotated[str | None, typer.Option(help="The end, likewise. Without it now.")] = None,
    svg: Annotated[bool, typer.Option("--svg", help="Print a picture (SVG) instead of text.")] = False,
    config: ConfigPath = DEFAULT_CONFIG,
    json: Json = False,
) -> None:
    """Show what happened to a pipeline: capture, outages, tables that were read, schema changes, merges, comparisons.

    All of it is from the log and its folder: neither the source nor the tables are queried, and a daemon may run.
    """
    from cdcflow import wiring
    from cdcflow.wiring.timelines import timeline as timeline_of

    settings, now = load(config), time.time()
    wiring.existing_log(settings)
    begin = None if since == WHOLE else _moment(since, now, "--since")
    end = now if until is None else _moment(until, now, "--until")
    if begin is not None and begin >= end:
        raise ConfigurationError(
            "the timeline would end before it begins", remedy="give a --since that is before --until"
        )
    found = timeline_of(settings, begin, end, now)
    if json:
        output.print_json(asdict(found))
    elif svg:
        from cdcflow.reports.timeline_picture import svg_of

        typer.echo(svg_of(found))
    else:
        output.show(timeline_lines(found))


def _moment(text: str, now: float, option: str) -> float:
    """Return the time, in seconds since 1970, that a text gives: either as a time in UTC or as an age."""
    from cdcflow.log.read.moments import clock_of

    try:
        return clock_of(text) / 1e6
    except ValueError:
        pass
    try:
        return now - seconds(text)
    except ConfigurationError:
        raise ConfigurationError(
            f"{option} {text}: this is neither a time nor a duration",
            remedy="write a time in UTC, such as 2026-11-30T06:00, or an age, such as 24h",
        ) from None
