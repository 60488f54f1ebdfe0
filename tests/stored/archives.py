"""The archives, unpacked, and what this version's commands print of them."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from typer.testing import CliRunner

from cdcflow.cli.app import app

HERE = Path(__file__).parent
OF_NOW = {"behind_seconds", "held_by"}
"""What depends on when a command runs, and where."""


class Stored:
    """What an earlier version left of one kind, unpacked into a folder, which the commands run in."""

    def __init__(self, kind: str, folder: Path) -> None:
        folder.mkdir(parents=True)
        with tarfile.open(HERE / f"{kind}.tar.xz") as archive:
            archive.extractall(folder, filter="data")
        self.folder = folder
        self.answers: list[dict[str, Any]] = self.read("answers")

    def read(self, name: str) -> Any:
        return json.loads((self.folder / f"{name}.json").read_text())

    def settings(self) -> Any:
        return yaml.safe_load((self.folder / "cdcflow.yaml").read_text())

    def configure(self, **sections: dict[str, Any]) -> None:
        """Change sections of the settings file: the addresses of servers, which are others now."""
        whole = self.settings()
        for name, own in sections.items():
            whole[name] |= own
        (self.folder / "cdcflow.yaml").write_text(yaml.safe_dump(whole))

    def differences(self, *commands: str) -> list[str]:
        """The commands, or those of these names, that print something else than they did: each with the first
        difference."""
        asked = [one for one in self.answers if "command" in one and (not commands or one["command"][0] in commands)]
        return [text for one in asked for text in self._differences(one)]

    def _differences(self, asked: dict[str, Any]) -> Iterator[str]:
        command = asked["command"]
        before, now = _values(asked["stdout"]), _values(printed(*command, code=asked.get("code", 0)))
        for text in different(before, now, " ".join(command)):
            yield text
            return


def printed(*command: str, code: int = 0) -> str:
    """What a command of this version prints on stdout."""
    done = CliRunner().invoke(app, list(command))
    assert done.exit_code == code, f"{command}: {done.output} {done.exception!r}"
    return done.stdout


def _values(text: str) -> Any:
    """What a command printed: one JSON document, or one on each line."""
    try:
        return json.loads(text)
    except ValueError:
        return [json.loads(line) for line in text.splitlines()]


def different(before: Any, now: Any, where: str) -> Iterator[str]:
    """Where two JSON values differ. A later version may add members to an object, not take one away."""
    if isinstance(before, dict) and isinstance(now, dict):
        for name in before.keys() - OF_NOW:
            yield from different(before[name], now.get(name, "missing"), f"{where}: {name}")
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for number, (old, new) in enumerate(zip(before, now, strict=True)):
            yield from different(old, new, f"{where}: {number}")
    elif repr(before) != repr(now):  # NaN is like itself
        yield f"{where}: {str(before)[:300]} before, {str(now)[:300]} now"
