"""How many instructions the compiled decoders spend on a change, counted by callgrind: no clock, no noise.

Two batches of different size are decoded, and the difference is divided by the difference in changes, so the fixed cost
of a call drops out. Where valgrind is not installed, or the decoders were not compiled, there is nothing to count: the
tests are then not collected, and the summary gives the reason (`tests/guards/conftest.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.guards.callgrind import Counted

FEW, MANY = 500, 2500

# Instructions per change of 6 short columns; 15-20 % above the measured count (x86-64, gcc 12, CPython 3.11).
CEILINGS = {"binary": 800, "text": 1350, "copy": 515}


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Counted]:
    process = Counted(tmp_path_factory.mktemp("callgrind"), Path(__file__).with_name("decoding.py"), FEW, MANY)
    yield process
    process.close()


@pytest.mark.spread(1)
@pytest.mark.parametrize("name", CEILINGS)
def test_a_change_costs_no_more_instructions_than_it_did(counted: Counted, name: str) -> None:
    """A slower decoder shows here at once, where a clock on a busy machine shows nothing."""
    for size in (FEW, MANY):
        counted.count(name, size)  # the first time under the tool is not like the others
    instructions = (counted.count(name, MANY) - counted.count(name, FEW)) / (MANY - FEW)
    print(f"{name}: {instructions:.0f} instructions a change")
    # Far below the ceiling it is not these decoders that ran.
    assert CEILINGS[name] / 3 < instructions < CEILINGS[name]
