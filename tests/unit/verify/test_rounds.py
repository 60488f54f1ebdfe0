"""How often rows that change during the comparison are compared again."""

from __future__ import annotations

from collections.abc import Iterable

from cdcflow.tables.verify.job import Rounds


def rounds_until_exhausted(moves: Iterable[bool]) -> int:
    rounds = Rounds()
    for moved in moves:
        if rounds.are_over:
            break
        rounds.count(moved=moved)
    assert rounds.are_over
    return rounds.done


def test_row_that_changes_whenever_the_copy_has_advanced_is_abandoned() -> None:
    """A counter that is written all the time must not hold up the comparison indefinitely."""
    assert rounds_until_exhausted([True] * 100) == 12


def test_copy_that_moves_on_seldom_is_waited_for() -> None:
    """A log in Kafka advances with its merges: rounds in between add nothing about a row that was written since."""
    rounds = Rounds()
    for number in range(40):
        assert not rounds.are_over, number
        rounds.count(moved=number % 8 == 7)


def test_copy_that_does_not_advance_is_abandoned() -> None:
    """No merge runs: the report states so, instead of nothing."""
    assert rounds_until_exhausted([False] * 100) == 31


def test_all_of_it_has_an_end() -> None:
    """Whatever the copy does."""
    assert rounds_until_exhausted([number % 25 == 0 for number in range(100)]) == 60
