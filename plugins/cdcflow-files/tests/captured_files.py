"""A source of files with what it delivers, for the tests of each place where files can be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cdcflow.ports import Checkpoint, Committed, Epoch, Run, StreamEvent
from cdcflow.sources.polled import PolledSource
from cdcflow.testing.sources import LOG_ID, collect, refuse_spool
from cdcflow_files import FilesSettings, open_source

Change = tuple[str, dict[str, Any]]


class CapturedFiles:
    """A source of files that was started, and what it delivers."""

    def __init__(self, state: Path, **settings: Any) -> None:
        self.settings = FilesSettings(kind="files", state=state, poll_every=0.05, **settings)
        self.source = open_source(self.settings)
        self.checkpoint = self.source.prepare(Checkpoint(epoch=Epoch(1)), LOG_ID).checkpoint

    def poll(self) -> None:
        self.source.poll_now()
        self.source.poll_now()

    def changes(self, source: PolledSource | None = None, checkpoint: Checkpoint | None = None) -> list[Change]:
        """All changes since the start, in order."""
        source = source or self.source
        checkpoint = source.prepare(checkpoint or self.checkpoint, LOG_ID).checkpoint  # also for tables found since
        chunks = source.chunks()
        chunks.heartbeat()
        end = source.status(None).details["end"]
        stream = source.stream(checkpoint, refuse_spool)
        try:
            events = collect(stream, lambda seen: any(_position(event) == end for event in seen))
        finally:
            stream.close()
        return [change for event in events if isinstance(event, Committed) for change in _rows(event.run)]

    def stopped(self) -> str:
        return self.source.status(None).details.get("stopped", "")


def _position(event: StreamEvent) -> str:
    return str(event.run.last_position if isinstance(event, Committed) else getattr(event, "position", ""))


def _rows(run: object) -> list[Change]:
    assert isinstance(run, Run)
    found = []
    for batch in run.batches:
        for row in batch.rows.to_pylist():
            found += [(f"{row['_op']} {batch.table.id.name}", {c.name: row[c.name] for c in batch.table.columns})]
    return found
