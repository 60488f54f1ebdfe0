"""How far the bucket holds a log, as the log's directory says: for the upload itself, for upkeep, and for people."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from cdcflow.changelog.layout import UPLOADS, Layout
from cdcflow.errors import InvariantViolated


@dataclass(frozen=True, slots=True)
class Uploaded:
    """How far the bucket holds the log: up to `last_offset`. `problem`: why it gets no further just now."""

    url: str
    last_offset: int = 0
    problem: str = ""
    version: int = 1

    @classmethod
    def read(cls, layout: Layout) -> Uploaded | None:
        """What the log's directory says; None: nothing was ever put."""
        try:
            return cls(**json.loads((layout.root / UPLOADS).read_bytes()))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError):
            raise InvariantViolated(
                f"reading {layout.root / UPLOADS}: cdcflow did not write it",
                remedy="remove it: the bucket is asked again, segment by segment",
            ) from None


def status(layout: Layout) -> Mapping[str, object]:
    """What waits to be put, for people: without a daemon, without asking the store."""
    known = Uploaded.read(layout)
    last_offset = 0 if known is None else known.last_offset
    waiting = [layout.manifest(*b)[0] for b in layout.segment_offsets() if b[0] > last_offset]
    return {
        "upload_offset": last_offset,
        "upload_waiting_segments": len(waiting),
        "upload_waiting_bytes": sum(s.size for s in waiting),
        "upload_problem": "" if known is None else known.problem,
    }
