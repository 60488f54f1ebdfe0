"""The page's files: what can be checked without a browser."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cdcflow.daemon.interfaces import web
from cdcflow.http import openapi

PAGE = Path(web.__file__).parent / "page"
WEIGHT_MAX = 60_000
ON_GROUNDS = [
    ("text", "ground"),
    ("text", "card"),
    ("quiet", "ground"),
    ("quiet", "card"),
    ("strong", "card"),
    ("strong", "ground"),
    ("on-strong", "strong"),
    ("good", "good-ground"),
    ("warn", "warn-ground"),
    ("bad", "bad-ground"),
    ("text", "bad-ground"),
    ("text", "warn-ground"),
    ("text", "note-ground"),
]


def colours(scheme: str) -> dict[str, str]:
    blocks = re.findall(r":root \{(.*?)\}", (PAGE / "page.css").read_text(), re.DOTALL)
    assert len(blocks) == 2
    return dict(re.findall(r"--([a-z-]+): (#[0-9a-f]+)", blocks[scheme == "dark"]))


def luminance(colour: str) -> float:
    digits = colour[1:] if len(colour) > 4 else "".join(2 * digit for digit in colour[1:])
    parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("front", "ground"), ON_GROUNDS)
def test_text_has_enough_contrast_with_its_background(scheme: str, front: str, ground: str) -> None:
    """WCAG 2.2 requires a contrast of 4.5 to 1; old eyes and bad projectors do too."""
    found = colours(scheme)
    low, high = sorted(luminance(found[name]) for name in (front, ground))
    assert (high + 0.05) / (low + 0.05) >= 4.5


def test_page_is_small() -> None:
    """It is also opened over a phone's connection, and through two gateways."""
    assert sum(path.stat().st_size for path in PAGE.iterdir()) < WEIGHT_MAX


def test_every_file_is_served_and_every_named_file_exists() -> None:
    """A file that is missing from the list is a page with a missing part, and the reason is invisible."""
    assert set(web._FILES) == {path.name for path in PAGE.iterdir()}
    text = "".join(path.read_text() for path in PAGE.iterdir())
    named = set(re.findall(r"""(?:src|href)="([a-z.]+\.(?:js|css))"|from "\./([a-z]+\.js)\"""", text))
    assert {a or b for a, b in named} <= set(web._FILES)


def test_page_requests_only_what_the_api_describes() -> None:
    """A path that is renamed on one side only is a page that stays empty."""
    text = "".join(path.read_text() for path in PAGE.glob("*.js"))
    asked = {path.rstrip("/") for path in re.findall(r"[\"`](api/v1/[a-z./]+)", text)}
    assert len(asked) >= 6
    known = {path.partition("{")[0].strip("/") for path in openapi.description()["paths"]} | {"api/v1/session"}
    assert {path for path in asked if path != "api/v1/operations"} <= known


def test_no_text_becomes_markup() -> None:
    """A row's content is shown as text: nothing in the page creates elements from strings, or runs them."""
    text = "".join(path.read_text() for path in PAGE.glob("*.js"))
    for word in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "new Function",
        'setTimeout("',
    ):
        assert word not in text
