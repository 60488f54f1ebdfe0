"""Settings: one file, `cdcflow.yaml`, parsed once into frozen models. The names here are the names everywhere.

Loading lives here too (`load`), because a wrong setting is answered with its place in the file. Secrets are
references (`${env:NAME}`, `${file:path}`) and are resolved when they are used, so that a rotated one is read anew.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

_UNITS = {"b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "kb": 10**3, "mb": 10**6, "gb": 10**9}
_TIMES = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def _with_unit(units: dict[str, float] | dict[str, int], example: str) -> BeforeValidator:
    def parse(value: object) -> object:
        if isinstance(value, bool) or not isinstance(value, str):
            return value
        text = value.strip().lower()
        for unit in sorted(units, key=len, reverse=True):
            if text.endswith(unit):
                try:
                    return float(text[: -len(unit)]) * units[unit]
                except ValueError:
                    break
        raise ValueError(f"must be a number with a unit, such as {example}")

    return BeforeValidator(parse)


Bytes = Annotated[int, _with_unit(_UNITS, "64MiB"), Field(gt=0)]
Seconds = Annotated[float, _with_unit(_TIMES, "10s"), Field(gt=0)]
Special = Literal["stop", "null", "text", "clamp"]


class Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Backfill(Settings):
    """How existing rows are read."""

    chunk_time_target_ms: int = Field(200, gt=0)
    chunk_rows_max: int = Field(200_000, gt=0)
    rows_per_second_max: int | None = Field(None, gt=0)
    ranges_at_once: int = Field(2, gt=0, le=16)
    held_bytes_max: Bytes = 64 << 20


class Postgres(Settings):
    """A PostgreSQL source.

    `slot` and `publication` are named after the log when left out, so that nobody else's is ever taken.
    `special_values` says what becomes of values that the Arrow type cannot hold (infinity in dates and timestamps, NaN
    in a numeric with precision): stop the capture by name, NULL, keep the whole column as text, or clamp to the
    type's ends. `unconstrained_numeric` is the type of `numeric` without precision: exact text, or `decimal(p,s)`.
    `columns` overrides either for one column, by its full name (`public.orders.due`).
    """

    kind: Literal["postgres"]
    url: str
    password: str | None = None
    tables: tuple[str, ...] = ("public.*",)
    slot: str | None = None
    publication: str | None = None
    failover: bool = False
    special_values: Special = "stop"
    unconstrained_numeric: str = "text"
    columns: dict[str, str] = Field(default_factory=dict)
    streaming: bool = True
    binary: bool = True
    heartbeat: Seconds = 10.0
    spool_bytes_max: Bytes = 32 << 20
    backfill: Backfill = Backfill()


class Seal(Settings):
    bytes_max: Bytes = 64 << 20
    age_max: Seconds = 10.0


class FileLog(Settings):
    path: Path
    seal: Seal = Seal()


class Merge(Settings):
    format: Literal["delta"] = "delta"
    warehouse: Path = Path("warehouse")
    every: Seconds | None = None


class Service(Settings):
    listen: str | None = None


class Config(Settings):
    """The whole of `cdcflow.yaml`."""

    source: Postgres
    log: FileLog
    merge: Merge = Merge()
    service: Service = Service()
