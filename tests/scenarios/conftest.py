"""`pytest tests/scenarios --rewrite` writes the machine's current output into the files; read the difference."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="rewrite the scenarios' expected lines")


@pytest.fixture
def rewrite(request: pytest.FixtureRequest) -> bool:
    # The default serves runs that begin above this directory, where the option is not known.
    return bool(request.config.getoption("--rewrite", False))
