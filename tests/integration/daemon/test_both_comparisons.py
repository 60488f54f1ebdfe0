"""Two comparisons check what a crash leaves: `cdcflow verify`, and the tests' own, which shares no code with it.

A faulty daemon is planted here; each of the two has to detect it. What only one of them finds would be a fault of the
other.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.support.capture.wrong_decoder import Decode, make_wrong, wrong_in
from tests.support.daemon.bank import Bank

from cdcflow.sources.postgres.stream import PostgresStream

pytestmark = pytest.mark.postgres

ELSEWHERE = 20_000


def cut_off(texts: pa.Array) -> pa.Array:
    return pa.array([None if text is None else text[:-1] for text in texts.to_pylist()], texts.type)


def of_other_rows(ids: pa.Array) -> pa.Array:
    """Changes applied to other rows than theirs, which then lack them."""
    return pc.add(ids, ELSEWHERE).cast(ids.type)


Found = Mapping[int, tuple[str, tuple[str, ...]]]
"""Which rows differ: how, and in which columns."""

IN_OWNER = ("different", ("owner",))
CUT_OFF: Found = {5: IN_OWNER, 7: IN_OWNER}
LOST: Found = {8: IN_OWNER, 10: IN_OWNER, ELSEWHERE + 8: ("extra", ()), ELSEWHERE + 10: ("extra", ())}


def test_faults_of_a_daemon_are_found_by_both_comparisons(bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    """A comparison that finds nothing proves something only if it finds real faults."""
    with bank.capturing():
        bank.assert_verified()
        compare(bank, monkeypatch, wrong_in("owner", cut_off), "5, 7", CUT_OFF)
        compare(bank, monkeypatch, wrong_in("id", of_other_rows), "8, 10", {**CUT_OFF, **LOST})


def compare(bank: Bank, monkeypatch: pytest.MonkeyPatch, decode: Decode, ids: str, wanted: Found) -> None:
    """Change rows while the daemon is faulty, and return what each comparison finds."""
    with monkeypatch.context() as errs:
        make_wrong(errs, PostgresStream, decode)
        bank.database.execute(f"UPDATE accounts SET owner = 'somebody' WHERE id IN ({ids})")
        with pytest.raises(AssertionError, match=r"public\.accounts"):
            bank.assert_verified()
    found = {table.table: table for table in bank.verified().tables}
    assert {name for name, table in found.items() if table.verdict == "different"} == {"public.accounts"}
    accounts = found["public.accounts"]
    assert accounts.different == len(wanted)
    assert {one.key["id"]: (one.what, one.columns) for one in accounts.differences}.items() <= wanted.items()
    with pytest.raises(AssertionError, match="accounts"):
        bank.assert_log_equals_source()
