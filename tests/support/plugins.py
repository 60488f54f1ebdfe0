"""Packages with entry points, for tests: as pip installs them, without pip."""

from __future__ import annotations

import sys
import textwrap
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.support.docs.pages import DOCS, python_of

from cdcflow.cli.new import target_package
from cdcflow.config import plugins

ROOT = Path(__file__).parents[2]
FILES = ROOT / "plugins" / "cdcflow-files"


def install(
    folder: Path, package: str, kinds: Mapping[str, str], code: str = "", group: plugins.PluginGroup = plugins.SOURCES
) -> Path:
    """Write a package with entry points for these kinds into a folder, and its module if there is code."""
    module = package.replace("-", "_")
    about = folder / f"{module}-1.0.dist-info"
    about.mkdir(parents=True, exist_ok=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    lines = "".join(f"{kind} = {value}\n" for kind, value in kinds.items())
    with (about / "entry_points.txt").open("a") as file:
        file.write(f"[{group.name}]\n{lines}")
    if code:
        (folder / f"{module}.py").write_text(textwrap.dedent(code))
    return folder


def install_project(folder: Path, project: Path) -> list[str]:
    """The same for a project with a pyproject.toml. Returns what must be on the path."""
    about = tomllib.loads((project / "pyproject.toml").read_text())["project"]
    for group in plugins.GROUPS:
        if kinds := about["entry-points"].get(group.name):
            install(folder, about["name"], kinds, group=group)
    return [str(folder), str(project / "src")]


def install_notifier_of_the_page(folder: Path) -> Path:
    """The same for the receiver of notifications that docs/notifications.md writes."""
    (code,) = python_of(DOCS / "notifications.md", spark=None, section="Your own kind")
    return install(folder, "cdcflow-pager", {"pager": "cdcflow_pager:plugin"}, code, plugins.NOTIFIERS)


def install_transform_of_the_page(folder: Path) -> Path:
    """The same for the function that docs/rows.md writes."""
    (code,) = python_of(DOCS / "rows.md", spark=None, section="Your own function")
    return install(folder, "cdcflow-geo", {"geo": "cdcflow_geo:plugin"}, code, plugins.TRANSFORMS)


def install_target_of_the_template(folder: Path) -> list[str]:
    """The same for the package that `cdcflow new target mydb` writes."""
    for path, text in target_package("mydb").items():
        whole = folder / "project" / path
        whole.parent.mkdir(parents=True, exist_ok=True)
        whole.write_text(text)
    return install_project(folder / "packages", folder / "project")


@contextmanager
def on_path(*folders: str | Path) -> Iterator[None]:
    """These folders on the path of modules; what was imported from them is forgotten at the end."""
    paths = [str(folder) for folder in folders]
    before = set(sys.modules)
    sys.path[:0] = paths
    plugins._import.cache_clear()
    try:
        yield
    finally:
        del sys.path[: len(paths)]
        for name in sys.modules.keys() - before:
            if str(getattr(sys.modules[name], "__file__", "")).startswith(tuple(paths)):
                del sys.modules[name]
        plugins._import.cache_clear()
