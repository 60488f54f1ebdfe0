"""cdcflow as a user has it: a wheel of this checkout in a separate environment, and commands in a folder."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.support.polling import wait_for
from tests.wheels.build import ROOT, build

WAIT_S = 120.0


def environment(room: Path) -> Path:
    """The folder of the programs of a fresh environment with the wheel and what an operator adds to it."""
    wheel = build(Path(sys.executable), room / "dist")
    made = room / "env"
    subprocess.run([sys.executable, "-m", "venv", str(made)], check=True)
    pip = [str(made / "bin" / "python"), "-m", "pip", "install", "--quiet", "--only-binary", ":all:"]
    limits = ["--constraint", str(ROOT / "constraints.txt")]
    subprocess.run([*pip, *limits, f"{wheel}[service,local,objects]"], check=True, env=_bare(made / "bin"), cwd=room)
    return made / "bin"


def _bare(programs: Path) -> dict[str, str]:
    """An environment in which only the wheel can be imported, and Java is not found."""
    left_out = ("PYTHONPATH", "JAVA_HOME")
    kept = {name: text for name, text in os.environ.items() if name not in left_out}
    return {**kept, "PATH": f"{programs}{os.pathsep}/usr/bin{os.pathsep}/bin"}


class Terminal:
    """Runs `cdcflow` in a folder. `variables` are added to its environment."""

    def __init__(self, programs: Path, folder: Path, variables: Mapping[str, str]) -> None:
        self.folder = folder
        self._program = str(programs / "cdcflow")
        self._variables = {**_bare(programs), **variables}
        self._daemon: subprocess.Popen[bytes] | None = None

    def run(self, *words: str, code: int | None = 0) -> str:
        """A command's output, including stderr. It must end with `code` (None: with any)."""
        done = subprocess.run(
            [self._program, *words],
            cwd=self.folder,
            env=self._variables,
            text=True,
            timeout=WAIT_S,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert code in (None, done.returncode), (
            f"cdcflow {' '.join(words)} ended with {done.returncode}:\n{done.stdout}"
        )
        return done.stdout

    def start(self) -> None:
        with (self.folder / "events.jsonl").open("ab") as lines:
            self._daemon = subprocess.Popen(
                [self._program, "run", "--wait", "--json"],
                cwd=self.folder,
                env=self._variables,
                stdout=lines,
                stderr=lines,
            )

    def stop(self) -> int:
        assert self._daemon is not None
        self._daemon.send_signal(signal.SIGTERM)
        return self._daemon.wait(WAIT_S)

    def close(self) -> None:
        if self._daemon is not None and self._daemon.poll() is None:
            self._daemon.kill()
            self._daemon.wait()

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.run("status", "--json"))
        return found

    def until(self, wished: Callable[[dict[str, Any]], object], what: str) -> dict[str, Any]:
        """The first status that `wished` is true of."""

        def status() -> dict[str, Any]:
            assert self._daemon is not None
            assert self._daemon.poll() is None, self.events()[-3000:]
            return self.status()

        return wait_for(status, wished, what, patience_s=WAIT_S, more=lambda: self.events()[-3000:])

    def events(self) -> str:
        return (self.folder / "events.jsonl").read_text()
