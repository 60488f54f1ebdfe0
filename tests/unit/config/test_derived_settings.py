"""Settings of derived tables that contradict each other are refused by the file, not by a merge."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from cdcflow.config import Config

SQL = {"key": ["id"], "sql": "SELECT id FROM orders"}
FUNCTION = {"key": ["id"], "from": "public.orders", "transform": "shop:clean"}


def settings(derive: dict[str, Any], **merge: Any) -> Config:
    return Config.model_validate(
        {
            "source": {"kind": "postgres", "url": "postgresql://localhost/shop"},
            "log": {"path": "log"},
            "merge": {"derive": {"one": derive}, **merge},
        }
    )


def test_query_or_function_is_accepted() -> None:
    assert settings(SQL).merge.derive["derived.one"].sql == SQL["sql"]
    assert settings(FUNCTION | {"version": "2"}).merge.derive["derived.one"].from_ == "public.orders"


@pytest.mark.parametrize(
    ("derive", "why"),
    [
        ({"key": ["id"]}, "must have either sql or transform"),
        (SQL | FUNCTION, "must have either sql or transform"),
        (SQL | {"from": "public.orders"}, "must have from if it has transform, and not otherwise"),
        ({"key": ["id"], "transform": "shop:clean"}, "must have from if it has transform, and not otherwise"),
        (SQL | {"version": "2"}, "has version, which only transform uses"),
        (FUNCTION | {"from_": "public.orders"}, "Extra inputs"),
    ],
)
def test_other_combinations_are_refused(derive: dict[str, Any], why: str) -> None:
    """Which of two would be used is not for a reader of the file to guess."""
    with pytest.raises(ValidationError, match=why):
        settings(derive)


def test_mode_of_a_derived_table_is_refused() -> None:
    """It would be ignored, and an operator would expect a history."""
    for mode, is_refused in (("history", True), ("current", False)):
        tables = {"each": {"derived.one": {"mode": mode}}}
        if is_refused:
            with pytest.raises(ValidationError, match=r"each.derived.one has mode history, and a derived table"):
                settings(SQL, tables=tables)
        else:
            settings(SQL, tables=tables)
