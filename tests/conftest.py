"""Fixtures that integration and contract tests share: real servers, one fresh database a test."""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import hashlib
import itertools
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import hypothesis
import pytest
import structlog
from tests.servers.mysql import FLAVORS, Flavor, MySQLDatabase, MySQLServer
from tests.servers.objects import ObjectServer
from tests.servers.postgres import Database, PostgresServer, binaries
from tests.servers.sshd import SshServer
from tests.support.log.every_log import read_logs
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from cdcflow.config import Objects
from cdcflow.spark.session import session
from cdcflow.tables.formats import FORMATS

# How long an example takes depends on what else the machine is doing.
hypothesis.settings.register_profile(
    "tests", hypothesis.settings(), deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("tests")

# Files outside a folder `spark` whose tests use the session that all of Spark's tests share.
SPARK_ELSEWHERE = (
    "cli/test_proof.py",
    "docker/test_stack.py",
    "local/test_reading_page.py",
    "local/test_several_logs_page.py",
)

# Folders whose tests share a broker.
ON_KAFKA = ("tests/integration/kafka/", "tests/integration/publish/")

_numbers = itertools.count(1)
_buckets = itertools.count(1)
_INSTALLED = binaries()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--every-log", action="store_true", help="read each test's logs by the format page's reader, too")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    folder = getattr(item, "funcargs", {}).get("tmp_path")
    yield
    if item.config.getoption("--every-log") and folder is not None:
        item.user_properties.append(("read by the page", dict(read_logs(folder))))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    found: Counter[str] = Counter()
    for report in terminalreporter.stats.get("", []):
        found.update(dict(report.user_properties).get("read by the page", {}) if report.when == "teardown" else {})
    if found:
        terminalreporter.write_line(
            "read by the format page's reader: " + ", ".join(f"{n} {k}" for k, n in found.items())
        )


class TogetherByFile(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """The processes share the tests: a file's stay together, and all of Spark's, which then start it once. So do those
    of Kafka's folders: a broker costs five seconds of CPU to start, and two more in each minute, even if it is idle.

    The daemon's tests are independent: each is long, and needs nothing of the one before it.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        if is_sparks(file):
            return "spark"
        if file.startswith(ON_KAFKA):
            return "kafka"
        return nodeid if "daemon/" in file else file


def is_sparks(file: str) -> bool:
    """Whether this file's tests run in the process that starts Spark."""
    return "/spark/" in file or file.endswith(SPARK_ELSEWHERE)


@functools.cache
def stand_back() -> None:
    """Let the process with Spark have more of the processors than this one: it has most to do, and would end last."""
    os.nice(4)


def pytest_runtest_logstart(nodeid: str) -> None:
    if "PYTEST_XDIST_WORKER" in os.environ and not is_sparks(nodeid.partition("::")[0]):
        stand_back()


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> TogetherByFile:
    return TogetherByFile(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What is collected stays until the end, and no garbage collection visits it again: it is a million objects,
    and one pass over them takes most of a second."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
        # Some libraries complain at exit about objects of theirs that are left.
        atexit.register(gc.unfreeze)


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Iterator[None]:
    """Tests that are spread are parted before `-m` chooses, and all are sorted after the others have."""
    part_spread(items)
    yield
    in_order(items)


def part_spread(items: list[pytest.Item]) -> None:
    """`spread(n)`: n of a test's parameter sets stay in `make test`, and `make test-long` runs the others. Their names
    choose: those that have least in common with each other, the same ones in each process and each run."""
    parted: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("spread") is not None:
            parted.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for same in parted.values():
        marker = same[0].get_closest_marker("spread")
        assert marker is not None
        left = sorted(same, key=lambda item: hashlib.sha256(item.nodeid.encode()).digest())
        seen: Counter[str] = Counter()
        for _ in range(marker.args[0]):
            chosen = min(left, key=lambda item: sum(seen[word] for word in words_of(item)), default=None)
            if chosen is None:
                break
            left.remove(chosen)
            seen.update(words_of(chosen))
        for item in left:
            item.add_marker(pytest.mark.long)


def words_of(item: pytest.Item) -> set[str]:
    """The parts that the name of a parameter set consists of."""
    return set(re.split(r"[-\s:\]]+", item.nodeid.partition("[")[2]))


def in_order(items: list[pytest.Item]) -> None:
    """What takes long comes first, so that the processes end at about the same time."""
    long = ("/spark/", *ON_KAFKA, "/cli/", "/simulation/", "daemon/")
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            # pyspark leaves the sockets that results come through to the garbage collector.
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"))
    items.sort(key=lambda item: next((place for place, part in enumerate(long) if part in item.nodeid), len(long)))


@pytest.fixture(autouse=True)
def own_sockets(request: pytest.FixtureRequest) -> Iterator[None]:
    """Spark's are released within the test that opened them, where the warning is expected."""
    yield
    if "spark" in request.fixturenames:
        gc.collect()


@pytest.fixture(autouse=True)
def own_words() -> Iterator[None]:
    """A command that runs inside a test sends log lines to that test's stderr, which is closed after it."""
    yield
    structlog.reset_defaults()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One Spark session for the whole run."""
    running = session(
        name="cdcflow tests",
        cores=2,
        scratch=tmp_path_factory.mktemp("spark"),
        kafka=True,
        s3=True,
        table_formats=FORMATS,
        settings={
            "spark.sql.shuffle.partitions": "2",
            "spark.default.parallelism": "2",
            # The tests run many small statements once: compiling them well costs more than running them.
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
            # With that flag the JVM keeps 48 MB for compiled code, and dies of it in a session as long as this one.
            " -XX:ReservedCodeCacheSize=256m",
        },
    )
    yield running
    running.stop()


@pytest.fixture(scope="session")
def postgres_servers() -> Iterator[Callable[[str], PostgresServer]]:
    """The running server of an installation, started when it is first asked for."""
    with contextlib.ExitStack() as started:
        yield functools.cache(lambda version: started.enter_context(PostgresServer(_INSTALLED[version])))


@pytest.fixture(params=sorted(_INSTALLED), ids=str)
def postgres_server(
    request: pytest.FixtureRequest, postgres_servers: Callable[[str], PostgresServer]
) -> PostgresServer:
    """A running server; every test that uses it runs once with each PostgreSQL that is installed here."""
    return postgres_servers(request.param)


@pytest.fixture
def database(postgres_server: PostgresServer) -> Iterator[Database]:
    """A fresh database on `postgres_server`, dropped after the test together with its slots and sessions."""
    made = postgres_server.create_database(f"test_{next(_numbers)}")
    yield made
    if not postgres_server.is_running:
        postgres_server.start()
    made.drop()


@pytest.fixture
def own_postgres() -> Iterator[PostgresServer]:
    """A server for one test alone, which it may stop, kill, or start with other settings."""
    with PostgresServer() as server:
        yield server


@pytest.fixture(params=FLAVORS, ids=str)
def flavor(request: pytest.FixtureRequest) -> Flavor:
    """Every test that requests it runs once with MariaDB and once with MySQL."""
    found: Flavor = request.param
    return found


@pytest.fixture(scope="session")
def mysql_servers() -> Iterator[Callable[[Flavor], MySQLServer]]:
    """The running server of a flavor, started when it is first asked for."""
    with contextlib.ExitStack() as started:
        yield functools.cache(lambda flavor: started.enter_context(MySQLServer(flavor)))


@pytest.fixture
def mysql_server(flavor: Flavor, mysql_servers: Callable[[Flavor], MySQLServer]) -> MySQLServer:
    """A running MySQL or MariaDB server."""
    return mysql_servers(flavor)


@pytest.fixture
def mysql_database(mysql_server: MySQLServer) -> Iterator[MySQLDatabase]:
    """A fresh database on `mysql_server`, dropped after the test. The binlog is shared with other tests' databases."""
    made = mysql_server.create_database(f"test_{next(_numbers)}")
    yield made
    if not mysql_server.is_running:
        mysql_server.start()
    made.drop()


@pytest.fixture
def ssh_server() -> Iterator[SshServer]:
    """A running SSH server for one test alone, which may stop it, or change who may log in."""
    with SshServer() as server:
        yield server


@pytest.fixture(scope="session")
def object_server() -> Iterator[ObjectServer]:
    """A running S3-compatible server."""
    with ObjectServer() as server:
        yield server


@pytest.fixture
def objects(object_server: ObjectServer) -> Objects:
    """A fresh bucket's settings."""
    return object_server.objects(f"bucket-{next(_buckets)}", "shop/log")


@pytest.fixture
def own_object_server() -> Iterator[ObjectServer]:
    """A server for one test alone, which it may kill or halt."""
    with ObjectServer() as server:
        yield server


@pytest.fixture
def own_mysql(flavor: Flavor) -> Iterator[MySQLServer]:
    """A server for one test alone, which it may stop, kill, or start with other settings."""
    with MySQLServer(flavor) as server:
        yield server
