"""Sources without a log: cdcflow polls them, and keeps a log of the changes that it found, in their order.

    items ──▶ shapes ──▶ differences ──▶ ledger ──▶ stream, chunks ──▶ capture
    (yours)   columns    by key, or       (a folder: records, and rows in Arrow files)
              that fit   appended rows

You write a `Poller`: the items that exist now (a file, a page of an API, a table of something else), each with a text
that differs when its content may have changed, and a function that reads it into columns. This package does the rest.

Each change becomes a record of the ledger, durably, before anything is delivered. So a restart delivers the same
records in the same order, and each once: positions are numbers of records. A record is deleted when the change log has
acknowledged it; the content of each item is kept, since the next difference and backfills need it.
"""

from cdcflow.sources.polled.items import Changing, Item, Poller, Unfit
from cdcflow.sources.polled.source import PolledSource

__all__ = ["Changing", "Item", "PolledSource", "Poller", "Unfit"]
