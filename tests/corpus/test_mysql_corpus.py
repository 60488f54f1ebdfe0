"""Binary logs that real servers once wrote still mean what they meant."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.mysql.binlog_corpus import read

FILES = sorted((Path(__file__).parent / "mysql").glob("*.txt"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_recorded_logs_mean_what_they_meant(path: Path) -> None:
    """Decoders are rewritten for speed; what is in people's logs must not change with them.

    M01, M02, M08, M13, M37, M40, M43, M45, M48, M64, M66.
    """
    recording = read(path.read_text())
    assert recording.told
    assert recording.decoded(1 << 30) == recording.told
    assert recording.decoded(0) == recording.told


def test_every_story_is_recorded_on_both_servers() -> None:
    """A story without its recording would test nothing, and nobody would see."""
    stories = {path.stem.partition("-")[2] for path in FILES}
    assert len(FILES) == 2 * len(stories) >= 10
