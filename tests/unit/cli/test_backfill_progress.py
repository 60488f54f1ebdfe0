"""What `cdcflow backfill` prints while the source may not be read."""

from __future__ import annotations

from typing import Any

import pytest

from cdcflow.cli.backfill import BackfillProgress

HELD: dict[str, Any] = {
    "state": "held",
    "share": 0.0,
    "until": "2026-06-01T20:00+00:00",
    "reasons": [{"limit": "hours", "text": "outside of source.backfill.hours", "share": 0.0}],
}


def test_reason_is_printed_once_until_it_changes(capsys: pytest.CaptureFixture[str]) -> None:
    """A command that waits for the night must not seem to hang."""
    waits = {"limit": "lock_waits", "text": "sessions that wait for a lock: 3", "share": 0.0}
    with BackfillProgress() as progress:
        progress.explain({})
        progress.explain({"state": "free", "share": 1.0, "reasons": []})
        progress.explain(HELD)
        progress.explain(HELD)
        progress.explain({**HELD, "until": None, "reasons": [waits]})
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("reading is held until 2026-06-01T20:00+00:00: outside of source.backfill.hours")
    assert "sessions that wait for a lock: 3" in second
