"""Narrated scenarios of the interleave machine: each file can be read without Python, and is played exactly."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.scenarios.narration import played
from tests.simulation.planted import SUBTLE

FILES = sorted(Path(__file__).parent.glob("*.txt"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_scenario_is_played_as_narrated(path: Path, rewrite: bool) -> None:
    """The order of everything is decided here; a change of it must be read by a person before it is believed."""
    text = path.read_text()
    now = played(text)
    if rewrite:
        path.write_text(now)
    else:
        assert now == text, f"read the difference, then run: pytest tests/scenarios --rewrite  ({path.name})"


def test_there_are_scenarios() -> None:
    """A glob that finds nothing would be green."""
    assert len(FILES) >= 20


@pytest.mark.parametrize("bug", SUBTLE)
def test_subtle_planted_bug_changes_a_scenario(bug: str) -> None:
    """Bugs that random schedules find once in thousands have a scenario each that shows them at once."""
    with SUBTLE[bug].planted():
        assert any(played(path.read_text()) != path.read_text() for path in FILES)
