"""Spark for the tests of the demo's proof."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cdcflow.spark.session import session


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> SparkSession:
    """One local Spark session for all tests here."""
    scratch: Path = tmp_path_factory.mktemp("spark")
    return session(name="cdcflow tests", cores=2, memory="1g", scratch=scratch)
