"""Which decoder runs is something an operator must be able to see."""

from __future__ import annotations

from cdcflow.sources.postgres.decoders import Compiled
from cdcflow.sources.postgres.doctor import decoders


def test_doctor_reports_which_decoders_run_and_how_to_get_the_fast_ones(compiled: Compiled | None) -> None:
    """An install without a compiler works but is slow, and an operator would not connect that with a months-old
    warning."""
    found = decoders(compiled)
    assert (found.level, found.remedy is None) == (("warning", False) if compiled is None else ("ok", True))
    assert ("compiled" in found.text) == (compiled is not None)
