"""Column types: the source's own name for a type, and the Arrow type its values get in the log."""

from __future__ import annotations

import base64
from dataclasses import dataclass

import pyarrow as pa

HASHED = "hash"
"""The `source` of a type of hashed values: a privacy policy in the settings hashes them (`cdcflow.sources.privacy`)."""
ERASABLE = "encrypt by person"
"""The `source` of a type of values that a person's key encrypted: they become NULL when the person is erased."""


@dataclass(frozen=True)
class ColumnType:
    """A column's type. `source` is the server's text for it (`numeric(10,2)`); `arrow` is its type in the log."""

    source: str
    arrow: pa.DataType

    def __hash__(self) -> int:
        return hash((self.source, str(self.arrow)))

    def to_json(self) -> dict[str, str]:
        """Return the type as JSON. `arrow` is human-readable; `ipc` is the exact type, as a one-field Arrow IPC schema
        in base64."""
        schema = pa.schema([pa.field("", self.arrow)]).serialize().to_pybytes()
        return {"source": self.source, "arrow": str(self.arrow), "ipc": base64.b64encode(schema).decode()}

    @classmethod
    def from_json(cls, value: dict[str, str]) -> ColumnType:
        schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(value["ipc"])))
        return cls(value["source"], schema.field(0).type)
