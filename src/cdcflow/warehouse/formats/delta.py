"""What a Delta table holds, and where one is seen. How it is written is an engine's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from cdcflow.merge.evolution import Act, Add, Widen
from cdcflow.merge.format import Format


def _needs(act: Act) -> Mapping[str, str]:
    match act:
        case Add(column) if "timestamp_ntz" in column.type:
            return {"delta.feature.timestampNtz": "supported"}
        case Widen():
            return {"delta.enableTypeWidening": "true"}
    return {}


RULES = Format(
    "delta",
    properties={
        "delta.columnMapping.mode": "name",  # renames without rewriting, and names with spaces
        "delta.enableDeletionVectors": "true",  # a changed row marks the old one instead of rewriting its file
    },
    needs=_needs,
)


def is_in(warehouse: Path) -> bool:
    # The first merge may have died before its cut.
    return any(next(warehouse.glob(logs), None) is not None for logs in ("*/_delta_log", "*/*/_delta_log"))
