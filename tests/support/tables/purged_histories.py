"""Random histories of a table of mode soft_delete, some of whose deletes purge, and what the table must have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any

from tests.support.log.hand_log import HandLog
from tests.support.merge.histories import Step, make_table

from cdcflow import local
from cdcflow.tables.job.reports import MergeReport
from cdcflow.tables.merge.modes import DELETED, PURGED
from cdcflow.tables.merge.policy import Policies, TablePolicy

ORDERS = make_table("orders", id="int64", doc="string", n="int32")
ORIGIN = "it's a purge"
ARCHIVE = "archive"
PURGING = Policies(TablePolicy(mode="soft_delete", purge_origins=("other", ORIGIN), kept_purges=(ARCHIVE,)))

Rows = dict[int, tuple[Any, Any, bool, bool]]
"""By id: both values, whether the row is marked as deleted, and whether a purge left it unmarked."""


class Shop:
    """The source, and what a table must have that keeps the rows that were not purged."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.kept: Rows = {}

    def event(self) -> list[Step]:
        living = [id_ for id_, row in self.kept.items() if not row[2] and not row[3]]
        kinds = {
            "insert": 5,
            "update": 4,
            "partial": 3,
            "delete": 4,
            "purge": 4,
            "archive": 4,
            "truncate": 0.5,
            "purging truncate": 0.3,
            "archiving truncate": 0.3,
        }
        kind = self.chance.choices([*kinds], [*kinds.values()])[0]
        values = {"doc": self.chance.choice([None, "a", "b"]), "n": self.chance.randrange(9)}
        origin: dict[str, Any] = {"_origin": ORIGIN} if kind.startswith("purg") else {}
        origin = {"_origin": ARCHIVE} if kind.startswith("archiv") else origin
        if kind.endswith("truncate"):
            self.kept = {id_: (doc, n, not is_purged, is_purged) for id_, (doc, n, _, is_purged) in self.kept.items()}
            return [(ORDERS, "t", origin)]
        if kind == "insert":
            id_ = self.chance.randrange(6)
            if id_ in living:
                return []
            self.kept[id_] = values["doc"], values["n"], False, False
            return [(ORDERS, "c", {"id": id_, **values})]
        if not living:
            return []
        id_ = self.chance.choice(living)
        doc, n, _, _ = self.kept[id_]
        if kind in ("delete", "purge", "archive"):
            if kind == "purge":
                del self.kept[id_]
            else:
                self.kept[id_] = doc, n, kind == "delete", kind == "archive"
            return [(ORDERS, "d", {"id": id_, **origin})]
        if kind == "partial":
            self.kept[id_] = doc, values["n"], False, False
            return [(ORDERS, "u", {"id": id_, "n": values["n"], "_unchanged": ["doc"]})]
        self.kept[id_] = values["doc"], values["n"], False, False
        return [(ORDERS, "u", {"id": id_, **values})]

    def backfill(self) -> list[Step]:
        """What a backfill reads, which does not find one of the rows."""
        living = [id_ for id_, row in self.kept.items() if not row[2] and not row[3]]
        lost = self.chance.choice(living) if living else None
        if lost is not None:
            self.kept[lost] = *self.kept[lost][:2], True, False
        return [
            (ORDERS, "r", {"id": id_, "doc": self.kept[id_][0], "n": self.kept[id_][1]})
            for id_ in living
            if id_ != lost
        ]


def rows_of(shown: Mapping[str, Any]) -> Rows:
    """The rows of the table, if it has had a row yet."""
    table = shown.get("public.orders")
    if table is None:
        return {}
    found = [((row["id"]), (row["doc"], row["n"], row[DELETED], row[PURGED])) for row in table.to_pylist()]
    assert len(dict(found)) == len(found)
    return dict(found)


def first_difference(root: Path, seed: int, merge: Callable[..., MergeReport]) -> str:
    """The merge after which a table or its live view differs from the source's history ("": none does)."""
    log, shop = HandLog(root / "log", has_transactions=True), Shop(seed)
    log.state(ORDERS)
    is_merged = False
    for number in range(6):
        steps = [step for _ in range(shop.chance.choice([2, 6, 14])) for step in shop.event()]
        # A new table begins with the latest backfill, without the rows that were deleted before.
        if is_merged and shop.chance.random() < 0.4:
            log.state(ORDERS, generation=number + 1, since=log.next_offset + len(steps))
            steps += shop.backfill()
            steps += [step for _ in range(shop.chance.choice([0, 4])) for step in shop.event()]
        log.segment(steps)
        shown = local.read_live(log.root, root / "warehouse", policies=PURGING)
        if number and rows_of(shown) != shop.kept:
            return f"the live view before merge {number}"
        if shop.chance.random() < 0.7:
            merge(log.root, root / "warehouse", policies=PURGING)
            is_merged = bool(shop.kept)
            if rows_of(local.read_cut(root / "warehouse")) != shop.kept:
                return f"merge {number}"
    return ""
