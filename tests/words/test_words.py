"""Prose gets plainer: no phrase of the table is more frequent than its ceiling, and ceilings only fall."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.words import ceilings
from tests.words.ceilings import read_ceilings, write_ceilings
from tests.words.counting import counts, phrases, places
from tests.words.texts import Text, texts, texts_of

SOURCE = '''
"""The newest one."""

NAME = "newest"


def test_of_the_newest_row(x):
    """Whoever `newest` is."""
    raise ValueError(f"the newest of {x} is gone")  # noqa: TRY003  newest, by name
    # The newest row
    # goes on.
    sql = "SELECT newest FROM t WHERE a = 1"
    url = "x#newest"
'''


def test_no_phrase_is_more_frequent_than_its_ceiling() -> None:
    """`python -m tests.words find NUMBER` shows the places; table.toml has better words."""
    now, allowed = counts(phrases(), texts()), read_ceilings()
    above = [
        f"{phrase.number} {phrase.name!r} in {area}: {count}, ceiling {allowed[phrase.number][area]}: {phrase.better}"
        for phrase in phrases()
        for area, count in now[phrase.number].items()
        if count > allowed[phrase.number][area]
    ]
    assert not above, "\n".join(above)


def test_prose_of_python_is_docstrings_comments_messages_and_names_of_tests() -> None:
    found = [(t.kind, t.line, t.text) for t in texts_of("src/x.py", SOURCE)]
    assert sorted(found) == [
        ("comment", 9, "newest, by name"),
        ("comment", 10, "The newest row goes on."),
        ("docstring", 2, "The newest one."),
        ("docstring", 8, "Whoever `…` is."),
        ("message", 9, "the newest of … is gone"),
        ("test name", 7, "test of the newest row"),
    ]


def test_code_of_markdown_is_no_prose() -> None:
    page = "# Newest\n\nThe `newest` [one](newest.md)\ngoes on.\n\n```sh\nnewest\n```\n"
    assert [(t.line, t.text) for t in texts_of("docs/x.md", page)] == [
        (1, "# Newest"),
        (3, "The `…` [one] goes on."),
    ]


def test_generated_tables_are_counted_in_the_code_that_they_come_from() -> None:
    """A phrase in a docstring that a page repeats would count twice."""
    page = "The newest.\n\n<!-- a: written by make reference -->\n\nnewest\n\n<!-- end of a -->\n\nnewest again\n"
    assert [(t.line, t.text) for t in texts_of("docs/x.md", page)] == [(1, "The newest."), (9, "newest again")]


def test_each_phrase_is_counted_where_it_is_found() -> None:
    """A text that begins with a phrase is no exception, nor is one at a line's end."""
    listed = [Text("src/x.py", 1, "comment", text) for text in ("else the newest", "the row; else nothing is\nthere")]
    by_place = {phrase.number: 0 for phrase in phrases()}
    for place in places(phrases(), listed):
        by_place[place.phrase.number] += 1
    assert by_place == {n: sum(found.values()) for n, found in counts(phrases(), listed).items()}
    assert {n: count for n, count in by_place.items() if count} == {3: 1, 7: 1, 31: 2}


@pytest.mark.parametrize(
    ("words", "numbers"),
    [
        ("the log lags behind", []),
        ("the row behind the mark", [2]),
        ("the newest row is there", [3, 7]),
        ("Somebody goes on, whoever it is.", [4, 6, 24]),
        ("it is no longer open", []),
        ("at a moment", [11]),
        ("the live view", []),
        ("the reader is 5 s behind; the log 10 rows behind (in its backfill)", []),
        ("10 rows behind the mark", [2]),
        ("table public.orders is full", []),
        ("orders were given", [29]),
        ("a daemon that is asked to stop", []),
        ("the source is asked", [8]),
    ],
)
def test_phrase_is_distinguished_from_plain_english(words: str, numbers: list[int]) -> None:
    text = Text("src/x.py", 1, "docstring", words)
    assert sorted(place.phrase.number for place in places(phrases(), [text])) == numbers


def test_ceiling_is_never_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceilings, "CEILINGS", tmp_path / "ceilings.json")
    write_ceilings({1: {"src": 5, "docs": 5, "tests": 5}})
    write_ceilings({1: {"src": 7, "docs": 4, "tests": 5}})
    assert json.loads((tmp_path / "ceilings.json").read_text()) == {"1": [5, 4, 5]}
