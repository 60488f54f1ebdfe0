"""What a process keeps of files: what is forgotten first."""

from __future__ import annotations

from cdcflow.tables.local.recently_used import RecentlyUsed


def test_what_was_not_used_for_the_longest_time_is_forgotten_first() -> None:
    kept: RecentlyUsed[str] = RecentlyUsed(30)
    for name in ("a", "b", "c"):
        kept.keep(name, name, 10)
    assert kept.get("a") == "a"
    kept.keep("d", "d", 10)
    assert [kept.get(name) for name in ("a", "b", "c", "d")] == ["a", None, "c", "d"]


def test_what_is_too_large_is_not_kept() -> None:
    kept: RecentlyUsed[str] = RecentlyUsed(30)
    kept.keep("a", "a", 31)
    assert kept.get("a") is None
    kept.keep("b", "b", 30)
    assert kept.get("b") == "b"


def test_what_is_kept_again_counts_once_and_replaces_what_was() -> None:
    kept: RecentlyUsed[str] = RecentlyUsed(20)
    for number in range(5):
        kept.keep("a", f"a{number}", 10)
    kept.keep("b", "b", 10)
    assert (kept.get("a"), kept.get("b")) == ("a4", "b")
