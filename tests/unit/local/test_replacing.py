"""Which files are written again beside a change, and that it costs no more than so much."""

from __future__ import annotations

from cdcflow.local import replacing
from cdcflow.local.replacing import AGAIN_BYTES_MAX, SMALL_BYTES, SMALL_FILES_MAX, TINY_BYTES, Touched

MB = 1 << 20


def test_small_files_become_one_where_they_are_many() -> None:
    large = [SMALL_BYTES] * 5
    assert replacing.small([*large, *[1] * SMALL_FILES_MAX]) == set()
    assert replacing.small([*large, *[1] * (SMALL_FILES_MAX + 1)]) == set(range(5, 6 + SMALL_FILES_MAX))


def test_only_so_many_small_files_become_one_at_a_time() -> None:
    found = replacing.small([3 * MB] * 50)
    assert len(found) == AGAIN_BYTES_MAX // (3 * MB)


def test_files_that_are_tiny_or_much_of_which_is_dead_are_written_again() -> None:
    touched = {
        0: Touched(50 * MB, 1000, 1),
        1: Touched(50 * MB, 1000, 400),
        2: Touched(TINY_BYTES - 1, 1000, 1),
        3: Touched(TINY_BYTES, 1000, 1),
        4: Touched(5 * MB, 999, 333),
    }
    assert replacing.again(touched, 0) == {1, 2}


def test_what_is_written_again_is_bounded_and_what_lives_of_it_counts() -> None:
    """Others keep their marks until it is their turn. A file of which nothing lives costs nothing and goes."""
    half = {n: Touched(AGAIN_BYTES_MAX, 100, 50) for n in range(5)}
    assert len(replacing.again(half, 0)) == 2
    assert len(replacing.again(half, AGAIN_BYTES_MAX // 2)) == 1
    assert replacing.again({0: Touched(3 * AGAIN_BYTES_MAX, 100, 40)}, 0) == set()
    assert replacing.again({0: Touched(9 * AGAIN_BYTES_MAX, 100, 100)}, AGAIN_BYTES_MAX) == {0}
