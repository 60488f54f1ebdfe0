"""Which conditions contracts may have."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing

import pytest

from cdcflow.tables.local.session import DuckSession
from cdcflow.tables.sql.conditions import parse_condition
from cdcflow.tables.sql.trees import SqlRefused

COLUMNS = ("id", "customer", "amount")
REFUSED: Mapping[str, str] = {
    "": "not one expression",
    "amount >=": "not one expression",
    "amount > 0; DROP TABLE x": "not one expression",
    "amount > 0) OR (true": "not one expression",
    "amount > 0, true": "not one expression",
    "true FROM range(3)": "not one expression",
    "true LIMIT 1": "not one expression",
    "amount > (SELECT 0)": "it has subquery, which conditions do not support",
    "EXISTS (SELECT 1)": "subquery",
    "amount > $1": "parameter",
    "sum(amount) OVER () > 0": "window",
    "list_filter([amount], lambda x: x > 0) = []": "list_filter()",
    "abs(amount) FILTER (WHERE true) > 0": "FILTER",
    "read_text('/etc/passwd') = ''": "it calls read_text(), which conditions do not support",
    "getenv('HOME') = ''": "getenv()",
    "random() < 2": "random()",
    "now() > '2026-01-01'": "now()",
    "current_date > '2026-01-01'": "there is no column current_date",
    "sum(amount) > 0": "sum()",
    "main.abs(amount) > 0": "abs() of a schema",
    "amuont > 0": "there is no column amuont; did you mean amount?",
    "x.amount > 0": "there is no column x.amount",
    "lenght(customer) > 0": "did you mean length?",
}


@pytest.fixture(scope="module")
def session() -> Iterator[DuckSession]:
    with closing(DuckSession()) as made:
        yield made


@pytest.mark.parametrize("text", REFUSED)
def test_condition_with_anything_but_values_of_its_row_is_refused(session: DuckSession, text: str) -> None:
    """The author of a condition need not be allowed to read files, and a check must not depend on the time."""
    with pytest.raises(SqlRefused) as refused:
        parse_condition(session.parse, text, COLUMNS)
    assert REFUSED[text] in str(refused.value)


def test_columns_of_a_condition_are_those_of_the_table(session: DuckSession) -> None:
    """A column that was not sent is neither NULL nor a value, so all columns that decide must be known."""
    found = parse_condition(session.parse, """AMOUNT > 0 AND octet_length("customer"::blob) < 9 -- short""", COLUMNS)
    assert set(found.columns) == {"amount", "customer"}
    assert found.sql.endswith("-- short\n)")


def test_older_duckdb_is_refused(session: DuckSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its trees would be misread, so the reason would name a part of a correct condition."""
    monkeypatch.setattr("duckdb.__version__", "1.5.6")
    with pytest.raises(SqlRefused, match=r"needs DuckDB 2 or newer, and 1\.5\.6 is installed"):
        parse_condition(session.parse, "amount > 0", COLUMNS)


def test_time_of_a_condition_is_that_of_utc() -> None:
    """A row would break its contract on one machine and not on another. DuckDB reads the zone once in a process."""
    check = "from cdcflow.tables.local.session import DuckSession as S\nfor memory in (None, 10**9):\n  "
    check += """print(S(memory).rows("SELECT hour(CAST('2026-01-01 02:00:00+00' AS timestamptz))"))"""
    found = subprocess.run(
        [sys.executable, "-c", check], env={**os.environ, "TZ": "America/New_York"}, capture_output=True, check=True
    )
    assert found.stdout.split() == [b"[(2,)]", b"[(2,)]"]
