"""When rows that were read show other values: the rule alone, without a server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from cdcflow.sources.postgres.rewrites import CatalogVersion

READ = CatalogVersion(
    16400,
    {16401: (5001, "aa"), 16402: (5002, "bb")},
    ("17", "", "19"),
    {16390: frozenset({"1a", "2b"})},
)


@pytest.mark.parametrize(
    ("now", "changed"),
    [
        ({}, False),
        ({"files": {16401: (6001, "aa"), 16402: (6002, "bb")}}, False),  # VACUUM FULL, TRUNCATE
        ({"files": {16401: (5001, "ax"), 16402: (5002, "bx")}}, False),  # ADD COLUMN … DEFAULT 7
        ({"files": {16401: (6001, "ax"), 16402: (5002, "bx")}}, True),  # a statement rewrote one partition
        ({"files": {16401: (6001, "aa"), 16402: (5002, "bx")}}, False),  # one is moved, the other one changed
        ({"files": {16401: (5001, "aa"), 16403: (7003, "cc")}}, False),  # one detached, another one attached
        ({"columns": ("17", "", "19", "17")}, False),
        ({"columns": ("17", "", "")}, False),
        ({"columns": ("17", "", "72a")}, True),  # the same bytes under another type
        ({"columns": ("-17", "", "19")}, True),
        ({"types": {16390: frozenset({"1a", "2b", "3c"})}}, False),  # ADD VALUE
        ({"types": {16390: frozenset({"1a", "9f"})}}, True),  # RENAME VALUE
        ({"types": {}}, False),  # the last column of the type is gone
    ],
)
def test_rows_changed_when_what_they_show_depends_on_changed(now: Mapping[str, Any], changed: bool) -> None:
    """Too few, and a table is wrong for good; too many, and every VACUUM FULL reads it from the start."""
    assert replace(READ, **now).changed_since(READ) is changed


def test_version_survives_its_json() -> None:
    """It lies in the log for years, and is compared with what is there then."""
    for version in (READ, replace(READ, types={}, columns=("", "17", ""))):
        again = CatalogVersion.from_json(version.to_json())
        assert again == version
        assert again.to_json() == version.to_json()
