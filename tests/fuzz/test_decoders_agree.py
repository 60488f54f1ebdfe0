"""The compiled decoders against the plain ones, which are the reference: the same bytes must give the same.

`make fuzz` does this with hundreds of thousands of messages; `python tests/fuzz/run.py --case SEED` replays one case.
"""

from __future__ import annotations

import os
import shutil

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pgfuzz import case_of, copy_differs, differs

from cdcflow.sources.postgres.twins import COMPILED

EXAMPLES = settings(
    max_examples=int(os.environ.get("CDCFLOW_EXAMPLES", "60")),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


def test_the_compiled_decoders_were_built_where_there_is_a_compiler() -> None:
    """A build that quietly fails would leave every test of the compiled decoders without anything to test."""
    assert COMPILED is not None or shutil.which("cc") is None


@given(st.integers(0, 2**60))
@EXAMPLES
def test_both_twins_make_the_same_of_any_stream(number: int) -> None:
    """Whoever installs without a compiler must get the same log, and the same words when something is wrong (O10)."""
    assert not differs(case_of(number))


@given(st.integers(0, 2**60))
@EXAMPLES
def test_both_twins_make_the_same_of_any_copy(number: int) -> None:
    """A chunk's rows must not depend on where cdcflow was built."""
    _, _, difference = copy_differs(number)
    assert not difference
