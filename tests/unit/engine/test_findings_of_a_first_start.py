"""Findings about objects that the first start creates: once a log exists, they would only frighten its operator."""

from __future__ import annotations

from cdcflow.sources.engine.findings import at_first_start, created_at_first_start, ok, problem


def test_finding_about_an_object_of_the_first_start_carries_that_as_a_field() -> None:
    """Whether it is shown must not depend on the words of its text."""
    assert created_at_first_start("slot cdcflow_shop").at_first_start
    assert at_first_start(problem("publication", "may not create one")).at_first_start
    assert not ok("slot cdcflow_shop", "is created at the first start").at_first_start


def test_programs_do_not_see_that_field() -> None:
    """`cdcflow doctor --json` has the fields that it had."""
    found = created_at_first_start("source.marks_table", "cdcflow.marks")
    assert found.to_json() == {
        "level": "ok",
        "subject": "source.marks_table",
        "text": "cdcflow.marks is created at the first start",
        "remedy": None,
    }
