"""SQLSTATEs that count before their class."""

from __future__ import annotations

import psycopg

from cdcflow.sources.postgres.sqlstates import STOPS, TRIED_AGAIN


def test_every_internal_error_is_named_by_itself() -> None:
    """The class says nothing there: one is a race of the server's with itself, the others are damage."""
    known = {
        found.sqlstate
        for found in vars(psycopg.errors).values()
        if isinstance(found, type) and hasattr(found, "sqlstate")
    }
    named = {*TRIED_AGAIN, *STOPS}
    assert {str(state) for state in known if str(state).startswith("XX")} == {s for s in named if s.startswith("XX")}
    assert {s for s in named if len(s) != 2} <= known
