"""`cdcflow sql`: SQL over the tables of a pipeline, of a published cut or of the log; one query, or a shell."""

from __future__ import annotations

import csv as csv_format
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from cdcflow.cli import failure, output
from cdcflow.cli.options import DEFAULT_CONFIG, ConfigPath, Json
from cdcflow.config import Config, load, seconds
from cdcflow.errors import CdcflowError, ConfigurationError
from cdcflow.reports import readable
from cdcflow.reports.parts import TextTable
from cdcflow.reports.readable import utc_time

if TYPE_CHECKING:
    from cdcflow.tables.query_answer import QueryAnswer
    from cdcflow.wiring.table_queries import AskedPoint

SHOWN_ROWS_MAX = 200
"""How many rows of an answer are shown as a table."""

_HELP = "Queries end with ;   .tables lists the tables, .quit (or Ctrl-D) ends."


def sql(
    query: Annotated[str | None, typer.Argument(help="One SELECT, as DuckDB has it; without it: a shell.")] = None,
    live: Annotated[bool, typer.Option("--live", help="The latest sealed cut of the log, without a merge.")] = False,
    as_of: Annotated[
        str | None,
        typer.Option(
            "--as-of",
            help="The latest published cut at or before a cut's number, a position of the source, or a time; or the"
            " first one that shows a transaction (transaction:512).",
            show_default=False,
        ),
    ] = None,
    at_least: Annotated[
        str | None,
        typer.Option(
            "--at-least",
            help="Wait until the tables have everything up to an LSN, a place in a binary log, or GTIDs.",
            show_default=False,
        ),
    ] = None,
    wait: Annotated[str, typer.Option(help="How long --at-least waits (30s, 5m).")] = "60s",
    incomplete: Annotated[bool, typer.Option("--incomplete", help="Also query tables that lack rows.")] = False,
    tables: Annotated[bool, typer.Option("--tables", help="List the tables and their states.")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV, with a header.")] = False,
    config: ConfigPath = DEFAULT_CONFIG,
    json: Json = False,
) -> None:
    """Answer a query over the current tables, without Spark.

    All tables show the same point in time: the latest published cut, unless an option names another. Nothing is
    written. An answer that would lack something is refused, with the reason.
    """
    from cdcflow.wiring.table_queries import AskedPoint

    settings = load(config)
    asked = AskedPoint(live, as_of, at_least, seconds(wait), incomplete)
    if csv and json:
        raise ConfigurationError("--csv and --json are both given", remedy="give one of them", runbook="settings")
    if tables:
        _print_tables(settings, asked, json=json)
    elif query is not None:
        _print_answer(settings, query, asked, csv=csv, json=json)
    else:
        _shell(settings, asked, csv=csv, json=json)


def _print_tables(settings: Config, asked: AskedPoint, *, json: bool) -> None:
    from cdcflow.wiring.table_queries import states_of_tables

    states = states_of_tables(settings, asked)
    if json:
        output.print_json(states)
        return
    rows = [(name, state.partition("\n")[0]) for name, state in sorted(states.items())]
    output.show([TextTable(("table", "state"), rows)])


def _print_answer(settings: Config, query: str, asked: AskedPoint, *, csv: bool, json: bool) -> None:
    from cdcflow.wiring.table_queries import ask

    answer = ask(settings, query, asked)
    if json:
        for row in _rows(answer):
            output.print_json(dict(zip(answer.rows.column_names, row, strict=True)))
    elif csv:
        writer = csv_format.writer(sys.stdout, lineterminator="\n")
        writer.writerow(answer.rows.column_names)
        writer.writerows(_rows(answer))
    else:
        _show(answer)


def _show(answer: QueryAnswer) -> None:
    shown = [row for row, _ in zip(_rows(answer), range(SHOWN_ROWS_MAX), strict=False)]
    output.show([TextTable(answer.rows.column_names, shown)])
    count = readable.number(len(answer))
    rest = f"; the first {SHOWN_ROWS_MAX} are shown: --csv or --json print all" if len(answer) > len(shown) else ""
    when = f"cut {answer.cut}, position {answer.position.partition(';')[0] or 'none'}"
    typer.echo(f"{count} rows, {when}, committed by {utc_time(answer.commit_clock)}{rest}", err=True)


def _rows(answer: QueryAnswer) -> Iterator[tuple[object, ...]]:
    """Yield each row as a tuple. Values are taken by position, because two columns may have the same name."""
    for batch in answer.rows.to_batches():
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def _shell(settings: Config, asked: AskedPoint, *, csv: bool, json: bool) -> None:
    """Answer queries from the terminal, or from a pipe, until it ends. Each query shows the latest state."""
    is_terminal = sys.stdin.isatty()
    if is_terminal:
        typer.echo(_HELP, err=True)
    for text in _statements(is_terminal=is_terminal):
        try:
            if text == ".tables":
                _print_tables(settings, asked, json=json)
            else:
                _print_answer(settings, text, asked, csv=csv, json=json)
        except CdcflowError as error:
            if not is_terminal:
                raise
            typer.echo(failure.block(error), err=True)


def _statements(*, is_terminal: bool) -> Iterator[str]:
    """Yield each query, without its semicolon, and each command of the shell."""
    if is_terminal:
        import readline  # noqa: F401  editing and history of `input`
    held: list[str] = []
    while True:
        prompt = ("cdcflow> " if not held else "     ...> ") if is_terminal else ""
        try:
            line = input(prompt)
        except EOFError:
            break
        if not held and line.strip() in (".quit", ".exit"):
            return
        if not held and line.strip().startswith("."):
            yield line.strip()
            continue
        held.append(line)
        if line.rstrip().endswith(";"):
            yield "\n".join(held).rstrip().rstrip(";")
            held = []
    if "".join(held).strip():
        yield "\n".join(held)
