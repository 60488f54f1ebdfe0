"""The source of files keeps the contract of all sources."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from cdcflow.sources.polled import PolledSource
from cdcflow.testing.sources import SourceContract
from cdcflow.testing.sources.polled import PolledKit
from cdcflow_files import FilesSettings, poller_of

SPOOL_BYTES_MAX = 100_000


class FilesKit(PolledKit):
    """A folder with a CSV file for each table."""

    schema = "files"

    def __init__(self, folder: Path) -> None:
        self.landing = folder / "landing"
        self.landing.mkdir()
        self.settings = FilesSettings(
            kind="files",
            folder=self.landing,
            state=folder / "state",
            poll_every=0.05,
            keys={f"files.{name}": ("id",) for name in ("items", "others")},
            types={f"files.{name}.{column}": kind for name in ("items", "others") for column, kind in COLUMNS.items()},
        )
        super().__init__()

    def write(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        lines = ["id,name", *(f"{row['id']},{quoted(row['name'])}" for row in rows)]
        unfinished = self.landing / f"{name}.csv.tmp"
        unfinished.write_text("\n".join(lines) + "\n")
        os.replace(unfinished, self.landing / f"{name}.csv")

    def open_source(self) -> PolledSource:
        return PolledSource(
            self.settings,
            poller_of(self.settings),
            self.settings.state,
            poll_every_s=self.settings.poll_every,
            spool_bytes_max=SPOOL_BYTES_MAX,
        )


COLUMNS = {"id": "int32", "name": "text"}


def quoted(text: str | None) -> str:
    return "" if text is None else '"' + text.replace('"', '""') + '"'


class TestFiles(SourceContract):
    """Every test of the suite that a source which polls can do."""

    kit = FilesKit

    @pytest.fixture
    def source_kit(self, tmp_path: Path) -> FilesKit:
        return FilesKit(tmp_path)
