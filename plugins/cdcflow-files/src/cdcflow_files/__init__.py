"""Files as a source of cdcflow: new and changed files become rows, each exactly once.

    settings.py                    what `source:` may have in a settings file
    folder.py, store.py, web.py    which files exist and are complete, as the items of a poll
    items.py                       what a file is, wherever it is
    formats.py                     CSV, JSON lines and Parquet as columns

Everything else (order, positions, differences, chunks) is in `cdcflow.sources.polled`.
"""

from cdcflow.ports import SourcePlugin
from cdcflow.sources.polled import PolledSource, Poller
from cdcflow_files.folder import Folder
from cdcflow_files.settings import FilesSettings
from cdcflow_files.store import StoredFiles
from cdcflow_files.web import WebFiles


def open_source(settings: FilesSettings) -> PolledSource:
    """A source that reads the files of these settings."""
    return PolledSource(settings, poller_of(settings), settings.state, poll_every_s=settings.poll_every)


def poller_of(settings: FilesSettings) -> Poller:
    """Return the poller of the folder, the bucket or the URLs in these settings."""
    if settings.folder is not None:
        return Folder(settings, settings.folder)
    return WebFiles(settings) if settings.store is None else StoredFiles(settings, settings.store)


plugin = SourcePlugin(
    ports=1,
    settings=FilesSettings,
    open=open_source,
    address=lambda settings: settings.address,
    leftovers=lambda settings: [(f"ledger {settings.state}", f"if no log uses it, run rm -r '{settings.state}'")],
)

__all__ = ["FilesSettings", "Folder", "StoredFiles", "WebFiles", "open_source", "plugin", "poller_of"]
