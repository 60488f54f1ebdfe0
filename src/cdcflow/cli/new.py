"""`cdcflow new`: packages to begin with, for parts that others write."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from cdcflow.config.plugins import OWN_KINDS
from cdcflow.errors import ConfigurationError

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Write the package of a source or target to begin with."
)

_SOURCE = {
    "pyproject.toml.txt": "pyproject.toml",
    "README.md.txt": "README.md",
    "cdcflow.yaml.txt": "cdcflow.yaml",
    "data_items.jsonl.txt": "data/items.jsonl",
    "package.py.txt": "src/cdcflow_mydb/__init__.py",
    "poller.py.txt": "src/cdcflow_mydb/poller.py",
    "test_contract.py.txt": "tests/test_contract.py",
}
_TARGET = {
    "pyproject.toml.txt": "pyproject.toml",
    "README.md.txt": "README.md",
    "package.py.txt": "src/cdcflow_mydb/__init__.py",
    "tables.py.txt": "src/cdcflow_mydb/tables.py",
    "test_contract.py.txt": "tests/test_contract.py",
}
"""The files of the target's template, each with its path in the new package."""


@app.callback()
def _group() -> None:
    """Do nothing. typer needs a callback here, because otherwise it makes the only subcommand the command itself."""


@app.command()
def source(
    name: Annotated[str, typer.Argument(help="The kind of the source, such as mydb: a-z, 0-9 and _.")],
    to: Annotated[
        Path | None, typer.Option("--output", "-o", help="The folder to create. Default: cdcflow-NAME.")
    ] = None,
) -> None:
    """Write a package with a source that passes the suite of all sources (docs/own-source.md)."""
    _write("source", name, to, source_package, "poller.py")


@app.command()
def target(
    name: Annotated[str, typer.Argument(help="The kind of the target, such as mydb: a-z, 0-9 and _.")],
    to: Annotated[
        Path | None, typer.Option("--output", "-o", help="The folder to create. Default: cdcflow-NAME.")
    ] = None,
) -> None:
    """Write a package with a target that passes the suite of all targets (docs/own-target.md)."""
    _write("target", name, to, target_package, "tables.py")


def _write(part: str, name: str, to: Path | None, package: Callable[[str], dict[str, str]], main: str) -> None:
    if re.fullmatch(r"[a-z][a-z0-9_]{0,40}", name) is None or name in (*OWN_KINDS, "push"):
        raise ConfigurationError(
            f"{name!r} cannot be the kind of a new {part}",
            remedy="choose a name of a-z, 0-9 and _ that begins with a letter and is not one of cdcflow's kinds",
        )
    folder = to or Path(f"cdcflow-{name}")
    if folder.exists():
        raise ConfigurationError(f"{folder} exists already", remedy="name another folder with --output")
    for path, text in package(name).items():
        whole = folder / path
        whole.parent.mkdir(parents=True, exist_ok=True)
        whole.write_text(text, encoding="utf-8")
    typer.echo(f"wrote {folder}; run `pip install -e {folder} pytest` and `pytest {folder}`, then change its {main}")


def source_package(name: str) -> dict[str, str]:
    """The files of a new source's package, by their paths in it."""
    return _package("own_source", _SOURCE, name)


def target_package(name: str) -> dict[str, str]:
    """The files of a new target's package, by their paths in it."""
    return _package("own_target", _TARGET, name)


def _package(folder: str, paths: Mapping[str, str], name: str) -> dict[str, str]:
    template = files("cdcflow").joinpath("packaging", folder)
    found = {}
    for file, path in paths.items():
        text = template.joinpath(file).read_text(encoding="utf-8")
        found[_with_name(path, name)] = _with_name(text, name)
    return found


def _with_name(text: str, name: str) -> str:
    class_name = "".join(part.capitalize() for part in name.split("_"))
    package = text.replace("cdcflow-mydb", f"cdcflow-{name.replace('_', '-')}")
    return package.replace("mydb", name).replace("Mydb", class_name)
