"""Files in a folder as a source of cdcflow: new and changed files become rows, each exactly once.

    settings.py   what `source:` may have in a settings file
    folder.py     which files exist and are complete, as the items of a poll
    formats.py    CSV, JSON lines and Parquet as columns

Everything else (order, positions, differences, chunks) is in `cdcflow.sources.polled`.
"""

from cdcflow.ports import SourcePlugin
from cdcflow.sources.polled import PolledSource
from cdcflow_files.folder import Folder
from cdcflow_files.settings import FilesSettings


def open_source(settings: FilesSettings) -> PolledSource:
    """A source that reads the folder of these settings."""
    return PolledSource(settings, Folder(settings), settings.state, poll_every_s=settings.poll_every)


plugin = SourcePlugin(
    ports=1,
    settings=FilesSettings,
    open=open_source,
    address=lambda settings: f"folder {settings.folder}",
    leftovers=lambda settings: [(f"ledger {settings.state}", f"if no log uses it, run rm -r '{settings.state}'")],
)

__all__ = ["FilesSettings", "Folder", "open_source", "plugin"]
