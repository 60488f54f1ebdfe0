"""Every package that is installed with cdcflow has a version in constraints.txt."""

from __future__ import annotations

from tests.release.build import ROOT, pinned_dependencies


def test_constraints_pin_each_dependency_of_each_extra() -> None:
    """An image that is built next year has what this one has, and a release's list of parts is complete."""
    names = {line.partition("==")[0] for line in pinned_dependencies(ROOT)}
    assert {"psycopg-binary", "deltalake", "pyiceberg", "obstore", "uvicorn"} <= names
