"""Infinities, NaN in a decimal and arrays that are not lists, without a server: the policy decides, in either
format."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import get_args

import pyarrow as pa
import pytest
from tests.support.postgres.message_bytes import (
    attribute,
    begin,
    commit,
    insert,
    numeric_modifier,
    relation,
    table,
    xlog,
)
from tests.support.postgres.wire import Spools

from cdcflow.capture.interleave.messages import Advanced, ChangesRefused, Committed
from cdcflow.config import Postgres, Special
from cdcflow.errors import CdcflowError, InvariantViolated, TableMisfit
from cdcflow.model.change import Run
from cdcflow.sources.postgres.decoders import Compiled
from cdcflow.sources.postgres.pgoutput import PgoutputDecoder
from cdcflow.sources.postgres.types import Policy

INT32_MAX, INT64_MAX = 2**31 - 1, 2**63 - 1


@dataclass(frozen=True)
class Case:
    """A value in both formats, its name in an error, and the value that `clamp` gives (None: nothing fits)."""

    oid: int
    text: bytes
    binary: bytes | None
    what: str
    clamped: object
    modifier: int = -1
    element: int = 0


def _special(sign: int) -> bytes:
    return struct.pack(">hhHh", 0, 0, sign, 0)


_NARROW, _WIDE = numeric_modifier(5, 2), numeric_modifier(40, 0)
_END = {"months": INT32_MAX, "days": INT32_MAX, "microseconds": INT64_MAX}
_START = {"months": -INT32_MAX - 1, "days": -INT32_MAX - 1, "microseconds": -INT64_MAX - 1}
_SHAPED = "several dimensions or with a lower bound other than 1"

CASES: dict[str, Case] = {
    "NaN": Case(1700, b"NaN", _special(0xC000), "NaN", "999.99", _NARROW),
    "infinite numeric": Case(1700, b"Infinity", _special(0xD000), "infinity", "999.99", _NARROW),
    "-infinite numeric": Case(1700, b"-Infinity", _special(0xF000), "-infinity", "-999.99", _NARROW),
    "wide NaN": Case(1700, b"NaN", _special(0xC000), "NaN", "9" * 40, _WIDE),
    "wide -infinity": Case(1700, b"-Infinity", _special(0xF000), "-infinity", "-" + "9" * 40, _WIDE),
    "infinite date": Case(1082, b"infinity", struct.pack(">i", INT32_MAX), "infinity", INT32_MAX),
    "-infinite date": Case(1082, b"-infinity", struct.pack(">i", -INT32_MAX - 1), "-infinity", -INT32_MAX - 1),
    "infinite timestamp": Case(1114, b"infinity", struct.pack(">q", INT64_MAX), "infinity", INT64_MAX),
    "-infinite timestamptz": Case(1184, b"-infinity", struct.pack(">q", -INT64_MAX - 1), "-infinity", -INT64_MAX - 1),
    "late timestamp": Case(
        1114,
        b"294276-12-31 23:59:59.999999",
        struct.pack(">q", 9_223_371_331_199_999_999),
        "a timestamp after the year 294246",
        INT64_MAX,
    ),
    "infinite interval": Case(
        1186, b"infinity", struct.pack(">qii", INT64_MAX, INT32_MAX, INT32_MAX), "infinity", _END
    ),
    "-infinite interval": Case(
        1186,
        b"-infinity",
        struct.pack(">qii", -INT64_MAX - 1, -INT32_MAX - 1, -INT32_MAX - 1),
        "-infinity",
        _START,
    ),
    "array from 0": Case(
        1007,
        b"[0:0]={1}",
        struct.pack(">iiiiiii", 1, 0, 23, 1, 0, 4, 1),
        _SHAPED,
        None,
        element=23,
    ),
    "matrix": Case(
        1007,
        b"{{1}}",
        struct.pack(">iiiiiiiii", 2, 0, 23, 1, 1, 1, 1, 4, 1),
        _SHAPED,
        None,
        element=23,
    ),
}


def _decoded(case: Case, policy: Policy, compiled: Compiled | None, cell: bytes, *, binary: bool) -> pa.Array:
    """Return the decoded value. Raises TableMisfit with the reason if its table is refused."""
    described = table("t", 1, [attribute("v", case.oid, case.modifier, element=case.element)], full=True, policy=policy)
    decoder = PgoutputDecoder(
        describe=lambda _: described,
        open_spool=Spools(),
        spool_bytes_max=1 << 30,
        binary=binary,
        skip_until=0,
        compiled=compiled,
    )
    row = insert(1, [cell], binary=binary)
    event, *others = decoder.decode([xlog(m) for m in (begin(7, 50), relation(described), row, commit(64))])
    if isinstance(event, ChangesRefused):
        assert [type(other) for other in others] == [Advanced]
        raise TableMisfit(event.reason)
    assert not others
    assert isinstance(event, Committed)
    assert isinstance(event.run, Run)
    return event.run.batches[0].rows.column("v")


def _value(array: pa.Array) -> object:
    if pa.types.is_date32(array.type) or pa.types.is_timestamp(array.type):
        array = array.view(pa.int32() if pa.types.is_date32(array.type) else pa.int64())
    (value,) = array.to_pylist()
    return str(value) if pa.types.is_decimal(array.type) and value is not None else value


@pytest.mark.parametrize("special", get_args(Special))
@pytest.mark.parametrize("binary", [False, True], ids=["text", "binary"])
@pytest.mark.parametrize("name", CASES)
def test_policy_decides_about_unsupported_values(
    compiled: Compiled | None, name: str, binary: bool, special: Special
) -> None:
    """T04: an error that names it, NULL, the type's limit, or the server's text; never silently something else."""
    case, policy = CASES[name], Policy(special_values=special)
    if special == "text":
        assert _value(_decoded(case, policy, compiled, case.text, binary=False)) == case.text.decode()
        return
    cell = case.binary if binary else case.text
    assert cell is not None
    if special == "stop" or (special == "clamp" and case.clamped is None):
        with pytest.raises(TableMisfit, match="which its Arrow type cannot hold") as raised:
            _decoded(case, policy, compiled, cell, binary=binary)
        assert f"{case.what}," in str(raised.value)
        return
    expected = None if special == "null" else case.clamped
    assert _value(_decoded(case, policy, compiled, cell, binary=binary)) == expected


@pytest.mark.parametrize(
    ("setting", "arrow"),
    [("text", pa.string()), ("decimal(20,4)", pa.decimal128(20, 4)), ("decimal(50,3)", pa.decimal256(50, 3))],
)
def test_numeric_without_precision_becomes_the_type_in_the_settings(setting: str, arrow: pa.DataType) -> None:
    """The server does not report how many digits there are, so an operator may set it."""
    settings = Postgres(kind="postgres", url="postgresql://u@h/d", unconstrained_numeric=setting)
    policy = Policy.of(settings)
    described = table("t", 1, [attribute("v", 1700)], policy=policy)
    assert described.table.columns[0].type.arrow == arrow


@pytest.mark.parametrize("special", get_args(Special))
def test_a_number_with_too_many_digits_fails_its_table_whatever_the_policy(
    compiled: Compiled | None, special: Special
) -> None:
    """It is not a special value: set to NULL or cut short it would be another number."""
    policy = Policy(special, "decimal(5,2)")
    if special == "text":
        assert (
            _value(_decoded(Case(1700, b"", None, "", None), policy, compiled, b"1234.56", binary=False)) == "1234.56"
        )
        return
    for text in (b"1234.56", b"1.234"):
        with pytest.raises(TableMisfit, match=r"a number that is not a decimal128\(5, 2\)"):
            _decoded(Case(1700, b"", None, "", None), policy, compiled, text, binary=False)


@pytest.mark.parametrize(
    "groups",
    [
        pytest.param((1, 1, [2]), id="above its digits"),
        pytest.param((2, 0, [1, 1, 1]), id="below its scale"),
        pytest.param((1, 0, [1000]), id="one digit too many"),
        pytest.param((2, 0, [1, 10]), id="one place too many"),
    ],
)
def test_a_binary_number_that_its_type_cannot_have_is_refused(
    compiled: Compiled | None, groups: tuple[int, int, list[int]]
) -> None:
    """numeric(5,2) has three digits before the point and two after it; anything else cannot be such a value."""
    _, weight, digits = groups
    cell = struct.pack(f">hhHh{len(digits)}h", len(digits), weight, 0, 2, *digits)
    with pytest.raises(CdcflowError) as raised:
        _decoded(Case(1700, b"", None, "", None, _NARROW), Policy(), compiled, cell, binary=True)
    assert isinstance(raised.value, InvariantViolated)
    assert "decimal128(5, 2)" in str(raised.value)
