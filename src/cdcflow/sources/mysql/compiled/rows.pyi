import pyarrow as pa

from cdcflow.model.change import Int64s
from cdcflow.sources.mysql.tables import DescribedTable

class Layout:
    described: DescribedTable
    count: int

def layout(described: DescribedTable) -> Layout: ...
def changes(
    shape: Layout, data: bytes, start: Int64s, end: Int64s, kind: int, before: bytes, after: bytes
) -> tuple[pa.RecordBatch, Int64s] | None: ...
def results(shape: Layout, data: bytes, start: Int64s, end: Int64s) -> pa.RecordBatch | None: ...
