"""The server's text to Arrow, a column at a time. There is a decoder here for every type that is not text itself.

The session settings that the text depends on are fixed on both connections (hard case P67): DateStyle ISO,
IntervalStyle postgres, TimeZone UTC, extra_float_digits 3, bytea_output hex, lc_monetary C, client_encoding UTF8.

The usual values take Arrow's own parsers. The odd ones (BC, years of more than four digits, infinities) are picked
out first and take a regular expression over the few of them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdcflow.model.change import Int64s
from cdcflow.sources.buffers import Bools, Bytes, Cells, binary_array, gathered, padded
from cdcflow.sources.postgres.values import (
    INTERVAL_ENDS,
    MONEY,
    TIMESTAMP,
    TIMESTAMPTZ,
    Decoder,
    Unholdable,
    Where,
    decimal_ends,
    held,
    integer_ends,
    integers,
    interval,
    text,
    unreadable,
)

__all__ = ["array", "boolean", "bytea", "date", "decimal", "interval_parts", "money", "number", "text", "timestamp"]

_DAY_US = 86_400_000_000
_DAYS_MAX, _US_MAX = divmod(2**63 - 1, _DAY_US)  # the last moment that microseconds since 1970 can say
_NIBBLE: Bytes = np.full(256, 255, np.uint8)
_NIBBLE[np.frombuffer(b"0123456789abcdef", np.uint8)] = np.arange(16, dtype=np.uint8)

_DATE = r"^(?P<y>\d{4,7})-(?P<m>\d\d)-(?P<d>\d\d)(?P<bc> BC)?$"
_TIMESTAMP = (
    r"^(?P<y>\d{4,6})-(?P<m>\d\d)-(?P<d>\d\d) (?P<h>\d\d):(?P<n>\d\d):(?P<s>\d\d)(?:\.(?P<f>\d{1,6}))?"
    r"(?:\+00)?(?P<bc> BC)?$"
)
_INTERVAL = (
    r"^(?:(?P<years>[+-]?\d+) years? ?)?(?:(?P<months>[+-]?\d+) mons? ?)?(?:(?P<days>[+-]?\d+) days? ?)?"
    r"(?:(?P<sign>[+-])?(?P<h>\d+):(?P<n>\d\d):(?P<s>\d\d)(?:\.(?P<f>\d{1,6}))?)?$"
)


def boolean(cells: Cells, where: Where) -> pa.Array:
    first = cells.byte(0)
    true = first == ord("t")
    if not (true | (first == ord("f")) | ~cells.present).all():
        raise unreadable(where, "t or f")
    return pa.array(true, mask=cells.mask)


def number(arrow: pa.DataType, cells: Cells, where: Where) -> pa.Array:
    """Integers and floats; Arrow's float parser rounds to nearest, so the shortest text gives the same bits."""
    return _cast(cells.binary(), arrow, where, f"a number that {arrow} holds")


def decimal(arrow: pa.Decimal128Type | pa.Decimal256Type, cells: Cells, where: Where) -> pa.Array:
    """A numeric with a fixed scale. A value with more digits than that stops the capture, it is never rounded."""
    first, second = cells.byte(0), cells.byte(1)
    nan, up = first == ord("N"), first == ord("I")
    down = (first == ord("-")) & (second == ord("I"))
    special = nan | up | down
    odd = bool(special.any())
    try:
        plain = (cells.without(special) if odd else cells).binary().view(pa.string()).cast(arrow)
        too_long: list[Unholdable] = []
    except pa.ArrowInvalid:
        plain = pa.nulls(len(cells), arrow)
        too_long = [Unholdable(cells.present, f"a number that is not a {arrow}", None)]
    if not odd and not too_long:
        return plain
    greatest, least = decimal_ends(arrow)
    found = [
        *too_long,
        Unholdable(nan, "NaN", greatest),
        Unholdable(up, "infinity", greatest),
        Unholdable(down, "-infinity", least),
    ]
    if too_long:
        where = Where(where.column, where.type_text, "stop")
    return held(plain, found, where)


def bytea(cells: Cells, where: Where) -> pa.Array:
    present = cells.present
    if not ((cells.byte(0) == ord("\\")) & (cells.byte(1) == ord("x")) & (cells.size % 2 == 0) | ~present).all():
        raise unreadable(where, "bytea in hex (bytea_output must be hex)")
    digits, offsets = gathered(cells.buffer.bytes, cells.start + 2, np.where(present, cells.size - 2, 0))
    nibbles = _NIBBLE[digits]
    if (nibbles == 255).any():
        raise unreadable(where, "bytea in hex (bytea_output must be hex)")
    return binary_array(nibbles[0::2] << np.uint8(4) | nibbles[1::2], offsets // 2, cells.valid)


def money(cells: Cells, where: Where) -> pa.Array:
    plain = pc.replace_substring_regex(text(cells, where), r"[$,]", "")
    return _cast(plain, MONEY, where, "money (lc_monetary must be C)")


def date(cells: Cells, where: Where) -> pa.Array:
    odd = cells.present & (cells.size != 10)
    if not odd.any():
        return _cast(cells.binary(), pa.date32(), where, "a date (DateStyle must be ISO)")

    def days(parts: dict[str, Int64s]) -> tuple[Int64s, Bools]:
        values = _days(parts)
        return values, np.zeros(len(values), np.bool_)

    return _temporal(cells, where, odd, pa.date32(), np.int32, _DATE, days)


def timestamp(zoned: bool, cells: Cells, where: Where) -> pa.Array:
    arrow = TIMESTAMPTZ if zoned else TIMESTAMP
    last = cells.buffer.bytes[cells.start + np.maximum(cells.size - 1, 0)]
    odd = cells.present & ((cells.byte(4) != ord("-")) | (last == ord("C")))
    if not odd.any():
        return _cast(cells.binary(), arrow, where, "a timestamp (DateStyle must be ISO, TimeZone UTC)")
    return _temporal(cells, where, odd, arrow, np.int64, _TIMESTAMP, _microseconds)


def interval_parts(cells: Cells, where: Where) -> pa.Array:
    up, down = _infinite(cells)
    found = [Unholdable(up, "infinity", INTERVAL_ENDS[0]), Unholdable(down, "-infinity", INTERVAL_ENDS[1])]
    plain = cells.without(up | down)
    parts = _parts(_INTERVAL, plain, where, "an interval (IntervalStyle must be postgres)")
    micros = _time_us(parts)
    micros = np.where(parts["sign"] == -1, -micros, micros)
    return held(interval(parts["years"] * 12 + parts["months"], parts["days"], micros, plain), found, where)


def array(element: Decoder, arrow: pa.DataType, delimiter: str, cells: Cells, where: Where) -> pa.Array:
    """One-dimensional arrays, printed as {a,"b c",NULL}, as lists.

    Backslashes stand only inside quotes, where one escapes the character after it. So a character is escaped when
    an odd number of backslashes comes right before it, a quote that is not escaped begins or ends a quoted element,
    and braces and delimiters count where the number of such quotes before them is even.

    An array of more dimensions, or one that does not begin at 1, is a value that a list cannot hold.
    """
    raw, offsets = gathered(cells.buffer.bytes, cells.start, np.where(cells.present, cells.size, 0))
    escaped = _escaped(raw)
    quote = (raw == ord('"')) & ~escaped
    # Only whether the count is odd matters, and that survives its running over.
    bare = (np.cumsum(quote, dtype=np.uint8) & 1 == 0) & ~quote
    braces = np.bincount(_rows(offsets, bare & (raw == ord("{"))), minlength=len(cells))
    shaped = (cells.byte(0) == ord("[")) | (braces > 1)
    present = cells.present & ~shaped
    ends = np.maximum(offsets[1:] - 1, 0)
    if not ((cells.byte(0) == ord("{")) & (_at(raw, ends) == ord("}")) & (cells.size > 1) | ~present).all():
        raise unreadable(where, "an array")
    full = present & (cells.size > 2)
    splits = np.flatnonzero(bare & (raw == ord(delimiter)))
    of = np.searchsorted(offsets, splits, side="right") - 1
    splits, of = splits[full[of]], of[full[of]]
    count = np.bincount(of, minlength=len(cells)) + full
    lists = np.zeros(len(cells) + 1, np.int64)
    np.cumsum(count, out=lists[1:])
    begin = np.sort(np.concatenate([offsets[:-1][full] + 1, splits + 1]))
    end = np.sort(np.concatenate([ends[full], splits]))
    quoted = _at(raw, begin) == ord('"')
    # A backslash that is not itself escaped only escapes; it and the quotes are no part of the value.
    stays = ~(quote | ((raw == ord("\\")) & ~escaped))
    kept = np.zeros(len(raw) + 1, np.int32)
    np.cumsum(stays, out=kept[1:])
    values = raw[stays]
    first, size = kept[begin].astype(np.int64), (kept[end] - kept[begin]).astype(np.int64)
    null = ~quoted & (size == 4)
    if null.any():
        word = np.zeros((len(first), 4), np.uint8)
        word[null] = values[first[null][:, None] + np.arange(4)]
        null &= (word == np.frombuffer(b"NULL", np.uint8)).all(axis=1)
    items = element(_over(values, first, size, ~null if null.any() else None), where)
    lists_array = pa.ListArray.from_arrays(
        pa.array(lists.astype(np.int32)),
        items,
        type=arrow,
        mask=None if present.all() else pa.array(~present),
    )
    found = [Unholdable(shaped, "an array of several dimensions or with a lower bound other than 1", None)]
    return held(lists_array, found, where)


def _over(values: Bytes, start: Int64s, size: Int64s, valid: Bools | None) -> Cells:
    return Cells(padded([values.tobytes()]), start, size, valid)


def _rows(offsets: Int64s, found: Bools) -> Int64s:
    """In which value each of these bytes lies."""
    return np.searchsorted(offsets, np.flatnonzero(found), side="right") - 1


def _escaped(raw: Bytes) -> Bools:
    """Which characters have an odd number of backslashes right before them."""
    escaped = np.zeros(len(raw) + 1, np.bool_)
    slash = np.flatnonzero(raw == ord("\\"))
    number = np.arange(len(slash))
    begins = np.diff(slash, prepend=-2) > 1
    in_run = number - np.maximum.accumulate(np.where(begins, number, 0))  # 0 for the first of a run
    # Of a run, every second one is escaped by the one before it; what follows an odd run is escaped by its last.
    escaped[slash[in_run % 2 == 1]] = True
    last = np.append(begins[1:], True)[: len(slash)]
    escaped[slash[last & (in_run % 2 == 0)] + 1] = True
    return escaped[:-1]


def _at(raw: Bytes, places: Int64s) -> Bytes:
    """Bytes at places that may lie at the very end (of an empty last value); 0 there."""
    if not len(raw):
        return np.zeros(len(places), np.uint8)
    return np.where(places < len(raw), raw[np.minimum(places, len(raw) - 1)], 0).astype(np.uint8)


def _infinite(cells: Cells) -> tuple[Bools, Bools]:
    first, second = cells.byte(0), cells.byte(1)
    return first == ord("i"), (first == ord("-")) & (second == ord("i"))


def _temporal(
    cells: Cells,
    where: Where,
    odd: Bools,
    arrow: pa.DataType,
    width: type[np.int32 | np.int64],
    pattern: str,
    convert: Callable[[dict[str, Int64s]], tuple[Int64s, Bools]],
) -> pa.Array:
    """Dates or timestamps of which some are odd: those take the pattern, the others Arrow's parser."""
    up, down = _infinite(cells)
    usual = _cast(cells.without(odd).binary(), arrow, where, "a date or timestamp (DateStyle must be ISO)")
    values = usual.view(pa.int32() if width is np.int32 else pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    values = values.copy()
    rare = odd & ~up & ~down
    beyond = np.zeros(len(cells), np.bool_)
    if rare.any():
        parts = _parts(pattern, cells.where(rare), where, "a date or timestamp (DateStyle must be ISO)")
        values[rare], beyond[rare] = convert(parts)
    greatest, least = integer_ends(arrow, 32 if width is np.int32 else 64)
    found = [
        Unholdable(up, "infinity", greatest),
        Unholdable(down, "-infinity", least),
        Unholdable(beyond, "a timestamp after the year 294246", greatest),
    ]
    return held(integers(values, cells.without(up | down | beyond), arrow), found, where)


def _parts(pattern: str, cells: Cells, where: Where, expected: str) -> dict[str, Int64s]:
    """The named groups of a pattern as numbers, 0 where a group is absent; NULL cells give 0.

    `sign` and `bc` are -1 where they say so; `f` is microseconds.
    """
    strings = text(cells, where)
    groups = pc.extract_regex(strings, pattern)
    if groups.null_count != strings.null_count:
        raise unreadable(where, expected)
    out: dict[str, Int64s] = {}
    for name in (f.name for f in groups.type):
        column = pc.fill_null(pc.struct_field(groups, name), "")
        if name in ("sign", "bc"):
            negative = pc.is_in(column, pa.array(["-", " BC"]))
            out[name] = np.where(negative.to_numpy(zero_copy_only=False), -1, 1)
            continue
        if name == "f":
            column = pc.utf8_rpad(column, 6, "0")
        column = pc.replace_substring_regex(pc.if_else(pc.equal(column, ""), "0", column), r"^\+", "")
        out[name] = _cast(column, pa.int64(), where, expected).to_numpy(zero_copy_only=False)
    return out


def _days(parts: dict[str, Int64s]) -> Int64s:
    """Days since 1970 in the proleptic Gregorian calendar, where the year before 1 is 1 BC."""
    month = parts["m"]
    year = np.where(parts["bc"] == -1, 1 - parts["y"], parts["y"]) - (month <= 2)
    era = year // 400
    of_era = year - era * 400
    of_year = (153 * (month + np.where(month > 2, -3, 9)) + 2) // 5 + parts["d"] - 1
    return np.asarray(era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468)


def _time_us(parts: dict[str, Int64s]) -> Int64s:
    return ((parts["h"] * 60 + parts["n"]) * 60 + parts["s"]) * 1_000_000 + parts["f"]


def _microseconds(parts: dict[str, Int64s]) -> tuple[Int64s, Bools]:
    days, time = _days(parts), _time_us(parts)
    beyond = (days > _DAYS_MAX) | ((days == _DAYS_MAX) & (time > _US_MAX))
    return np.where(beyond, 0, days) * _DAY_US + time, beyond


def _cast(strings: pa.Array, arrow: pa.DataType, where: Where, expected: str) -> pa.Array:
    try:
        if strings.type == pa.binary():
            strings = strings.view(pa.string())  # not looked at as UTF-8: what is no digit is refused anyway
        return strings.cast(arrow)
    except pa.ArrowInvalid:
        raise unreadable(where, expected) from None
