"""Infinities, NaN in a decimal, arrays that are no list: the policy decides, and decides the same on every path."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from tests.support.postgres.wire import Lab

from cdcflow.capture.interleave.messages import ChangesRefused, Committed
from cdcflow.capture.ports.stream import StreamEvent
from cdcflow.config import Special
from cdcflow.errors import CdcflowError, ConfigurationError, TableMisfit
from cdcflow.model.change import Run
from cdcflow.sources.postgres.types import Policy

pytestmark = pytest.mark.postgres

GREATEST, LEAST = 2**63 - 1, -(2**63)
BIG, SMALL = 2**31 - 1, -(2**31)
NAMED = ("NaN", "infinity", "-infinity")  # an error may contain these: they reveal nothing about a row
END = {"months": BIG, "days": BIG, "microseconds": GREATEST}
START = {"months": SMALL, "days": SMALL, "microseconds": LEAST}

# type, value, the result of clamp (None: nothing fits, so it fails), has the type a binary decoder, minimum server
CASES: tuple[tuple[str, str, object, bool, int], ...] = (
    ("date", "infinity", BIG, True, 0),
    ("date", "-infinity", SMALL, True, 0),
    ("timestamp", "infinity", GREATEST, True, 0),
    ("timestamp", "-infinity", LEAST, True, 0),
    ("timestamp", "294276-12-31 23:59:59.999999", GREATEST, True, 0),
    ("timestamptz", "infinity", GREATEST, True, 0),
    ("timestamptz", "-infinity", LEAST, True, 0),
    ("timestamptz", "294247-01-10 04:00:54.775808 UTC", GREATEST, True, 0),
    ("numeric(5,2)", "NaN", "999.99", True, 0),
    ("numeric(40,0)", "NaN", "9" * 40, True, 0),
    ("interval", "infinity", END, True, 170000),
    ("interval", "-infinity", START, True, 170000),
    ("int4[]", "{{1,2},{3,4}}", None, True, 0),
    ("int4[]", "[0:1]={1,2}", None, True, 0),
    ("text[]", '{{"a,{b","\\"]"}}', None, True, 0),
    ("date[]", "{infinity,2024-01-01}", [BIG, 19723], True, 0),
)


def _plain(array: pa.Array) -> list[Any]:
    if pa.types.is_list(array.type):
        return [None if v is None else _plain(pa.array(v, array.type.value_type)) for v in _lists(array)]
    if pa.types.is_date32(array.type):
        return list(array.view(pa.int32()).to_pylist())
    if pa.types.is_timestamp(array.type):
        return list(array.view(pa.int64()).to_pylist())
    if pa.types.is_decimal(array.type):
        return [None if v is None else str(v) for v in array.to_pylist()]
    return list(array.to_pylist())


def _lists(array: pa.Array) -> list[pa.Array | None]:
    return [v.values if v.is_valid else None for v in array]


def refusal(events: Sequence[StreamEvent]) -> str:
    """Why the one table is refused whose rows these events lack."""
    (reason,) = (event.reason for event in events if isinstance(event, ChangesRefused))
    assert not [event for event in events if isinstance(event, Committed)]
    return reason


def _paths(lab: Lab, table: str, *, binary: bool) -> dict[str, object]:
    """What each path makes of the table's one value: a cell, or the error."""
    found: dict[str, object] = {}

    def attempt(path: str, read: Any) -> None:
        try:
            found[path] = _plain(read())[0]
        except CdcflowError as error:
            found[path] = error

    def stream(as_binary: bool, publication: str) -> pa.Array:
        # PostgreSQL 14 also sends the transactions in which nothing is published, without rows.
        events = lab.streamed(binary=as_binary, publication=publication)
        if any(isinstance(event, ChangesRefused) for event in events):
            raise TableMisfit(refusal(events))
        batches = [
            batch
            for event in events
            if isinstance(event, Committed) and isinstance(event.run, Run)
            for batch in event.run.batches
        ]
        (batch,) = batches
        return batch.rows.column("v")

    attempt("copy", lambda: lab.copied(table).column("v"))
    attempt("text", lambda: stream(False, f"only_{table}"))
    if binary:
        attempt("binary", lambda: stream(True, f"only_{table}"))
    return found


@pytest.mark.spread(1)
def test_special_values_follow_the_policy_on_every_path(lab: Lab) -> None:
    """A sentinel date that no setting requested is a wrong date; a policy that holds on one path only is two (T04,
    T05).
    """
    cases = [case for case in CASES if lab.version >= case[4]]
    for number, (type_text, _, _, _, _) in enumerate(cases):
        lab.execute(f"CREATE TABLE t{number} (id int PRIMARY KEY, v {type_text})")
        lab.execute(f"CREATE PUBLICATION only_t{number} FOR TABLE t{number}")
    lab.slot()
    for number, (type_text, value, _, _, _) in enumerate(cases):
        lab.execute(f"INSERT INTO t{number} VALUES (1, $v${value}$v$::{type_text})")
    wrong = []
    specials: tuple[Special, ...] = ("stop", "null", "text", "clamp")
    for special in specials:
        lab.policy = Policy(special_values=special)
        for number, (type_text, value, clamped, binary, _) in enumerate(cases):
            table = f"t{number}"
            (word,) = lab.execute(f"SELECT format('%s', v) FROM {table}")[0]
            for path, cell in _paths(lab, table, binary=binary and special != "text").items():
                if special == "stop" or (special == "clamp" and clamped is None):
                    right = isinstance(cell, ConfigurationError) and f"public.{table}.v" in str(cell)
                    right = right and (value in NAMED or value not in str(cell))
                else:
                    right = cell == {"null": None, "text": word, "clamp": clamped}[special]
                    if special == "null" and type_text == "date[]":
                        right = cell == [None, 19723]
                if not right:
                    wrong.append((special, type_text, value, path, cell))
    assert not wrong


def test_one_columns_policy_overrides_the_general_one(lab: Lab) -> None:
    """One table with an odd value must not decide for all the others."""
    lab.execute("CREATE TABLE a (id int PRIMARY KEY, v date, n numeric, w date)")
    lab.policy = Policy(special_values="null", columns={"public.a.w": "text", "public.a.n": "decimal(10,2)"})
    lab.slot()
    lab.execute("INSERT INTO a VALUES (1, 'infinity', 1.5, '-infinity')")
    (event,) = lab.streamed()
    assert isinstance(event, Committed)
    assert isinstance(event.run, Run)
    for rows in (event.run.batches[0].rows, lab.copied("a")):
        assert rows.column("v").to_pylist() == [None]
        assert rows.column("w").to_pylist() == ["-infinity"]
        assert rows.column("n").type == pa.decimal128(10, 2)
        assert str(rows.column("n")[0]) == "1.50"


@pytest.mark.parametrize("value", ["0.001", "123456789.00", "1e30"])
def test_a_number_that_does_not_fit_the_chosen_decimal_fails_its_table(lab: Lab, value: str) -> None:
    """Rounding money in silence is the worst of answers."""
    lab.execute("CREATE TABLE a (id int PRIMARY KEY, n numeric)")
    lab.policy = Policy(special_values="null", unconstrained_numeric="decimal(10,2)")
    lab.slot()
    lab.execute(f"INSERT INTO a VALUES (1, {value})")
    reason = refusal(lab.streamed())
    assert "public.a.n" in reason
    assert value not in reason
    with pytest.raises(ConfigurationError, match=r"public\.a\.n"):
        lab.copied("a")


def test_bytes_of_no_encoding_fail_their_table_with_a_reason_that_names_the_column(lab: Lab) -> None:
    """A database with SQL_ASCII takes any bytes; guessing what they mean changes them."""
    lab.execute("CREATE TABLE a (id int PRIMARY KEY, v text)")
    lab.slot()
    lab.execute("INSERT INTO a VALUES (1, 'marker')")
    messages = [m.replace(b"marker", b"mark\xff\xfe") for m in lab.peek()]
    decoder, _ = lab.decoder()
    assert re.search(r"public\.a\.v.*UTF-8", refusal(decoder.decode(messages)))
