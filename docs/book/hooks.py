"""What mkdocs needs to build the book from a repository: pages outside of docs/, and links that leave it."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
OUTSIDE = {
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security-policy.md",
    "docker/README.md": "docker.md",
    "charts/cdcflow/README.md": "chart.md",
    **{f"bench/results/{page.name}": f"results/{page.name}" for page in (ROOT / "bench" / "results").glob("*.md")},
}
"""Files of the repository that are pages of the book, and their names there."""
PLOTS = {f"bench/results/plots/{plot.name}": plot for plot in (ROOT / "bench" / "results" / "plots").glob("*.svg")}
"""Pictures of those pages, which are in the book at the same place next to them."""
_DEFINITION = re.compile(r"^(\[([^\]]+)\]: (\S+)(?: +\"[^\"\n]*\")?)$\n?", re.MULTILINE)
_LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])+)\]\(([^)\s#:]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:  # Any: mkdocs' settings
    for path, page in OUTSIDE.items():
        text = _relinked((ROOT / path).read_text(), path)
        files.append(File.generated(config, page, content=text))
    for path, plot in PLOTS.items():
        files.append(File.generated(config, path.removeprefix("bench/"), content=plot.read_text()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    if page.file.src_uri in OUTSIDE.values():
        return markdown  # its links are changed already
    return _relinked(markdown, f"docs/{page.file.src_uri}")


def _relinked(markdown: str, path: str) -> str:
    """Links of a file of the repository as links of its page. Other links become plain text."""
    folder = posixpath.dirname(path)
    here = posixpath.dirname(_page(path) or "")

    def link(found: re.Match[str]) -> str:
        text, to, anchor = found[1], posixpath.normpath(posixpath.join(folder, found[2])), found[3] or ""
        page = _page(to)
        return text if page is None else f"[{text}]({posixpath.relpath(page, here or '.')}{anchor})"

    return _without_references(_LINK.sub(link, markdown), folder)


def _without_references(markdown: str, folder: str) -> str:
    """References (`[text][name]`, `[name]`) to files that are no page become text."""
    for line, name, to in _DEFINITION.findall(markdown):
        if _page(posixpath.normpath(posixpath.join(folder, to))) is None:
            markdown = re.sub(rf"\[([^\[\]]+)\]\[{re.escape(name)}\]", r"\1", markdown)
            markdown = markdown.replace(line, "").replace(f"[{name}]", name)
    return markdown


def _page(path: str) -> str | None:
    if path in OUTSIDE:
        return OUTSIDE[path]
    return path.removeprefix("docs/") if path.startswith("docs/") else None
