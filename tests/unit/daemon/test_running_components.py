"""The components that run next to a capture while its settings change: all of them use the new settings, or all keep
the old ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cdcflow.config import Config
from cdcflow.daemon.running_components import Running, RunningComponents
from cdcflow.errors import ConfigurationError


def config(tmp_path: Path, **service: Any) -> Config:
    return Config.model_validate(
        {
            "source": {"kind": "postgres", "url": "postgresql://nobody@127.0.0.1:1/none"},
            "log": {"path": str(tmp_path)},
            "service": service,
        }
    )


class Stage:
    """Components built from `service.listen` or `service.hosts` that record what is done with them."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.refused = False
        self.components = RunningComponents([_Part(self, "listen"), _Part(self, "hosts")])

    def taken(self) -> list[str]:
        done, self.done = self.done, []
        return done


class _Part:
    def __init__(self, stage: Stage, name: str) -> None:
        self._stage = stage
        self._name = name

    def made_of(self, config: Config) -> object:
        return getattr(config.service, self._name)

    def prepare(self, config: Config) -> Running | None:
        if self._stage.refused and self._name == "hosts":
            raise ConfigurationError("that cannot be")
        value = self.made_of(config)
        return _Made(self._stage, f"{self._name} {value}") if value else None


class _Made:
    def __init__(self, stage: Stage, what: str) -> None:
        self._stage = stage
        self._what = what
        self._note("prepare")

    def _note(self, did: str) -> None:
        self._stage.done.append(f"{did} {self._what}")

    def begin(self) -> None:
        self._note("begin")

    def end(self, *, wait: bool) -> None:
        self._note("end, wait," if wait else "end")


def test_only_what_differs_is_replaced(tmp_path: Path) -> None:
    """The new one exists before the old one ends; components whose settings are unchanged are not touched."""
    stage = Stage()
    stage.components.use(config(tmp_path, listen="127.0.0.1:1"))
    assert stage.taken() == ["prepare listen 127.0.0.1:1", "begin listen 127.0.0.1:1"]
    stage.components.use(config(tmp_path, listen="127.0.0.1:1", metrics_per_table="never"))
    assert stage.taken() == []
    stage.components.use(config(tmp_path, listen="127.0.0.1:2"))
    assert stage.taken() == ["prepare listen 127.0.0.1:2", "end listen 127.0.0.1:1", "begin listen 127.0.0.1:2"]
    stage.components.use(config(tmp_path))
    assert stage.taken() == ["end listen 127.0.0.1:2"]


def test_component_that_cannot_run_leaves_all_unchanged(tmp_path: Path) -> None:
    """Applying half of a file's settings would be a state that no file describes."""
    stage = Stage()
    stage.components.use(config(tmp_path, listen="127.0.0.1:1", hosts=["a"]))
    stage.taken()
    stage.refused = True
    with pytest.raises(ConfigurationError, match="cannot be"):
        stage.components.use(config(tmp_path, listen="127.0.0.1:2", hosts=["b"]))
    assert stage.taken() == ["prepare listen 127.0.0.1:2", "end, wait, listen 127.0.0.1:2"]
    stage.refused = False
    stage.components.close()
    assert stage.taken() == ["end, wait, hosts ('a',)", "end, wait, listen 127.0.0.1:1"]
