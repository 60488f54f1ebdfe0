"""Lists what `mysql-replication` is known to decode wrongly: types, character sets and values without a second opinion.

Each entry names the values that it covers, the library's result for them, and where it applies. A test shows for each
entry that the library is still wrong there; when a release corrects one, that test fails and the entry is removed.
docs/verify.md lists the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from cdcflow.sources.mysql.tables import DescribedTable
from cdcflow.sources.mysql.types.charsets import UNKNOWN, charset_of
from cdcflow.sources.mysql.types.columns import ServerColumn, TypeCode
from cdcflow.sources.mysql.types.family import TWO_DIGITS, Codec

TEXTS: Final = (TypeCode.CHAR, TypeCode.VARCHAR, TypeCode.BLOB)
_LABELLED: Final = (TypeCode.ENUM, TypeCode.SET)
_DATES: Final = (TypeCode.DATE, TypeCode.DATETIME, TypeCode.TIMESTAMP)
_TIMESTAMP_END: Final = datetime(2038, 1, 19, 3, 14, 8, tzinfo=UTC)

_AS_UTF8: Final = ("ascii", "utf8mb3", "utf8mb4")
OTHER_CHARSETS: Final = frozenset(
    (
        *("armscii8", "big5", "cp866", "dec8", "eucjpms", "euckr", "gb18030", "geostd8", "greek", "hebrew", "hp8"),
        *("keybcs2", "koi8u", "macce", "sjis", "swe7", "ucs2", "ujis", "utf16", "utf16le", "utf32"),
    )
)
"""Character sets in which the library decodes some codes to other characters than the servers do, or to none at all."""
_JSON_FAILS: Final = re.compile(r'"-?(2[4-9]|[3-9]\d|\d{3}):\d\d:\d\d\.\d{6}"|"\d{4}-(00|\d\d-00)|"\d{4}-\d\d-3[01]')
_LATIN1_OWN: Final = frozenset("\x81\x8d\x8f\x90\x9d")


@dataclass(frozen=True, slots=True)
class Exclusion:
    """Values that are not compared. `applies` gets the column, the policy for its values, and the value as cdcflow
    decoded it. None: NULL, or no value; then it returns whether the column is excluded as a whole."""

    about: str
    fault: str
    applies: Callable[[ServerColumn, Codec, Any], bool]


def _is_other_charset(column: ServerColumn) -> bool:
    if column.type_code not in TEXTS or column.collation is None:
        return False
    return charset_of(column.collation).name in OTHER_CHARSETS


def _is_latin1(column: ServerColumn) -> bool:
    return column.collation is not None and charset_of(column.collation).name == "latin1"


def _has_other_labels(column: ServerColumn) -> bool:
    if column.type_code not in _LABELLED or column.collation is None:
        return False
    charset = charset_of(column.collation)
    if charset.name in _AS_UTF8:
        return False
    return not charset.has_ascii or not all(label.isascii() for label in column.labels)


EXCLUSIONS: Final = (
    Exclusion(
        "`time(1)` to `time(6)`, values below zero",
        "the fraction is added with the wrong sign",
        lambda c, _, v: (
            c.type_code == TypeCode.TIME and c.metadata > 0 and isinstance(v, timedelta) and v < timedelta()
        ),
    ),
    Exclusion("`year`, the year 0000", "1900", lambda c, _, v: c.type_code == TypeCode.YEAR and v == 0),
    Exclusion(
        "`timestamp` at or after 2038-01-19 03:14:08 (MariaDB 11.5 and later)",
        "1901 and later: the seconds are taken for a signed number",
        lambda c, _, v: c.type_code == TypeCode.TIMESTAMP and isinstance(v, datetime) and v >= _TIMESTAMP_END,
    ),
    Exclusion(
        "`date`, `datetime` and `timestamp`, where `zero_dates` is `null` or `text`",
        "it fails at the 31st of February, and a zero timestamp is 1970",
        lambda c, codec, _: c.type_code in _DATES and codec.where.zero_dates != "stop",
    ),
    Exclusion(
        "text in armscii8, big5, cp866, dec8, eucjpms, euckr, gb18030, geostd8, greek, hebrew, hp8, keybcs2, koi8u, "
        "macce, sjis, swe7, ucs2, ujis, utf16, utf16le, utf32",
        "other characters, or bytes",
        lambda c, _, __: _is_other_charset(c),
    ),
    Exclusion(
        "text in latin1 with U+0081, U+008D, U+008F, U+0090 or U+009D",
        "it omits them",
        lambda c, _, v: c.type_code in TEXTS and _is_latin1(c) and isinstance(v, str) and not _LATIN1_OWN.isdisjoint(v),
    ),
    Exclusion(
        "text with bytes that its character set does not have, where `bad_text` is `replace`",
        "it omits them",
        lambda c, _, v: c.type_code in TEXTS and isinstance(v, str) and UNKNOWN in v,
    ),
    Exclusion(
        "`enum` and `set` with labels that are not ASCII, in another character set than UTF-8",
        "the empty string, or other letters: it reads labels as UTF-8",
        lambda c, _, __: _has_other_labels(c),
    ),
    Exclusion(
        "`json` of MySQL with a time of 24 hours or more, or a date that is in no calendar",
        "it fails",
        lambda c, _, v: c.type_code == TypeCode.JSON and isinstance(v, str) and _JSON_FAILS.search(v) is not None,
    ),
    Exclusion(
        "`uuid`, `inet4`, `inet6` and `vector` of MariaDB", "bytes", lambda c, _, __: c.extra not in ("", TWO_DIGITS)
    ),
)

UNREADABLE: Final = {
    TypeCode.VECTOR: "`vector` of MySQL",
    TypeCode.VARCHAR_COMPRESSED: "`varchar` and `varbinary` with `COMPRESSED` (MariaDB)",
    TypeCode.BLOB_COMPRESSED: "`text` and `blob` of any size with `COMPRESSED` (MariaDB)",
}
"""Types that the library does not know: it cannot find the columns that follow one of these, so rows of such tables
have no second opinion."""


def can_read(described: DescribedTable) -> bool:
    """Whether the library can read rows of this table."""
    return not any(column.type_code in UNREADABLE for column in described.columns)


def is_excluded(column: ServerColumn, codec: Codec, value: Any = None) -> bool:
    return any(one.applies(column, codec, value) for one in EXCLUSIONS)
