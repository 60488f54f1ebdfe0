"""Checksums that Hadoop, and so Spark, keeps next to each file that it writes into a folder.

    part-0.parquet         a file
    .part-0.parquet.crc    "crc", 0, bytes per sum (4 bytes), and a CRC-32 of each of these parts of the file

Hadoop refuses to read a file that its checksums do not match, also if only the checksums are torn: it may have synced
neither. Readers without Hadoop ignore them.
"""

from __future__ import annotations

import zlib
from pathlib import Path


def checksum_file(path: Path) -> Path:
    """Return where a file's checksums are."""
    return path.with_name(f".{path.name}.crc")


def matches_checksums(path: Path) -> bool:
    """Return whether a file matches its checksums. Torn checksums are removed: they prove nothing. A file without
    checksums matches."""
    checksums = checksum_file(path)
    if not checksums.exists() or not path.exists():
        return True
    content, kept = path.read_bytes(), checksums.read_bytes()
    each = int.from_bytes(kept[4:8], "big")
    if kept[:4] == b"crc\0" and each > 0 and len(kept) == 8 + 4 * -(-len(content) // each):
        sums = b"".join(zlib.crc32(content[at : at + each]).to_bytes(4, "big") for at in range(0, len(content), each))
        if sums == kept[8:]:
            return True
        if any(kept[8:]):
            return False
    checksums.unlink()
    return True
