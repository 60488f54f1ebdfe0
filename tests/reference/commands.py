"""docs/options.md: every command with its arguments and options, generated from the command line itself."""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any, get_args

import typer.main

from cdcflow.cli.app import app

COMMON = {"--config", "--json", "--help"}
"""Options that many commands have; the head of the page explains them."""


def commands() -> Iterator[tuple[str, Any]]:  # Any: which package a command's class is of depends on typer's version
    """Every command that does something, by its words after `cdcflow`."""
    yield from _inside((), typer.main.get_command(app))


def _inside(words: tuple[str, ...], command: Any) -> Iterator[tuple[str, Any]]:
    if not hasattr(command, "resolve_command"):
        yield " ".join(words), command
        return
    context = command.make_context("cdcflow", ["status"], resilient_parsing=True)
    for name in command.list_commands(context):
        _, found, _ = command.resolve_command(context, [name])
        yield from _inside((*words, name), found)


def markdown() -> str:
    return "\n".join(_section(words, command) for words, command in commands())


def _section(words: str, command: Any) -> str:
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    options = [one for one in command.params if one.param_type_name == "option" and not _is_common(one)]
    needed = [f"{one.opts[0]} {_value(one.type_descriptor.annotation)}" for one in options if one.required]
    usage = " ".join(["cdcflow", words, *map(_argument, arguments), *needed])
    rows = [_row(_names(one), one) for one in options]
    rows = [*(_row(f"`{_argument(one)}`", one) for one in arguments if one.help), *rows]
    head = ["| argument or option | meaning | default |", "| --- | --- | --- |"] if rows else []
    common = [f"`{name}`" for name in ("--config", "--json") if any(name in one.opts for one in command.params)]
    also = f"Also {', '.join(common)}.\n" if common else ""
    table = "\n".join((*head, *rows, "")) if rows else ""
    return "\n".join(filter(None, (f"## {words}\n", f"`{usage}`\n", f"{_help(command)}\n", table, also)))


def _is_common(option: Any) -> bool:
    return bool(COMMON & set(option.opts))


def _help(command: Any) -> str:
    """The command's help, as paragraphs."""
    paragraphs = re.split(r"\n\s*\n", (command.help or "").replace("\b\n", "").strip())
    return "\n\n".join(" ".join(one.split()) for one in paragraphs)


def _argument(argument: Any) -> str:
    name = (argument.metavar or argument.name.upper()).strip("[]").removesuffix("...")
    many = "…" if argument.nargs == -1 else ""
    return f"{name}{many}" if argument.required else f"[{name}{many}]"


def _names(option: Any) -> str:
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    return names if option.is_flag else f"{names} {_value(option.type_descriptor.annotation)}"


def _value(kind: Any) -> str:
    """What an option takes: one of several words, or a number, a path or a text."""
    for inner in get_args(kind):
        if inner is not type(None):
            return _value(inner)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return " or ".join(f"`{one.value}`" for one in kind)
    return {int: "NUMBER", float: "NUMBER", Path: "PATH"}.get(kind, "TEXT")


def _row(name: str, param: Any) -> str:
    default = param.default
    shown = "" if default in (None, False, (), []) else f"`{getattr(default, 'value', default)}`"
    shown = "required" if param.required else shown
    cells = (name, " ".join((param.help or "").split()), shown)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
