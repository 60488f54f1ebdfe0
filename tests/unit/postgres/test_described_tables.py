"""What is refused in a table's shape, with an error that names it, before a row is read."""

from __future__ import annotations

from typing import get_args

import pytest

from cdcflow.config import Special
from cdcflow.errors import ConfigurationError
from cdcflow.model.table import Identity, TableId
from cdcflow.sources.postgres.types import AttributeInfo, DescribedTable, Policy, describe_table

INT4, DATE, TIMESTAMP, NUMERIC, INT4_ARRAY = 23, 1082, 1114, 1700, 1007
NUMERIC_5_2 = (5 << 16 | 2) + 4


def described(column: AttributeInfo, policy: Policy) -> DescribedTable:
    return describe_table(TableId("public", "t"), 16384, [column], Identity.KEY, policy)


def day(**about: object) -> AttributeInfo:
    return AttributeInfo("day", 1, DATE, -1, "date", **about)  # type: ignore[arg-type]  # any field


@pytest.mark.parametrize(
    "column",
    [
        AttributeInfo("k", 1, DATE, -1, "date", in_key=True),
        AttributeInfo("k", 1, TIMESTAMP, -1, "timestamp without time zone", in_key=True),
        AttributeInfo("k", 1, NUMERIC, NUMERIC_5_2, "numeric(5,2)", base_modifier=NUMERIC_5_2, in_key=True),
        AttributeInfo("k", 1, INT4_ARRAY, -1, "integer[]", element_oid=INT4, in_key=True),
    ],
    ids=lambda column: column.type_text,
)
@pytest.mark.parametrize("special", ["null", "clamp"])
def test_key_whose_values_would_become_one_is_refused(column: AttributeInfo, special: Special) -> None:
    """Two rows with infinity and -infinity would be one row downstream, and a delete of one would delete both."""
    with pytest.raises(ConfigurationError, match=rf"public\.t\.k.*source\.special_values is {special}") as refused:
        described(column, Policy(special_values=special))
    assert "{public.t.k: text}" in str(refused.value.remedy)
    with pytest.raises(ConfigurationError, match=rf"source\.columns says {special} for it"):
        described(column, Policy(columns={"public.t.k": special}))
    for mended in ("text", "stop"):
        described(column, Policy(special_values=special, columns={"public.t.k": mended}))


@pytest.mark.parametrize("special", get_args(Special))
def test_policy_is_free_for_what_is_no_key_or_has_no_such_values(special: Special) -> None:
    described(day(), Policy(special_values=special))
    described(AttributeInfo("k", 1, INT4, -1, "integer", in_key=True), Policy(special_values=special))
