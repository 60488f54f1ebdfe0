"""The compiled decoders against the plain ones, which are the reference: the same bytes must give the same.

`make fuzz` does this with hundreds of thousands of messages; `python tests/fuzz/run.py --case SEED` replays one case.
"""

from __future__ import annotations

import os
import shutil
from typing import get_args

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.postgres.fuzz import (
    WAYS,
    Pick,
    Way,
    case_of,
    case_of_value,
    copy_differs,
    differs,
    odd_values,
    outcome,
)

from cdcflow.config import Special
from cdcflow.sources.engine.buffers import Cells
from cdcflow.sources.postgres.decoders import COMPILED
from cdcflow.sources.postgres.types import Codec, Policy
from cdcflow.sources.postgres.types import decode as decode_plain

PLAIN_AS_TEXT = {790, 1186, 1007}  # money, interval and arrays

EXAMPLES = settings(
    max_examples=int(os.environ.get("CDCFLOW_EXAMPLES", "60")),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


def test_the_compiled_decoders_were_built_where_there_is_a_compiler() -> None:
    """A build that quietly fails would leave every test of the compiled decoders without anything to test."""
    assert COMPILED is not None or shutil.which("cc") is None


@pytest.mark.parametrize("special", get_args(Special))
@pytest.mark.parametrize("way", WAYS, ids=[f"{n}-type-{way.oid}" for n, way in enumerate(WAYS)])
def test_both_decoders_decode_every_odd_value_to_the_same_result(way: Way, special: Special) -> None:
    """Cases rare in a stream are rare at random too: the last day of a year, the least number, a wrong length."""
    pick = Pick(1)
    pick.odd = False
    for binary, value in ((False, way.text), (True, way.binary)):
        for odd in odd_values(value):
            assert value is not None
            difference = differs(case_of_value(way, Policy(special_values=special), value(pick), odd, binary=binary))
            assert not difference, (odd, difference)


@pytest.mark.parametrize("way", WAYS, ids=[f"{n}-type-{way.oid}" for n, way in enumerate(WAYS)])
def test_compiled_decoders_decode_usual_values_themselves(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plain decoders would give the same, so a compiled one that refuses everything would show nowhere else."""
    if COMPILED is None:
        return  # the first test here checks whether that is allowed
    declined: list[bool] = []

    def asked(codec: Codec, cells: Cells, *, as_binary: bool) -> pa.Array:
        declined.append(as_binary)
        return decode_plain(codec, cells, as_binary=as_binary)

    monkeypatch.setattr(COMPILED, "decode_plain", asked)
    pick = Pick(2)
    pick.odd = False
    for binary, value in ((False, way.text), (True, way.binary)):
        if value is not None and (binary or way.oid not in PLAIN_AS_TEXT):
            for _ in range(50):
                outcome(case_of_value(way, Policy(), value(pick), value(pick), binary=binary), COMPILED)
            assert not declined


@given(st.integers(0, 2**60))
@EXAMPLES
def test_both_decoders_decode_any_stream_to_the_same_events(number: int) -> None:
    """An installation without a compiler must get the same log, and the same words when something is wrong (O10)."""
    assert not differs(case_of(number))


@given(st.integers(0, 2**60))
@EXAMPLES
def test_both_decoders_decode_any_copy_to_the_same_rows(number: int) -> None:
    """A chunk's rows must not depend on where cdcflow was built."""
    _, _, difference = copy_differs(number)
    assert not difference
