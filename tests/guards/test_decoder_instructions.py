"""How many instructions the compiled decoders spend on a change, counted by callgrind: no clock, no noise.

Two batches of different size are decoded, and the difference is divided by the difference in changes, so what a call
costs whatever its size drops out. Where valgrind is not installed, or the decoders were not compiled, there is nothing
to count: the tests are then not collected, and the summary says why (`tests/guards/conftest.py`).
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

FEW, MANY = 500, 2500

# Instructions a change of 6 short columns; 15-20 % above what was counted (x86-64, gcc 12, CPython 3.11).
CEILINGS = {"binary": 800, "text": 1350, "copy": 515}


class Counted:
    """A process under callgrind that decodes what it is asked to."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._dumps = 0
        command = ["valgrind", "--tool=callgrind", "--instr-atstart=no", "--vgdb-prefix=" + str(directory / "vgdb")]
        command += [f"--callgrind-out-file={directory / 'out'}", sys.executable]
        command += [str(Path(__file__).with_name("decoding.py")), str(FEW), str(MANY)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self._await("ready")
        self._control("instrumentation on")

    def count(self, name: str, size: int) -> int:
        """Instructions of decoding this once, and of waiting for the word to do it."""
        assert self._process.stdin is not None
        self._control("zero")
        self._process.stdin.write(f"{name} {size}\n")
        self._process.stdin.flush()
        self._await("done")
        self._control("dump")
        self._dumps += 1
        (dumped,) = self._directory.glob(f"out*.{self._dumps}")
        found = re.search(r"^(?:summary|totals): (\d+)", dumped.read_text(), re.MULTILINE)
        assert found is not None
        return int(found[1])

    def close(self) -> None:
        self._process.communicate()

    def _await(self, word: str) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline().strip() == word

    def _control(self, command: str) -> None:
        subprocess.run(
            ["vgdb", f"--pid={self._process.pid}", "--vgdb-prefix=" + str(self._directory / "vgdb"), *command.split()],
            check=True,
            capture_output=True,
        )


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Counted]:
    process = Counted(tmp_path_factory.mktemp("callgrind"))
    yield process
    process.close()


@pytest.mark.parametrize("name", CEILINGS)
def test_a_change_costs_no_more_instructions_than_it_did(counted: Counted, name: str) -> None:
    """A slower decoder shows here at once, where a clock on a busy machine shows nothing."""
    for size in (FEW, MANY):
        counted.count(name, size)  # the first time under the tool is not like the others
    instructions = (counted.count(name, MANY) - counted.count(name, FEW)) / (MANY - FEW)
    print(f"{name}: {instructions:.0f} instructions a change")
    # Far below the ceiling it is not these decoders that ran.
    assert CEILINGS[name] / 3 < instructions < CEILINGS[name]
