"""Two daemons with one lease capture into a log in Kafka: the brokers store the lease, and fence the writer."""

from __future__ import annotations

import copy

import pytest
from tests.support.daemon.bank import Bank
from tests.support.daemon.lease_takeovers import Pair, check_takeovers

pytestmark = [pytest.mark.postgres, pytest.mark.kafka, pytest.mark.long]


def test_standby_becomes_active_by_a_lease_in_kafka(bank: Bank) -> None:
    """K11: nothing of what the suspended daemon sends afterwards is committed."""
    bank.log_settings["kafka"]["work"] = str(bank.folder / "work-1")
    second = copy.deepcopy(bank.log_settings)
    second["kafka"]["work"] = str(bank.folder / "work-2")
    with Pair(bank, {"at": "kafka"}, {"log": second}) as pair:
        check_takeovers(pair, ["suspend", "kill", "handover"], seed=4)
