"""What happens next after a refusal of the server: every SQLSTATE that psycopg knows, by class."""

from __future__ import annotations

import psycopg
import pytest

from cdcflow.errors import ConfigurationError, RightMissing, SourceUnavailable
from cdcflow.sources.postgres.connection import map_error
from cdcflow.sources.postgres.sqlstates import STOPS, TRIED_AGAIN

STATES: dict[str, type[psycopg.Error]] = {
    found.sqlstate: found
    for found in vars(psycopg.errors).values()
    if isinstance(found, type) and issubclass(found, psycopg.Error) and isinstance(found.sqlstate, str)
}
AGAIN = {"08", "28", "40", "53", "55", "57", "58", "72"}
OF_THEIR_OWN = {
    "25P02": SourceUnavailable,
    "25P03": SourceUnavailable,
    "25P04": SourceUnavailable,
    "42501": RightMissing,
    "53400": ConfigurationError,
    "XX000": SourceUnavailable,
    "XX001": ConfigurationError,
    "XX002": ConfigurationError,
}


def kind_of(state: str) -> type[Exception]:
    return type(map_error(STATES[state]("the server's words"), "asking"))


@pytest.mark.parametrize("state", sorted(STATES))
def test_every_refusal_is_tried_again_or_stops_by_its_class(state: str) -> None:
    """A useless retry holds the slot indefinitely; an unnecessary stop wakes an operator at night."""
    expected = SourceUnavailable if state[:2] in AGAIN else ConfigurationError
    assert kind_of(state) is OF_THEIR_OWN.get(state, expected)


def test_no_class_is_forgotten() -> None:
    """Each has a line with its reason, in one table only."""
    classes = {state[:2] for state in STATES} - {"XX"}
    named = {name for name in (*TRIED_AGAIN, *STOPS) if len(name) == 2}
    assert named == classes
    assert not TRIED_AGAIN.keys() & STOPS.keys()
    assert len(STATES) > 200


def test_code_of_an_extension_stops_with_an_error_that_names_it() -> None:
    """Unknown means stop: the result of the next attempt is unknown."""

    class Own(psycopg.Error):
        sqlstate = "Q1234"

    error = map_error(Own("something new"), "reading slot x")
    assert isinstance(error, ConfigurationError)
    assert "reading slot x: something new (SQLSTATE Q1234)" in str(error)


def test_limits_are_reported_with_the_setting_that_raises_them() -> None:
    """One SQLSTATE is used for every limit of the server; the remedy must be that of the limit that was reached."""
    full = STATES["53400"]("all replication slots are in use")
    assert "drop an unused replication slot" in str(map_error(full, "asking").remedy)
    large = STATES["53400"]("temporary file size exceeds temp_file_limit (1024kB)")
    assert "raise temp_file_limit" in str(map_error(large, "asking").remedy)
