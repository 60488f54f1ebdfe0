"""Which files are rewritten along with a change, and that the cost is bounded."""

from __future__ import annotations

from cdcflow.tables.local import file_rewrites
from cdcflow.tables.local.file_rewrites import AGAIN_BYTES_MAX, SMALL_BYTES, SMALL_FILES_MAX, TINY_BYTES, Touched

MB = 1 << 20


def test_small_files_become_one_where_they_are_many() -> None:
    large = [SMALL_BYTES] * 5
    assert file_rewrites.small([*large, *[1] * SMALL_FILES_MAX]) == set()
    assert file_rewrites.small([*large, *[1] * (SMALL_FILES_MAX + 1)]) == set(range(5, 6 + SMALL_FILES_MAX))


def test_tables_do_not_all_merge_their_small_files_in_the_same_turn() -> None:
    """Tables that are merged together get a file each at a time, and merge them when they have too many."""
    names = [f"public.t{n}" for n in range(20)]

    def merging(files: int) -> set[str]:
        return {name for name in names if file_rewrites.small([1] * files, (), name)}

    turns = [merging(files) - merging(files - 1) for files in range(SMALL_FILES_MAX, 2 * SMALL_FILES_MAX)]
    assert not merging(SMALL_FILES_MAX)
    assert merging(SMALL_FILES_MAX + SMALL_FILES_MAX // 2) == set(names)
    assert max(map(len, turns)) <= len(names) // 4, turns


def test_bytes_of_small_files_compacted_at_a_time_are_limited() -> None:
    found = file_rewrites.small([3 * MB] * 50)
    assert len(found) == AGAIN_BYTES_MAX // (3 * MB)


def test_tiny_and_mostly_dead_files_are_rewritten() -> None:
    touched = {
        0: Touched(50 * MB, 1000, 1),
        1: Touched(50 * MB, 1000, 400),
        2: Touched(TINY_BYTES - 1, 1000, 1),
        3: Touched(TINY_BYTES, 1000, 1),
        4: Touched(5 * MB, 999, 333),
    }
    assert file_rewrites.again(touched, 0) == {1, 2}


def test_rewritten_bytes_are_bounded_and_only_live_rows_count() -> None:
    """Other files keep their marks until it is their turn. A file without live rows costs nothing and is removed."""
    half = {n: Touched(AGAIN_BYTES_MAX, 100, 50) for n in range(5)}
    assert len(file_rewrites.again(half, 0)) == 2
    assert len(file_rewrites.again(half, AGAIN_BYTES_MAX // 2)) == 1
    assert file_rewrites.again({0: Touched(3 * AGAIN_BYTES_MAX, 100, 40)}, 0) == set()
    assert file_rewrites.again({0: Touched(9 * AGAIN_BYTES_MAX, 100, 100)}, AGAIN_BYTES_MAX) == {0}


def test_maintenance_joins_as_many_files_as_are_worth_it() -> None:
    """A large file is not rewritten for a single small one; many small ones are worth it, in portions."""
    assert file_rewrites.files_to_join([]) == file_rewrites.files_to_join([1]) == []
    assert file_rewrites.files_to_join([MB, 30 * MB]) == []
    assert file_rewrites.files_to_join([30 * MB, MB, 2 * MB]) == [1, 2]
    assert file_rewrites.files_to_join([12 * MB, MB, 2 * MB]) == [1, 2, 0]
    assert file_rewrites.files_to_join([1, 20 * MB, 20 * MB, 40 * MB]) == [1, 2]
    assert file_rewrites.files_to_join([40 * MB] * 9) == []
    assert len(file_rewrites.files_to_join([3 * MB] * 50)) == AGAIN_BYTES_MAX // (3 * MB)


def test_joining_of_files_converges_and_writes_little_more_than_once() -> None:
    """One file of a megabyte an hour, for a thousand hours."""
    sizes: list[int] = []
    written = 0
    for _ in range(1000):
        sizes.append(MB)
        while group := file_rewrites.files_to_join(sizes):
            sizes.append(sum(sizes[n] for n in group))
            written += sizes[-1]
            for n in sorted(group, reverse=True):
                del sizes[n]
    assert sum(sizes) == 1000 * MB
    assert len(sizes) < 60
    assert written < 10 * 1000 * MB


def test_maintenance_rewrites_files_with_few_dead_rows() -> None:
    """The cheapest first; one at least, however large it is, but none that is larger than may be held in memory."""
    files = [Touched(50 * MB, 100, 5), Touched(50 * MB, 100, 6), Touched(20 * MB, 100, 90), Touched(9, 0, 0)]
    assert file_rewrites.files_to_rewrite(files[:1]) == []
    assert sorted(file_rewrites.files_to_rewrite(files)) == [1, 2, 3]
    large = [Touched(3 * AGAIN_BYTES_MAX, 100, 10), Touched(2 * AGAIN_BYTES_MAX, 100, 10)]
    assert file_rewrites.files_to_rewrite(large) == [1]
    assert file_rewrites.files_to_rewrite(large, AGAIN_BYTES_MAX) == []
