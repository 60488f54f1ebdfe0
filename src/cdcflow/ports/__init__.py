"""The interfaces between the pipeline, sources and sinks, as Protocols.

A source adapter (`cdcflow.sources.*`) and a sink adapter (`cdcflow.sinks.*`) do not import each other; the pipeline
uses both through these Protocols only. `cdcflow.wiring` connects the concrete classes. Import from here what your own
source or sink implements; each module of this package holds one of the parties.
"""

from cdcflow.log.read.log_reader import LogReader
from cdcflow.log.tier import OpenTier, Tier
from cdcflow.ports.chunks import ChunkSource
from cdcflow.ports.comparing import ChunkSums, Comparable, Comparison, DigestSource, NoText
from cdcflow.ports.control import ControlRow, ControlTable
from cdcflow.ports.findings import Dropped, Finding, Remedy
from cdcflow.ports.log import Log, Numbered, OpenSpool, ShapeKeeping, Spool
from cdcflow.ports.source import (
    Covering,
    Described,
    EventComparison,
    Preview,
    Sample,
    Sampled,
    SecondOpinion,
    ShapeAsking,
    Source,
    SourceStatus,
    TablePreview,
    TransactionsBack,
)
from cdcflow.ports.stream import Stream, StreamEvent

__all__ = [
    "Finding",
    "Dropped",
    "Remedy",
    "StreamEvent",
    "Spool",
    "OpenSpool",
    "Stream",
    "ChunkSource",
    "Comparable",
    "Comparison",
    "ChunkSums",
    "DigestSource",
    "NoText",
    "SourceStatus",
    "TablePreview",
    "Preview",
    "TransactionsBack",
    "Source",
    "Covering",
    "Sample",
    "Sampled",
    "EventComparison",
    "SecondOpinion",
    "ShapeAsking",
    "Described",
    "ControlRow",
    "ControlTable",
    "Numbered",
    "Log",
    "ShapeKeeping",
    "LogReader",
    "OpenTier",
    "Tier",
]
