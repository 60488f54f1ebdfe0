"""The faults that `make mutants` plants, and how they are described."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.mutants.faults import compiles, faults_of
from tests.mutants.suites import files, quick, with_servers

import cdcflow

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
PACKAGE = Path(cdcflow.__file__).parent

SOURCE = '''
"""A docstring stays."""
LIMIT_MAX = 500
ROOM_BYTES = 1 << 20
K = TypeVar("K")

def place(rows: int, at: "text", *, sure: bool = True) -> int:
    """Another one."""
    if rows < LIMIT_MAX and not at:
        raise ValueError(f"at {rows + 1} rows")
    for row in ("c", "an error with words"):
        if row == "c":
            continue
        count(rows, at)
        count(suppress(rows, at), strict=True)
    return rows + 1
'''

EXPECTED = {
    "[constant] True -> (False)",
    "[and/or] rows < LIMIT_MAX and not at -> (rows < LIMIT_MAX or not at)",
    "[operand left out] rows < LIMIT_MAX and not at -> (rows < LIMIT_MAX)",
    "[operand left out] rows < LIMIT_MAX and not at -> (not at)",
    "[comparison] rows < LIMIT_MAX -> (rows <= LIMIT_MAX)",
    "[not] not at -> (at)",
    "[statement left out] count(suppress(rows, at), strict=True) -> pass",
    '[raise left out] raise ValueError(f"at {rows + 1} rows") -> pass',
    "[text] \"c\" -> ('c_')",
    "[text] \"c\" -> ('c_') #2",
    "[comparison] row == \"c\" -> (row != 'c')",
    "[continue] continue -> break",
    "[statement left out] count(rows, at) -> pass",
    "[arguments swapped] count(rows, at) -> (count(at, rows))",
    "[returns None] return rows + 1 -> return None",
    "[arithmetic] rows + 1 -> (rows - 1)",
    "[constant] 1 -> (2)",
    "[constant] 1 -> (0)",
}


def test_faults_are_those_of_meaning_and_no_others(tmp_path: Path) -> None:
    """Messages, types and settings are left alone; everything else can be wrong."""
    (tmp_path / "place.py").write_text(SOURCE)
    found = faults_of(tmp_path, "place.py")
    assert {str(f).removeprefix("place.py place ") for f in found} == EXPECTED
    assert all(compiles(tmp_path, f) for f in found)


def test_a_fault_is_called_the_same_wherever_its_lines_move(tmp_path: Path) -> None:
    """The lists would else be stale with every line that is added above."""
    (tmp_path / "place.py").write_text(SOURCE)
    before = [str(f) for f in faults_of(tmp_path, "place.py")]
    (tmp_path / "place.py").write_text(f"OTHER = 3\n\n# ünd ein Satz\n{SOURCE}")
    assert [str(f) for f in faults_of(tmp_path, "place.py")] == before


@pytest.mark.parametrize("name", ["survivors.txt", "equivalent.txt"])
def test_the_lists_name_faults_that_can_be_planted(name: str) -> None:
    """An entry of deleted code would be believed indefinitely; an equivalent one has its reason."""
    lines = [line for line in (HERE / name).read_text().splitlines() if not line.startswith("#")]
    known = {str(f) for path in {line.split(" ")[0] for line in lines} for f in faults_of(PACKAGE, path)}
    for line in lines:
        fault, _, reason = line.partition("  # ")
        assert fault in known, "take it out of the list"
        assert reason or name == "survivors.txt"


def test_every_file_has_tests_that_are_to_find_its_faults() -> None:
    """A file without any would only have survivors."""
    assert all(quick(path) for path in files(PACKAGE))
    for test in {test for path in files(PACKAGE) for stage in with_servers(path) for test in stage}:
        assert (ROOT / test.removeprefix("--ignore=").split("::")[0]).exists(), test


def test_later_stage_excludes_the_tests_of_an_earlier_one() -> None:
    """A test of minutes would else meet every survivor twice."""
    *_, rules, rest = with_servers("log/fold/fold.py")
    assert set(rules) == {test.removeprefix("--ignore=") for test in rest[1:]}
    assert all(test.startswith(f"{rest[0]}/") for test in rules)
