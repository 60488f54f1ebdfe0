"""Iceberg tables in catalog servers, merged without Spark: PostgreSQL, Iceberg's REST catalog, Hive's metastore, and
Glue as moto has it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table import Table as PyIcebergTable
from tests.servers.catalogs import RestCatalog
from tests.servers.gate import CUT, LOST, Answer, HttpGate, Request, TokenGate
from tests.servers.postgres import PostgresServer
from tests.support.log.hand_log import HandLog
from tests.support.merge.histories import make_table
from tests.support.tables.catalogs import (
    TYPES,
    NamedTable,
    catalog_of,
    check_next_merge_resumes,
    rows_of,
    sorted_rows,
)
from tests.support.tables.histories import Histories

from cdcflow import local
from cdcflow.errors import CdcflowError, ConfigurationError, SinkUnavailable
from cdcflow.tables.formats.iceberg import CATALOG, identifier
from cdcflow.tables.job import job
from cdcflow.tables.job.engines import Engines
from cdcflow.tables.job.reports import MergeReport
from cdcflow.tables.local import file_rewrites, iceberg_commits
from cdcflow.tables.local.engine import LocalEngine
from cdcflow.tables.local.iceberg_catalogs import TableCatalog
from cdcflow.tables.merge.policy import Mode
from cdcflow.tables.paths import Warehouse, table_path

ORDERS = make_table("orders", schema="shop", id="int64", item="string")
SEED = random.SystemRandom().randrange(1, 10**8)


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.fixture(params=TYPES)
def lake(request: pytest.FixtureRequest, tmp_path: Path, postgres: PostgresServer) -> Iterator[Warehouse]:
    """A warehouse in a folder whose tables have names in a catalog server."""
    root = tmp_path / "lake"
    with catalog_of(request.param, root, postgres) as catalog:
        yield Warehouse(root, catalog=catalog)


@pytest.fixture(scope="module")
def rest_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestCatalog]:
    with RestCatalog(str(tmp_path_factory.mktemp("rest"))) as server:
        yield server


@pytest.fixture
def gate(rest_server: RestCatalog) -> Iterator[HttpGate]:
    with HttpGate(rest_server.port) as found:
        yield found


@pytest.fixture
def behind_gate(gate: HttpGate, rest_server: RestCatalog, tmp_path: Path) -> Iterator[Warehouse]:
    """A warehouse whose REST catalog is reached through `gate`; its tables' names are removed at the end."""
    yield Warehouse(tmp_path / "lake", catalog={"type": "rest", "uri": gate.uri})
    with closing(_client(rest_server.uri)) as client:
        for namespace in client.list_namespaces():
            for table in client.list_tables(namespace):
                client.drop_table(table)


def _client(uri: str) -> Any:
    from pyiceberg.catalog.rest import RestCatalog as Client

    return Client("x", uri=uri)


def merge(log: HandLog, lake: Warehouse) -> MergeReport:
    return local.merge(log.root, lake, table_format="iceberg")


# ── every kind of catalog ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spread(1)
def test_next_process_resumes_where_the_first_ended(hand_log: HandLog, lake: Warehouse) -> None:
    """Position, rows, cuts and tags are the catalog's; nothing of them is in a file that the warehouse's folder has."""
    check_next_merge_resumes(hand_log, ORDERS, lake)
    assert not (lake.folder / CATALOG).exists()


@pytest.mark.spread(1)
def test_no_class_that_a_table_names_is_imported(
    hand_log: HandLog, lake: Warehouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Text from a table is data: otherwise who may change a table's properties could have each merge execute code."""
    (tmp_path / "planted.py").write_text("raise SystemExit('planted code was executed')")
    monkeypatch.syspath_prepend(str(tmp_path))
    hand_log.state(ORDERS)
    hand_log.segment([(ORDERS, "c", {"id": 1, "item": "pen"})])
    assert merge(hand_log, lake).published

    def change(name: str, value: str) -> None:
        with closing(TableCatalog(lake)) as catalog:
            found = catalog.load(identifier(table_path(ORDERS.id)))
            assert found is not None
            with found.transaction() as transaction:
                transaction.set_properties({name: value})

    change("py-io-impl", "planted.Class")
    hand_log.segment([(ORDERS, "u", {"id": 1, "item": "ink"})])
    assert merge(hand_log, lake).published
    assert sorted_rows(lake, ORDERS, "id", "item") == [(1, "ink")]
    change("write.py-location-provider.impl", "pyiceberg.table.locations.SimpleLocationProvider")
    hand_log.segment([(ORDERS, "u", {"id": 1, "item": "cap"})])
    with pytest.raises(ConfigurationError, match=r"write\.py-location-provider\.impl names a Python class"):
        merge(hand_log, lake)


@pytest.mark.spread(1)
def test_histories_of_tables_give_what_the_fold_gives(
    tmp_path: Path, lake: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a source does to a table, also tables that are removed from the catalog and built again; and whatever
    partitions and order it has."""
    monkeypatch.setattr(file_rewrites, "SMALL_FILES_MAX", 3)
    monkeypatch.setattr(file_rewrites, "TINY_BYTES", 0)
    log = HandLog(tmp_path / "log")
    modes: list[Mode] = ["current", "current", "soft_delete", "append"]
    made = Histories(range(SEED, SEED + 6), log, modes, with_layouts="iceberg")
    for _ in range(2):
        made.write_round()
        made.move_away(lambda table: NamedTable(lake, table))
        made.lay_out()
        report = local.merge(log.root, lake, table_format="iceberg", policies=made.policies)
        made.check(report, lambda table: rows_of(lake, table.id))


@pytest.mark.parametrize("type_", ["glue", pytest.param("hive", marks=pytest.mark.long)])
def test_two_names_that_the_catalog_does_not_distinguish_are_not_one_table(
    type_: str, hand_log: HandLog, tmp_path: Path
) -> None:
    """Hive and Glue compare names without case: the second table's rows would go into the first one."""
    other = make_table("Orders", schema="shop", id="int64", item="string")
    hand_log.segment([(other, "c", {"id": 1, "item": "pen"}), (ORDERS, "c", {"id": 2, "item": "ink"})])
    with catalog_of(type_, tmp_path / "lake") as catalog:
        lake = Warehouse(tmp_path / "lake", catalog=catalog)
        report = merge(hand_log, lake)
        left = {table.name: table.left_out for table in report.tables if table.left_out is not None}
        assert len(left) == 1
        assert "does not distinguish its name" in next(iter(left.values()))
        shown = local.read_cut(lake, incomplete=True)
        assert [len(rows) for rows in shown.values()] == [1]


# ── a REST catalog that is unavailable, or whose answers are lost ─────────────────────────────────────────────────


def commits(request: Request) -> bool:
    return request.method == "POST" and "/tables/" in request.path


def test_a_merge_requests_each_table_once_and_commits_once(
    hand_log: HandLog, behind_gate: Warehouse, gate: HttpGate
) -> None:
    """The answer to a commit contains the table: requesting it again costs a round trip, and what another process has
    committed since would be shown by a cut whose rows are others."""
    with closing(LocalEngine(behind_gate, "iceberg")) as engine:
        for number in range(3):
            hand_log.segment([(ORDERS, "c", {"id": number, "item": "new"})])
            gate.requests.clear()
            assert job.merge(Engines(engine), hand_log.root, behind_gate).published
        found = Counter((r.method, r.path.rpartition("/")[2]) for r in gate.requests)
    print(found)
    assert found == {
        ("GET", "orders"): 1,
        ("POST", "orders"): 1,
        ("GET", "_cdcflow_cuts"): 2,
        ("POST", "_cdcflow_cuts"): 1,
    }


def test_commit_whose_answer_was_lost_is_done_once(hand_log: HandLog, behind_gate: Warehouse, gate: HttpGate) -> None:
    """The table shows whether the commit was executed. Repeating the range would be harmless, guessing would not:
    PyIceberg removes the manifests of a commit that failed."""
    hand_log.segment([(ORDERS, "c", {"id": n, "item": "new"}) for n in range(3)])
    lost: list[str] = []

    def rule(request: Request) -> Any:
        if not commits(request) or str(request) in lost:
            return None
        lost.append(str(request))
        return LOST

    gate.rule = rule
    assert merge(hand_log, behind_gate).published
    assert len(lost) == 2, "one table and the table of cuts"
    assert sorted_rows(behind_gate, ORDERS, "id") == [(0,), (1,), (2,)]
    assert versions(behind_gate) == {"shop.orders": 1, "_cdcflow._cdcflow_cuts": 1}


@pytest.mark.parametrize("status", [500, 502, 503, 504])
def test_commit_that_a_proxy_reports_as_failed_is_looked_up(
    status: int, hand_log: HandLog, behind_gate: Warehouse, gate: HttpGate
) -> None:
    """Executed or not: the table shows it."""
    hand_log.segment([(ORDERS, "c", {"id": 1, "item": "new"})])
    executed = Counter[bool]()

    def change(request: Request, answer: Answer) -> Answer:
        return answer if not commits(request) or executed[True] > 1 else failed(executed, True)

    def rule(request: Request) -> Answer | None:
        return failed(executed, False) if commits(request) and executed[False] < 2 else None

    def failed(counted: Counter[bool], which: bool) -> Answer:
        counted[which] += 1
        return Answer.of_json(status, {"error": {"message": "try later", "type": "Failed", "code": status}})

    gate.rule, gate.change = rule, change
    assert merge(hand_log, behind_gate).published
    assert executed == {True: 2, False: 2}
    assert sorted_rows(behind_gate, ORDERS, "id") == [(1,)]
    assert versions(behind_gate) == {"shop.orders": 1, "_cdcflow._cdcflow_cuts": 1}


def test_refusal_of_a_commit_that_was_executed_keeps_its_files(
    hand_log: HandLog, behind_gate: Warehouse, gate: HttpGate
) -> None:
    """A proxy that repeats a request gets 409 for the second one."""
    hand_log.segment([(ORDERS, "c", {"id": 1, "item": "new"})])
    repeated: list[int] = []

    def change(request: Request, answer: Answer) -> Answer:
        if commits(request) and answer.status == 200 and len(repeated) < 2:
            repeated.append(0)
            gate.requests.pop()
            again = HttpGate.forward(gate, request)
            assert again.status == 409
            return again
        return answer

    gate.change = change
    assert merge(hand_log, behind_gate).published
    assert len(repeated) == 2
    assert sorted_rows(behind_gate, ORDERS, "id") == [(1,)]


def test_catalog_that_stays_away_ends_the_merge_and_loses_nothing(
    hand_log: HandLog, behind_gate: Warehouse, gate: HttpGate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next merge finds the commit."""
    monkeypatch.setattr(iceberg_commits, "ASK_WITHIN_S", 0.3)
    hand_log.segment([(ORDERS, "c", {"id": 1, "item": "new"})])
    done: list[Request] = []

    def rule(request: Request) -> Any:
        if done:
            return CUT
        if commits(request):
            done.append(request)
            return LOST
        return None

    gate.rule = rule
    with pytest.raises(SinkUnavailable, match="whether it executed a commit is unknown"):
        merge(hand_log, behind_gate)
    with pytest.raises(SinkUnavailable, match=r"the rest catalog at http://.* is not available \(\w+\)"):
        merge(hand_log, behind_gate)
    gate.rule = lambda request: None
    assert merge(hand_log, behind_gate).published
    assert versions(behind_gate)["shop.orders"] == 1
    assert sorted_rows(behind_gate, ORDERS, "id") == [(1,)]


def test_merge_dies_at_every_request_to_the_catalog_and_the_next_one_finishes_it(
    hand_log: HandLog, behind_gate: Warehouse, gate: HttpGate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The n-th request is not forwarded, or its answer is lost, and no later one is forwarded: for all n of a merge."""
    monkeypatch.setattr(iceberg_commits, "ASK_WITHIN_S", 0.1)
    hand_log.state(ORDERS)
    expected, number, deaths = {}, 0, 0
    while True:
        number += 1
        for way in (CUT, LOST):
            expected[number] = f"{number} {way}"
            hand_log.segment([(ORDERS, "c" if way == CUT else "u", {"id": number, "item": expected[number]})])
            seen: list[Request] = []

            def rule(request: Request, seen: list[Request] = seen, last: int = number, way: Any = way) -> Any:
                seen.append(request)
                return None if len(seen) < last else way if len(seen) == last else CUT

            gate.rule = rule
            try:
                merge(hand_log, behind_gate)
            except SinkUnavailable:
                deaths += 1
            gate.rule = lambda request: None
            merge(hand_log, behind_gate)
            assert sorted_rows(behind_gate, ORDERS, "id", "item") == sorted(expected.items()), (number, way)
            assert len(rows_of(behind_gate, ORDERS.id)) == len(expected)
        if len(seen) < number:
            break
    assert deaths > 10


def versions(lake: Warehouse) -> dict[str, int]:
    """The sequence numbers of the tables that were merged."""
    with closing(LocalEngine(lake, "iceberg")) as engine:
        found = {".".join(n): engine.table(p).snapshot() for n, p in _TABLES.items()}
        return {name: there.version for name, there in found.items() if there is not None}


_TABLES = {("shop", "orders"): ("shop", "orders"), ("_cdcflow", "_cdcflow_cuts"): ("_cdcflow_cuts",)}


# ── tokens ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def tokens(rest_server: RestCatalog) -> Iterator[TokenGate]:
    with TokenGate(rest_server.port) as found:
        yield found


def with_tokens(tokens: TokenGate, root: Path, **more: str) -> Warehouse:
    given = {"type": "rest", "uri": tokens.uri, "oauth2-server-uri": tokens.token_server}
    return Warehouse(root, catalog={**given, "credential": tokens.credential, **more})


def test_token_that_expires_in_the_middle_of_a_merge_is_renewed_once(
    hand_log: HandLog, tokens: TokenGate, behind_gate: Warehouse, tmp_path: Path
) -> None:
    """At any request: the merge continues with another token."""
    lake = with_tokens(tokens, tmp_path / "lake")
    hand_log.segment([(ORDERS, "c", {"id": 0, "item": "new"})])
    assert merge(hand_log, lake).published
    turns = 0
    while True:
        turns += 1
        hand_log.segment([(ORDERS, "c", {"id": turns, "item": "new"})])
        left = [turns]

        def rule(request: Request, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] == 0:
                tokens.expire()

        tokens.rule = rule
        before = len(tokens.granted)
        assert merge(hand_log, lake).published
        if left[0] > 0:
            break
        assert len(tokens.granted) - before == 2, "one at the start, and one after the first was refused"
    assert turns > 5
    assert len(sorted_rows(lake, ORDERS, "id")) == turns + 1


def test_token_is_renewed_before_it_expires(hand_log: HandLog, tokens: TokenGate, tmp_path: Path) -> None:
    """A refused request costs a second one, and some catalogs answer 403 to an expired token."""
    from cdcflow.tables.local.iceberg_settings import OAuth
    from cdcflow.tables.local.iceberg_tokens import Tokens

    tokens.lifetime_s = 100
    now = [0.0]
    found = Tokens(OAuth(tokens.token_server, tokens.credential), lambda: now[0])
    assert [found.auth_header(), found.auth_header()] == [f"Bearer {tokens.granted[0]}"] * 2
    now[0] = 79.0
    assert found.auth_header() == f"Bearer {tokens.granted[0]}"
    now[0] = 81.0
    assert found.auth_header() == f"Bearer {tokens.granted[1]}"


@pytest.mark.parametrize("is_token", [True, False])
def test_refused_identity_is_reported_without_it(
    is_token: bool, hand_log: HandLog, tokens: TokenGate, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The server's answers repeat what it was given, as some do; no message, log line or file has it."""
    secret = "a-wrong-secret-5c1d"  # noqa: S105  a mark
    lake = with_tokens(tokens, tmp_path / "lake")
    given = dict(lake.catalog or {})
    if is_token:
        del given["credential"]
        given["token"] = secret
    else:
        given["credential"] = f"{tokens.client}:{secret}"
    hand_log.segment([(ORDERS, "c", {"id": 1, "item": "new"})])
    with pytest.raises(ConfigurationError, match=r"denies access") as raised:
        merge(hand_log, Warehouse(lake.root, catalog=given))
    assert isinstance(raised.value, CdcflowError)
    assert raised.value.runbook == "catalog-refuses"
    said = "".join(capfd.readouterr())
    for text in (str(raised.value), repr(lake), said):
        assert secret not in text


# ── commits of several processes ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spread(2)
def test_merge_that_another_has_overtaken_is_refused_by_the_catalog(
    hand_log: HandLog, lake: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in an empty table, where Iceberg itself validates no append, and of commits without rows."""
    hand_log.segment([(ORDERS, "c", {"id": 1, "item": "one"})])
    overtaken: list[str] = []
    right = PyIcebergTable._do_commit

    def late(table: PyIcebergTable, *given: Any) -> None:
        if table.name()[-1] == "orders" and not overtaken:
            overtaken.append("orders")
            assert merge(hand_log, lake).published
        right(table, *given)

    monkeypatch.setattr(PyIcebergTable, "_do_commit", late)
    monkeypatch.setattr("cdcflow.tables.local.engine.folder_lease", _no_lease)
    with pytest.raises(SinkUnavailable, match="another merge has published one"):
        merge(hand_log, lake)
    assert overtaken
    assert sorted_rows(lake, ORDERS, "id", "item") == [(1, "one")]
    assert [row["id"] for row in rows_of(lake, ORDERS.id)] == [1]


def _no_lease(*given: Any) -> Any:
    from contextlib import nullcontext

    return nullcontext()


@pytest.mark.parametrize("type_", ["sql", pytest.param("rest", marks=pytest.mark.long)])
def test_racing_merges_lose_and_double_nothing(
    type_: str, hand_log: HandLog, tmp_path: Path, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes merge each new segment at the same time, without the lease, for which one would wait."""
    monkeypatch.setattr("cdcflow.tables.local.engine.folder_lease", _no_lease)
    table = make_table("events", schema="shop", key=(), id="int64")
    hand_log.state(table)
    ids: list[int] = []
    with catalog_of(type_, root := tmp_path / "lake", postgres) as catalog:
        lake = Warehouse(root, catalog=catalog)
        conflicts = 0

        def one(_: int) -> int:
            try:
                merge(hand_log, lake)
            except SinkUnavailable:
                return 1
            return 0

        with ThreadPoolExecutor(2) as threads:
            for n in range(10):
                ids.append(n)
                hand_log.segment([(table, "c", {"id": n})])
                conflicts += sum(threads.map(one, range(2)))
        merge(hand_log, lake)
        assert sorted(row["id"] for row in rows_of(lake, table.id)) == ids
        assert sorted_rows(lake, table, "id") == [(n,) for n in ids]
    assert conflicts, "the merges never raced"
