"""docs/settings.md and docs/commands.md match the code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import TypeGuard, get_args, get_origin

import typer

from cdcflow import errors
from cdcflow.cli import failure
from cdcflow.cli.app import app
from cdcflow.config import Config, Settings
from cdcflow.config.base import settings_of

DOCS = Path(__file__).parents[3] / "docs"


def _is_model(kind: object) -> TypeGuard[type[Settings]]:
    return isinstance(kind, type) and issubclass(kind, Settings)


def _annotations(kind: object) -> Iterator[object]:
    """An annotation, and those inside it."""
    yield kind
    for inner in get_args(kind):
        yield from _annotations(inner)


def names(model: type[Settings], before: str = "") -> set[str]:
    found: set[str] = set()
    for name, field in settings_of(model).items():
        kinds = [k for k in _annotations(field.annotation) if _is_model(k)]
        for kind in kinds:
            found |= names(kind, f"{before}{name}.")
        is_union = get_origin(field.annotation) is UnionType  # a model, or a text instead of it
        if not kinds or (is_union and str in get_args(field.annotation)):
            found.add(before + name)
    return found


def test_every_setting_is_explained_and_no_other() -> None:
    """A setting without an explanation is as good as missing; an explanation of a removed setting is a trap."""
    explained = re.findall(r"^\| `([a-z_.]+)` \|", (DOCS / "settings.md").read_text(), re.MULTILINE)
    assert set(explained) == names(Config)
    assert len(explained) == len(set(explained))


def test_every_command_is_in_the_table() -> None:
    """Users read the table first."""
    text = (DOCS / "commands.md").read_text()
    command = typer.main.get_command(app)
    for name in command.commands:  # type: ignore[attr-defined]  # a group, which typer does not say
        assert f"`cdcflow {name}" in text


def test_exit_codes_are_those_of_the_table() -> None:
    """Service files are written from the table."""
    text = (DOCS / "commands.md").read_text()
    for kind in errors.CdcflowError.__subclasses__():
        assert re.search(rf"^\| {failure.exit_code(kind('x'))} \| .*`{kind.__name__}`", text, re.MULTILINE), kind
