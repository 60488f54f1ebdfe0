"""Images that others publish are named with the digest of what was published; a tag alone can be published again."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
_FROM = re.compile(r"^FROM (?:--\S+ )?(\S+)(?: AS (\S+))?$", re.MULTILINE | re.IGNORECASE)
_PINNED = re.compile(r"[a-z][a-z0-9./-]*:v?\d[\w.-]*@sha256:[0-9a-f]{64}")


def bases(dockerfile: str) -> list[str]:
    """The images of other projects that a Dockerfile builds on, and copies from."""
    stages: set[str] = set()
    found: list[str] = []
    for base, stage in _FROM.findall(dockerfile):
        if base not in stages:
            found.append(base)
        stages.add(stage)
    copied = re.findall(r"^COPY --from=(\S+)", dockerfile, re.MULTILINE | re.IGNORECASE)
    return found + [image for image in copied if image not in stages]


def test_dockerfiles_build_on_a_tag_with_its_digest() -> None:
    """The image that is built next year is built on the same files."""
    dockerfiles = sorted(ROOT.glob("docker/*Dockerfile"))
    assert len(dockerfiles) == 2
    named = {base for path in dockerfiles for base in bases(path.read_text())}
    for base in named:
        assert _PINNED.fullmatch(base), base
    assert len(named) == 1, "one base: both images get the same patches of Debian and Python"


def test_dev_stack_starts_a_tag_with_its_digest() -> None:
    """It starts the servers that it was written for."""
    services = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text())["services"]
    ready = {service["image"] for service in services.values() if "build" not in service and "image" in service}
    assert len(ready) == 4
    for image in ready:
        assert _PINNED.fullmatch(image), image


def test_an_image_without_a_digest_is_found() -> None:
    """The tests above would find one in any of the places that a Dockerfile has for it."""
    text = "FROM python:3.12 AS build\nFROM build AS run\nCOPY --from=build /a /a\nCOPY --from=golang:1 /b /b\n"
    assert bases(text) == ["python:3.12", "golang:1"]
    assert not any(_PINNED.fullmatch(image) for image in bases(text))
