"""Another object store in the settings of a log that has segments in one: refused in the plan, with the remedy."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.support.log.hand_log import HandLog
from tests.support.merge.histories import make_table

from cdcflow.config import Config
from cdcflow.errors import SourceUnavailable
from cdcflow.log.files.layout import Layout
from cdcflow.sinks.objects.uploaded import Uploaded
from cdcflow.wiring.plans import plan_capture

URL = "s3://bucket/shop"


def config(tmp_path: Path, url: str | None) -> Config:
    log: dict[str, Any] = {"path": str(tmp_path / "log"), **({"objects": {"url": url}} if url else {})}
    return Config.model_validate(
        {"source": {"kind": "postgres", "url": "postgresql://nobody@127.0.0.1:1/none"}, "log": log}
    )


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """A log whose segment is in a bucket, which is the folder `bucket` here."""
    made = HandLog(tmp_path / "log")
    made.segment([(make_table("orders", id="int64"), "c", {"id": 1})])
    (made.root / "uploads.json").write_text(f'{{"url": "{URL}", "last_offset": 1, "version": 1}}')
    assert Uploaded.read(Layout(made.root)) == Uploaded(URL, 1)
    for file in (made.root / "segments").rglob("*.parquet"):
        kept = tmp_path / "bucket" / file.relative_to(made.root / "segments")
        kept.parent.mkdir(parents=True)
        file.rename(kept)
    return Layout(made.root)


@pytest.mark.parametrize("url", [None, "s3://bucket/other"])
def test_segments_in_another_store_are_not_abandoned(layout: Layout, tmp_path: Path, url: str | None) -> None:
    """The capture would continue, and no reader could read the log's contents."""
    (refusal,) = plan_capture(config(tmp_path, url)).refused
    assert refusal.text.startswith(
        f"log.objects.url cannot become {url or 'unset'}: sealed segments of this log are in"
    )
    assert f"remove {layout.root / 'uploads.json'}, and start `cdcflow run`" in refusal.remedy


def test_printed_remedy_returns_the_log_to_files(layout: Layout, tmp_path: Path) -> None:
    """The remedy, to the letter; after it only the source, which does not exist here, is contacted."""
    (refusal,) = plan_capture(config(tmp_path, None)).refused
    assert f"copy {URL}/segments to {layout.segments}, remove {layout.root / 'uploads.json'}" in refusal.remedy
    shutil.copytree(tmp_path / "bucket", layout.segments, dirs_exist_ok=True)
    (layout.root / "uploads.json").unlink()
    with pytest.raises(SourceUnavailable):
        plan_capture(config(tmp_path, None))


@pytest.mark.parametrize("url", [URL, f"{URL}/"])
def test_the_same_store_is_no_other(layout: Layout, tmp_path: Path, url: str) -> None:
    """However it is written."""
    with pytest.raises(SourceUnavailable):
        plan_capture(config(tmp_path, url))
