"""The `cdcflow` command: its subcommands, and the one place where a failure becomes words and an exit code."""

from __future__ import annotations

import signal
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from cdcflow.cli import failure, lazy
from cdcflow.errors import CdcflowError
from cdcflow.version import __version__

COMMANDS = {
    "init": ("cdcflow.cli.init:init", "Write a commented settings file."),
    "new": ("cdcflow.cli.new:app", "Write the package of a source or target to begin with."),
    "plugins": ("cdcflow.cli.plugins:plugins", "List the kinds that installed packages bring."),
    "doctor": ("cdcflow.cli.doctor:doctor", "Check settings, rights and tables."),
    "run": ("cdcflow.cli.run:run", "Capture changes until you stop it."),
    "serve": ("cdcflow.cli.serve:serve", "Receive rows over HTTP into tables of a log."),
    "test": ("cdcflow.cli.pipeline_tests:run", "Run the tests of a pipeline, without servers."),
    "plan": ("cdcflow.cli.plan:plan", "Show what changed settings will do."),
    "apply": ("cdcflow.cli.plan:apply", "Make the running daemon use changed settings."),
    "backfill": ("cdcflow.cli.backfill:backfill", "Read tables again while the capture continues."),
    "merge": ("cdcflow.cli.merge:merge", "Merge the log into Delta or Iceberg tables."),
    "verify": ("cdcflow.cli.verify:verify", "Compare the source with the log and the tables."),
    "sql": ("cdcflow.cli.sql:sql", "Query the tables with SQL, as of one point in time."),
    "cuts": ("cdcflow.cli.cuts:cuts", "List published cuts, the tables of one, or SQL for them."),
    "dbt": ("cdcflow.cli.dbt:dbt", "Write the tables as sources for dbt."),
    "repair": ("cdcflow.cli.repair:repair", "Repair the rows that differ, through the log."),
    "attach": ("cdcflow.cli.attach:attach", "Adopt a table that was loaded another way."),
    "explain": (
        "cdcflow.cli.explain:explain",
        "Show what a table contains, and the origin of values.",
    ),
    "explain-error": ("cdcflow.cli.explain_error:explain_error", "Print what an error means and what to do."),
    "rebuild": ("cdcflow.cli.rebuild:rebuild", "Rebuild all tables from the log alone."),
    "upkeep": ("cdcflow.cli.upkeep:upkeep", "Expire old cuts, and keep the tables' files in order."),
    "publish": ("cdcflow.cli.publish:publish", "Publish changes to Kafka, one topic per table."),
    "deliver": ("cdcflow.cli.deliver:deliver", "Keep tables in targets that packages bring."),
    "get": ("cdcflow.cli.ask:get", "Print a row, now or at a point in time."),
    "history": ("cdcflow.cli.ask:history", "Print the changes of a row."),
    "range": ("cdcflow.cli.ask:range_", "Print the rows between two keys, now or at a point in time."),
    "diff": ("cdcflow.cli.ask:diff", "Print the differences between two points in time."),
    "decrypt": ("cdcflow.cli.decrypt:decrypt", "Print values that a column's policy encrypted."),
    "erase": ("cdcflow.cli.erase:erase", "Destroy the keys of a person's encrypted values."),
    "transaction": ("cdcflow.cli.ask:transaction", "Print a transaction with all its rows."),
    "consumer": ("cdcflow.cli.consumers:app", "Read the log under a name, with a cursor that is kept."),
    "status": ("cdcflow.cli.status:status", "Show tables, backfill, lag, and what the source keeps."),
    "fleet": ("cdcflow.cli.fleet:fleet", "Watch many pipelines on one page."),
    "timeline": ("cdcflow.cli.timeline:timeline", "Show what happened to a pipeline, as text or a picture."),
    "bundle": ("cdcflow.cli.bundle:bundle", "Collect what a maintainer needs into one file."),
    "demo": ("cdcflow.demo.command:demo", "See the whole thing on real data, with a proof at the end."),
    "handover": ("cdcflow.cli.handover:handover", "Have the standby replace the active daemon."),
    "guard": ("cdcflow.cli.guard:guard", "Hold the budget of the source's log without a daemon."),
    "move": ("cdcflow.cli.move:move", "Continue a log at another server or address."),
    "journal-peer": (
        "cdcflow.cli.journal_peer:journal_peer",
        "Store the latest part of a log for a daemon elsewhere.",
    ),
    "drop": ("cdcflow.cli.drop:drop", "End this pipeline: drop what it created at the source."),
    "log": ("cdcflow.cli.log_commands:app", "Inspect the change log, and maintain it."),
    "table": ("cdcflow.cli.table_commands:app", "Control how a running daemon reads tables."),
    "ctl": ("cdcflow.cli.ctl_commands:app", "Pause, resume, throttle or stop a running daemon."),
}
"""The commands: where the code of each is, and its summary in `cdcflow --help`. A command is imported when it is
called."""


class CommandGroup(TyperGroup):
    """Subcommands whose failures are printed in one block, without a traceback."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        if name in COMMANDS:
            command = lazy.load_command(name, COMMANDS[name][0])
        return name, command, rest

    def invoke(self, ctx: Any) -> Any:  # Any: the package of a context depends on typer's version
        debug = bool(ctx.params.get("debug"))
        try:
            return super().invoke(ctx)
        except CdcflowError as error:
            typer.echo(failure.trace(error) if debug else failure.block(error), err=True)
            raise typer.Exit(failure.exit_code(error)) from None
        except (typer.Exit, typer.Abort):
            raise
        except KeyboardInterrupt:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # a second one ends the clean-up silently
            typer.echo("interrupted", err=True)
            raise typer.Exit(failure.INTERRUPTED) from None
        except BrokenPipeError:
            raise typer.Exit(0) from None
        except Exception as error:
            if debug or hasattr(error, "exit_code"):  # a usage error, which typer prints
                raise
            known = _of_system(error)
            typer.echo(failure.unexpected_error(error) if known is None else failure.block(known), err=True)
            raise typer.Exit(failure.exit_code(error if known is None else known)) from None


def _of_system(error: Exception) -> CdcflowError | None:
    """The system's error about a path, as an error for its operator; None if it is a different error."""
    if not isinstance(error, OSError):
        return None
    from cdcflow.config.places import is_about_a_path, of_system  # settings take long to import

    return of_system(error) if is_about_a_path(error) else None


app = typer.Typer(
    cls=CommandGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Capture every change of a PostgreSQL, MySQL or MariaDB database into an append-only log, and merge it into"
    " Delta or Iceberg tables.",
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"cdcflow {__version__}")
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[
        bool, typer.Option("--debug", envvar="CDCFLOW_DEBUG", help="Show the whole traceback of a failure.")
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options before the subcommand; `Commands.invoke` reads them."""


lazy.register(app, {name: summary for name, (_, summary) in COMMANDS.items()})


def main() -> None:
    """The entry point of the installed `cdcflow` command."""
    app(prog_name="cdcflow")
