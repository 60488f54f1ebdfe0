"""A schema that breaks a contract is reported while the capture runs, not only by the next merge."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.log.hand_log import HandLog
from tests.support.merge.histories import make_table

from cdcflow import local, wiring
from cdcflow.config import Config
from cdcflow.daemon.interfaces.notices import Noticing
from cdcflow.daemon.status import broken_contracts
from cdcflow.reports.status import pairs_of
from cdcflow.tables.merge.contract import ContractBroken

ORDERS = make_table("orders", id="int32", amount="int32", note="string")
WIDER = make_table("orders", id="int32", amount="int64", note="string")
GONE = make_table("orders", id="int32", amount="int32")


def settings(log: HandLog, mode: str = "current", /, **promises: Any) -> Config:
    return Config.model_validate(
        {
            "source": {"kind": "postgres", "url": "postgresql://localhost/shop"},
            "log": {"path": log.root},
            "merge": {"engine": "local", "warehouse": log.root.parent / "tables", "tables": {"mode": mode}},
            "contracts": {"public.orders": promises},
        }
    )


def test_schema_that_breaks_a_contract_is_known_before_a_row_is_merged(tmp_path: Path) -> None:
    """And the merge stops at the same."""
    log = HandLog(tmp_path / "log")
    log.state(ORDERS)
    log.segment([(ORDERS, "c", {"id": 1, "amount": 5, "note": "a"})])
    config = settings(log, amount={"type": "int"}, note={"type": "text"})
    assert wiring.schema_breaks(config) == {}
    local.merge(log.root, tmp_path / "tables", policies=wiring.policies(config))
    log.segment([(WIDER, "c", {"id": 2, "amount": 5, "note": "a"})])
    reason = "table public.orders breaks its contract: column amount is bigint, and int is promised"
    assert wiring.schema_breaks(config) == {"public.orders": reason}
    with pytest.raises(ContractBroken, match=reason):
        local.merge(log.root, tmp_path / "tables", policies=wiring.policies(config))
    assert ("contracts", reason) in pairs_of({"broken_contracts": broken_contracts(config)})
    warned = settings(log, amount={"type": "int", "on_violation": "warn"})
    assert wiring.schema_breaks(warned) == {"public.orders": "column amount is bigint instead of int"}
    assert wiring.schema_breaks(settings(log, amount={"type": "bigint"}, id={"not_null": True})) == {}


@pytest.mark.parametrize("mode", ["current", "append", "history"])
def test_column_that_the_source_has_dropped_is_missed_at_once(tmp_path: Path, mode: str) -> None:
    """The table keeps it, with NULL in new rows; so the merge would tell only at a row."""
    log = HandLog(tmp_path / "log")
    log.segment([(ORDERS, "c", {"id": 1, "amount": 5, "note": "a"})])
    log.segment([(GONE, "c", {"id": 2, "amount": 5})])
    config = settings(log, mode, note={"not_null": True}, id={"check": "id > 0"})
    assert "a contract for column note, and no such column" in wiring.schema_breaks(config)["public.orders"]


def test_log_that_does_not_exist_breaks_no_contract(tmp_path: Path) -> None:
    assert wiring.schema_breaks(settings(HandLog(tmp_path / "log"), id={"not_null": True})) == {}


def test_broken_contract_is_notified_once_and_when_it_is_over() -> None:
    """Not at every check in between; another reason is another notice."""
    noticing = Noticing(300, 0.25, {})

    def of(**broken: str) -> list[tuple[str, bool, str]]:
        status = {"state": "capturing", "tables": {}, **({"broken_contracts": broken} if broken else {})}
        return [(n.event, n.active, n.text) for n in noticing.of(status)]

    assert of() == []
    assert of(a="is int") == [("contract", True, "is int")]
    assert of(a="is int") == []
    assert of(a="is text", b="is int") == [("contract", True, "is text"), ("contract", True, "is int")]
    assert of(b="is int") == [("contract", False, "the schema of a breaks its contract no longer")]
