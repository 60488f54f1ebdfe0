"""Settings files, as tests write and load them."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdcflow.config import load
from cdcflow.errors import ConfigurationError


def write_settings(folder: Path, text: str) -> Path:
    path = folder / "cdcflow.yaml"
    path.write_text(text)
    return path


def complaint(folder: Path, text: str) -> str:
    """The error of `load` for this file, without the folder."""
    with pytest.raises(ConfigurationError) as caught:
        load(write_settings(folder, text))
    return str(caught.value).replace(f"{folder}/", "")
