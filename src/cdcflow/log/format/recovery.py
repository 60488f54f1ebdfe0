"""How much of a journal counts.

        whole cut                    whole cut        the file may continue, with anything
   ─────────┼────────────────────────────┼──────────────────────▶
   counts   │ counts                     │ does not count

After a crash the end of a journal is what the disk happened to have written: frames can be cut short, be zeros, or be
present while an earlier one is missing. All of that is normal after the last sync, and nothing may be missing before
it. The damage itself does not show which case it is, so every cut records how much of the file was durable when it was
written. Damage before a byte that any later cut records as durable is damage to acknowledged data, and no process may
continue from there; all other damage is the unfinished tail, and is dropped.

A spool, or a file with rows, counts as part of the frame that attaches it: without it, that frame is not whole.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import BinaryIO

from cdcflow.errors import InvariantViolated
from cdcflow.log.format.framing import Damaged, Frame, FrameKind, Header, frames, frames_beyond
from cdcflow.log.format.journal import (
    Attached,
    AttachedFile,
    AttachedSpool,
    CutMark,
    Decoder,
    JournalHeader,
    Progressed,
    durable_bytes,
)
from cdcflow.log.format.numbers import Numbers, refusing
from cdcflow.log.format.rows import ShapeEntry
from cdcflow.model.position import Checkpoint


@dataclass(slots=True)
class Whole:
    """The part of a journal that counts: its first `bytes`, which end with `checkpoint`.

    `dropped_rows` are rows in whole frames after that; `reason` is why the rest does not count: "" (there is no rest),
    "no cut" (whole frames, and no cut after them), "torn", "checksum", "spool" or "file".
    """

    header: JournalHeader
    bytes: int
    checkpoint: Checkpoint
    cuts: int = 0
    first_cut: int = 0
    rows: int = 0
    dropped_bytes: int = 0
    dropped_rows: int = 0
    reason: str = ""
    shapes: tuple[ShapeEntry, ...] = ()
    attached: tuple[Attached, ...] = ()


@dataclass(slots=True)
class _Scan:
    """The state of a scan; `rows_since`, `shapes` and `attached` are about the frames since the last cut."""

    numbers: Numbers
    rows_since: int = 0
    shapes: list[ShapeEntry] = field(default_factory=list)
    attached: list[Attached] = field(default_factory=list)


def whole(
    file: BinaryIO, header: Header, size: int, name: str, is_whole: Callable[[Attached], bool], *, end: int | None
) -> Whole:
    """Return the part of a journal that counts. `file` is positioned just after its header; it has `size` bytes.

    `end`: where the next journal records that this one ends; everything before it must then be whole.

    Raises:
        InvariantViolated: data that was durable is damaged, or the frames contradict each other.
    """
    head = JournalHeader.from_header(header)
    decoder = Decoder(name, header)
    scan = _Scan(Numbers.after(head.base, refusing(name)))
    kept = Whole(head, header.end, head.base)
    reason, bad = "", size
    frame: Frame | None = None
    try:
        for frame in frames(file, header, end=end):
            cut = _process(decoder, frame, scan, is_whole)
            if cut is not None:
                _at_cut(kept, scan, cut, frame.end)
    except Damaged as damage:
        reason, bad = damage.reason, damage.at
    if reason:
        _refuse_damage(file, header, name, bad, reason, end)
    if end is not None:
        if kept.bytes != end:
            raise InvariantViolated(
                f"reading {name}: {end} bytes of it were durable, and only {kept.bytes} are intact",
                runbook="log-damaged",
            )
        return kept
    dropped = size - kept.bytes
    why = reason or ("no cut" if dropped else "")
    return replace(kept, dropped_bytes=dropped, dropped_rows=scan.rows_since, reason=why)


def _process(decoder: Decoder, frame: Frame, scan: _Scan, is_whole: Callable[[Attached], bool]) -> CutMark | None:
    """Process one frame. Return the cut if the frame is one."""
    if frame.kind is FrameKind.ROWS:
        first, last, count, total = decoder.extent(frame)
        scan.numbers.rows(first, last, count, total)
        scan.rows_since += count
        return None
    if frame.kind is FrameKind.TRANSACTIONS:
        scan.numbers.transactions(*decoder.extent(frame))
        return None
    record = decoder.record(frame)
    match record:
        case ShapeEntry():
            scan.shapes.append(record)
        case Progressed():
            pass
        case AttachedSpool() | AttachedFile():
            if not is_whole(record):
                raise Damaged(frame.at, "spool" if isinstance(record, AttachedSpool) else "file")
            scan.attached.append(record)
            scan.numbers.count_spooled(record.first_offset, record.rows)
            scan.rows_since += record.rows
        case CutMark():
            scan.numbers.at_cut(record.checkpoint)
            return record
        case _:
            raise InvariantViolated(
                f"reading {decoder.name}: a {frame.kind.name} does not belong in a journal", runbook="log-damaged"
            )
    return None


def _at_cut(kept: Whole, scan: _Scan, mark: CutMark, end: int) -> None:
    checkpoint = mark.checkpoint
    kept.bytes, kept.checkpoint = end, checkpoint
    kept.cuts += 1
    kept.first_cut = kept.first_cut or checkpoint.cut
    kept.rows += scan.rows_since
    kept.shapes += tuple(scan.shapes)
    kept.attached += tuple(scan.attached)
    scan.rows_since, scan.shapes, scan.attached = 0, [], []


def _refuse_damage(file: BinaryIO, header: Header, name: str, bad: int, reason: str, end: int | None) -> None:
    durable = bad if end is None else end
    for frame in frames_beyond(file, header, bad + 1, FrameKind.CUT):
        durable = max(durable, durable_bytes(frame))
    if durable > bad:
        raise InvariantViolated(
            f"recovering {name}: damaged ({reason}) at byte {bad}, and {durable} bytes were durable: data that "
            f"cdcflow acknowledged to the source is lost",
            remedy="restore the log from a copy, or begin a new log with a new backfill",
            runbook="log-damaged",
        )
