"""Minutes of the servers' own test suites, drawn by a seed: source and log agree, and each remedy ends its stop."""

from __future__ import annotations

import os
import random

import pytest
from tests.suites.mysqltests import run_tests
from tests.suites.regression import run_regression
from tests.suites.report import Wanted

SECONDS = float(os.environ.get("CDCFLOW_SUITES_S", "200"))


@pytest.fixture
def wanted() -> Wanted:
    seed = int(os.environ.get("CDCFLOW_SUITES_SEED", "0")) or random.SystemRandom().randrange(1, 1_000_000)
    print(f"CDCFLOW_SUITES_SEED={seed}")
    return Wanted(SECONDS, seed)


@pytest.mark.long
@pytest.mark.postgres
@pytest.mark.timeout(1800)
def test_postgres_agrees_with_its_log(wanted: Wanted) -> None:
    """An independent workload: it finds what cdcflow's own fuzzers do not draw."""
    report = run_regression(wanted)
    assert report.counts["tables compared"] > 0
    assert not report.failures


@pytest.mark.long
@pytest.mark.mysql
@pytest.mark.timeout(1800)
def test_mysql_agrees_with_its_log(wanted: Wanted) -> None:
    """An independent workload: it finds what cdcflow's own fuzzers do not draw."""
    report = run_tests("mysql", wanted)
    assert report.counts["tables compared"] > 0
    assert not report.failures


@pytest.mark.long
@pytest.mark.mysql
@pytest.mark.timeout(1800)
def test_mariadb_agrees_with_its_log(wanted: Wanted) -> None:
    """An independent workload: it finds what cdcflow's own fuzzers do not draw."""
    report = run_tests("mariadb", wanted)
    assert report.counts["tables compared"] > 0
    assert not report.failures
