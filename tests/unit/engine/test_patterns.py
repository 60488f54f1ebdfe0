"""Which tables `source.tables` means: patterns, names, and the errors for wrong ones."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from cdcflow.errors import ConfigurationError, SourceUnavailable
from cdcflow.model.table import TableId
from cdcflow.sources.engine.selection import Pattern, Selected, Selection, advice, check_columns, not_there, table_id


def named(text: str) -> TableId:
    return TableId(*text.split("/"))


@pytest.mark.parametrize(
    ("pattern", "means", "not_these"),
    [
        ("public.orders", ["public/orders"], ["public/Orders", "public/orders2", "publica/orders", "x/orders"]),
        ("public.*", ["public/a", "public/b.c", "public/"], ["other/a"]),
        ("*.orders", ["a/orders", "b/orders"], ["a/order"]),
        ("public.part_?", ["public/part_1", "public/part_x"], ["public/part_", "public/part_10"]),
        ("public.a[bc]", ["public/a[bc]"], ["public/ab"]),
        ('sales."Strange.Name"', ["sales/Strange.Name"], ["sales/StrangexName"]),
        ('"a*"."b?"', ["a*/b?"], ["ax/bx", "a*/bx"]),
        ('s."say ""x"""', ['s/say "x"'], ["s/say x"]),
        ("s.a\nb", ["s/a\nb"], ["s/a"]),
        ("  s.t  ", ["s/t"], []),
        ("s.*", ["s/two\nlines"], []),
    ],
)
def test_a_pattern_means_whole_names_as_the_catalog_has_them(
    pattern: str, means: list[str], not_these: list[str]
) -> None:
    """An extra table would be copied somewhere it must not go; a missing one would be noticed too late."""
    selection = Selection.parse([pattern])
    assert [t for t in [*means, *not_these] if selection.selects(named(t))] == means


@pytest.mark.parametrize("text", ["orders", "", "a.b.c", 'a."b', '"a".', ".b", 'a""b.c', "!a", 'a."".'])
def test_what_is_no_pattern_is_refused_by_its_text(text: str) -> None:
    """A typing mistake must not silently select nothing."""
    with pytest.raises(ConfigurationError, match="is not a table pattern") as refused:
        Pattern.parse(text)
    assert repr(text) in str(refused.value)


def test_excluded_table_stays_excluded_wherever_the_pattern_is_in_the_list() -> None:
    """The order of a list in a file is easily changed."""
    for texts in (["!public.audit_*", "public.*"], ["public.*", "!public.audit_*"]):
        selection = Selection.parse(texts)
        assert selection.selects(named("public/orders"))
        assert not selection.selects(named("public/audit_1"))
        assert not selection.selects(named("other/orders"))
    assert not Selection.parse(["!public.audit"]).selects(named("public/orders")), "nothing is taken in"


def test_table_is_requested_explicitly_where_no_wildcard_is_needed_to_mean_it() -> None:
    """An operator expects an error about a table that is named; a table that only a wildcard matches may be skipped."""
    selection = Selection.parse(["public.*", "public.orders", '"x"."a*"', "!public.gone", "public.gone"])
    assert selection.names(named("public/orders"))
    assert selection.names(named("x/a*"))
    assert not selection.names(named("public/items")), "only a wildcard means it"
    assert not selection.names(named("public/gone")), "it was taken out again"
    assert not Selection.parse(["!a.b", "a.*"]).names(named("a/b"))


def test_names_that_no_table_has_are_reported() -> None:
    """Only those: a wildcard may mean future tables, and an excluded table need not exist."""
    selection = Selection.parse(["public.orders", "public.gone", "public.x*", "p?.y", '"p?"."z"', "!public.none"])
    assert selection.unknown([named("public/orders")]) == ["public.gone", '"p?"."z"']
    assert selection.unknown(iter([named("public/orders"), named("public/gone"), named("p?/z")])) == []


def test_the_name_of_one_table_is_one_without_wildcards() -> None:
    """`cdcflow backfill public.*` is not one table."""
    assert table_id("public.orders") == named("public/orders")
    assert table_id('public."a*"') == named("public/a*")
    for text in ("public.*", "*.orders", "public.order?", "p?.orders"):
        with pytest.raises(ConfigurationError, match="is not the name of one table"):
            table_id(text)


@dataclass(frozen=True)
class Entry:
    id: TableId


A, B, C = (Entry(TableId("s", n)) for n in "abc")


def test_every_refusal_is_reported_with_its_remedy_at_once() -> None:
    """One after the other would be one restart for each."""
    found = Selected(
        (A, B, C), {A.id: (("s.a has no key", "ALTER TABLE s.a ADD x"),), C.id: (("c", "d"),)}, ("view v",)
    )
    with pytest.raises(ConfigurationError) as stopped:
        found.check()
    assert "cannot capture: s.a has no key; c" in str(stopped.value)
    assert (stopped.value.remedy or "").startswith("run ALTER TABLE s.a ADD x;\n  d\n  or take the table out")
    assert found.good == (B,)
    kept = found.only(iter([C.id]))
    assert (kept.tables, dict(kept.refused), kept.ignored) == ((B, C), {C.id: (("c", "d"),)}, ("view v",))
    assert found.only([]).tables == (B,)
    found.only([]).check()


def test_a_selection_of_nothing_stops() -> None:
    """A daemon that captures nothing looks like one that works."""
    with pytest.raises(ConfigurationError, match="matches no table"):
        Selected((), {}, ()).check()


def test_skipped_tables_are_listed_in_the_order_of_their_names() -> None:
    """The list is read by operators, and compared with the previous one."""
    refused = {e.id: (("no key", "add one"),) for e in (C, A)}
    kept, left_out = Selected((C, B, A), refused, ()).for_start(frozenset(), Selection.parse(["s.*"]))
    assert left_out == (A.id, C.id)
    assert kept.tables == (B,)


def test_stop_explains_why_where_all_remaining_tables_are_refused() -> None:
    """The message that the settings match no table would be wrong, and checking them would not help the operator."""
    found = Selected((A,), {A.id: (("s.a has no key", "ALTER TABLE s.a ADD x"),)}, ())
    kept, left_out = found.for_start(frozenset({B.id}), Selection.parse(["s.*"]))
    assert left_out == ()
    for chosen in (kept, found.only([B.id])):
        with pytest.raises(ConfigurationError, match=r"cannot capture: s\.a has no key"):
            chosen.check()


@pytest.mark.parametrize(
    ("remedy", "sentence"),
    [
        ("ALTER TABLE t ADD KEY", "run ALTER TABLE t ADD KEY"),
        ("give the table a key", "give the table a key"),
        ("GRANT", "run GRANT"),
    ],
)
def test_remedy_that_is_a_statement_is_labelled_as_one(remedy: str, sentence: str) -> None:
    """It is printed to be followed to the letter."""
    assert advice(remedy) == sentence


def test_missing_table_is_waited_for_under_its_name() -> None:
    """A rename may be about to bring it back."""
    assert isinstance(not_there(A.id), SourceUnavailable)
    assert "table s.a no longer exists" in str(not_there(A.id))


def test_all_columns_with_ambiguous_names_are_reported_at_once() -> None:
    """Each is to be renamed before the capture can continue."""
    with pytest.raises(ConfigurationError, match=r"column _op.*columns b and B") as stopped:
        check_columns(A.id, ["_op", "b", "a", "B", "_x"])
    assert "rename _op, B at the source" in (stopped.value.remedy or "")
