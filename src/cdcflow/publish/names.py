"""Names as Avro and Protobuf allow them."""

from __future__ import annotations

import re

_ODD = re.compile(r"[^A-Za-z0-9_]")


def adjust_name(name: str) -> str:
    """Each dot-separated part reduced to letters, digits and underscores, not beginning with a digit."""
    return ".".join(_part(part) for part in name.split("."))


def flat(name: str) -> str:
    """A name of one part."""
    return _part(name)


def _part(part: str) -> str:
    plain = _ODD.sub("_", part)
    return f"_{plain}" if not plain or plain[0].isdigit() else plain
