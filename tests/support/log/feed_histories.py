"""Histories of one table with the whole old row, over two shapes, and their feed by `log.fold.fold`."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from tests.support.merge.histories import make_table

from cdcflow.log.fold.fold import FoldedRow, LogChange, fold
from cdcflow.model.table import BEFORE, OFFSET, UNCHANGED, Identity, Table

NUMBERS = {"id": 1, "a": 2, "b": 2, "doc": 3, "added": 4}
OLD = replace(make_table(numbers=NUMBERS, id="int64", a="int32", doc="string"), identity=Identity.FULL)
NEW = replace(
    make_table(numbers=NUMBERS, missing={"added": "7"}, id="int64", b="int64", added="int32"), identity=Identity.FULL
)
"""After OLD: a renamed to b and widened, doc dropped, added added with a default."""

Values = dict[str, Any]
Step = tuple[Table, str, Values]
"""A change: its table's shape at that time, its kind, and its values, including `_unchanged` and `_before`."""


def said(kind: str, offset: int, values: Mapping[str, Any]) -> Values:
    return {"_change_type": kind, "_commit_version": offset, OFFSET: offset, **values}


def history(chance: random.Random, count: int, first: int = 1) -> Iterator[tuple[Step, list[Values]]]:
    """Changes with consecutive offsets starting at `first`, the first half of the older shape, and what a feed returns
    for each of them in the newer one."""
    state: dict[Any, FoldedRow] = {}
    for offset in range(first, first + count):
        shape = OLD if offset < first + count // 2 else NEW
        if offset == first + count // 2:  # as the source has them from now on
            state = {
                k: FoldedRow({"id": r.values["id"], "b": r.values["a"], "added": 7}, frozenset(), r.offset)
                for k, r in state.items()
            }
        names = [c.name for c in shape.columns if c.name != "id"]
        id_ = chance.randrange(6)
        old = state.get((id_,))
        fresh: Values = {"id": id_} | {n: None if chance.random() < 0.2 else chance.randrange(9) for n in names}
        if "doc" in fresh and fresh["doc"] is not None:
            fresh["doc"] = str(fresh["doc"])
        op = chance.choice("uud") if old else chance.choice("cr")
        logged, change = fresh, LogChange(offset, op, fresh)
        if op == "u" and old is not None:
            unchanged = chance.sample(names, chance.randrange(len(names)))
            sent = {n: v for n, v in fresh.items() if n not in unchanged}
            logged = sent | {UNCHANGED: unchanged or None, BEFORE: dict(old.values)}
            change = LogChange(offset, op, sent, frozenset(unchanged))
        elif op == "d" and old is not None:
            logged, change = dict(old.values), LogChange(offset, op, {"id": id_})
        says, state = _by_fold(state, change, shape)
        yield (shape, op, logged), says


def _by_fold(state: dict[Any, FoldedRow], change: LogChange, shape: Table) -> tuple[list[Values], dict[Any, FoldedRow]]:
    """What the feed must return for a change, and the rows after it, in the latest shape."""

    def row(values: Mapping[str, Any]) -> Values:
        if shape == OLD:
            return {"id": values["id"], "b": values["a"], "added": 7}
        return {name: values[name] for name in ("id", "b", "added")}

    after = fold(state, [change], ("id",))
    key = (change.values["id"],)
    was, now = state.get(key), after.get(key)
    match change.op:
        case "c" | "r":
            assert now is not None
            return [said("insert", change.offset, row(now.values))], after
        case "d":
            assert was is not None
            return [said("delete", change.offset, row(was.values))], after
    assert was is not None
    assert now is not None
    assert not now.missing
    kinds = (("update_preimage", was), ("update_postimage", now))
    return [said(kind, change.offset, row(there.values)) for kind, there in kinds], after
