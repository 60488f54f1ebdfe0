"""The rules of `cdcflow plan --ddl` and the tables of statements in docs/ are the same, row by row."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.test_ddl_pages import rows

from cdcflow.sources.engine.statement_rules import StatementRule
from cdcflow.sources.mysql.statement_rules import RULES as MYSQL
from cdcflow.sources.postgres.statement_rules import RULES as POSTGRES

PAGES = {"postgres-ddl.md": POSTGRES, "mysql-ddl.md": MYSQL}
BEGINS = {
    "nothing": ("nothing", "counts from the next row", "skipped", "the next row has the new key"),
    "read again": (
        "read again",
        "the root is **read again**",
        "during a backfill they are read with it; then the root",
    ),
    "added": ("**added**", "nothing; the next check adds it", "its changes continue under the name"),
    "kept": ("the others continue; **kept**", "nothing arrives under the new name; what it had is **kept**"),
    "emptied": ("emptied", "the log gets one truncate"),
    "fails": (
        "**fails**",
        "the server refuses updates",
        "a captured table **fails**",
        "the same; with any method other than heap",
    ),
    "stops": ("stops",),
    "refused": ("the server refuses it",),
}
"""How the page's words begin for each effect; what depends on something names it."""
NOT_REHEARSED = Path(__file__).with_name("statements_not_rehearsed.txt")


@pytest.mark.parametrize("page", PAGES)
def test_rules_are_the_rows_of_the_page(page: str) -> None:
    """A row that is changed on one side alone would make the rehearsal wrong, or the page."""
    shown = {cells[0]: cells[1] for cells in rows(page)}
    assert {rule.statement: rule.answer for rule in PAGES[page]}.items() <= shown.items()
    others = [line.partition(" ")[2] for line in NOT_REHEARSED.read_text().splitlines() if line.startswith(page)]
    assert sorted(others) == sorted(shown.keys() - {rule.statement for rule in PAGES[page]})


@pytest.mark.parametrize("rule", [*POSTGRES, *MYSQL], ids=lambda rule: rule.kind)
def test_effect_of_a_rule_is_what_its_row_answers(rule: StatementRule) -> None:
    """The words are for readers, the effect for the program."""
    if rule.effect == "depends":
        assert any(
            word in rule.answer
            for word in ("; before 18", "; 17 does", "since 18", "if a row", "if the table has", "(but see", "unless a")
        )
    else:
        assert rule.answer.startswith(BEGINS[rule.effect])
