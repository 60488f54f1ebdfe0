"""`cdcflow cuts`: the points in time at which tables can be read, and SQL to read them without cdcflow."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from cdcflow.cli import output
from cdcflow.cli.options import DEFAULT_CONFIG, ConfigPath, Json
from cdcflow.config import load
from cdcflow.reports.cuts import cut_parts, cuts_table
from cdcflow.reports.readable import utc_time

if TYPE_CHECKING:
    from cdcflow.tables.cut import ListedCut


def cuts(
    as_of: Annotated[
        str | None,
        typer.Option(help="Only the latest cut at or before a cut's number, a position of the source, or a time."),
    ] = None,
    sql: Annotated[bool, typer.Option("--sql", help="Print Spark SQL with a view of each table at that cut.")] = False,
    tables: Annotated[
        bool, typer.Option("--tables", help="Print the tables of that cut, and those that are excluded from it.")
    ] = False,
    config: ConfigPath = DEFAULT_CONFIG,
    json: Json = False,
) -> None:
    """List the published cuts, oldest first.

    With --sql, print SQL that reads one of them: the latest without --as-of. With --tables, print what it consists of.
    """
    from cdcflow import wiring
    from cdcflow.tables.job import moments, views

    settings = load(config)
    place, engine = wiring.warehouse(settings), wiring.reading_engine(settings)
    known = engine.cuts()
    if sql:
        found = moments.find(known, place, None, as_of)
        typer.echo(views.spark_sql(found, place, engine.rules.name), nl=False)
        return
    if tables:
        cut = moments.find(known, place, None, as_of)
        if json:
            output.print_json({**cut.to_json(), "commit_clock": utc_time(cut.commit_clock)})
        else:
            output.show(cut_parts(cut))
        return
    listed = known.list_cuts()
    if as_of is not None:
        listed = [moments.latest_cut_at(listed, as_of, place)]
    if json:
        output.print_json([_plain(one) for one in listed])
    elif listed:
        output.show([cuts_table(listed)])
    else:
        typer.echo(f"no cut was published in {place} yet")


def _plain(cut: ListedCut) -> dict[str, object]:
    return {**asdict(cut), "commit_clock": utc_time(cut.commit_clock), "published": utc_time(cut.published)}
