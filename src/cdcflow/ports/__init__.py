"""The Protocols that your source or log implements, under one name for programs.

A source adapter (`cdcflow.sources.*`) and a sink adapter (`cdcflow.sinks.*`) do not import each other; the capture
uses both through these Protocols only. `cdcflow.wiring` connects the concrete classes. The modules that declare them
are in `cdcflow.capture.ports` and `cdcflow.log`; nothing in cdcflow imports this package.
"""

import sys

from cdcflow.capture.interleave.messages import (
    Advanced,
    Chunk,
    ChunkRead,
    Committed,
    KnownRows,
    MarkSeen,
    Planned,
    RowsCompared,
    RowsFilled,
    RowsIncomplete,
    RowVersion,
    Visibility,
)
from cdcflow.capture.ports import chunks, comparison, control, findings, log, part_readers, plugin, source, stream
from cdcflow.capture.ports.chunks import ChunkSource
from cdcflow.capture.ports.comparison import ChunkSums, Comparable, Comparison, DigestSource, NoText
from cdcflow.capture.ports.control import ControlRow, ControlTable
from cdcflow.capture.ports.findings import Dropped, Finding, Remedy
from cdcflow.capture.ports.log import Log, Numbered, OpenSpool, ShapeKeeping, Spool
from cdcflow.capture.ports.plugin import NotifierPlugin, SourcePlugin, TransformPlugin
from cdcflow.capture.ports.source import (
    Covering,
    Described,
    EventComparison,
    Prepared,
    Preview,
    Sample,
    Sampled,
    SecondOpinion,
    ShapeAsking,
    Source,
    SourceHistory,
    SourceStatus,
    TablePreview,
    TablesToReread,
    TransactionsBack,
)
from cdcflow.capture.ports.stream import Stream, StreamEvent
from cdcflow.config.base import Settings
from cdcflow.config.logs import StoreAccess
from cdcflow.config.notify import NotifierSettings
from cdcflow.config.plugins import PORTS_OLDEST, PORTS_VERSION
from cdcflow.config.references import SecretReference, secret
from cdcflow.config.sources import SourceSettings
from cdcflow.config.targets import TargetSettings
from cdcflow.config.transforms import TransformSettings
from cdcflow.config.units import Bytes, Seconds
from cdcflow.log import tier, workers
from cdcflow.log.read import log_reader
from cdcflow.log.read.log_reader import LogReader
from cdcflow.log.tier import OpenTier, Tier
from cdcflow.model.change import ChangeBatch, KeySet, Run, SpooledTransaction
from cdcflow.model.position import Checkpoint, Epoch, Position, SourceIdentity, Token
from cdcflow.model.table import Column, Identity, Table, TableId
from cdcflow.model.types import ColumnType
from cdcflow.targets.port import Overtaken, ReadableTarget, TableChange, TargetPlugin, TargetRows, TargetTables

__all__ = [
    "PORTS_VERSION",
    "PORTS_OLDEST",
    "SourcePlugin",
    "SourceSettings",
    "NotifierPlugin",
    "NotifierSettings",
    "StoreAccess",
    "TargetPlugin",
    "TargetSettings",
    "TargetTables",
    "TargetRows",
    "ReadableTarget",
    "TableChange",
    "TransformPlugin",
    "TransformSettings",
    "Overtaken",
    "Settings",
    "Seconds",
    "Bytes",
    "SecretReference",
    "secret",
    "Table",
    "TableId",
    "Column",
    "ColumnType",
    "Identity",
    "Position",
    "Token",
    "Epoch",
    "Checkpoint",
    "SourceIdentity",
    "Run",
    "SpooledTransaction",
    "ChangeBatch",
    "KeySet",
    "Committed",
    "MarkSeen",
    "Advanced",
    "RowsFilled",
    "RowsIncomplete",
    "RowsCompared",
    "RowVersion",
    "KnownRows",
    "Chunk",
    "ChunkRead",
    "Planned",
    "Visibility",
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
    "Prepared",
    "SourceHistory",
    "TablesToReread",
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

for _name, _module in {
    "chunks": chunks,
    "comparing": comparison,
    "control": control,
    "findings": findings,
    "log": log,
    "reader": log_reader,
    "plugin": plugin,
    "readers": part_readers,
    "source": source,
    "stream": stream,
    "tier": tier,
    "workers": workers,
}.items():  # the modules that this package had
    sys.modules[f"{__name__}.{_name}"] = _module
