"""The log of the demo: in a folder, or in Kafka on a broker that the demo starts itself."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal, Protocol, Self

from cdcflow.config import load
from cdcflow.log.read.reader import list_segments

LogKind = Literal["files", "kafka"]
TOPIC = "demo-log"


class DemoLog(Protocol):
    """The demo's log. A context manager: the log can be written inside the block."""

    name: str
    folder: Path
    """The folder with the daemon's control socket."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *error: object) -> None: ...

    def settings(self) -> list[str]:
        """Return the part of the settings below `log:`."""
        ...

    def progress(self) -> Mapping[str, Any]:
        """Return the backfill progress that a merge would see now."""
        ...

    def sealed_offset(self) -> int:
        """Return the offset up to which a merge would see the log."""
        ...


class Folder:
    """A log in files."""

    name = "a folder"

    def __init__(self, directory: Path) -> None:
        self.folder = directory / "log"
        self._directory = directory

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def settings(self) -> list[str]:
        return ["path: ./log", "seal: {bytes_max: 64MiB, age_max: 3s}"]

    def progress(self) -> Mapping[str, Any]:
        """Return the progress in the latest segment's checkpoint: a merge reads sealed segments."""
        segments = list_segments(self.folder)
        found: Any = segments[-1].checkpoint["progress"] if segments else {}  # Any: JSON
        return dict(found)

    def sealed_offset(self) -> int:
        segments = list_segments(self.folder)
        return segments[-1].last_offset if segments else 0


class DemoTopic:
    """A log in Kafka, on one private broker."""

    name = f"Kafka, topic {TOPIC}"

    def __init__(self, directory: Path) -> None:
        self.folder = directory / "work" / TOPIC
        self._directory = directory
        self._address = ""
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        from cdcflow.demo.servers.kafka import KafkaBroker

        self._address = self._stack.enter_context(KafkaBroker()).address
        # The broker is removed with the demo. Its log's history stays, and is read like a log in files.
        source = "source: {kind: postgres, url: postgresql://nobody@127.0.0.1/gone}"
        history = (
            f"# The log's sealed segments, for the log commands.\n{source}\nlog:\n  path: ./work/{TOPIC}/history\n"
        )
        (self._directory / "history.yaml").write_text(history)
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def settings(self) -> list[str]:
        return ["kafka:", f"  brokers: {self._address}", f"  topic: {TOPIC}", "  work: ./work"]

    def progress(self) -> Mapping[str, Any]:
        """Return the progress in the latest committed checkpoint: a merge seals all that is committed."""
        from cdcflow import wiring

        return wiring.log_reader(load(self._directory / "cdcflow.yaml")).newest_checkpoint().progress

    def sealed_offset(self) -> int:
        from cdcflow import wiring

        return wiring.log_reader(load(self._directory / "cdcflow.yaml")).newest_checkpoint().next_offset - 1


def demo_log(kind: LogKind, directory: Path) -> DemoLog:
    """Return the demo's log of this kind; nothing is started yet."""
    return Folder(directory) if kind == "files" else DemoTopic(directory)
