from collections.abc import Sequence

import pyarrow as pa

from cdcflow.model.change import Int64s

def texts_at(documents: pa.Array, path: Sequence[str | int]) -> tuple[pa.Array, Int64s | None]: ...
