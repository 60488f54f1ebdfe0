"""`cdcflow decrypt`: values that a policy encrypted, for users with the key."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

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
    hexadecimal digits after \\x.
    """
    from cdcflow.wiring.decryption import Decryption

    found = Decryption.of(load(config), key or ())
    for value in values or (line.rstrip("\n") for line in sys.stdin):
        typer.echo(_as_text(found.decrypt(value)))


def _as_text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return f"\\x{value.hex()}"
