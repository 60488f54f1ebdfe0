"""Bytes that a real server once sent still mean what they meant."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.postgres.corpus import STORIES, read

FILES = sorted((Path(__file__).parent / "postgres").glob("*.txt"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_recorded_messages_mean_what_they_meant(path: Path) -> None:
    """Decoders are rewritten for speed; what is in people's logs must not change with them.

    P01, P03, P04, P08, P09, P17, P29, P31, P58, T03, T05, T06, T09, T11, T15, T19, T22, T37, T38.
    """
    recording = read(path.read_text())
    for way, expected in recording.told.items():
        assert expected
        assert recording.decoded(way) == expected


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_text_binary_and_streamed_recordings_decode_to_the_same_events(path: Path) -> None:
    """The format that the server was asked for must not show in the log (T38)."""
    ways = list(read(path.read_text()).told.values())
    plain = [[line.replace(" from a spool", "") for line in way] for way in ways]
    assert all(way == plain[0] for way in plain)


def test_every_story_is_recorded() -> None:
    """A story without its recording would test nothing, and nobody would see."""
    assert [path.stem for path in FILES] == sorted(STORIES)
