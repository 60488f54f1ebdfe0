"""`cdcflow decrypt`: values that a policy encrypted, for users with the key."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from cdcflow.cli import failure
from cdcflow.cli.options import DEFAULT_CONFIG, ConfigPath
from cdcflow.config import load


def decrypt(
    values: Annotated[
        list[str] | None, typer.Argument(help="Encrypted values; without any, one per line of stdin.")
    ] = None,
    key: Annotated[
        list[str] | None,
        typer.Option(help="A reference to an earlier key, as ID=${env:NAME} or ${file:path}; several: all of them."),
    ] = None,
    config: ConfigPath = DEFAULT_CONFIG,
) -> None:
    """Print the plain text of values that a policy `encrypt` made, one per line.

    The keys are those of the settings' `tables`, and those that --key refers to. Bytes that are no text are printed as
    hexadecimal digits after \\x. For a value of a person whose keys were destroyed the line is `erased`; then this
    exits with 1.
    """
    from cdcflow.wiring.decryption import Decryption

    found = Decryption.of(load(config), key or ())
    erased = 0
    for value in values or (line.rstrip("\n") for line in sys.stdin):
        plain = found.decrypt(value)
        erased += plain is None
        typer.echo("erased" if plain is None else _as_text(plain))
    if erased:
        typer.echo(f"erased: {erased}; `cdcflow erase` destroyed the keys of these values", err=True)
        raise typer.Exit(failure.FINDINGS)


def _as_text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return f"\\x{value.hex()}"
