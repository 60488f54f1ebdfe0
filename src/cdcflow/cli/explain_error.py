"""`cdcflow explain-error`: the runbook's section for an error, where the error was printed."""

from __future__ import annotations

import difflib
import os
import re
from pathlib import Path
from typing import Annotated

import typer

from cdcflow.cli import output
from cdcflow.cli.options import Json
from cdcflow.errors import ConfigurationError

DOCS_URL = "CDCFLOW_DOCS_URL"
_HERE = Path(__file__)
# A checkout's page is up to date; an installation has the copy that its build made (setup.py).
PAGES = (_HERE.parents[3] / "docs" / "runbook" / "errors.md", _HERE.parents[1] / "packaging" / "errors.md")
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")


def explain_error(
    name: Annotated[str, typer.Argument(help="As an error's last line names it: slot-lost.")],
    json: Json = False,
) -> None:
    """Print what an error means, what it costs, how to find its cause, and what to do."""
    known = sections()
    if name not in known:
        near = difflib.get_close_matches(name, known, 3) or sorted(known)
        raise ConfigurationError(
            f"there is no error called {name}", remedy=f"did you mean {' or '.join(near[:3])}?", runbook="settings"
        )
    link = url_of(name)
    if json:
        output.print_json({"name": name, "text": known[name], "url": link})
        return
    text = _LINK.sub(r"\1", known[name])
    typer.echo(f"{name}\n\n{text}")
    if link is not None:
        typer.echo(f"\n{link}")


def sections() -> dict[str, str]:
    """The runbook's sections, by their names in errors.

    Raises:
        ConfigurationError: this installation was built without the page.
    """
    page = next((page for page in PAGES if page.exists()), None)
    if page is None:
        raise ConfigurationError(
            "this installation has no runbook: it was built without docs/runbook/errors.md",
            remedy="read that page in the repository",
        )
    parts = re.split(r"^### (\S+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    # A section ends where the next group of them begins.
    texts = (re.split(r"^## ", text, maxsplit=1, flags=re.MULTILINE)[0].strip() for text in parts[2::2])
    return dict(zip(parts[1::2], texts, strict=True))


def url_of(name: str) -> str | None:
    """The section's address in a published book; None if its address is not set."""
    base = os.environ.get(DOCS_URL, "").rstrip("/")
    return f"{base}/runbook/errors/#{name}" if base else None
