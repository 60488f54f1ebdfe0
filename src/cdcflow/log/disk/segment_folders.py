"""Segments on disk: all files of a segment are durable before it gets its name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from cdcflow.log.disk.layer import DurableFile, FileLayer, remove_tree, syncing
from cdcflow.log.files.layout import Layout
from cdcflow.log.files.parquet import OpenTarget
from cdcflow.log.format.segment import Segment


def write_segment(layer: FileLayer, directory: Path, sealed: Callable[[OpenTarget], Segment]) -> tuple[Segment, bytes]:
    """Create a directory, call `sealed` to write a segment's files into it, and add the manifest. All of it is durable
    on return.

    Return the segment and the manifest's bytes.

    Raises:
        OSError: no room; the directory is left in its current state.
    """
    if directory.exists():
        remove_tree(layer, directory)
    layer.mkdir(directory)
    segment = sealed(lambda name: DurableFile(layer, directory / name))
    text = segment.to_json().encode()
    manifest = DurableFile(layer, directory / "segment.json")
    manifest.write(text)
    manifest.close()
    with syncing(directory):
        layer.fsync_dir(directory)
    return segment, text


def put_in_place(layer: FileLayer, layout: Layout, temporary: Path, target: Path) -> None:
    """Give a segment in a temporary directory its final name. Durable on return."""
    layer.rename(temporary, target)
    with syncing(layout.segments):
        layer.fsync_dir(layout.segments)
