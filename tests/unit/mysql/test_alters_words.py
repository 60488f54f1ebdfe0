"""Every word by which a clause of ALTER TABLE is known to leave all values unchanged."""

from __future__ import annotations

import pytest

from cdcflow.sources.mysql.alters import HARMLESS, alter_effects
from cdcflow.sources.mysql.sql import tokens_of

OPTIONS = [
    "ALGORITHM",
    "AUTOEXTEND_SIZE",
    "AUTO_INCREMENT",
    "AVG_ROW_LENGTH",
    "CHECKSUM",
    "COMMENT",
    "COMPRESSION",
    "ENCRYPTED",
    "ENCRYPTION",
    "ENCRYPTION_KEY_ID",
    "KEY_BLOCK_SIZE",
    "LOCK",
    "MAX_ROWS",
    "MIN_ROWS",
    "PACK_KEYS",
    "PAGE_CHECKSUM",
    "PAGE_COMPRESSED",
    "PAGE_COMPRESSION_LEVEL",
    "ROW_FORMAT",
    "STATS_AUTO_RECALC",
    "STATS_PERSISTENT",
    "STATS_SAMPLE_PAGES",
    "TRANSACTIONAL",
]


def fills(said: str) -> bool:
    return alter_effects(list(tokens_of(said))).fills


@pytest.mark.parametrize("option", OPTIONS)
def test_option_that_does_not_concern_values_is_followed_by_one_value(option: str) -> None:
    """With its equals sign and without; and the clause after the value is examined again."""
    for said in (f"{option} = 1", f"{option} 1", f"{option} = 1 {option} 2", f"{option}=1, ADD INDEX (v)"):
        assert alter_effects(list(tokens_of(said))) == HARMLESS
        assert fills(f"{said}, DROP v")
    assert fills(f"{option} = 1 DROP v")
    assert fills(f"{option} 1 DROP v")


@pytest.mark.parametrize("option", ["FORCE", "NOWAIT", "WAIT 5"])
def test_standalone_word_has_no_value(option: str) -> None:
    """The next word is the next clause's."""
    assert not fills(option)
    assert fills(f"{option} DROP v")
    assert not fills(f"{option} ADD INDEX (v)")


@pytest.mark.parametrize("engine", ["InnoDB", "rocksdb", "`InnoDB`"])
def test_an_engine_that_keeps_every_value_is_no_matter(engine: str) -> None:
    """A different engine may round or cut them."""
    for sign in (" ", " = "):
        assert not fills(f"ENGINE{sign}{engine}")
        assert not fills(f"ENGINE{sign}{engine} ROW_FORMAT = DYNAMIC")
        assert fills(f"ENGINE{sign}{engine} DROP v")
        assert fills(f"ENGINE{sign}MEMORY")


@pytest.mark.parametrize(
    "added",
    [
        "INDEX i (generated)",
        "KEY i (serial)",
        "UNIQUE (generated)",
        "UNIQUE KEY i (generated)",
        "FULLTEXT INDEX i (generated)",
        "SPATIAL INDEX i (generated)",
        "FOREIGN KEY (generated) REFERENCES u (id)",
        "CHECK (generated = 1)",
        "CONSTRAINT c UNIQUE (generated)",
    ],
)
def test_what_is_added_and_is_no_column_fills_nothing(added: str) -> None:
    """Whatever its columns are called: some words need no quotes as names."""
    assert not fills(f"ADD {added}")


@pytest.mark.parametrize("kind", ["INDEX", "KEY", "FOREIGN KEY", "CHECK", "CONSTRAINT"])
def test_what_is_dropped_and_is_no_column_fills_nothing(kind: str) -> None:
    """A dropped column may return with other values under its name."""
    assert not fills(f"DROP {kind} c")
    assert fills("DROP c")
    assert fills("DROP COLUMN c")


@pytest.mark.parametrize(
    "clause",
    ["ADD", "ANALYZE", "CHECK", "COALESCE", "OPTIMIZE", "REBUILD", "REORGANIZE"],
)
def test_partitions_may_be_reorganized(clause: str) -> None:
    """Rows stay in the table with their values; the same word without PARTITION is another clause."""
    assert not fills(f"{clause} PARTITION p")
    assert fills(f"{clause} v int NOT NULL" if clause == "ADD" else f"{clause} p")


@pytest.mark.parametrize(
    ("said", "does"),
    [
        ("PARTITION BY HASH (id)", False),
        ("ORDER BY id", False),
        ("WITH VALIDATION", False),
        ("WITHOUT VALIDATION", False),
        ("WITH SYSTEM VERSIONING", True),
        ("REMOVE PARTITIONING", False),
        ("REMOVE x", True),
        ("ENABLE KEYS", False),
        ("DISABLE KEYS", False),
        ("ENABLE x", True),
        ("DISABLE x", True),
        ("ALTER v SET DEFAULT 5", False),
        ("ALTER INDEX i INVISIBLE", False),
        ("RENAME INDEX a TO b", False),
        ("RENAME KEY a TO b", False),
        ("RENAME CONSTRAINT a TO b", False),
        ("RENAME COLUMN a TO b", True),
        ("PARTITION x", True),
        ("ORDER x", True),
    ],
)
def test_each_clause_by_its_first_two_words(said: str, does: bool) -> None:
    """A pair of words that is not known counts as changing values."""
    assert fills(said) is does


@pytest.mark.parametrize(
    "word", ["NULL", "DEFAULT 5", "COMMENT 'x'", "FIRST", "AFTER id", "VISIBLE", "INVISIBLE", "SIGNED", "NOT NULL"]
)
def test_keywords_of_a_definition_that_do_not_concern_values(word: str) -> None:
    """The column is compared with what it was; any other word may convert."""
    found = alter_effects(list(tokens_of(f"MODIFY v bigint {word}")))
    assert not found.fills
    assert [c.name for c in found.redefined] == ["v"]
    assert fills(f"MODIFY v bigint {word} COLLATE utf8mb4_bin")
