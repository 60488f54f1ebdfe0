"""A support bundle: one file with what a maintainer needs to analyse a problem, without secrets and row values.

What goes in is listed, not what stays out: each part names the fields it takes. Keys of rows are in unexpected places
(a backfill's cursor, a segment's key bounds, a column's default), and none of these is taken. At the end every secret
that the settings refer to is searched for in every part, and replaced.
"""

from __future__ import annotations

import io
import json
import os
import platform
import re
import shutil
import sys
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from cdcflow import wiring
from cdcflow.capture.ports.source import Described
from cdcflow.config import Config, KafkaLog
from cdcflow.config.redaction import LEFT_OUT, redact, secrets_of
from cdcflow.daemon.current_status import current
from cdcflow.errors import CdcflowError, ConfigurationError
from cdcflow.log.read import reader
from cdcflow.version import __version__

EVENTS_MAX = 2000
SEGMENTS_MAX = 500
TABLE_FIELDS = (
    *("state", "generation", "since", "incarnation", "units", "units_done", "rows", "reason", "priority"),
    *("rows_per_second_max", "chunks", "size", "exhausted", "whole", "keys_since", "whole_since", "gap", "stale"),
    *("freshness", "fresh_as_of", "freshness_reason", "freshness_cause", "shadow_difference"),
)
"""The fields that a bundle takes of a table in a status. `plan` and `cursor` are not among them, because they hold
keys."""
SEGMENT_FIELDS = (
    *("first_offset", "last_offset", "first_transaction", "last_transaction", "first_cut", "last_cut", "epoch"),
    *("previous", "previous_offset", "version", "stands_for", "seams"),
)
FILE_FIELDS = ("path", "rows", "bytes", "version", "first_offset", "last_offset", "ops", "partial", "moved")
"""The fields that a bundle takes of a segment's file. `key_min`, `key_max` and `key_runs` are not among them."""
_EVENT = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z? \S")


@dataclass(frozen=True, slots=True)
class BundleFile:
    """One file of a bundle. `text` describes its content in a sentence."""

    name: str
    text: str
    content: Callable[[], object]


def parts(settings: Config, events: Path | None) -> Iterator[BundleFile]:
    """The parts of a bundle. A part that fails holds the reason instead."""
    yield BundleFile("versions.json", "cdcflow, Python, system, packages, disk.", lambda: _versions(settings))
    yield BundleFile("settings.json", "The settings; secrets are references or removed.", lambda: redact(settings))
    yield BundleFile("status.json", "`cdcflow status --json`, without keys.", lambda: _status(settings))
    yield BundleFile("doctor.json", "`cdcflow doctor --json`.", lambda: [f.to_json() for f in wiring.doctor(settings)])
    yield BundleFile("server.json", "The server's version and settings that matter here.", lambda: _server(settings))
    yield BundleFile("tables.json", "Each table's shapes: columns, types, key.", lambda: _shapes(settings))
    yield BundleFile("log.json", "The log's parts: offsets, cuts, sizes; no rows.", lambda: _log(settings))
    if events is not None:
        yield BundleFile("events.txt", "The daemon's last lines.", lambda: _events(events))


def write_bundle(path: Path, settings: Config, events: Path | None, stamp: str) -> list[tuple[BundleFile, int]]:
    """Write the archive, readable only for this user, and return its parts with their sizes. `events`: the file with
    the daemon's log.

    Raises:
        ConfigurationError: the file exists, or cannot be written.
    """
    secrets = secrets_of(settings)
    made = [(part, _content(part, secrets)) for part in parts(settings, events)]
    listed = "".join(f"{part.name:<16} {part.text}\n" for part, _ in made)
    about = (
        f"cdcflow {__version__}, {stamp}\n\n{listed}\nNo secrets and no values of rows. Names of tables are in it.\n"
    )
    _write(path, [("contents.txt", about.encode()), *((part.name, content) for part, content in made)])
    return [(part, len(content)) for part, content in made]


def _content(part: BundleFile, secrets: set[str]) -> bytes:
    try:
        found = part.content()
    except CdcflowError as error:
        found = {"error": type(error).__name__, "reason": str(error)}
    except Exception as error:  # noqa: BLE001  the rest is still of use, and its text may hold a row's values
        found = {"error": type(error).__name__}
    text = found if isinstance(found, str) else json.dumps(found, indent=1, default=str, ensure_ascii=False)
    for one in sorted(secrets, key=len, reverse=True):
        text = text.replace(one, LEFT_OUT)
        text = text.replace(json.dumps(one)[1:-1], LEFT_OUT)
    return text.encode()


def _write(path: Path, files: list[tuple[str, bytes]]) -> None:
    """Write the archive, readable only for this user."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise ConfigurationError(f"{path} exists already", remedy="choose another file with --output") from None
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror}") from None
    with os.fdopen(descriptor, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, content in files:
            entry = tarfile.TarInfo(f"cdcflow-bundle/{name}")
            entry.size, entry.mtime, entry.mode = len(content), int(time.time()), 0o600
            archive.addfile(entry, io.BytesIO(content))


# ── the parts ──────────────────────────────────────────────────────────────────────────────────────────────────


def _versions(settings: Config) -> dict[str, object]:
    needed = [re.split(r"[^\w-]", name)[0] for name in metadata.requires("cdcflow") or ()]
    found: dict[str, str] = {}
    for name in sorted(set(needed)):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    versions: dict[str, object] = {
        "cdcflow": __version__,
        "python": sys.version,
        "system": platform.platform(),
        "processors": os.cpu_count(),
        "packages": found,
    }
    if settings.log.folder.exists():
        disk = shutil.disk_usage(settings.log.folder)
        versions["disk"] = {"free_bytes": disk.free, "size_bytes": disk.total}
    return versions


def _status(settings: Config) -> dict[str, object]:
    status = current(settings)
    tables: Mapping[str, Mapping[str, Any]] = status.get("tables") or {}
    return {**status, "tables": {name: _only(fields, TABLE_FIELDS) for name, fields in tables.items()}}


def _server(settings: Config) -> Mapping[str, str]:
    source = wiring.open_source(settings)
    try:
        return source.facts() if isinstance(source, Described) else {}
    finally:
        source.close()


def _shapes(settings: Config) -> dict[str, object]:
    reader = wiring.log_reader(settings)
    shapes = reader.table_shapes() if reader.exists() else {}
    return {str(table): {n: _shape(shape.to_json()) for n, shape in of.items()} for table, of in shapes.items()}


def _shape(shape: Mapping[str, Any]) -> dict[str, object]:
    """Return a shape without the columns' defaults for older rows, which are values."""
    columns = [_only(column, ("name", "number", "type", "nullable")) for column in shape["columns"]]
    return {**_only(shape, ("incarnation", "key", "identity")), "columns": columns}


def _log(settings: Config) -> object:
    if isinstance(settings.log, KafkaLog):
        return asdict(wiring.log_reader(settings).check())
    segments = reader.list_segments(wiring.log_layout(settings.log))
    taken = [
        {**_only(asdict(s), SEGMENT_FIELDS), "files": [_only(asdict(f), FILE_FIELDS) for f in s.files]}
        for s in segments[-SEGMENTS_MAX:]
    ]
    return {"segments": len(segments), "newest": taken}


def _events(path: Path) -> str:
    """The last lines that are events. Others, such as a traceback, may hold anything."""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    events = [line for line in lines if _EVENT.match(line) or _is_json_event(line)]
    return "\n".join([f"{len(lines) - len(events)} other lines are excluded", *events[-EVENTS_MAX:], ""])


def _is_json_event(line: str) -> bool:
    if not line.startswith("{"):
        return False
    try:
        found = json.loads(line)
    except ValueError:
        return False
    return isinstance(found, dict) and {"event", "time"} <= found.keys()


def _only(fields: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: fields[name] for name in names if name in fields}
