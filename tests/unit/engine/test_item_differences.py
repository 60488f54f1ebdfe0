"""What changed in an item of a polled source."""

from __future__ import annotations

import pyarrow as pa
import pytest

from cdcflow.sources.polled.differences import by_key

NAN = float("nan")


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
def test_a_zero_that_changes_its_sign_is_a_change_and_nan_is_the_same_as_itself(kind: pa.DataType) -> None:
    """Tables would silently differ from their source, or have an update at each poll."""
    before = [0.0, NAN, None, 1.5, None]
    now = [-0.0, NAN, None, 1.5, 0.0]
    old, new = (pa.table({"id": range(5), "price": pa.array(values, kind)}) for values in (before, now))
    found = by_key(old, new, ("id",))
    assert found.written.column("id").to_pylist() == [0, 4]
    assert not found.deleted.num_rows
