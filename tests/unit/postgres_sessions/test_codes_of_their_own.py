"""SQLSTATEs that count before their class."""

from __future__ import annotations

import psycopg
import pytest

from cdcflow.sources.postgres.sqlstates import STOPS, TRIED_AGAIN, is_tried_again


def test_every_internal_error_is_named_by_itself() -> None:
    """The class does not distinguish them: one is a race inside the server, the others are damage."""
    known = {
        found.sqlstate
        for found in vars(psycopg.errors).values()
        if isinstance(found, type) and hasattr(found, "sqlstate")
    }
    named = {*TRIED_AGAIN, *STOPS}
    assert {str(state) for state in known if str(state).startswith("XX")} == {s for s in named if s.startswith("XX")}
    assert {s for s in named if len(s) != 2} <= known


@pytest.mark.parametrize(
    ("state", "again"),
    [
        ("08006", True),
        ("25P02", True),
        ("25001", False),
        ("XX000", True),
        ("XX001", False),
        ("XX999", False),
        ("42P01", False),
        ("ZZ000", False),
        ("", False),
    ],
)
def test_a_code_counts_before_its_class_and_what_no_line_names_stops(state: str, again: bool) -> None:
    """An extension's own code does not show whether the next attempt would succeed."""
    assert is_tried_again(state) is again
