"""Archives whose bytes depend on their files alone: sorted, without owners, and all of one time."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Iterator
from pathlib import Path


def pack(folder: Path, name: str, epoch: int) -> bytes:
    """A `.tar.gz` of a folder, whose files are below `name` in it. Links are replaced by what they lead to."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(_files(folder)):
            info = tarfile.TarInfo(f"{name}/{path.relative_to(folder).as_posix()}")
            info.size, info.mtime = path.stat().st_size, epoch
            info.mode = 0o755 if path.stat().st_mode & 0o100 else 0o644
            with path.open("rb") as file:
                archive.addfile(info, file)
    packed = io.BytesIO()
    with gzip.GzipFile(filename="", fileobj=packed, mode="wb", compresslevel=9, mtime=epoch) as file:
        file.write(plain.getvalue())
    return packed.getvalue()


def repack(archive: Path, epoch: int, room: Path) -> bytes:
    """The same files as an archive has, packed again."""
    with tarfile.open(archive) as made:
        made.extractall(room, filter="data")
    (folder,) = room.iterdir()
    return pack(folder, folder.name, epoch)


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file())
