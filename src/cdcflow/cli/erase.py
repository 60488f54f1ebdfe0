"""`cdcflow erase`: destroy the keys of a person, so that their encrypted values cannot be read anywhere."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from cdcflow.cli import failure
from cdcflow.cli.options import DEFAULT_CONFIG, ConfigPath
from cdcflow.config import load


def erase(
    table: Annotated[str, typer.Argument(help="A table whose policies have key_by, as schema.table.")],
    value: Annotated[
        str, typer.Argument(help="The person's value of the column that key_by names; - reads one per line of stdin.")
    ],
    by: Annotated[str | None, typer.Option(help="That column, if the table's policies name several.")] = None,
    key: Annotated[
        list[str] | None,
        typer.Option(help="A reference to an earlier key, as ID=${env:NAME} or ${file:path}; several: all of them."),
    ] = None,
    lost_key: Annotated[
        list[str] | None, typer.Option(help="The fingerprint of an earlier key that no longer exists.")
    ] = None,
    unseen: Annotated[
        bool, typer.Option("--unseen", help="Erase the person even if nothing was captured yet.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    config: ConfigPath = DEFAULT_CONFIG,
) -> None:
    """Destroy the keys with which a person's values were encrypted, for policies `encrypt` with `key_by`.

    Their values cannot be read afterwards: in the log, in tables, in topics, in copies. Later rows of this person
    have NULL there. When the command ends, a running daemon knows of it. This cannot be undone. Exits with 1 if a
    person has no keys.
    """
    from cdcflow.wiring.erasure import Erasure

    found = Erasure.of(load(config), table, by, key or (), lost_key or ())
    columns = "; ".join(f"{name} ({', '.join(names)})" for name, names in found.columns.items())
    values = [line.rstrip("\n") for line in sys.stdin] if value == "-" else [value]
    if not yes:
        typer.confirm(
            f"Destroy the keys of {_persons(len(values))}? No value of {columns} can be read for them afterwards",
            abort=True,
            err=True,
        )
    unknown = sum(not found.run(one, unseen=unseen) for one in values)
    if erased := len(values) - unknown + unknown * unseen:
        typer.echo(f"erased {_persons(erased)}: {columns}")
        typer.echo("rows that are stored keep values that nothing can read; to make them NULL, run `cdcflow repair`")
    if unknown and not unseen:
        typer.echo(f"{_persons(unknown)} had no keys: nothing was encrypted, or the value is wrong", err=True)
        typer.echo("write it as the column has it; if it may be captured later, add --unseen", err=True)
        raise typer.Exit(failure.FINDINGS)


def _persons(count: int) -> str:
    return "1 person" if count == 1 else f"{count} persons"
