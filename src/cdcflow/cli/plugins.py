"""`cdcflow plugins`: the kinds of parts that installed packages bring, and the settings of each."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import Annotated

import typer

from cdcflow.cli import failure, output
from cdcflow.cli.options import Json
from cdcflow.config.descriptions import Setting, describe
from cdcflow.config.plugins import GROUPS, PluginGroup, installed_kinds, load_plugin, package_of
from cdcflow.errors import ConfigurationError
from cdcflow.reports.parts import TextTable


def plugins(
    kind: Annotated[str | None, typer.Argument(help="Print the settings of this kind.", show_default=False)] = None,
    json: Json = False,
) -> None:
    """List the kinds of sources and other parts that installed packages bring, or print the settings of one.

    Exits with 1 if one of them cannot be used.
    """
    if kind is not None:
        _print_settings(kind, json)
        return
    found = [_describe(group, name) for group in GROUPS for name in installed_kinds(group)]
    if json:
        output.print_json(found)
    elif found:
        columns = ("kind", "part", "package", "problem")
        output.show([TextTable(columns, [[one[name] for name in columns] for one in found])])
    else:
        typer.echo("no installed package brings a kind (docs/own-source.md)")
    if any(one["problem"] for one in found):
        raise typer.Exit(failure.FINDINGS)


def _describe(group: PluginGroup, kind: str) -> dict[str, str]:
    packages = " and ".join(map(package_of, installed_kinds(group)[kind]))
    try:
        load_plugin(group, kind)
    except LookupError as error:
        return {"kind": kind, "part": group.name, "package": packages, "problem": str(error)}
    is_hidden = kind in group.own
    problem = "is a kind of cdcflow itself, so this one is never used" if is_hidden else ""
    return {"kind": kind, "part": group.name, "package": packages, "problem": problem}


def _print_settings(kind: str, json: bool) -> None:
    groups = [group for group in GROUPS if kind in installed_kinds(group)]
    if not groups:
        raise ConfigurationError(
            f"no installed package brings the kind {kind}", remedy="run `cdcflow plugins` to see the installed ones"
        )
    found: list[Setting] = []
    for group in groups:
        try:
            found += describe(load_plugin(group, kind).settings, group.setting)
        except LookupError as error:
            raise ConfigurationError(f"{kind} {error}") from error
    if json:
        output.print_json([asdict(one) for one in found])
        return
    rows = [[one.name, one.values.replace("`", ""), one.default.replace("`", ""), _plain(one.meaning)] for one in found]
    output.show([TextTable(("name", "value", "default", "meaning"), rows)])


def _plain(text: str) -> str:
    """Return a setting's meaning as plain text, without Markdown's links and marks."""
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text).replace("`", "")
