"""Commands that are imported when they are called, so that `cdcflow --help` loads none of them.

Help and completion see a placeholder with the command's name and summary; calling it imports its module.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import typer


def register(app: typer.Typer, summaries: Mapping[str, str]) -> None:
    """Add placeholders with these names and summaries."""
    for name, summary in summaries.items():
        app.command(name, help=summary)(_stand_in)


def load_command(name: str, path: str) -> Any:  # Any: the package of a command depends on typer's version
    """The command itself. `path`: "module:attribute", a function or a Typer of subcommands."""
    module, _, attribute = path.partition(":")
    found = getattr(import_module(module), attribute)
    made = typer.Typer(rich_markup_mode=None, add_completion=False)
    made.callback()(_stand_in)
    if isinstance(found, typer.Typer):
        made.add_typer(found, name=name)
    else:
        made.command(name)(found)
    group: Any = typer.main.get_command(made)
    return group.commands[name]


def _stand_in() -> None:
    """The function of a placeholder command. It is never called, because `load_command` replaces it first."""
