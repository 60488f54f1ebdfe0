"""The `cdcflow` command: its subcommands, and the one place where a failure becomes words and an exit code."""

from __future__ import annotations

import signal
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from cdcflow import __version__
from cdcflow.cli import (
    backfill,
    bundle,
    ctl_commands,
    demo_command,
    doctor,
    failure,
    init,
    log_commands,
    merge,
    plan,
    publish,
    run,
    status,
    table_commands,
)
from cdcflow.errors import CdcflowError


class Commands(TyperGroup):
    """Subcommands whose failures are told in one block, without a traceback."""

    def invoke(self, ctx: Any) -> Any:  # Any: which package a context comes from depends on typer's version
        debug = bool(ctx.params.get("debug"))
        try:
            return super().invoke(ctx)
        except CdcflowError as error:
            typer.echo(failure.trace(error) if debug else failure.block(error), err=True)
            raise typer.Exit(failure.exit_code(error)) from None
        except (typer.Exit, typer.Abort):
            raise
        except KeyboardInterrupt:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # a second one ends what still cleans up, without a word
            typer.echo("interrupted", err=True)
            raise typer.Exit(failure.INTERRUPTED) from None
        except BrokenPipeError:
            raise typer.Exit(0) from None
        except Exception as error:
            if debug or hasattr(error, "exit_code"):  # the latter: a usage error, which the framework words itself
                raise
            typer.echo(failure.unexpected(error), err=True)
            raise typer.Exit(failure.UNEXPECTED) from None


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Capture every change of a PostgreSQL database into an append-only log, and merge it into Delta tables.",
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"cdcflow {__version__}")
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[
        bool, typer.Option("--debug", envvar="CDCFLOW_DEBUG", help="Show the whole trace of a failure.")
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options before the subcommand; `Commands.invoke` reads them."""


app.command("init")(init.init)
app.command("doctor")(doctor.doctor)
app.command("run")(run.run)
app.command("plan")(plan.plan)
app.command("apply")(plan.apply)
app.command("backfill")(backfill.backfill)
app.command("merge")(merge.merge)
app.command("publish")(publish.publish)
app.command("status")(status.status)
app.command("bundle")(bundle.bundle)
app.command("demo")(demo_command.demo)
app.add_typer(log_commands.app, name="log")
app.add_typer(table_commands.app, name="table")
app.add_typer(ctl_commands.app, name="ctl")


def main() -> None:
    """The entry point of the installed `cdcflow` command."""
    app(prog_name="cdcflow")
