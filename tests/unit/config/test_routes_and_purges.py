"""Settings of tables under other names, and of deletes that purge."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdcflow import wiring
from cdcflow.config import load
from cdcflow.errors import ConfigurationError

POSTGRES = "source: {kind: postgres, url: 'postgresql://a@localhost/shop'}\nlog: {path: log}\n"
MYSQL = "source: {kind: mysql, url: 'mysql://a@localhost:3306/', tables: [shop.a]}\nlog: {path: log}\n"
SERVE = "serve: {collections: [{name: a, key: [id], json_schema: {type: object}}]}\n"


def settings(folder: Path, text: str) -> Path:
    path = folder / "cdcflow.yaml"
    path.write_text(text)
    return path


def test_policy_of_a_routed_table_is_found_under_both_names(tmp_path: Path) -> None:
    """Users know a table by either name; what is set for it must not be ignored silently."""
    merge = """merge:
  tables:
    purge_origins: [purge]
    purges: {archive: keep, erasure: remove}
    routes:
      '(?P<s>\\w+)_\\d+\\.t': '{s}.t'
      public.a: shop.b
    each:
      x.t: {mode: soft_delete}
      public.a: {mode: history}
      shop.b: {mode: append}
"""
    found = wiring.policies(load(settings(tmp_path, POSTGRES + merge)))
    assert [found.of(name).mode for name in ("x_1.t", "y_1.t", "public.a")] == ["soft_delete", None, "history"]
    assert found.of("x_1.t").purge_origins == ("purge", "erasure")
    assert found.of("x_1.t").kept_purges == ("archive",)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            POSTGRES + "merge:\n  tables:\n    routes: {public.a: b}\n",
            ":5:5: merge.tables.routes has b: write the name",
        ),
        (POSTGRES + "merge:\n  tables:\n    rutes: {}\n", "did you mean merge.tables.routes?"),
        (
            SERVE + "log: {path: log}\nmerge: {tables: {each: {push.a: {purges: {p: keep}}}}}\n",
            "only the logs of PostgreSQL, MySQL and MariaDB",
        ),
        (MYSQL + "merge: {tables: {purges: {p: keep}, each: {shop.a: {purge_origins: [p]}}}}\n", "out of one of them"),
        (MYSQL + "merge: {tables: {purges: {p: drop}}}\n", "keep"),
        (POSTGRES.replace("url", "slot: purge, url") + "merge: {tables: {purges: {p: keep}}}\n", "use another slot"),
    ],
)
def test_mistake_is_reported_where_it_is(tmp_path: Path, text: str, why: str) -> None:
    """What cannot work is refused at the start, not by a table that keeps what it should not."""
    with pytest.raises(ConfigurationError) as caught:
        load(settings(tmp_path, text))
    assert why in str(caught.value)
