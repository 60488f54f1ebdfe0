"""Decides which constants of added columns a log can keep as the server's text. Pure.

Rows that are older than a column have its constant, and no change records that: the column's description carries it as
text, which every reader converts to a value. Readers do not agree on texts of some values: a year before 1 or after
9999, an infinite date, a list of several dimensions, a number that the column's type rounds, an interval.
"""

from __future__ import annotations

import re

import pyarrow as pa
import pyarrow.types as pt

from cdcflow.model.sqltypes import list_items

_DAY = r"\d{4}-\d\d-\d\d"
_TIME = rf"{_DAY} \d\d:\d\d:\d\d(?:\.\d{{1,6}})?"
_DECIMAL = re.compile(r"-?0*(\d*?)(?:\.(\d*?)0*)?")


def is_readable(text: str, arrow: pa.DataType) -> bool:
    """Whether every reader makes the same value of this type from the server's text of a constant."""
    if pt.is_dictionary(arrow):
        return is_readable(text, arrow.value_type)
    if pt.is_list(arrow) or pt.is_large_list(arrow):
        items = list_items(text)
        return items is not None and all(item is None or is_readable(item, arrow.value_type) for item in items)
    if pt.is_decimal(arrow):
        found = _DECIMAL.fullmatch(text)
        whole, fraction = ("", "") if found is None else (found[1], found[2] or "")
        return found is not None and len(whole) <= arrow.precision - arrow.scale and len(fraction) <= arrow.scale
    if pt.is_date(arrow):
        return re.fullmatch(_DAY, text) is not None
    if pt.is_timestamp(arrow):
        return re.fullmatch(_TIME if arrow.tz is None else rf"{_TIME}\+00", text) is not None
    if pt.is_binary(arrow) or pt.is_large_binary(arrow) or pt.is_fixed_size_binary(arrow):
        return text.startswith("\\x")
    return not pt.is_nested(arrow)
