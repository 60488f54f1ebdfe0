"""The edge values of every type, in changes of every kind, and the fold's result for them, to be compared bit for bit.

Each table has one row per number of an edge, and each column goes through the edges of its type: every value comes by
an insert, by an update, by the second update of one range, by a key change that leaves it unchanged, and by a backfill.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Any

import pyarrow as pa
from tests.support.log.hand_log import HandLog
from tests.support.merge.histories import State, Step, make_table
from tests.support.tables.folds import FOLDED, Folded

from cdcflow.log.fold.fold import LogChange
from cdcflow.model.table import Table
from cdcflow.tables.merge.policy import Mode, Policies, TablePolicy

MODES: tuple[Mode, ...] = ("current", "soft_delete", "append", "history")


def _double(bits: int) -> float:
    found: float = struct.unpack(">d", bits.to_bytes(8, "big"))[0]
    return found


NINES = "9" * 38
DOUBLES = [-0.0, 0.0, *map(float, ("nan", "inf", "-inf")), 5e-324, -5e-324, 1.7976931348623157e308, 0.1, 1e16]
FLOATS = [-0.0, 0.0, *map(float, ("nan", "inf", "-inf")), 2.0**-149, -(2.0**-149), 3.4028234663852886e38]
NAN_BITS = [_double(0x7FF8024680000000), _double(0xFFF8000000000000)]
"""NaNs of other bits, which a float holds, too."""
TEXTS = [
    *(
        "",
        " ",
        "\0",
        "a\0b",
        "\0\0",
        "\1",
        "\x7f",
        "é",
        "e\u0301",
        "\u200d",
        "\ufeff",
        "\uffff",
        "\U0010ffff",
        "👩‍👩‍👧",
    ),
    *("null", "NULL", "nan", "-0.0", "'", "''", '"', "\\", "`", "${env:HOME}", "{}", "a\r\n\t b ", "x" * 300),
]
BYTES = [b"", b"\0", b"\0\0", b"\0\1", b"\1", b"\xff", b"\xff\xff\0", bytes(range(256))]
TIMES = [0, 1, 86_399_999_999, 86_400_000_000, 3_600_000_000]
SPANS = [0, 1, -1, 3_020_399_000_000, -3_020_399_999_999]
CLOCKS = [datetime.min, datetime.max, datetime(1970, 1, 1), datetime(1969, 12, 31, 23, 59, 59, 999_999)]
DAYS = [date.min, date.max, date(1970, 1, 1), date(1969, 12, 31), date(1582, 10, 10)]

SCALARS: dict[str, tuple[pa.DataType, Sequence[Any]]] = {
    "flag": (pa.bool_(), [True, False]),
    **{f"int{n}": (pa.type_for_alias(f"int{n}"), [-(2 ** (n - 1)), 2 ** (n - 1) - 1, 0, -1]) for n in (8, 16, 32, 64)},
    **{f"uint{n}": (pa.type_for_alias(f"uint{n}"), [2**n - 1, 0, 2 ** (n - 1)]) for n in (8, 16, 32, 64)},
    "real": (pa.float32(), [*FLOATS, *NAN_BITS]),
    "double": (pa.float64(), [*DOUBLES, *NAN_BITS]),
    "digits": (pa.decimal128(38, 0), [Decimal(NINES), Decimal(f"-{NINES}"), Decimal(0), Decimal(1)]),
    "places": (pa.decimal128(38, 38), [Decimal(f"0.{NINES}"), Decimal(f"-0.{NINES}"), Decimal(0), Decimal("1E-38")]),
    "price": (pa.decimal128(10, 2), [Decimal("99999999.99"), Decimal("-0.01"), Decimal("0.00")]),
    "text": (pa.string(), TEXTS),
    "large": (pa.large_string(), TEXTS[::-1]),
    "label": (pa.dictionary(pa.int32(), pa.string()), TEXTS[:6]),
    "bytes": (pa.binary(), BYTES),
    "fixed": (pa.binary(4), [bytes(4), b"\xff" * 4, b"\0\1\0\1"]),
    "day": (pa.date32(), DAYS),
    "local": (pa.timestamp("us"), CLOCKS),
    "moment": (pa.timestamp("us", "UTC"), [clock.replace(tzinfo=UTC) for clock in CLOCKS]),
    "time": (pa.time64("us"), TIMES),
    "span": (pa.duration("us"), SPANS),
}
LISTED = ("flag", "int64", "uint64", "real", "double", "digits", "text", "bytes", "day", "moment", "time")
FIELDS = [("a`b", pa.float64()), ("c", pa.string()), ("l", pa.list_(pa.float32()))]
STRUCTS = [
    {"a`b": -0.0, "c": None, "l": []},
    {"a`b": None, "c": "\0", "l": [None, -0.0, float("nan")]},
    {"a`b": None, "c": None, "l": None},
]


def _lists(values: Sequence[Any]) -> list[list[Any]]:
    return [[], [None], *([v] for v in values[:4]), [None, *values, None], list(values)[::-1]]


EDGES: dict[str, tuple[pa.DataType, Sequence[Any]]] = {
    **SCALARS,
    **{f"{name}s": (pa.list_(SCALARS[name][0]), _lists(SCALARS[name][1])) for name in LISTED},
    "grid": (pa.list_(pa.list_(pa.float64())), [[], [[]], [None], [[None], [-0.0], [], None], [DOUBLES, NAN_BITS]]),
}
"""By a column's name its type and values; NULL is added to each."""

BY_SPARK_ONLY: dict[str, tuple[pa.DataType, Sequence[Any]]] = {
    "row": (pa.struct(FIELDS), STRUCTS),
    "rows": (pa.list_(pa.struct(FIELDS)), [[], [None, *STRUCTS], STRUCTS[1:]]),
    "wide": (pa.decimal256(50, 10), [Decimal(f"{NINES}99.9999999999"), Decimal("-1E-10"), Decimal(0)]),
}
"""What `cdcflow.local` leaves to Spark."""

LEFT_OUT = ("int64", "real", "double", "digits", "text", "bytes", "moment", "reals", "doubles", "texts", "grid", "row")
"""Types of columns that some changes leave unchanged."""

LESS = ("int8", "int16", "uint8", "uint16", "flags", "int64s", "uint64s", "digitss", "days", "moments", "times")

ROWS = max(len(values) for _, values in EDGES.values()) + 1
"""So many that each edge of each type is in one of them."""


class EdgeTables:
    """A table for each mode in one log. `v_…` columns come with every change, `p_…` are left unchanged by some.

    `by_spark`: Spark merges, which takes more types, and gives every NaN the same bits.
    """

    def __init__(self, log: HandLog, *, by_spark: bool = False) -> None:
        log.has_transactions = True
        self.log, self.by_spark = log, by_spark
        # To Spark every column is dear.
        few = {name: edge for name, edge in EDGES.items() if name not in LESS}
        self.edges = {**few, **BY_SPARK_ONLY} if by_spark else EDGES
        columns = {f"v_{name}": arrow for name, (arrow, _) in self.edges.items()}
        columns |= {f"p_{name}": self.edges[name][0] for name in LEFT_OUT if name in self.edges}
        self.tables: dict[Mode, Table] = {m: make_table(f"edges_{m}", id="int64", **columns) for m in MODES}
        self.folded: dict[Mode, Folded] = {mode: FOLDED[mode]() for mode in MODES}
        self.partial = [name for name in columns if name.startswith("p_")]

    @property
    def policies(self) -> Policies:
        return Policies(each={str(t.id): TablePolicy(mode=mode) for mode, t in self.tables.items()})

    def write(self, turn: int) -> None:
        """A segment: inserts, several changes of a key, one change of a key, or rows that are read again."""
        steps = [self._inserts, self._several, self._once, self._read][min(turn, 3)](turn)
        segment, first, begins = self.log.cut + 1, self.log.next_offset, 0
        rows: list[Step] = [(t, op, {**v, "_txn": first + n}) for t in self.tables.values() for n, (op, v) in steps]
        for table in self.tables.values():
            self.log.state(table)
        self.log.segment(rows)
        for mode, table in self.tables.items():
            offset = first + begins
            changes = []
            for n, (op, given) in steps:
                changes.append((table, self._change(table, offset, op, given, first + n, segment)))
                offset += 1
            begins += len(steps)
            self.folded[mode].add(changes)

    def expected(self, mode: Mode) -> State:
        return self._bits(self.folded[mode].expected(self.tables[mode]))

    def actual(self, mode: Mode, rows: Iterable[Mapping[str, Any]]) -> State:
        return self._bits(self.folded[mode].actual(self.tables[mode], rows))

    def _bits(self, state: State) -> State:
        """The same with each value by its bits; by Spark a NaN is as any other."""
        exact = partial(by_bits, one_nan=self.by_spark)
        return {k: ({name: exact(v) for name, v in values.items()}, m, o, n) for k, (values, m, o, n) in state.items()}

    def differences(self, mode: Mode, rows: Iterable[Mapping[str, Any]]) -> list[str]:
        """The cells that differ, the least."""
        wanted, found = self.expected(mode), self.actual(mode, rows)
        told = [f"rows: fold {wanted.keys() - found.keys()}, table {found.keys() - wanted.keys()}"]
        told = told if wanted.keys() != found.keys() else []
        for key in sorted(wanted.keys() & found.keys(), key=repr):
            (values, *others), (has, *beside) = wanted[key], found[key]
            told += [f"{key} next to its values: {others} {beside}"] if others != beside else []
            told += [
                f"{key}.{name}: fold {values.get(name)!r}, table {has.get(name)!r}"
                for name in {**values, **has}
                if values.get(name) != has.get(name) and name != "values"
            ]
        return told

    # ── what happens ────────────────────────────────────────────────────────────────────────────────────────

    def _row(self, number: int, turn: int, *, without: Sequence[str] = ()) -> dict[str, Any]:
        found: dict[str, Any] = {"id": number}
        for name, (_, values) in self.edges.items():
            listed = [None, *values]
            for n, part in enumerate("vp"):
                if f"{part}_{name}" not in without and (part == "v" or name in LEFT_OUT):
                    found[f"{part}_{name}"] = listed[(number + turn * (n + 2)) % len(listed)]
        return found

    def _left_out(self, number: int, turn: int) -> dict[str, Any]:
        return self._row(number, turn, without=self.partial) | {"_unchanged": self.partial}

    def _inserts(self, turn: int) -> list[tuple[int, tuple[str, dict[str, Any]]]]:
        return self._all("c", turn)

    def _several(self, turn: int) -> list[tuple[int, tuple[str, dict[str, Any]]]]:
        """Each key is changed twice. Every third goes and comes again, every fourth gets another key."""
        found = self._all("u", turn)
        for n in range(ROWS):
            if n % 3 == 0:
                found += [(ROWS + n, ("d", {"id": n})), (2 * ROWS + n, ("c", self._row(n, turn + 1)))]
            elif n % 4 == 0:  # one transaction
                moved = self._left_out(ROWS + n, turn + 1) | {"_before": {"id": n}}
                found += [(ROWS + n, ("d", {"id": n})), (ROWS + n, ("c", moved))]
            else:
                found.append((ROWS + n, ("u", self._left_out(n, turn + 1))))
        return found

    def _all(self, op: str, turn: int) -> list[tuple[int, tuple[str, dict[str, Any]]]]:
        return [(n, (op, self._row(n, turn))) for n in range(ROWS)]

    def _once(self, turn: int) -> list[tuple[int, tuple[str, dict[str, Any]]]]:
        return [(n, ("u", self._left_out(n, turn))) for n in range(ROWS) if n % 4 or n % 3 == 0]

    def _read(self, turn: int) -> list[tuple[int, tuple[str, dict[str, Any]]]]:
        return self._all("r", turn)

    def _change(
        self, table: Table, offset: int, op: str, given: Mapping[str, Any], transaction: int, segment: int
    ) -> LogChange:
        types = {c.name: c.type.arrow for c in table.columns}
        values = {n: in_table(v, types[n]) for n, v in given.items() if n in types}
        unchanged = frozenset(given.get("_unchanged") or ())
        return LogChange(offset, op, values, unchanged, given.get("_before"), transaction, segment)


def in_table(value: Any, arrow: pa.DataType) -> Any:
    """A table's value for a value of the source: a text for a time, exact digits for one that is too wide."""
    if value is None:
        return None
    if pa.types.is_list(arrow):
        return [in_table(part, arrow.value_type) for part in value]
    if pa.types.is_time(arrow) or pa.types.is_duration(arrow):
        hours, left = divmod(abs(value), 3_600_000_000)
        minutes, left = divmod(left, 60_000_000)
        seconds, micros = divmod(left, 1_000_000)
        return f"{'-' if value < 0 else ''}{hours:02}:{minutes:02}:{seconds:02}.{micros:06}"
    if arrow == pa.uint64():
        return Decimal(value)
    if pa.types.is_decimal(arrow) and arrow.precision > 38:
        return f"{value:.{arrow.scale}f}"
    return value


def by_bits(value: Any, *, one_nan: bool) -> Any:
    """A value by its bits."""
    exact = partial(by_bits, one_nan=one_nan)
    match value:
        case float() if one_nan and value != value:
            return "nan"
        case float():
            return "float " + struct.pack(">d", value).hex()
        case Mapping():
            return {name: exact(part) for name, part in value.items()}
        case list() | tuple():
            return [exact(part) for part in value]
        case Decimal():
            whole, _, places = f"{value:f}".partition(".")
            return f"decimal {whole}.{places.rstrip('0')}"
        case str():
            return value.encode()
        case datetime():
            # Spark's rows have no zone.
            return (value.replace(tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    return value


__all__ = ["MODES", "EdgeTables"]
