"""When rows that were read show other values: the rule alone, without a server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from cdcflow.sources.postgres.rewrites import CatalogVersion

FILES = {16401: (5001, "aa"), 16402: (5002, "bb")}
READ = CatalogVersion(
    16400,
    FILES,
    ("17", "", "19"),
    {16390: frozenset({"1a", "2b"})},
    attached_by={16402: "744:746"},
    created_by="740",
)


@pytest.mark.parametrize(
    ("now", "changed"),
    [
        ({}, False),
        (
            {"files": {16401: (6001, "aa"), 16402: (5002, "bb")}},
            True,
        ),  # TRUNCATE (hard case P14) or VACUUM FULL of a partition
        ({"files": {16401: (5001, "ax"), 16402: (5002, "bx")}}, False),  # ADD COLUMN … DEFAULT 7
        ({"files": {16401: (6001, "ax"), 16402: (5002, "bx")}}, True),  # a statement rewrote one partition
        ({"files": {16401: (5001, "aa")}}, True),  # DETACH, DROP
        ({"files": {**FILES, 16403: (16403, "cc")}}, False),  # CREATE TABLE … PARTITION OF
        ({"files": {**FILES, 16403: (16403, "cc")}, "attached": frozenset({16403})}, True),
        ({"attached": frozenset({16401, 16402})}, False),  # attached before the rows were read
        ({"columns": ("17", "", "19", "17")}, False),
        ({"columns": ("17", "", "")}, False),
        ({"columns": ("17", "", "72a")}, True),  # the same bytes under another type
        ({"columns": ("-17", "", "19")}, True),
        ({"types": {16390: frozenset({"1a", "2b", "3c"})}}, False),  # ADD VALUE
        ({"types": {16390: frozenset({"1a", "9f"})}}, True),  # RENAME VALUE
        ({"types": {}}, False),  # the last column of the type is gone
        ({"types": {**READ.types, 16500: frozenset({"9f"})}}, False),  # ADD COLUMN of another type
        ({"types": {**READ.types, 16500: frozenset({"9f"})}, "altered": frozenset({16500})}, True),
        ({"altered": frozenset({16390})}, False),  # altered before the rows were read
        ({"attached_by": {16401: "745", 16402: "790"}}, True),  # DETACH, and ATTACH again
        ({"attached_by": {16401: "745"}}, False),  # the version is of an earlier cdcflow, which did not record it
        ({"attached_by": {16401: "3", 16402: "4"}, "created_by": "2"}, False),  # pg_upgrade
        ({"columns": ("17", "", "19", "4a2"), "unkept": frozenset({4})}, True),  # ADD COLUMN … DEFAULT interval
        ({"unkept": frozenset({3})}, False),  # added before the rows were read
    ],
)
def test_rows_changed_when_what_they_show_depends_on_changed(now: Mapping[str, Any], changed: bool) -> None:
    """If too few are found, a table stays wrong; if too many, every VACUUM FULL causes a complete read."""
    assert replace(READ, **now).changed_since(READ) is changed


@pytest.mark.parametrize(
    ("now", "changed"),
    [((6001, "aa"), False), ((5001, "ax"), False), ((6001, "ax"), True)],  # VACUUM FULL, ADD COLUMN, both at once
)
def test_rows_of_a_table_without_partitions_changed_when_file_and_columns_did(
    now: tuple[int, str], changed: bool
) -> None:
    """Its TRUNCATE is logged, so a new file alone means VACUUM FULL, and reading it again would be useless."""
    plain = replace(READ, files={16400: (5001, "aa")})
    assert replace(plain, files={16400: now}).changed_since(plain) is changed


def test_version_survives_its_json() -> None:
    """The log keeps it for years, and it is compared with the catalog of that time."""
    for version in (READ, replace(READ, types={}, columns=("", "17", ""))):
        again = CatalogVersion.from_json(version.to_json())
        assert again == version
        assert again.to_json() == version.to_json()
