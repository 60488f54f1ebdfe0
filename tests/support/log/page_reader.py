"""A reader written from `docs/changelog-format.md` alone: it imports nothing of cdcflow.

If this reader must change, so must the page.
"""

from __future__ import annotations

import base64
import hashlib
import json
import struct
import zlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq


def frames_of(content: bytes) -> tuple[dict[str, Any], Iterator[tuple[int, int, bytes]]]:
    """Header JSON, and (end, kind, payload) of every whole frame."""
    magic, version, _, size = struct.unpack_from("<8sHHI", content)
    assert (magic, version) == (b"cdcflow\n", 3)
    (seed,) = struct.unpack_from("<I", content, 16 + size)
    assert zlib.crc32(content[: 16 + size]) == seed
    return json.loads(content[16 : 16 + size]), _frames(content, -(-(20 + size) // 8) * 8, seed)


def _frames(content: bytes, at: int, seed: int) -> Iterator[tuple[int, int, bytes]]:
    expected = 0
    while at + 16 <= len(content):
        magic, kind, size, sequence, crc = struct.unpack_from("<3sBIII", content, at)
        payload = content[at + 16 : at + 16 + size]
        if magic != bytes.fromhex("cd6366") or sequence != expected or len(payload) < size:
            return
        if zlib.crc32(payload, zlib.crc32(content[at : at + 12] + bytes(4), seed)) != crc:
            return
        at, expected = at + 16 + -(-size // 8) * 8, expected + 1
        yield at, kind, payload


def own_schema(shape: dict[str, Any], left_out: int) -> pa.Schema:
    fields = []
    for column in shape["columns"]:
        schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(column["type"]["ipc"])))
        fields.append(pa.field(column["name"], schema.field(0).type))
    whole = shape["identity"] == "full" or not shape["key"]
    before = [f for f in fields if whole or f.name in shape["key"]]
    tail = [
        pa.field("_op", pa.string(), nullable=False),
        pa.field("_unchanged", pa.list_(pa.field("element", pa.string()))),
        pa.field("_before", pa.struct(before)),
    ]
    return pa.schema(fields + [field for bit, field in enumerate(tail) if not left_out & 1 << bit])


class RowsFrames:
    """The rows frames of one file, in its order."""

    def __init__(self) -> None:
        self.shapes: list[dict[str, Any]] = []
        self.dictionaries: dict[tuple[int, int], bytes] = {}

    def read(self, payload: bytes) -> tuple[dict[str, Any], list[int], list[dict[str, Any]]]:
        number, width, op, left_out, form, first, count, inflated = struct.unpack_from("<IBBBBqII", payload)
        size = width * (count - 1)
        gaps = np.frombuffer(payload[24 : 24 + size], f"<u{width}") if width else np.zeros(count - 1)
        offsets = [first]
        for gap in gaps.tolist():
            offsets.append(offsets[-1] + int(gap) + 1)
        message = payload[24 + -(-size // 8) * 8 :]
        if form == 1:
            self.dictionaries[number, left_out] = message
        elif form == 2:
            message = zlib.decompressobj(-15, self.dictionaries[number, left_out]).decompress(message)
            assert len(message) == inflated
        batch = pa.ipc.read_record_batch(pa.py_buffer(message), own_schema(self.shapes[number], left_out))
        left: dict[str, Any] = {name: None for bit, name in ((2, "_unchanged"), (4, "_before")) if left_out & bit}
        left |= {"_op": chr(op)} if left_out & 1 else {}
        return self.shapes[number], offsets, [{**row, **left} for row in batch.to_pylist()]


def transactions_of(payload: bytes) -> list[dict[str, Any]]:
    count, kind, form, size, number, first, rows = struct.unpack_from("<IBB2xI4xqqq", payload)
    body = payload[40:]
    if form & 1:
        body = bytes(pa.input_stream(pa.py_buffer(body), compression="lz4").read())
    assert len(body) == size
    counts, xids, stamps, clocks = np.frombuffer(body[: 32 * count], "<i8").reshape(4, count)
    xids, stamps = np.cumsum(xids), np.cumsum(stamps)
    lengths = struct.unpack_from(f"<{count}i", body, 32 * count)
    at = 36 * count
    found = []
    for place in range(count):
        position, at = body[at : at + lengths[place]].decode(), at + lengths[place]
        found.append(
            {
                "number": number + place,
                "first_offset": first,
                "last_offset": first + int(counts[place]) - 1,
                "xid": int(xids[place]),
                "commit_ts": datetime.fromtimestamp(0, UTC) + timedelta(microseconds=int(stamps[place])),
                "commit_clock": int(stamps[place] + clocks[place]),
                "position": position,
                "kind": ("source", "read")[kind],
            }
        )
        first += int(counts[place])
    assert sum(counts.tolist()) == rows
    return found


def spool_rows(path: Path, attach: dict[str, Any]) -> Iterator[tuple[int, str, dict[str, Any]]]:
    content = path.read_bytes()[: attach["bytes"]]
    assert zlib.crc32(content) == attach["crc"]
    rows_frames = RowsFrames()
    kept: list[bool] = []
    base = following = attach["first_offset"]
    for _, kind, payload in frames_of(content)[1]:
        if kind == 1:
            rows_frames.shapes.append(json.loads(payload)["table"])
        elif kind == 6:
            count = int.from_bytes(payload[:8], "little")
            xids = struct.unpack(f"<{(len(payload) - 8) // 8}Q", payload[8:])
            kept = [not xids or xids[i] not in attach["aborted"] for i in range(count)]
            base, following = following, following + sum(kept)
        elif kind == 2:
            shape, places, rows = rows_frames.read(payload)
            for place, row in zip(places, rows, strict=True):
                if kept[place]:
                    yield base + sum(kept[:place]), shape["name"], row
    assert following - attach["first_offset"] == attach["rows"]


def file_rows(
    root: Path, shapes: list[dict[str, Any]], told: dict[str, Any]
) -> Iterator[tuple[int, str, dict[str, Any]]]:
    entry = told["file"]
    content = (root / "spool" / entry["path"]).read_bytes()
    assert (len(content), hashlib.sha256(content).hexdigest()) == (entry["bytes"], entry["sha256"])
    rows = pq.read_table(pa.BufferReader(content)).to_pylist()
    assert len(rows) == entry["rows"]
    yield from ((row["_offset"], shapes[told["shape"]]["name"], row) for row in rows)


def journal_rows(root: Path, content: bytes) -> tuple[list[tuple[int, str, dict[str, Any]]], dict[str, Any]]:
    header, found = frames_of(content)
    rows_frames = RowsFrames()
    pending: list[tuple[int, str, dict[str, Any]]] = []
    seen: list[tuple[int, str, dict[str, Any]]] = []
    headers: list[dict[str, Any]] = []
    checkpoint = header["checkpoint"]
    larger = {name: checkpoint[name] for name in ("progress", "source")}
    for _, kind, payload in found:
        new: list[tuple[int, str, dict[str, Any]]] = []
        if kind == 1:
            rows_frames.shapes.append(json.loads(payload)["table"])
        elif kind == 2:
            shape, offsets, rows = rows_frames.read(payload)
            new = [(o, shape["name"], row) for o, row in zip(offsets, rows, strict=True)]
        elif kind == 3:
            headers = transactions_of(payload)
        elif kind == 4:
            attach = json.loads(payload)
            new = list(spool_rows(root / "spool" / attach["spool"], attach))
        elif kind == 8:
            new = list(file_rows(root, rows_frames.shapes, json.loads(payload)))
        elif kind == 5:
            seen, pending = seen + pending, []
            _, *numbers, placed = struct.unpack_from("<qqqqqqB", payload)
            names = ("next_offset", "next_transaction", "cut", "commit_clock", "epoch")
            position = payload[49:].decode() if placed else None
            checkpoint = {"version": 1, "position": position, **dict(zip(names, numbers, strict=True)), **larger}
        elif kind == 7:
            change = json.loads(payload)
            larger = {name: change.get(name, known) for name, known in larger.items()}
            for member, entries in change.get("entries", {}).items():
                known = larger["progress"]
                larger["progress"] = {**known, member: {**known[member], **entries}}
        for offset, name, row in new:
            owner = next(h for h in headers if h["first_offset"] <= offset <= h["last_offset"])
            pending.append(
                (offset, name, {"_offset": offset, "_txn": owner["number"], "_commit_ts": owner["commit_ts"], **row})
            )
    return seen, checkpoint


def segments_of(root: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The segments to read, each with its manifest: where they overlap the widest, and from the first that is kept.
    `next`: what the next one calls its `previous`."""
    found = []
    for directory in (p for p in (root / "segments").iterdir() if not p.name.startswith(".")):
        text = (directory / "segment.json").read_bytes()
        found.append((directory, json.loads(text), hashlib.sha256(text).hexdigest()))
    following = json.loads((root / "log.json").read_text())["first_offset"]
    for directory, manifest, own in sorted(found, key=lambda one: (one[1]["first_offset"], -one[1]["last_offset"])):
        if manifest["first_offset"] < following:
            continue
        assert manifest["first_offset"] == following
        yield directory, {**manifest, "next": manifest.get("stands_for") or own}
        following = manifest["last_offset"] + 1


def log_rows(root: Path) -> list[tuple[int, str, dict[str, Any]]]:
    """Every row of the log, by offset."""
    told = json.loads((root / "log.json").read_text())
    assert told["version"] == 2
    found: list[tuple[int, str, dict[str, Any]]] = []
    following, previous = told["first_offset"], "" if told["first_offset"] == 1 else None
    for directory, manifest in segments_of(root):
        assert previous in (None, manifest["previous"])
        for file in manifest["files"]:
            assert hashlib.sha256((directory / file["path"]).read_bytes()).hexdigest() == file["sha256"]
            if file["table"]:
                rows = pq.read_table(directory / file["path"]).to_pylist()
                assert len(rows) == file["rows"]
                found += [(row["_offset"], file["table"]["name"], row) for row in rows]
        following, previous = manifest["last_offset"] + 1, manifest["next"]
    contents = [p.read_bytes() for p in sorted((root / "journal").glob("*.journal")) if int(p.stem) >= following]
    heads = [frames_of(content)[0] for content in contents]
    for number, content in enumerate(contents):
        end = heads[number + 1]["previous_bytes"] if number + 1 < len(contents) else len(content)
        found += journal_rows(root, content[:end])[0]
    return sorted(found, key=lambda f: f[0])


def table_rows(root: Path, schema: str, name: str) -> dict[tuple[Any, ...], dict[str, Any]]:
    """A table's rows by key, of what is sealed."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    checkpoint: dict[str, Any] = {}
    gone: dict[int, Any] = {}
    for directory, manifest in segments_of(root):
        checkpoint = manifest["checkpoint"]
        files = [
            f for f in manifest["files"] if f["table"] and (f["table"]["schema"], f["table"]["name"]) == (schema, name)
        ]
        changes = [(row, f["table"]["key"]) for f in files for row in pq.read_table(directory / f["path"]).to_pylist()]
        for row, key in sorted(changes, key=lambda change: change[0]["_offset"]):
            _apply(found, row, key, gone)
    entry = checkpoint["progress"]["tables"].get(f"{schema}.{name}", {})
    is_done = entry.get("state") == "done" and not (entry.get("gap") or {}).get("base")
    whole_from = entry["since"] if is_done else entry.get("whole_since") or 0
    return {key: row for key, row in found.items() if row["_offset"] >= whole_from}


def _apply(
    found: dict[tuple[Any, ...], dict[str, Any]], row: dict[str, Any], key: list[str], gone: dict[int, Any]
) -> None:
    """`gone`: the row that a d deleted, by its offset."""
    own = tuple(row[name] for name in key)
    values = {name: value for name, value in row.items() if name[0] != "_" or name == "_offset"}
    match row["_op"]:
        case "t":
            found.clear()
        case "d":
            gone[row["_offset"]] = found.pop(own, {})
        case op:
            moved = gone.get(row["_offset"] - 1, {}) if row["_before"] else {}
            kept = found.get(own, {}) if op == "u" else moved
            found[own] = {**values, **{name: kept.get(name) for name in row["_unchanged"] or ()}}


__all__ = ["frames_of", "log_rows", "table_rows"]
