"""What every value decoder shares: its shape, the errors it raises, and values that the Arrow type cannot hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from cdcflow.config import Special
from cdcflow.sources.postgres.wire import Cells


@dataclass(frozen=True, slots=True)
class Where:
    """Which column is being decoded, for errors; and what becomes of values that its Arrow type cannot hold."""

    column: str
    type_text: str
    special: Special


Decoder = Callable[[Cells, Where], pa.Array]
