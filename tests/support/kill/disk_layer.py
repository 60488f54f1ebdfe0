"""The files of a process that is killed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cdcflow.log.disk.layer import OsLayer


class Killed(BaseException):
    """The process has ended."""


ACTS = ("create", "open", "write", "truncate", "fsync", "fsync_dir", "rename", "link", "unlink", "mkdir")


class DyingLayer(OsLayer):
    """Files of a process that is killed before its so manyth act."""

    def __init__(self, acts: int) -> None:
        self.left = acts

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name not in ACTS:
            return found
        return self._dying(found)

    def _dying(self, act: Callable[..., Any]) -> Callable[..., Any]:
        def done(*given: Any) -> Any:
            if not self.left:
                raise Killed
            self.left -= 1
            return act(*given)

        return done
