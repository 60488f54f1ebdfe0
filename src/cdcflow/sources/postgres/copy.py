"""skeleton"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from cdcflow.sources.postgres.types import DescribedTable


def decode_copy(data: bytes | memoryview | Sequence[bytes], described: DescribedTable) -> pa.RecordBatch:
    """The body of a COPY (FORMAT binary) as `described.table.row_schema`; as one piece, or as the CopyData messages
    in order (better: their ends need not be searched). The file's header and trailer may be there or not."""
    raise NotImplementedError
