"""Tests of a pipeline in pytest: these changes at the source, these rows in the tables; without servers.

    from cdcflow.testing import pipeline

    def test_cancelled_order_leaves_the_table():
        pipeline.check(
            "cdcflow.yaml",
            tables={"public.orders": {"columns": {"id": "integer", "amount": "numeric(12,2)"}, "key": ["id"]}},
            before={"public.orders": [{"id": 1, "amount": "10.00"}]},
            changes=[{"delete": {"public.orders": [{"id": 1}]}}],
            expected={"public.orders": []},
        )

    @pytest.mark.parametrize("claim", pipeline.claims("tests/orders.yaml"))
    def test_orders(claim):
        pipeline.check_file("cdcflow.yaml", "tests/orders.yaml", claim)

The arguments are named as the entries of a file of tests (docs/pipeline-tests.md). A failed test is an AssertionError
with a table of the differences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cdcflow.config import Config, load
from cdcflow.config.setting_paths import SettingPath, dotted_name
from cdcflow.errors import ConfigurationError
from cdcflow.model.suggestions import did_you_mean
from cdcflow.rehearsal.cases import Case, Cases, read_cases
from cdcflow.rehearsal.files import read_file
from cdcflow.rehearsal.play import play

__all__ = ["check", "check_file", "claims"]

_NAME = "the test"


def check(
    settings: Config | Path | str,
    *,
    tables: Mapping[str, Mapping[str, Any]],
    before: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
    changes: Sequence[Any] = (),
    expected: Mapping[str, Any] | None = None,
    excluded: Mapping[str, str] | None = None,
    stops: str | None = None,
    then: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Check what a pipeline does with some changes. Values may be Python values, or texts as in a file.

    Raises:
        AssertionError: the tables have other rows; the message lists each difference.
        ConfigurationError: the test names something that does not exist, or a value does not fit its column.
    """
    case: dict[str, Any] = {"before": before, "changes": list(changes), "tables": expected, "excluded": excluded}
    case |= {"stops": stops, "then": list(then)}
    cases = read_cases({"tables": tables, "tests": {_NAME: case}}, _locate)
    _check(settings, _NAME, cases, cases.cases[0])


def check_file(settings: Config | Path | str, file: Path | str, claim: str | None = None) -> None:
    """Run the tests of a file, or the one with this claim.

    Raises:
        AssertionError: a test failed; the message lists each difference.
        ConfigurationError: a mistake in the file; no test has the claim.
    """
    cases = read_file(Path(file))
    if claim is not None and claim not in (known := [case.name for case in cases.cases]):
        raise ConfigurationError(
            f"{file} has no test {claim!r}",
            remedy=f"{did_you_mean(claim, known)}it has: {'; '.join(known)}",
            runbook="pipeline-tests",
        )
    for case in cases.cases:
        if claim in (None, case.name):
            _check(settings, str(file), cases, case)


def claims(file: Path | str) -> list[str]:
    """The claims of a file's tests, for `pytest.mark.parametrize`."""
    return [case.name for case in read_file(Path(file)).cases]


def _check(settings: Config | Path | str, file: str, cases: Cases, case: Case) -> None:
    result = play(settings if isinstance(settings, Config) else load(settings), file, cases, case)
    if not result.has_passed:
        raise AssertionError(result.report())


def _locate(place: SettingPath) -> str:
    """Return a setting's place as text: the argument of `check`, or the file and its line."""
    if place[:2] != ("tests", _NAME):
        return dotted_name(place)
    first, *rest = place[2:] or ("then",)
    return dotted_name(("expected" if first == "tables" else first, *rest))
