"""The place of each generated table in the pages."""

from __future__ import annotations

import re
from pathlib import Path

from tests.reference import commands, settings, types

DOCS = Path(__file__).parents[2] / "docs"
BEGIN, END = "<!-- {name}: written by make reference -->", "<!-- end of {name} -->"


def pages() -> dict[Path, str]:
    """Each page with generated tables, with its new text."""
    tables = {
        "settings.md": settings.markdown(),
        "options.md": {"options": commands.markdown()},
        "types.md": types.markdown(),
        "files.md": settings.files_markdown(),
        "fleet.md": settings.fleet_markdown(),
    }
    changed = {}
    for name, texts in tables.items():
        page = (DOCS / name).read_text()
        for marker, text in texts.items():
            page = written(page, marker, text)
        changed[DOCS / name] = page
    return changed


def written(page: str, name: str, text: str) -> str:
    """The page with `text` between the markers of that name.

    Raises:
        LookupError: the page has no such markers.
    """
    begin, end = BEGIN.format(name=name), END.format(name=name)
    found = re.search(rf"{re.escape(begin)}\n.*?{re.escape(end)}", page, re.DOTALL)
    if found is None:
        raise LookupError(f"the page has no {begin} and {end}")
    return f"{page[: found.start()]}{begin}\n\n{text.strip()}\n\n{end}{page[found.end() :]}"
