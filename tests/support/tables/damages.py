"""Files of one current-state table, damaged as disks, copies and operators damage them."""

from __future__ import annotations

from pathlib import Path

DAMAGES = {
    "delta": ("data file is cut", "data file is gone"),
    "iceberg": (
        "metadata is no JSON",
        "manifest list is cut",
        "manifest is cut",
        "manifest is gone",
        "data file is cut",
        "data file is gone",
    ),
}


def damage(folder: Path, what: str) -> str:
    """Damage a table in its folder. Returns the name of a file that was: of data files all are, as some may be no
    longer of the table."""
    kind, _, how = what.partition(" is ")
    if kind == "data file":
        for one in _data_files(folder)[1:]:
            one.unlink()
    file = _file(folder, kind)
    if kind == "metadata":  # all of them: of a torn one the one before it is taken
        for one in (folder / "metadata").glob("*.metadata.json"):
            one.write_text('{"format-version"')
    if how == "gone":
        file.unlink()
    elif how == "cut":
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    else:
        file.write_text('{"add": {"path"')
    for checksum in folder.rglob(f".{file.name}.crc"):  # Hadoop's own, which would tell of it first
        checksum.unlink()
    return file.name


def _file(folder: Path, kind: str) -> Path:
    metadata = folder / "metadata"
    match kind:
        case "oldest commit":
            return min((folder / "_delta_log").glob("*.json"))
        case "metadata":
            return max(metadata.glob("*.metadata.json"))
        case "manifest list":
            return max(metadata.glob("snap-*.avro"), key=lambda file: file.stat().st_mtime_ns)
        case "manifest":
            return max((f for f in metadata.glob("*.avro") if not f.name.startswith("snap-")), key=_written)
    return _data_files(folder)[0]


def _data_files(folder: Path) -> list[Path]:
    return sorted((f for f in folder.rglob("*.parquet") if "_delta_log" not in f.parts), key=_written)


def _written(file: Path) -> int:
    return file.stat().st_mtime_ns
