"""Contracts: what the columns of a table in the warehouse promise, and what happens to rows that break it."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from cdcflow.config.base import Settings


class ColumnContract(Settings):
    """What a column promises. `contracts: {public.orders: {amount: {not_null: true, check: "amount >= 0"}}}`."""

    type: str | None = Field(None, min_length=1)
    """The column's type in the table, as Spark names it: `decimal(12,2)`, `bigint`, `string`, `timestamp`. A different
    type stops the table before it is changed, also with `quarantine`."""
    not_null: bool = False
    """No row has NULL in this column."""
    check: str | None = Field(None, min_length=1)
    """A condition over the columns of the row, in DuckDB's SQL ([contracts.md](contracts.md#conditions)). As in a
    database, a row breaks it if it is false; NULL passes."""
    on_violation: Literal["stop", "quarantine", "warn"] = "stop"
    """`stop`: the table stays at its last cut until the rows or the contract are corrected; `quarantine`: the rows
    are in the table `<name>__quarantine` instead; `warn`: they are in the table, counted and reported."""

    @field_validator("type")
    @classmethod
    def _spell_type(cls, given: str | None) -> str | None:
        return None if given is None else "".join(given.lower().split())

    @model_validator(mode="after")
    def _promises_something(self) -> Self:
        if self.type is None and not self.not_null and self.check is None:
            raise ValueError("promises nothing: set type, not_null or check")
        return self
