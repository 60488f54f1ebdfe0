"""Tables in Google's and Azure's object stores, without Spark: what holds in a store of S3's kind holds there, too."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

import pytest
import yaml
from tests.integration.local.test_random_histories import SEED, TOGETHER, Dying, few_small_files, run
from tests.servers.clouds import ACCOUNT, KEY, AzureStore, GoogleStore
from tests.servers.postgres import PostgresServer
from tests.support.objects.stored_lakes import Changing, MovedFolder
from tests.support.tables.catalogs import NamedTable, catalog_of
from typer.testing import CliRunner

from cdcflow import local
from cdcflow.cli.app import app
from cdcflow.errors import ConfigurationError
from cdcflow.model.stores import StoreAddress, place_in_store
from cdcflow.model.table import TableId
from cdcflow.stores.bucket import AlreadyThere, Bucket
from cdcflow.tables.bucket_folders import BucketFolder
from cdcflow.tables.job import store_lease
from cdcflow.tables.paths import Warehouse, table_path

__all__ = ["few_small_files"]

pytestmark = pytest.mark.long

HISTORIES = 40
_numbers = count(1)
_NO_LOGIN = {"disable_oauth": True, "client_email": "", "private_key": "", "private_key_id": "", "gcs_base_url": ""}


@dataclass(frozen=True)
class Cloud:
    """A store with a way to create buckets. `objects`: the settings that describe it."""

    scheme: str
    server: AzureStore | GoogleStore
    objects: dict[str, str]
    secrets: dict[str, str]

    def new_place(self) -> str:
        """The URL of a prefix in a new bucket."""
        bucket = f"lake-{next(_numbers)}"
        self.server.create(bucket)
        return f"{self.scheme}://{bucket}/ware"

    def warehouse(self, url: str) -> Warehouse:
        return Warehouse(url, self.address(url))

    def address(self, url: str) -> StoreAddress:
        place = place_in_store(url)
        assert place is not None
        account = ACCOUNT if place.kind == "az" else None
        endpoint, secret = self.objects["endpoint"], self.secrets["KEY_OF_THE_STORE"]
        return StoreAddress(place.bucket, endpoint, access_key=account, secret_key=secret, kind=place.kind)

    def bucket(self, url: str) -> Bucket:
        return Bucket.of_url(url, lambda _: self.address(url))

    def folder_of(self, url: str) -> Callable[[TableId], MovedFolder]:
        return lambda table: MovedFolder(self.bucket(url), "/".join(table_path(table)))


@pytest.fixture(scope="module", params=["gs", "az"])
def cloud(request: pytest.FixtureRequest) -> Iterator[Cloud]:
    if request.param == "az":
        with AzureStore() as azure:
            objects = {"account": ACCOUNT, "account_key": "${env:KEY_OF_THE_STORE}", "endpoint": azure.endpoint}
            yield Cloud("az", azure, objects, {"KEY_OF_THE_STORE": KEY})
    else:
        with GoogleStore() as google:
            objects = {"service_account": "${env:KEY_OF_THE_STORE}", "endpoint": google.endpoint}
            yield Cloud("gs", google, objects, {"KEY_OF_THE_STORE": json.dumps(_NO_LOGIN)})


@pytest.fixture(autouse=True)
def lease_of_the_dead_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """A merge that died holds its lease for a minute."""
    monkeypatch.setattr(store_lease, "LEASED_FOR_S", -1)


def test_requests_mean_the_same_as_in_a_store_of_s3s_kind(cloud: Cloud) -> None:
    bucket = cloud.bucket(cloud.new_place())
    bucket.put_new("a/1", b"one")
    with pytest.raises(AlreadyThere):
        bucket.put_new("a/1", b"two")
    assert bucket.get("a/1") == b"one"
    assert (bucket.describe("a/1").bytes, bucket.get_part("a/1", 1, 9)) == (3, b"ne")
    with pytest.raises(EOFError):
        bucket.get_part("a/1", 5, 9)
    for name in ("a/2", "a/3", "a/ü %2F+~"):
        bucket.put(name, name.encode())
    assert [name for name, _ in bucket.each_listed("a", "1")] == ["2", "3", "ü %2F+~"]
    assert bucket.get("a/ü %2F+~") == "a/ü %2F+~".encode()
    bucket.delete(["a/0", "a/2", "a/9", "a/3"])
    assert list(bucket.list_objects("")) == ["a/1", "a/ü %2F+~"]
    with pytest.raises(FileNotFoundError):
        bucket.get("a/2")
    assert bucket.folders("") == ["a"]


def test_of_many_writers_of_a_commit_one_wins(cloud: Cloud) -> None:
    url = cloud.new_place()
    folder = BucketFolder(cloud.bucket(url), url)
    assert folder.is_safe()

    def creates(number: int) -> bool:
        try:
            folder.create("00000000000000000001.json", f"by {number}".encode())
            return True
        except FileExistsError:
            return False

    with ThreadPoolExecutor(16) as writers:
        won = list(writers.map(creates, range(16)))
    assert won.count(True) == 1
    assert folder.read("00000000000000000001.json") == f"by {won.index(True)}".encode()


def test_what_a_store_refuses_names_its_settings(cloud: Cloud) -> None:
    missing = cloud.bucket(f"{cloud.scheme}://not-there/ware")
    asks: list[Callable[[], object]] = [lambda: missing.put("x", b"")]
    if cloud.scheme == "az":  # the server of Google's kind answers 500, and checks no keys
        asks += [lambda: missing.list_objects(""), lambda: missing.delete(["a", "b"])]
    for ask in asks:
        with pytest.raises(ConfigurationError, match="there is no such bucket") as refused:
            ask()
        assert "create the bucket" in str(refused.value)
    if cloud.scheme == "az":
        url = cloud.new_place()
        wrong = replace(cloud.address(url), secret_key="A" * 86 + "==")
        with pytest.raises(ConfigurationError, match=r"log\.objects\.account_key") as refused:
            Bucket.of_url(url, lambda _: wrong).put("x", b"")
        assert KEY not in str(refused.value)


@pytest.mark.parametrize("first", range(0, HISTORIES, TOGETHER))
def test_histories_give_what_the_fold_gives(first: int, tmp_path: Path, cloud: Cloud) -> None:
    """Every second log is merged by jobs that die before a commit."""
    url = cloud.new_place()
    merge = Dying(SEED + first) if first // TOGETHER % 2 else local.merge
    seed, into, folder_of = SEED + 5_000_000 + first, cloud.warehouse(url), cloud.folder_of(url)
    run(seed, TOGETHER, tmp_path, merge, table_format="delta", into=into, folder_of=folder_of)


def test_histories_of_iceberg_tables_give_what_the_fold_gives(tmp_path: Path, cloud: Cloud) -> None:
    url = cloud.new_place()
    with PostgresServer() as postgres, catalog_of("sql", "", postgres) as catalog:
        into = replace(cloud.warehouse(url), catalog=catalog)
        named = lambda table: NamedTable(into, table)  # noqa: E731
        run(SEED + 6_000_000, TOGETHER, tmp_path, table_format="iceberg", into=into, folder_of=named)


@pytest.mark.parametrize("engine", ["auto", "local"])
def test_commands_need_no_spark(cloud: Cloud, tmp_path: Path, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Merge, cuts, maintenance, a rebuild into another bucket, and tables adopted from there."""
    for name, value in cloud.secrets.items():
        monkeypatch.setenv(name, value)
    changing = Changing(tmp_path / "made")
    for _ in range(3):
        changing.segment()
    url, again = cloud.new_place(), cloud.new_place()
    config = tmp_path / "cdcflow.yaml"
    settings = {
        "source": {"kind": "postgres", "url": "postgresql://reader@127.0.0.1:1/shop"},
        "log": {"path": str(changing.log.root)},
        "merge": {"engine": engine, "warehouse": url, "objects": cloud.objects, "keep": "7d"},
    }
    config.write_text(yaml.safe_dump(settings))

    def said(*command: str) -> str:
        ran = CliRunner().invoke(app, [*command, "-c", str(config)])
        assert ran.exit_code == 0, ran.output
        return ran.output

    assert "cut 3" in said("merge")
    assert changing.check(cloud.warehouse(url)) == 3
    changing.segment()
    assert "cut 4" in said("merge")
    assert [one["cut"] for one in json.loads(said("cuts", "--json"))] == [3, 4]
    assert "which cut 4 shows" in said("explain", "public.keyed")
    said("upkeep")
    said("rebuild", "--into", again)
    assert changing.check(cloud.warehouse(again)) == 4
