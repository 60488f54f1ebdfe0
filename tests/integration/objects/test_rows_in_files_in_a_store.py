"""Files that a journal named and a segment adopted, in an object store: like all others."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from tests.servers.objects import ObjectServer
from tests.support.objects.logs import ObjectLog

from cdcflow.log.read.reader import check, list_segments, read_rows
from cdcflow.model.change import reads
from cdcflow.model.position import Position
from cdcflow.model.table import OFFSET
from cdcflow.testing.sinks import COMMIT_TS, ORDERS, Writer, orders


def test_segment_with_several_files_of_a_shape_is_uploaded_and_read_from_the_store_alone(tmp_path: Path) -> None:
    """After its files are dropped here, nothing else has the rows."""
    with ObjectServer() as server:
        place = ObjectLog(tmp_path / "log", server.objects("rows-in-files"))
        log = place.open()
        log.file_bytes_min = 1
        writer = Writer.of(log)
        chunk = pa.RecordBatch.from_pydict({"id": [1, 2, 3], "note": ["a", "b", "c"]}, ORDERS.row_schema)
        for number in range(3):
            writer.put(orders(number), reads(ORDERS, [chunk], Position(f"0/{number}"), COMMIT_TS))
        log.roll()
        log.seal_pending()
        place.settled()
        (segment,) = list_segments(place.alone)
        assert len([f for f in segment.files if f.table is not None]) == 6
        found = [o for _, _, rows in read_rows(place.alone) for o in rows.column(OFFSET).to_pylist()]
        assert found == list(range(1, 13))
        assert check(place.layout, deep=True).is_whole
        assert not list(place.layout.spools.iterdir())
        log.close()
