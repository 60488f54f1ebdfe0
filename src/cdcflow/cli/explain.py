"""`cdcflow explain`: what a version of a table contains, and the origin of a row's values."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from cdcflow.cli import output
from cdcflow.cli.options import DEFAULT_CONFIG, ConfigPath, Json
from cdcflow.cli.table_commands import key_of
from cdcflow.config import load
from cdcflow.errors import ConfigurationError
from cdcflow.reports import readable
from cdcflow.reports.readable import utc_time

if TYPE_CHECKING:
    from cdcflow.tables.job.explanation import Explained, ExplainedTransaction


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
        tell(found)


def tell(found: Explained) -> None:
    """Print it."""
    cuts = ", ".join(map(str, found.cuts[-5:]))
    typer.echo(f"{found.table}, version {found.version}, which cut {cuts} shows")
    typer.echo(
        f"  holds everything up to offset {found.offset}, {found.position}, committed {utc_time(found.commit_clock)}"
    )
    since = "" if found.before is None else f" since version {found.before}"
    typer.echo(
        f"  new{since}: {readable.number(found.changes)} changes in {readable.number(found.count)} transactions,"
        f" offsets {found.first} to {found.offset}"
    )
    if found.segments:
        shown = [*found.segments[:3], *(["…"] if len(found.segments) > 6 else []), *found.segments[3:][-3:]]
        typer.echo(f"  segments {', '.join(shown)}")
    for one in found.transactions:
        typer.echo(f"    {_transaction(one)}")
    if found.row_state:
        typer.echo(f"  the row is {found.row_state}" if found.row else f"  {found.row_state}")
    for origin in found.row:
        value = "NULL" if origin.value is None else origin.value
        typer.echo(f"    {origin.column}: {value}")
        typer.echo(f"      {origin.op} at offset {origin.offset}, {_transaction(origin.transaction)}")
    for column in found.unknown:
        typer.echo(f"    {column}: from before the oldest change that the log has")


def _transaction(one: ExplainedTransaction) -> str:
    what = "backfill" if one.kind == "read" else f"transaction {one.number} (id {one.xid})"
    return f"{what}, offsets {one.first_offset}-{one.last_offset}, {one.position}, {utc_time(one.commit_ts)}"
