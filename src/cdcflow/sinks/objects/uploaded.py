"""How far the bucket holds a log, as recorded in the log's directory: for upload, maintenance and operators."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from cdcflow.errors import InvariantViolated
from cdcflow.log.disk.layer import OS_LAYER, write_file
from cdcflow.log.files.layout import UPLOADS, Bounds, Layout

RANGES_NAMED = 10


@dataclass(frozen=True, slots=True)
class Uploaded:
    """How far the bucket holds the log: up to `last_offset`.

    `problem`: why the upload currently gets no further. `lost`: the segments up to that offset that the bucket has lost
    and that are not on this machine either, neighbours combined.
    """

    url: str
    last_offset: int = 0
    problem: str = ""
    lost: tuple[Bounds, ...] = ()
    version: int = 1

    @classmethod
    def read(cls, layout: Layout) -> Uploaded | None:
        """Return what the log's directory records; None if nothing was ever uploaded."""
        try:
            value = json.loads((layout.root / UPLOADS).read_bytes())
            return cls(**{**value, "lost": tuple((int(a), int(b)) for a, b in value.get("lost", ()))})
        except FileNotFoundError:
            return None
        except (ValueError, TypeError):
            raise InvariantViolated(
                f"reading {layout.root / UPLOADS}: cdcflow did not write it",
                remedy="remove it: cdcflow queries the bucket again, segment by segment",
                runbook="log-damaged",
            ) from None


class UploadedPart:
    """How much of the log the bucket has, for code that needs only this. `url`: the bucket's."""

    def __init__(self, layout: Layout, url: str) -> None:
        self._layout = layout
        self._url = url

    def offset(self) -> int:
        """Return the offset up to which the bucket has everything."""
        known = Uploaded.read(self._layout)
        return 0 if known is None else known.last_offset

    def record(self, offset: int) -> None:
        """Record that another machine has uploaded everything up to this offset."""
        known = Uploaded.read(self._layout) or Uploaded(self._url)
        content = json.dumps(asdict(replace(known, last_offset=offset))).encode()
        write_file(OS_LAYER, self._layout.root / UPLOADS, content)


def lost_segments(layout: Layout, known: Uploaded | None) -> list[Bounds]:
    """Return the lost segments as of the last comparison with the bucket, without those that have expired since."""
    first_offset = layout.log_file().first_offset
    return [(max(a, first_offset), b) for a, b in (known.lost if known is not None else ()) if b >= first_offset]


def loss(layout: Layout, url: str, ranges: Sequence[Bounds]) -> tuple[str, str]:
    """The message for operators about lost ranges (at least one), and the remedy."""
    names = ", ".join(f"{a}-{b}" for a, b in ranges[:RANGES_NAMED]) + (", …" if len(ranges) > RANGES_NAMED else "")
    counting = layout.segment_offsets()
    last = next(b for b in reversed(counting) if b[1] <= ranges[-1][1])
    cut = layout.manifest(*last)[0].last_cut + 1
    newest = " (when a newer segment is sealed)" if last == counting[-1] else ""
    return (
        f"the store has lost offsets {names} of the log, and they are not on this machine either",
        f"restore the objects below {url}/segments from a copy or an earlier version: the daemon uses them again "
        f"at its next start; or abandon what was before{newest}: `cdcflow log expire --before-cut {cut}`, then"
        " `cdcflow backfill`, so that merges can continue",
    )


def status(layout: Layout, url: str = "") -> Mapping[str, object]:
    """Return what waits for upload, and what is lost, for operators. It needs no daemon, and does not query the
    store."""
    known = Uploaded.read(layout)
    last_offset = 0 if known is None else known.last_offset
    gone = lost_segments(layout, known)
    waiting = [layout.manifest(*b)[0] for b in layout.segment_offsets() if b[0] > last_offset]
    return {
        "upload_offset": last_offset,
        "upload_waiting_segments": len(waiting),
        "upload_waiting_bytes": sum(s.size for s in waiting),
        "upload_problem": "" if known is None else known.problem,
        "store_lost": [list(bounds) for bounds in gone],
        "store_problem": ": ".join(loss(layout, url, gone)) if gone else "",
    }
