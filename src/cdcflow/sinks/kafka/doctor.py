"""Problems of a log in Kafka, or risks to its safety: the brokers, the topics and their settings.

Kafka's guarantees depend on the topics' settings: an error here means that the log would be wrong or would stop, a
warning that it is less safe than it could be (hard cases K01, K13).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

from cdcflow.capture.ports.findings import Finding
from cdcflow.errors import CdcflowError
from cdcflow.log.read.reader import LogLocation
from cdcflow.sinks.kafka import loss
from cdcflow.sinks.kafka.topics import CLEANED, Admin, Topics

PATIENCE_S = 10.0
RECORD_OVERHEAD = 200
"""An upper bound for the bytes that a record needs in addition to its value: its key and headers, and its share of a
batch."""


def doctor(topics: Topics, folder: Path | None = None, history: LogLocation | None = None) -> list[Finding]:
    """Check the brokers and the log's topics, if they exist. `folder`, `history`: as for `KafkaLog.open`."""
    subject = f"log in topic {topics.name}"
    try:
        admin = Admin(replace(topics, wait_s=PATIENCE_S), "querying the brokers")
        there = admin.partitions()
    except CdcflowError as error:
        return [Finding("error", subject, str(error).split("\n")[0], error.remedy)]
    if not there:
        if (gone := loss.deletion_finding(topics, folder)) is not None:
            return [gone]
        return [Finding("ok", subject, f"the brokers answer; cdcflow will create {topics.name} and {topics.state}")]
    missing = {topics.name, topics.state} - there.keys()
    if missing:
        return [Finding("error", subject, f"topic {missing.pop()} is gone, but topic {there.popitem()[0]} exists")]
    found = [*wrong(topics, there, None)]
    try:
        found += [] if found else loss.findings(topics, folder, history)
    except CdcflowError as error:
        found.append(Finding("error", subject, str(error).split("\n")[0], error.remedy))
    try:
        settings = admin.settings(*there)
    except CdcflowError as error:
        text = f"the topics' settings cannot be read ({str(error).split(chr(10))[0]})"
        return [
            *found,
            Finding("warning", subject, text, "grant DescribeConfigs on the topics, so that doctor can check them"),
        ]
    found += [*wrong(topics, there, settings), *_unsafe(topics, settings, admin.replicas())]
    return found or [Finding("ok", subject, "the brokers answer, and the topics have the right settings")]


def wrong(
    topics: Topics, partitions: Mapping[str, int], settings: Mapping[str, Mapping[str, str]] | None
) -> Iterator[Finding]:
    """Yield findings about settings with which a log cannot work.

    `settings`: those of each topic; None if they cannot be read, so that only partitions are checked.
    """
    if settings is None:
        for topic, count in partitions.items():
            if count != 1:
                yield Finding(
                    "error",
                    f"topic {topic}",
                    f"it has {count} partitions, and a log needs one, because only one keeps the order",
                    "set log.kafka.topic to another topic; cdcflow creates it with the right settings",
                )
        return
    log, state = settings[topics.name], settings[topics.state]
    if "compact" in log.get(CLEANED, ""):
        yield _mend(topics.name, CLEANED, "delete", "compaction would remove rows from the log")
    if "delete" in state.get(CLEANED, "compact") and (state.get("retention.ms"), state.get("retention.bytes")) != (
        "-1",
        "-1",
    ):
        yield _mend(topics.state, CLEANED, "compact", "the log's position would expire")
    for topic, held in settings.items():
        if int(held.get("max.message.bytes", 1 << 30)) < topics.message_bytes + RECORD_OVERHEAD:
            yield Finding(
                "error",
                f"topic {topic}",
                f"its max.message.bytes is {held['max.message.bytes']}, and records of cdcflow may have "
                f"{topics.message_bytes}",
                f"set log.kafka.message_bytes to {int(held['max.message.bytes']) - RECORD_OVERHEAD} or less",
            )


def _unsafe(
    topics: Topics, settings: Mapping[str, Mapping[str, str]], replicas: Mapping[str, int]
) -> Iterator[Finding]:
    for topic, held in settings.items():
        if held.get("unclean.leader.election.enable") == "true":
            yield _mend(topic, "unclean.leader.election.enable", "false", "a failover may lose what was acknowledged")
        copies, needed = replicas.get(topic, 1), int(held.get("min.insync.replicas", 1))
        if copies > 1 and needed < 2:
            yield _mend(topic, "min.insync.replicas", "2", "a cut may be on one broker only, and be lost with it")
        if copies == 1:
            yield Finding(
                "warning",
                f"topic {topic}",
                "it has one replica: data on a lost broker disk is lost",
                "set log.kafka.replicas to 3 before cdcflow creates the topics",
            )
    held = settings[topics.name]
    kept = {n: v for n in ("retention.ms", "retention.bytes") if (v := held.get(n, "-1")) != "-1"}
    if kept:
        text = f"records expire ({', '.join(f'{n} = {v}' for n, v in kept.items())}): readers must be faster than that"
        yield Finding("warning", f"topic {topics.name}", text)


def _mend(topic: str, name: str, value: str, why: str) -> Finding:
    level: Literal["error", "warning"] = "error" if name == CLEANED else "warning"
    command = f"kafka-configs.sh --alter --entity-type topics --entity-name {topic} --add-config {name}={value}"
    return Finding(level, f"topic {topic}", f"{name} is not {value}: {why}", command)
