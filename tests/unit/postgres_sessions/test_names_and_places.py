"""The pure parts of the PostgreSQL sessions: table patterns, column numbers, positions, addresses."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdcflow.errors import ConfigurationError
from cdcflow.model.table import TableId
from cdcflow.sources.engine.selection import Selection
from cdcflow.sources.postgres.column_numbers import UNKNOWN_NUMBER, column_numbers, numbers_by_order, word_of
from cdcflow.sources.postgres.columns import Attribute
from cdcflow.sources.postgres.connection import Address, literal, quote_name
from cdcflow.sources.postgres.lsn import Lsn, lsn_of, position_of
from cdcflow.sources.postgres.pgoutput import RelationColumn

INT, TEXT = 23, 25


def attribute(number: int, name: str, type_oid: int = INT) -> Attribute:
    return Attribute(number, name, type_oid, -1, "", False, "", False, None)


def dropped(number: int) -> Attribute:
    return Attribute(number, f"........pg.dropped.{number}........", 0, -1, "", False, "", True, None)


def column(name: str, type_oid: int = INT) -> RelationColumn:
    return RelationColumn(name, type_oid, -1, False)


@pytest.mark.parametrize(
    ("patterns", "table", "selected"),
    [
        (["public.*"], ("public", "Orders"), True),
        (["public.*"], ("other", "orders"), False),
        (["*.orders_?"], ("x", "orders_1"), True),
        (["*.orders_?"], ("x", "orders_10"), False),
        (["!public.audit_*", "public.*"], ("public", "audit_log"), False),
        (['"a.b"."c*"'], ("a.b", "c*"), True),
        (['"a.b"."c*"'], ("a.b", "cd"), False),
        (['"say ""hi""".t'], ('say "hi"', "t"), True),
        (["public.t[1]"], ("public", "t[1]"), True),
        (["public.t[1]"], ("public", "t1"), False),
        (["public.orders"], ("public", "Orders"), False),
    ],
)
def test_pattern_means_exactly_its_text(patterns: list[str], table: tuple[str, str], selected: bool) -> None:
    """One table too many is data where it should not be; one too few is a silent hole (S01: odd names are names)."""
    assert Selection.parse(patterns).selects(TableId(*table)) is selected


@pytest.mark.parametrize("pattern", ["orders", "", "a.b.c", 'public."open', ".t", "public."])
def test_what_is_no_pattern_is_refused(pattern: str) -> None:
    """A typing error must not silently select nothing."""
    with pytest.raises(ConfigurationError, match="is not a table pattern"):
        Selection.parse([pattern])


def test_columns_keep_their_numbers_over_a_rename_and_a_drop() -> None:
    """P19, P20: the message is older than the catalog; its columns are in the order of their numbers."""
    now = [attribute(1, "id"), attribute(2, "renamed", TEXT), dropped(3), attribute(4, "b"), attribute(5, "a", TEXT)]
    then = [column("id"), column("old", TEXT), column("a", INT), column("b")]
    assert numbers_by_order(then, now) == [1, 2, 3, 4]


def test_column_that_was_dropped_before_is_passed_over() -> None:
    """P19: an old gap in the numbers belongs to no column."""
    now = [attribute(1, "id"), dropped(2), attribute(3, "a", TEXT)]
    assert numbers_by_order([column("id"), column("a", INT)], now) == [1, 3]


def test_unknown_column_gets_a_separate_number() -> None:
    """A dropped table has no columns to compare with, and still must be described."""
    assert numbers_by_order([column("a"), column("b")], []) == [UNKNOWN_NUMBER, UNKNOWN_NUMBER + 1]


V1, V2 = (word_of(INT), word_of(TEXT)), (word_of(INT), "", word_of(INT))
MADE_AGAIN = [attribute(1, "id"), dropped(2), attribute(3, "v")]


@pytest.mark.parametrize(
    ("types", "before", "numbers", "is_certain"),
    [
        ((INT, TEXT), [V1], [1, 2], True),  # before the statement
        ((INT, INT), [V1], [1, 3], True),  # after the statement
        ((INT, TEXT), [V1, V2], [1, 2], True),  # a check has seen the statement, the stream has not
        ((INT, INT), [V1, V2], [1, 3], True),
        ((INT, INT), [(word_of(INT), word_of(INT)), V2], [1, 3], False),  # of one type: either
        ((INT, 701), [V1], [1, 3], False),  # a type that no check has seen
        ((INT, TEXT), [], [1, 3], True),  # it was never checked, so none of its rows was read
        ((INT, TEXT), [V2], [1, 3], True),  # dropped before any row was read
        ((INT, TEXT), [(*V1, "-17")], [1, 2], True),  # a column that is not published
        ((INT,), [V1], [1], True),  # between the drop and what came after it
        ((INT, TEXT), [V1[:1]], [1, 3], False),  # created and dropped between two checks
        ((INT, 1043), [V1], [1, 2], True),  # character types are one type
    ],
)
def test_column_that_took_a_dropped_ones_name_is_distinguished_from_it(
    types: tuple[int, ...], before: list[tuple[str, ...]], numbers: list[int], is_certain: bool
) -> None:
    """P19: the dropped column's values would permanently appear under the name of the present one."""
    columns = [column(name, type_oid) for name, type_oid in zip(("id", "v"), types, strict=False)]
    assert column_numbers(columns, types, MADE_AGAIN, before) == (numbers, is_certain)


@settings(max_examples=200)
@given(st.lists(st.sampled_from(["keep", "drop", "rename", "retype"]), min_size=1, max_size=12), st.integers(0, 3))
def test_columns_of_one_type_each_are_always_placed_right(fates: list[str], added: int) -> None:
    """P19, P20: whatever happened to each column since, its number is found as long as its type or place identifies
    it."""
    now: list[Attribute] = []
    for number, fate in enumerate(fates, 1):
        match fate:
            case "keep":
                now.append(attribute(number, f"c{number}", 1000 + number))
            case "drop":
                now.append(dropped(number))
            case "rename":
                now.append(attribute(number, f"new{number}", 1000 + number))
            case _:
                now.append(attribute(number, f"c{number}", 5000 + number))
    now += [attribute(len(fates) + i, f"added{i}", 9000 + i) for i in range(1, added + 1)]
    then = [column(f"c{number}", 1000 + number) for number in range(1, len(fates) + 1)]
    assert numbers_by_order(then, now) == list(range(1, len(fates) + 1))


@settings(max_examples=50)
@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_position_text_sorts_as_the_number(a: int, b: int) -> None:
    """Positions are compared as text where they are stored."""
    assert lsn_of(position_of(Lsn(a))) == Lsn(a)
    assert (position_of(Lsn(a)).text < position_of(Lsn(b)).text) == (a < b) == (Lsn(a) < Lsn(b))
    assert Lsn.parse("16/B374D848") == Lsn(0x16B374D848)


@pytest.mark.parametrize("url", ["postgresql://u:hunter2@h/db", "postgres//u:hunter2@h/db", "host=h password=hunter2"])
def test_address_never_repeats_a_secret(url: str) -> None:
    """S03: the parser's own message would."""
    with pytest.raises(ConfigurationError) as refused:
        Address.parse(url)
    assert "hunter2" not in str(refused.value)
    assert refused.value.__cause__ is None


def test_local_address_is_distinguished_from_a_remote_one() -> None:
    """S02: only what leaves the machine must be encrypted."""
    assert Address.parse("postgresql://u@127.0.0.1:5/db").is_local
    assert Address.parse("postgresql:///db?host=/run/pg").is_local
    assert Address.parse("postgresql://u@[::1]/db").is_local
    assert not Address.parse("postgresql://u@localhost,db.internal/db").is_local
    assert str(Address.parse("postgresql://u@db.internal/shop")) == "db.internal:5432/shop"


@settings(max_examples=50)
@given(st.text(min_size=1))
def test_quoted_name_cannot_escape_its_quotes(name: str) -> None:
    """S01: an inner quote is always doubled."""
    for text, mark in ((quote_name(name), '"'), (literal(name), "'")):
        assert text[0] == text[-1] == mark
        assert text[1:-1].replace(mark * 2, "") == name.replace(mark, "")
