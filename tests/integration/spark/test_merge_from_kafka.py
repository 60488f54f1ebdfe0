"""A log in Kafka is merged to the same tables as the same log in files, whatever dies on the way."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.servers.kafka import KafkaBroker
from tests.servers.objects import SECRET_KEY, ObjectServer
from tests.support.kafka.log_pairs import (
    FolderReader,
    history_of_a_shop,
    into_folder,
    into_topic,
    rows_of,
    topics_on,
)
from tests.support.kafka.secured_broker import CANARY, secured_broker
from tests.support.log.several_logs import START, Branch
from tests.support.merge.several_logs import check_cut
from typer.testing import CliRunner

from cdcflow import wiring
from cdcflow.cli.app import app
from cdcflow.config import Config, load
from cdcflow.errors import ConfigurationError, HistoryLost, InvariantViolated
from cdcflow.log.format.framing import FrameKind
from cdcflow.log.read.reader import read_rows
from cdcflow.sinks.kafka.reader import KafkaReader
from cdcflow.sinks.kafka.tier import KafkaTier
from cdcflow.sinks.kafka.topics import Topics
from cdcflow.spark import job, kafka, merge_logs, merge_stream, read_log, register
from cdcflow.spark.cuts import published_cut, read_cut
from cdcflow.tables.job.reports import SeveralReport
from cdcflow.testing.sinks import orders

pytestmark = pytest.mark.kafka
SMALL = 500


@pytest.fixture(scope="module")
def broker() -> Iterator[KafkaBroker]:
    with KafkaBroker() as running:
        yield running


@pytest.fixture
def topics(broker: KafkaBroker) -> Topics:
    return topics_on(broker.address)


def tables(spark: Any, warehouse: Path) -> dict[str, list[dict[str, Any]]]:
    """Every table's rows as of the latest cut."""
    found = read_cut(spark, warehouse, incomplete=True)
    return {
        name: sorted((row.asDict(recursive=True) for row in frame.collect()), key=lambda row: row["_offset"])
        for name, frame in found.items()
    }


def versions(spark: Any, warehouse: Path) -> dict[str, int]:
    cut = published_cut(spark, warehouse)
    return {name: table.version for name, table in cut.tables.items()}


@pytest.fixture(scope="module")
def by_files(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """The tables that the same changes make when the log is a folder."""
    room = tmp_path_factory.mktemp("by-files")
    into_folder(room / "log", history_of_a_shop())
    job.merge(spark, room / "log", room / "warehouse")
    return tables(spark, room / "warehouse")


@pytest.mark.long
def test_tables_equal_those_merged_from_files(
    spark: Any, topics: Topics, tmp_path: Path, by_files: dict[str, list[dict[str, Any]]]
) -> None:
    """Where the log is stored is a matter of operation and does not show in the warehouse. In two halves, so that the
    second begins after a history; then once more, which must change nothing. A commit names the records that it
    contains.
    """
    steps = history_of_a_shop()
    tier = KafkaTier(topics, tmp_path / "history", SMALL)
    for half in (steps[:4], steps[4:]):
        into_topic(topics, half)
        report = kafka.merge(spark, tier, tmp_path / "kafka")
        assert report.published
        assert report.offset == KafkaReader(topics).newest_checkpoint().next_offset - 1
    assert tables(spark, tmp_path / "kafka") == by_files
    assert rows_of(FolderReader(tmp_path / "history")) == rows_of(KafkaReader(topics))
    before = versions(spark, tmp_path / "kafka")
    again = kafka.merge(spark, tier, tmp_path / "kafka")
    assert not again.published
    assert [table.changes for table in again.tables] == [0, 0]
    assert versions(spark, tmp_path / "kafka") == before
    (row, *_) = spark.sql(f"DESCRIBE HISTORY delta.`{tmp_path}/kafka/shop/orders`").collect()
    said = json.loads(row.userMetadata)["cdcflow"]
    with topics.reader(topics.name) as reader:
        # After the last cut; a new topic range may begin there, with no row yet.
        cuts = [m.topic_offset for m in reader.messages(0) if m.key == bytes((FrameKind.CUT, 0))]
    assert said["topic"] == topics.name
    assert said["place"] == cuts[-1] + 1
    assert said["cut"] == KafkaReader(topics).newest_checkpoint().cut


class Dies(Exception):
    """Simulates the end of the driver."""


class DyingTier(KafkaTier):
    """Its driver dies before it gives the segment of this number its name."""

    put_before = 0

    def open(self) -> Any:
        found = super().open()

        class Dying:
            def __enter__(inner) -> Any:  # noqa: N805
                opened = found.__enter__()
                put, left = opened.put, [self.put_before]

                def dying(directory: str) -> None:
                    if not left[0]:
                        raise Dies
                    left[0] -= 1
                    put(directory)

                opened.put = dying  # type: ignore[method-assign]  # that is what dies
                return opened

            def __exit__(inner, *error: Any) -> Any:  # noqa: N805
                return found.__exit__(*error)

        return Dying()


@pytest.mark.long
def test_a_merge_that_dies_anywhere_is_finished_by_the_next(
    spark: Any, topics: Topics, tmp_path: Path, by_files: dict[str, list[dict[str, Any]]]
) -> None:
    """Before any segment has its name, between two of them, and between the last of them and the merge."""
    steps = history_of_a_shop()
    tier = KafkaTier(topics, tmp_path / "history", SMALL)
    dying = DyingTier(topics, tmp_path / "history", SMALL)
    into_topic(topics, steps[:4])
    with pytest.raises(Dies):
        kafka.merge(spark, dying, tmp_path / "kafka")
    dying.put_before = 1
    with pytest.raises(Dies):
        kafka.merge(spark, dying, tmp_path / "kafka")
    kafka.seal(spark, tier)
    into_topic(topics, steps[4:])
    kafka.merge(spark, tier, tmp_path / "kafka")
    assert tables(spark, tmp_path / "kafka") == by_files
    assert FolderReader(tmp_path / "history").check(deep=True).is_whole


@pytest.mark.long
def test_stream_produces_the_same_tables(
    spark: Any, topics: Topics, tmp_path: Path, by_files: dict[str, list[dict[str, Any]]]
) -> None:
    """Structured Streaming drives the merge; a batch that comes again, or a lost checkpoint, changes nothing."""
    steps = history_of_a_shop()
    tier = KafkaTier(topics, tmp_path / "history", SMALL)
    reports: list[Any] = []

    def streamed(checkpoint: str) -> None:
        query = merge_stream(
            spark,
            tier,
            tmp_path / "kafka",
            checkpoint=tmp_path / checkpoint,
            trigger={"availableNow": True},
            on_merge=reports.append,
        )
        assert query.awaitTermination(600)

    into_topic(topics, steps[:4])
    streamed("checkpoint")
    assert reports[-1].published
    into_topic(topics, steps[4:])
    streamed("checkpoint")
    assert reports[-1].published
    assert tables(spark, tmp_path / "kafka") == by_files
    streamed("another")
    assert not reports[-1].published


@pytest.fixture
def stored(topics: Topics, server: ObjectServer, tmp_path: Path) -> Config:
    """Settings of a log whose history is in a store."""
    objects = server.objects("histories", topics.name)
    access = {"endpoint": objects.endpoint, "access_key": objects.access_key, "secret_key": objects.secret_key}
    kafka = {"brokers": topics.brokers, "topic": topics.name, "work": str(tmp_path), "history": objects.url}
    source = {"kind": "postgres", "url": "postgresql://cdc@127.0.0.1:1/none"}
    return Config.model_validate({"source": source, "log": {"kafka": {**kafka, "objects": access}}})


@pytest.mark.long
def test_the_tables_are_the_same_with_the_history_in_a_store(
    spark: Any, topics: Topics, stored: Config, tmp_path: Path, by_files: dict[str, list[dict[str, Any]]]
) -> None:
    """For a cluster without a common disk: the task uploads the files to the store, and executors read them there. The
    driver's disk holds no row, and nothing that Spark shows or writes contains the keys.
    """
    steps = history_of_a_shop()
    for half in (steps[:2], steps[2:4], steps[4:]):
        into_topic(topics, half)
        report = kafka.merge(spark, wiring.tier(stored), tmp_path / "warehouse")
        assert report.published
        assert report.offset == KafkaReader(topics).newest_checkpoint().next_offset - 1
    assert tables(spark, tmp_path / "warehouse") == by_files
    assert not kafka.merge(spark, wiring.tier(stored), tmp_path / "warehouse").published
    assert not list(tmp_path.glob(f"{topics.name}/**/*.parquet"))
    assert wiring.log_reader(stored).check(deep=True).is_whole
    (row, *_) = spark.sql(f"DESCRIBE HISTORY delta.`{tmp_path}/warehouse/shop/orders`").collect()
    assert json.loads(row.userMetadata)["cdcflow"]["topic"] == topics.name
    shown = str(spark.sparkContext.getConf().getAll())
    assert SECRET_KEY not in shown


@pytest.mark.long
def test_a_stream_merges_with_the_history_in_a_store(
    spark: Any, topics: Topics, stored: Config, tmp_path: Path, by_files: dict[str, list[dict[str, Any]]]
) -> None:
    into_topic(topics, history_of_a_shop())
    reports: list[Any] = []
    query = merge_stream(
        spark, wiring.tier(stored), tmp_path / "warehouse", trigger={"availableNow": True}, on_merge=reports.append
    )
    assert query.awaitTermination(300)
    assert reports[-1].published
    assert tables(spark, tmp_path / "warehouse") == by_files


@pytest.mark.long
def test_a_topic_and_a_folder_are_merged_into_one_cut(spark: Any, topics: Topics, tmp_path: Path) -> None:
    """Neither is ahead of the other, an idle topic advances by its heartbeats, and one that has stopped is named."""
    crm = Branch(tmp_path / "crm", "crm", "people", topics=topics)
    shop = Branch(tmp_path / "shop", "shop", "trade")
    both, warehouse = (crm, shop), tmp_path / "warehouse"
    tier = KafkaTier(topics, tmp_path / "history", SMALL)

    def check() -> None:
        found = read_cut(spark, warehouse)
        ids = {name: {row.id for row in frame.select("id").collect()} for name, frame in found.items()}
        check_cut(published_cut(spark, warehouse), ids, *both)

    def merge() -> SeveralReport:
        return merge_logs(spark, {"crm": tier, "shop": shop.root}, warehouse, table_format="delta")

    crm.insert(10, 3)
    shop.insert(20, 2)
    shop.seal()
    assert not merge().published  # the topic has reached a time before the folder's only segment
    crm.beat(30)
    shop.beat(30)
    assert merge().published
    check()
    (commit, *_) = spark.sql(f"DESCRIBE HISTORY delta.`{warehouse}/people/orders`").collect()
    assert json.loads(commit.userMetadata)["cdcflow"]["topic"] == topics.name
    crm.insert(50)
    held = merge()
    assert held.held_back_by == "shop"
    check()
    shop.insert(60, 4)
    shop.seal()
    assert merge().published  # the topic's row; the folder's come once the topic has got there
    check()
    crm.beat(70)

    access = {"brokers": topics.brokers, "topic": topics.name, "history": str(tmp_path / "history")}
    settings = {"crm": {"kafka": access}, "shop": {"path": str(shop.root)}}
    source = {"kind": "postgres", "url": "postgresql://cdc@127.0.0.1:1/none"}
    files = []
    for name, log in settings.items():
        path = tmp_path / f"{name}.yaml"
        path.write_text(yaml.safe_dump({"source": source, "log": log, "merge": {"warehouse": str(warehouse)}}))
        files += ["-c", str(path)]
    done = CliRunner().invoke(app, ["merge", *files])
    assert done.exit_code == 0, done.output
    assert "published" in done.output, done.output
    check()
    assert published_cut(spark, warehouse).commit_clock == START + 60
    for branch in both:
        branch.log.close()


def test_fault_that_a_task_finds_keeps_its_kind(spark: Any, topics: Topics, tmp_path: Path) -> None:
    """A damaged topic found in another process must not look like an unavailable broker, which would be retried
    indefinitely.
    """
    into_topic(topics, history_of_a_shop()[:2])
    tier = KafkaTier(topics, tmp_path / "history")
    kafka.seal(spark, tier)
    into_topic(topics, [[orders(9, xid=50)]])
    manifest = next((tmp_path / "history").glob("segments/*/segment.json"))
    manifest.write_text(manifest.read_text().replace('"position": "0/', '"position": "9/'))
    with pytest.raises(InvariantViolated, match="not in it in the same form"):
        kafka.merge(spark, tier, tmp_path / "warehouse")


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[KafkaBroker, Path]]:
    with secured_broker(tmp_path_factory.mktemp("tls")) as found:
        yield found


@pytest.mark.long
def test_command_merges_from_a_broker_that_requires_a_login(
    spark: Any, secured: tuple[KafkaBroker, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The settings are the daemon's; Spark uses a different client, in another language, which must log in with
    them.
    """
    broker, authority = secured
    monkeypatch.setenv("KAFKA_PASSWORD", CANARY)
    options = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "ssl.ca.location": str(authority)}
    login = {"username": "cdcflow", "password": "${env:KAFKA_PASSWORD}"}
    log = {"kafka": {"brokers": broker.address, "topic": "secured", "options": options, **login}}
    source = {"kind": "postgres", "url": "postgresql://cdc@127.0.0.1:1/none"}
    path = tmp_path / "cdcflow.yaml"
    path.write_text(yaml.safe_dump({"source": source, "log": log}))
    config = load(path)
    into_topic(wiring.tier(config).topics, history_of_a_shop()[:1])  # type: ignore[attr-defined]  # the one in Kafka
    done = CliRunner().invoke(app, ["merge", "--once", "--json", "--config", str(path)])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["offset"] == 5
    assert CANARY not in done.output + done.stderr + str(spark.sparkContext.getConf().getAll())


def test_session_without_kafka_s_jars_gets_an_error_that_explains_what_to_do() -> None:
    """The most common mistake of a caller with its own session."""
    error = kafka._translate_error(
        "sealing", Exception("[DATA_SOURCE_NOT_FOUND] Failed to find the data source: kafka. Make")
    )
    assert isinstance(error, ConfigurationError)
    assert "cdcflow.spark.jars --kafka" in str(error)
    error = kafka._translate_error(
        "sealing", Exception("PythonException\n ModuleNotFoundError: No module named 'cdcflow'")
    )
    assert "install cdcflow on every machine" in str(error)
    assert not isinstance(error, HistoryLost)


@pytest.mark.long
def test_log_in_kafka_is_read_by_spark_as_far_as_it_is_sealed(spark: Any, topics: Topics, tmp_path: Path) -> None:
    """Spark reads its history of sealed segments; later rows of the topic follow when a merge has sealed them."""
    tier = KafkaTier(topics, tmp_path / "history", SMALL)
    into_topic(topics, history_of_a_shop())
    kafka.merge(spark, tier, tmp_path / "warehouse")
    read = list(read_rows(tmp_path / "history"))
    table = str(read[0][0].id)
    plain = [o for shape, _, rows in read if str(shape.id) == table for o in rows.column("_offset").to_pylist()]
    register(spark)
    source = spark.read.format("cdcflow").options(log=str(tmp_path / "history"), table=table).load()
    for shown in (source, read_log(spark, tier, table)):
        assert sorted(row["_offset"] for row in shown.select("_offset").collect()) == plain
