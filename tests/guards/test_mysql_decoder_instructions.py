"""How many instructions the compiled MySQL decoders spend on a row, counted by callgrind: no clock, no noise.

As `test_decoder_instructions.py` does for PostgreSQL; where it cannot be counted, the summary gives the reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.guards.callgrind import Counted

FEW, MANY = 500, 2500

# Instructions per row of 6 short columns; 15-20 % above the measured count (x86-64, gcc 12, CPython 3.11).
CEILINGS = {"insert": 900, "update": 1350, "result": 1150, "packet": 415}


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Counted]:
    program = Path(__file__).with_name("mysql_decoding.py")
    process = Counted(tmp_path_factory.mktemp("callgrind"), program, FEW, MANY)
    yield process
    process.close()


@pytest.mark.spread(2)
@pytest.mark.parametrize("name", CEILINGS)
def test_a_row_costs_no_more_instructions_than_it_did(counted: Counted, name: str) -> None:
    """A slower decoder shows here at once, where a clock on a busy machine shows nothing."""
    for size in (FEW, MANY):
        counted.count(name, size)  # the first time under the tool is not like the others
    instructions = (counted.count(name, MANY) - counted.count(name, FEW)) / (MANY - FEW)
    print(f"{name}: {instructions:.0f} instructions a row")
    # Far below the ceiling it is not these decoders that ran.
    assert CEILINGS[name] / 3 < instructions < CEILINGS[name]
