"""Plays a narrated scenario: text in, the machine's effects out as text.

A scenario is stanzas between blank lines. A stanza is comments, inputs (one per line), `----`, and the machine's
effects. What can happen:

    capture orders products heap/keyless [limit=value …]    begin; every table has one key column
    restart [orders …] [delivered=7,8] [partial=orders:5,6|orders:unknown] [new=orders]
                                                    a new epoch after the last cut (`new`: dropped and recreated)
    log EVENT | EVENT | …                           the stream; events in a row without a mark between are one batch
        7 u orders 2:B, c products 9:x                  transaction 7; ~ is a value that was not sent, `5:~<2` a row
                                                        that had key 2 before; t truncates; orders' is another shape
        7 -                                             a transaction without captured rows
        [1/1/low]                                       a mark
        idle                                            nothing captured through here
    planned orders units=4 size=2 [generation=1] [whole]
    written 1/1/low
    rows orders 1:a 2:B [to=2] [end] [hides=7,8] [and-hides=9] [seconds=0.2] [shape=']    answers the last read
    rewritten orders
    incomplete orders:5,6                           rows with these keys come with less than the source has
    refused orders: REASON                          changes of it cannot leave the source any longer
    filled|swapped|suspected orders                 its rows were filled, it was swapped, its rows may have changed
    suspected orders xids=7,8                       by these transactions, which have no rows in the log
    failed orders|a mark: REASON [for good]
    looked [hides=7]
    tick 500ms
    backfill|pause|cancel|forget orders, adjust orders priority=1 rows_per_second_max=10
    adjust orders reset
    resume orders [partial=5,6|unknown]             with the keys of partial rows that the log has
    reread orders:5,6                               a command to read the rows with these keys again
    repair orders:5,6 [until=7]                     a command to make the rows with these keys equal to the source's
    pause-capture, resume-capture
    command 7 ORDER; ORDER; …                       an operator requests these commands, and is answered
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from tests.simulation.transactions import Keys, Plain, Row, Shape, Transaction, plain_keys, position_of

from cdcflow.capture.interleave.limits import Limits, ReadingPace
from cdcflow.capture.interleave.machine import Interleave
from cdcflow.capture.interleave.messages import (
    Adjust,
    Advanced,
    Answered,
    Append,
    Backfill,
    Cancel,
    ChangesRefused,
    Chunk,
    ChunkFailed,
    ChunkRead,
    Command,
    Committed,
    Cut,
    DiscardSpool,
    Effect,
    Event,
    Forget,
    Input,
    MarkSeen,
    MarkWritten,
    Order,
    Outcome,
    Pause,
    PauseCapture,
    Planned,
    PlanTable,
    Repair,
    Reread,
    Resume,
    ResumeCapture,
    RowsCompared,
    RowsFilled,
    RowsIncomplete,
    RowVersion,
    SnapshotTaken,
    TakeSnapshot,
    Tick,
    WriteMark,
)
from cdcflow.capture.interleave.progress import Progress, RepairRecord, TableProgress
from cdcflow.errors import InvariantViolated
from cdcflow.model.change import KeySet, Uint64s
from cdcflow.model.position import Checkpoint, Epoch, Position, Token
from cdcflow.model.table import TableId

DIVIDER = "----"
ORDERS: dict[str, Callable[[TableId], Input]] = {
    "backfill": lambda table: Backfill((table,)),
    "pause": Pause,
    "cancel": Cancel,
    "forget": Forget,
}


@dataclass(frozen=True, slots=True)
class Hides:
    """A snapshot that sees everything but these transactions."""

    xids: frozenset[int]

    def hidden(self, xids: Uint64s) -> Uint64s:
        return xids[np.isin(xids, np.array(sorted(self.xids), np.uint64))]

    def maybe_hidden(self) -> Uint64s:
        return np.empty(0, np.uint64)


def played(text: str) -> str:
    """The scenario with the machine's actual effects."""
    narration = Narration()
    return "\n\n".join(narration.stanza(s) for s in text.strip().split("\n\n")) + "\n"


class Narration:
    def __init__(self) -> None:
        self._machine: Interleave | None = None
        self._names: list[str] = []
        self._limits = Limits()
        self._lsn = 0
        self._epoch = 0
        self._now_us = 0
        self._checkpoint = Checkpoint(position=position_of(0))
        self._repairs: tuple[RepairRecord, ...] = ()
        self._told_of: dict[TableId, TableProgress] = {}
        self._reads: dict[TableId, Chunk] = {}

    def stanza(self, text: str) -> str:
        given = [line for line in text.split(f"\n{DIVIDER}")[0].split("\n") if line != DIVIDER]
        done: list[str] = []
        for line in given:
            if not line.startswith("#"):
                done += self._line(line)
        return "\n".join([*given, *([DIVIDER, *(done or ["(nothing)"])] if done or DIVIDER in text else [])])

    def _line(self, line: str) -> list[str]:
        verb, _, rest = line.partition(" ")
        if verb in ("capture", "restart"):
            (self._capture if verb == "capture" else self._restart)(rest.split())
            return []
        if verb == "pace":
            assert self._machine is not None
            self._machine.keep_pace(ReadingPace(**{k: json.loads(v) for k, v in (w.split("=") for w in rest.split())}))
            return []
        done: list[str] = []
        try:
            for given in self._inputs(verb, rest.strip()):
                assert self._machine is not None
                for effect in self._machine.step(given):
                    done += self._shown(effect)
        except InvariantViolated as error:
            done.append(f"stops: {error}")
        return done

    # ── beginnings ──────────────────────────────────────────────────────────────────────────────────────────

    def _capture(self, words: list[str]) -> None:
        names = [w for w in words if "=" not in w]
        self._limits = Limits(**{k: json.loads(v) for k, v in (w.split("=") for w in words if "=" in w)})
        self._begin(names, (), {}, set())

    def _restart(self, words: list[str]) -> None:
        options = dict(w.split("=") for w in words if "=" in w)
        names = [w for w in words if "=" not in w] or self._names
        partial: dict[TableId, KeySet | None] = {}
        if "partial" in options:
            table, keys = options["partial"].split(":")
            partial[TableId("public", table)] = _keys(keys)
        self._begin(names, _numbers(options.get("delivered")), partial, set(options.get("new", "").split(",")))

    def _begin(
        self, names: list[str], delivered: tuple[int, ...], partial: dict[TableId, KeySet | None], new: set[str]
    ) -> None:
        self._names = names
        self._epoch += 1
        self._machine = Interleave(
            epoch=Epoch(self._epoch),
            checkpoint=replace(self._checkpoint, progress=json.loads(json.dumps(self._checkpoint.progress))),
            tables={_table(n): Shape(("id", "v"), 2 if n in new else 1) for n in names},
            limits=self._limits,
            delivered=np.array(delivered, np.uint64),
            partial=partial,
        )

    # ── what happens ────────────────────────────────────────────────────────────────────────────────────────

    def _inputs(self, verb: str, rest: str) -> Iterator[Input]:
        words = rest.split()
        options = dict(w.split("=") for w in words if "=" in w)
        match verb:
            case "log":
                yield from self._stream(rest)
            case "planned":
                table, units = _table(words[0]), int(options["units"])
                generation, size = int(options.get("generation", "1")), int(options.get("size", "1"))
                shape = Shape(("id", "v"), int(options.get("incarnation", "1")))
                seen = (Hides(frozenset(_numbers(options["hides"]))),) if "hides" in options else ()
                yield Planned(
                    table,
                    generation,
                    "plan",
                    size,
                    units,
                    shape,
                    "whole" in words,
                    visibilities=seen,
                    row_version=options.get("version"),
                )
            case "written":
                yield MarkWritten(Token(rest))
            case "rows":
                yield self._rows(words, options)
            case "rewritten":
                yield ChunkRead(self._reads[_table(rest)], None, None, (), rewritten=True)
            case "failed":
                subject, reason = rest.split(": ")
                table_or_none = None if subject == "a mark" else _table(subject)
                yield ChunkFailed(table_or_none, reason.removesuffix(" for good"), not rest.endswith(" for good"))
            case "looked":
                yield SnapshotTaken(Hides(frozenset(_numbers(options.get("hides")))))
            case "incomplete":
                name, keys = rest.split(":")
                yield RowsIncomplete(_table(name), Keys(int(k) for k in keys.split(",")), position_of(self._lsn))
            case "refused":
                name, reason = rest.split(": ")
                yield ChangesRefused(_table(name), reason, position_of(self._lsn))
            case "filled":
                version = _version(words) if len(words) > 1 else None
                yield RowsFilled(_table(words[0]), position_of(self._lsn), version)
            case "swapped":
                yield RowsFilled(_table(words[0]), position_of(self._lsn), swapped=True)
            case "suspected":
                xids = _numbers(options.get("xids"))
                yield RowsFilled(_table(words[0]), position_of(self._lsn), possible=True, xids=xids)
            case "compared":
                yield RowsCompared((_version(words),))
            case "resume":
                yield Resume(_table(words[0]), _keys(options.get("partial", "")))
            case "tick":
                self._now_us += int(rest.removesuffix("ms")) * 1000
                yield Tick(self._now_us)
            case "adjust":
                priority, rate = options.get("priority"), options.get("rows_per_second_max")
                yield Adjust(_table(words[0]), priority and int(priority), rate and int(rate), "reset" in words)  # type: ignore[arg-type]
            case "reread":
                name, keys = rest.split(":")
                yield Reread(_table(name), Keys(int(k) for k in keys.split(",")))
            case "repair":
                name, keys = words[0].split(":")
                until = Position(options["until"]) if "until" in options else None
                yield Repair(_table(name), Keys(int(k) for k in keys.split(",")), until)
            case "pause-capture":
                yield PauseCapture()
            case "resume-capture":
                yield ResumeCapture()
            case "command":
                number, _, orders = rest.partition(" ")
                asked = (self._inputs(*order.split(" ", 1)) for order in (f"{o} " for o in orders.split("; ")))
                wanted: list[Order] = [one for several in asked for one in several if isinstance(one, Order)]
                yield Command(int(number), orders.split(" ")[0], "somebody", 0, tuple(wanted))
            case _:
                yield ORDERS[verb](_table(rest.strip()))

    def _stream(self, text: str) -> Iterator[Input]:
        batch: list[Transaction] = []
        for event in (part.strip() for part in text.split("|")):
            self._lsn += 1
            if event == "idle" or event.startswith("["):
                if batch:
                    yield Committed(Plain(tuple(batch)))
                batch = []
                position = position_of(self._lsn)
                yield Advanced(position) if event == "idle" else MarkSeen(Token(event.strip("[]")), position, 0)
            else:
                xid, _, changes = event.partition(" ")
                rows = () if changes == "-" else tuple(_row(c) for c in changes.split(", "))
                batch.append(Transaction(int(xid), self._lsn, rows))
        if batch:
            yield Committed(Plain(tuple(batch)))

    def _rows(self, words: list[str], options: dict[str, str]) -> ChunkRead:
        chunk = self._reads[_table(words[0])]
        name = words[0] + options.get("shape", "")
        rows = tuple(_row(f"r {name} {w}") for w in words[1:] if ":" in w)
        deletes = [_row(f"d {name} {key}") for key in _absent(chunk, rows, options)]
        left = _keys(options["left"]) if "left" in options else None
        if chunk.kind == "whole":
            rows = (_row(f"t {name}"), *rows)
        hides = [
            Hides(frozenset(_numbers(options.get(k)))) for k in ("hides", "and-hides") if k in options or k == "hides"
        ]
        reached = options.get("to")
        return ChunkRead(
            chunk,
            Plain((Transaction(0, 0, (*deletes, *rows)),), read=True),
            _shape(name),
            tuple(hides),
            reached,
            int(reached or 0),
            "end" in words,
            float(options.get("seconds", "0.2")),
            keys_left=left,
            deleted=len(deletes),
        )

    # ── the output ──────────────────────────────────────────────────────────────────────────────────────────

    def _shown(self, effect: Effect) -> Iterator[str]:
        match effect:
            case Append(run, offset, _):
                assert isinstance(run, Plain)
                for item in run.items:
                    yield f"append {offset}: " + ", ".join(_told(r) for r in item.rows)
                    offset = offset.__class__(offset + len(item.rows))
            case Cut(number, position, next_offset, next_transaction, progress):
                self._checkpoint = Checkpoint(
                    position, next_offset, next_transaction, number, 0, Epoch(self._epoch), progress
                )
                now = Progress.from_json(progress)
                people = "  (the capture is paused)" if now.capture_paused else ""
                yield f"cut {number} @{int(position.text)}{people}" + "".join(self._news(now))
                for repair in now.repairs:
                    if repair not in self._repairs:
                        yield f"  {_repair(repair)}"
                self._repairs = now.repairs
            case DiscardSpool(spool):
                yield f"discard {spool}"
            case PlanTable(table, generation):
                yield f"plan {table.name} generation {generation}"
            case WriteMark(token, reads):
                yield f"write {token}"
                for read in reads:
                    yield f"  then {self._read(read.chunk)}"
            case TakeSnapshot():
                yield "look"
            case Answered(asked, number, outcomes):
                said = "; ".join(f"{o.table.name if o.table else 'capture'} {_outcome(o)}" for o in outcomes)
                yield f"answer {asked} (command {number}): {said}".replace("public.", "")
            case Event(event, fields):
                about = " ".join(f"{k}={v}" for k, v in fields if v is not None)
                yield f"  ({event}: {about})".replace("public.", "")

    def _read(self, chunk: Chunk) -> str:
        self._reads[chunk.table] = chunk
        what = f"keys {' '.join(map(str, plain_keys(chunk.keys)))}" if chunk.keys is not None else chunk.kind
        if chunk.repairs:
            what += ", to repair them"
        place = f" after {chunk.after or 'nothing'}, {chunk.size} units" if chunk.kind == "range" else ""
        return f"read {chunk.table.name} chunk {chunk.number}: {what}{place}"

    def _news(self, progress: Progress) -> Iterator[str]:
        for table, known in progress.tables.items():
            before = self._told_of.get(table)
            if before is None or _essence(before) != _essence(known):
                yield f"  {table.name} {' '.join(_essence(known))}"
        self._told_of = dict(progress.tables)


def _essence(known: TableProgress) -> tuple[str, ...]:
    done = f"{known.units_done}/{known.units}"
    return (
        known.state,
        f"g{known.generation}",
        f"since={known.since}",
        done,
        *(["keys"] if known.exhausted else []),
        *([f"stale={known.stale}"] if known.stale else []),
        *_ordered(known),
    )


def _ordered(known: TableProgress) -> list[str]:
    rate = "" if known.rows_per_second_max is None else f"{known.rows_per_second_max}/s"
    throttle = [f"throttle={known.priority}:{rate}"] if known.priority or rate else []
    if known.keys_ordered is not None:
        throttle.append(f"ordered={_listed(known.keys_ordered)}")
    if known.lacks_changes and known.gap is not None:
        throttle.append(f"missing@{int(known.gap.before)}")
    return [*throttle, *(f"repair{order.number}={_listed(order.keys)}" for order in known.to_repair)]


def _listed(keys: str) -> str:
    return ",".join(map(str, plain_keys(KeySet.from_text(keys))))


def _outcome(found: Outcome) -> str:
    return found.outcome if found.reason is None else f"{found.outcome} ({found.reason})"


def _repair(found: RepairRecord) -> str:
    offsets = f"offsets {found.first_offset}-{found.last_offset}"
    counts = f"{found.keys} keys, {found.deleted} deleted, {found.left} left"
    between = f"unknown from {found.known_until or 'the beginning'} to {found.position}"
    return f"repair {found.number} of {found.table.name}: {offsets}, {counts}, {between}"


def _absent(chunk: Chunk, rows: tuple[Row, ...], options: dict[str, str]) -> list[int]:
    """The keys of a repair's chunk that were read and are missing."""
    if not chunk.repairs or chunk.keys is None:
        return []
    others = {row.values["id"] for row in rows} | set(_numbers(options.get("left")))
    return [key for key in plain_keys(chunk.keys) if key not in others]


def _version(words: list[str]) -> RowVersion:
    """`orders 1 2 changed`: the version that was known (- for none), the one now, and whether rows changed."""
    table, known, now, *more = words
    return RowVersion(_table(table), None if known == "-" else known, now, more == ["changed"])


def _table(name: str) -> TableId:
    return TableId("public", name.split("/")[0].rstrip("'"))


def _shape(name: str) -> Shape:
    return Shape(("id", "v", *(["w"] * name.count("'"))))


def _numbers(text: str | None) -> tuple[int, ...]:
    return tuple(int(n) for n in text.split(",") if n) if text else ()


def _keys(text: str) -> KeySet | None:
    return None if text == "unknown" else Keys(_numbers(text))


ROW = re.compile(r"(\d+)(?::([^<]*))?(?:<(\d+))?$")


def _row(text: str) -> Row:
    op, name, *rest = text.split()
    if op == "t":
        return Row(_table(name), _shape(name), op, {})
    found = ROW.match(rest[0])
    assert found is not None, text
    key, value, before = found.groups()
    values: dict[str, object] = {"id": int(key), **({} if value in (None, "~") else {"v": value})}
    unchanged = frozenset({"v"}) if value == "~" else frozenset()
    return Row(_table(name), _shape(name), op, values, unchanged, None if before is None else {"id": int(before)})


def _told(row: Row) -> str:
    name = row.table.name + "'" * (len(row.shape.columns) - 2)
    if row.op == "t":
        return f"t {name}"
    value = ":~" if row.unchanged else f":{row.values['v']}" if "v" in row.values else ""
    return f"{row.op} {name} {row.values['id']}{value}" + (f"<{row.before['id']}" if row.before else "")
