"""The systemd unit that comes with the package, for the cdcflow that runs now."""

from __future__ import annotations

import sys
from importlib.resources import files
from pathlib import Path

UNIT = "cdcflow@.service"
_PROGRAM = "/opt/cdcflow/bin/cdcflow"


def unit() -> str:
    """The unit's text; it starts the cdcflow in this interpreter's directory."""
    text = files("cdcflow").joinpath("packaging", UNIT).read_text(encoding="utf-8")
    return text.replace(_PROGRAM, str(Path(sys.executable).parent / "cdcflow"))


__all__ = ["UNIT", "unit"]
