"""Amounts with a unit, as written in settings and command options: `64MiB`, `10s`."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field, TypeAdapter, ValidationError

from cdcflow.errors import ConfigurationError

BYTES = {"b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "kb": 10**3, "mb": 10**6, "gb": 10**9}
TIMES = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def with_unit(units: dict[str, float] | dict[str, int], example: str) -> BeforeValidator:
    """Return a validator that accepts a text with one of these units in addition to a plain number."""

    def parse(value: object) -> object:
        if isinstance(value, bool):  # `on` and `yes` are booleans in YAML, and pydantic takes them for 1
            raise ValueError(f"must be a number with a unit, such as {example}")
        if not isinstance(value, str):
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


def _at_most(seconds: float) -> float:
    """Return the seconds, but refuse values that clocks and waits of the system cannot hold, and infinity, which JSON
    cannot hold."""
    if not seconds <= SECONDS_MAX:
        raise ValueError(f"must be at most {SECONDS_MAX / TIMES['d']:.0f}d")
    return seconds


SECONDS_MAX = 36_500 * TIMES["d"]
Bytes = Annotated[int, with_unit(BYTES, "64MiB"), Field(gt=0)]
Seconds = Annotated[float, with_unit(TIMES, "10s"), Field(gt=0), AfterValidator(_at_most)]
SecondsOrNone = Annotated[float, with_unit(TIMES, "10m"), Field(ge=0), AfterValidator(_at_most)]


def byte_count(text: str) -> int:
    """Parse an amount of bytes (`64MiB`) in a command option.

    Raises:
        ConfigurationError: the text is not a valid amount.
    """
    try:
        return TypeAdapter(Bytes).validate_python(text)
    except ValidationError:
        raise ConfigurationError("an amount of bytes must be a number with a unit, such as 256MiB") from None


def seconds(text: str, *, zero: bool = False) -> float:
    """Parse a time (`30s`, `5m`) in a command option. `zero`: 0s is allowed.

    Raises:
        ConfigurationError: the text is not a valid time.
    """
    try:
        return TypeAdapter(SecondsOrNone if zero else Seconds).validate_python(text)
    except ValidationError as error:
        if any(one["type"].startswith("greater_than") for one in error.errors()):
            least = "0s or more" if zero else "more than 0s"
            raise ConfigurationError(f"a time must be {least}, and {text} is not") from None
        raise ConfigurationError("a time must be a number with a unit, such as 30s or 5m") from None
