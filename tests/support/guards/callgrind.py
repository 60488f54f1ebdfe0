"""Instructions counted by callgrind: no clock, no noise."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path


class Counted:
    """A process under callgrind that executes requests: a program that prints "ready", and "done" after each.

    `directory` is for the tool's files; the program's arguments are `sizes`, and it reads lines of a name and a size.
    """

    def __init__(self, directory: Path, program: Path, *sizes: int) -> None:
        self._directory = directory
        self._dumps = 0
        command = ["valgrind", "--tool=callgrind", "--instr-atstart=no", "--vgdb-prefix=" + str(directory / "vgdb")]
        command += [f"--callgrind-out-file={directory / 'out'}", sys.executable]
        command += [str(program), *map(str, sizes)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self._await("ready")
        self._control("instrumentation on")

    def count(self, name: str, size: int) -> int:
        """Instructions of decoding this once, and of waiting for the request to do it."""
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
