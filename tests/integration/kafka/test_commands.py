"""The commands on a log in Kafka: a real daemon captures, and every command sees the log or explains why it cannot."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from tests.servers.proxy import TcpProxy
from tests.support.daemon.bank import Bank
from tests.support.daemon.changed_settings import Changing
from tests.support.kafka.topics import committed
from typer.testing import CliRunner, Result

from cdcflow import wiring
from cdcflow.cli import failure
from cdcflow.cli.app import app
from cdcflow.config import load
from cdcflow.http.explorer import Explorer
from cdcflow.sinks.kafka import doctor

pytestmark = [pytest.mark.kafka, pytest.mark.postgres]


def cdcflow(bank: Bank, *arguments: str) -> Result:
    return CliRunner().invoke(app, [*arguments, "--config", str(bank.config_path)])


def told(result: Result) -> str:
    return result.output + (result.stderr or "")


def test_commands_work_on_a_log_in_kafka_as_on_a_folder(bank: Bank) -> None:
    """L21, O07: the commands that show what runs, what exists and whether it is whole are the same wherever the
    log is.
    """
    assert json.loads(cdcflow(bank, "status", "--json").stdout)["state"] == "never run"
    assert "there is no change log at topic" in told(cdcflow(bank, "log", "show"))
    daemon = bank.daemon()
    bank.write(seed=1, transactions=40)
    bank.catch_up_and_stop(daemon)
    bank.assert_log_equals_source()

    status = json.loads(cdcflow(bank, "status", "--json").stdout)
    assert status["state"] == "stopped"
    assert {t["state"] for t in status["tables"].values()} == {"done"}
    topic_ranges = json.loads(cdcflow(bank, "log", "ls", "--json").stdout)
    assert topic_ranges[0]["first_offset"] == 1
    assert "ranges in topic" in cdcflow(bank, "log", "ls").stdout
    newest = cdcflow(bank, "log", "show", "--limit", "3", "--json").stdout.splitlines()
    assert json.loads(newest[-1])["_offset"] == status["durable_offset"]
    only = cdcflow(bank, "log", "show", "--table", "public.notices", "--from", "1", "--limit", "2").stdout
    assert only.count("public.notices") == 2
    explorer = Explorer(lambda: wiring.log_reader(load(bank.config_path)))
    seen = explorer.changes(None, limit=3)["changes"]
    assert [one["offset"] for one in reversed(seen)] == [json.loads(line)["_offset"] for line in newest]
    whole = explorer.transaction(seen[0]["transaction"])
    # A backfill's transaction may have more rows than are shown.
    assert whole["changes"][0]["offset"] + whole["rows"] - 1 == status["durable_offset"]
    assert "the log is whole" in cdcflow(bank, "log", "check", "--deep").stdout
    findings = {f["subject"]: f for f in json.loads(cdcflow(bank, "doctor", "--json").stdout)}
    assert findings[f"topic {bank.log_settings['kafka']['topic']}"]["level"] == "warning"
    created = cdcflow(bank, "consumer", "create", "shop", "--table", "public.notices")
    assert created.exit_code == 0, told(created)
    assert [line["backfill"] for line in consumed(bank)] == [True] * len(bank.source_rows("notices"))
    assert json.loads(cdcflow(bank, "status", "--json").stdout)["consumers"]["shop"]["behind_rows"] == 0
    again = cdcflow(bank, "backfill", "public.notices", "--json")
    assert json.loads(again.stdout)["public.notices"]["generation"] == 2
    assert [line["op"] for line in consumed(bank)] == ["t", *["r"] * len(bank.source_rows("notices"))]
    bank.assert_log_equals_source()


def consumed(bank: Bank) -> list[Any]:
    """The next changes for the consumer."""
    read = cdcflow(bank, "consumer", "read", "shop", "--json", "--commit")
    assert read.exit_code == 0, told(read)
    return [json.loads(line) for line in read.stdout.splitlines()]


@pytest.mark.parametrize("command", ["log compact", "log expire --older-than 30d"])
def test_command_that_only_a_log_in_files_supports_is_refused_with_its_name_for_a_log_in_kafka(
    bank: Bank, command: str
) -> None:
    """A traceback about a missing folder would not name a remedy."""
    refused = cdcflow(bank, *command.split())
    assert refused.exit_code == 78
    assert "the log is in Kafka" in told(refused)


def test_merge_of_a_missing_log_is_refused_with_an_error_that_names_it(bank: Bank) -> None:
    """Before Spark is started, which takes a while."""
    refused = cdcflow(bank, "merge")
    assert refused.exit_code == 78
    assert "there is no change log at topic" in told(refused)


@pytest.mark.long
def test_doctor_names_unreachable_brokers(bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first thing to check when nothing is captured."""
    monkeypatch.setattr(doctor, "PATIENCE_S", 2.0)
    with TcpProxy() as nobody:
        settings = yaml.safe_load(bank.config_path.read_text())
        settings["log"]["kafka"]["brokers"] = f"127.0.0.1:{nobody.port}"
        bank.config_path.write_text(yaml.safe_dump(settings))
        found = cdcflow(bank, "doctor", "--json")
    assert found.exit_code == failure.FINDINGS
    errors = [f for f in json.loads(found.stdout) if f["level"] == "error"]
    assert len(errors) == 1
    assert "log.kafka.brokers" in errors[0]["remedy"]


def test_settings_of_a_log_in_kafka_apply_while_the_capture_runs(bank: Bank) -> None:
    """The largest record: the operator of the brokers lowers it, and the daemon must not have to stop for that."""
    changing, topic = Changing(bank, bank.configure), bank.log_settings["kafka"]
    changing.use(*bank.tables)

    def largest() -> int:
        return max(len(message.value or b"") for message in committed(topic["brokers"], topic["topic"])[counted:])

    counted = 0
    with changing.capturing() as capture:
        changing.catch_up()
        assert largest() > 4000, "a row has a column of 2,880 bytes, and a record several rows"
        counted = len(committed(topic["brokers"], topic["topic"]))
        topic["message_bytes"] = "2kB"
        changing.use(*bank.tables)
        changing.reload(capture)
        bank.write(seed=5, transactions=40)
        changing.catch_up()
        assert 1000 < largest() <= 2000
    bank.assert_log_equals_source()
