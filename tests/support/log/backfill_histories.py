"""Random histories of one table whose backfills begin, end, are abandoned and begin again."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from tests.support.log.hand_log import HandLog

from cdcflow.model.table import Table


def write_backfills(log: HandLog, table: Table, chance: random.Random, keys: Sequence[int], ops: str = "cu") -> None:
    """Some segments of a table with the columns `id` and `v`, a gap now and then. `ops`: of rows that no backfill
    reads."""
    generation, since, whole, state = 0, 1, None, "waiting"
    gap: dict[str, Any] = {}
    for _ in range(chance.randint(5, 9)):
        match chance.randrange(4):
            case 0 if state in ("waiting", "done", "cancelled"):
                whole = since if state == "done" else whole
                generation, since, state = generation + 1, log.next_offset, "reading"
            case 1 if state == "reading":
                state = chance.choice(("done", "done", "cancelled"))
            case 2 if chance.random() < 0.3:
                gap = {"gap": {"offset": log.next_offset, "until": 0, "proven": None}}
        op = "r" if state == "reading" or chance.random() < 0.2 else chance.choice(ops)
        log.state(table, state, generation, since, **({} if whole is None else {"whole_since": whole}), **gap)
        log.segment([(table, op, {"id": key, "v": chance.randrange(9)}) for key in chance.sample(keys, 2)])


__all__ = ["write_backfills"]
