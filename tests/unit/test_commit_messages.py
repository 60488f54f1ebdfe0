"""The check of commit messages finds what `make commits` and the hook promise to find."""

from __future__ import annotations

import pytest
from tests.commits.messages import faults_of

GOOD = "Merge: keep files that a reader still has open\n\nA reader of an old cut got FileNotFoundError in a long query."


def test_subject_and_reason_are_enough() -> None:
    assert faults_of(GOOD) == []


def test_lines_that_git_adds_are_not_part_of_the_message() -> None:
    assert (
        faults_of(
            f"{GOOD}\n# Please enter the commit message\n# ------------------------ >8 ------------------------\ndiff"
        )
        == []
    )


@pytest.mark.parametrize(
    ("message", "fault"),
    [
        ("", "empty"),
        ("# only a comment", "empty"),
        ("Fix it", "why"),
        ("Fix it\n\nReviewed-by: A Person <a@example.org>\nRefs: one two three four", "why"),
        ("Fix it.\n\nThe merge stopped after each failed commit.", "full stop"),
        ("Fix it\nThe merge stopped after each failed commit.", "empty line"),
        (f"{'x' * 101}\n\nThe merge stopped after each failed commit.", "101 characters"),
    ],
)
def test_each_fault_is_named(message: str, fault: str) -> None:
    assert [found for found in faults_of(message) if fault in found]
