"""Which store a URL names, which settings reach it, and what its refusals say."""

from __future__ import annotations

from pathlib import Path

import pytest
from obstore.exceptions import GenericError, PermissionDeniedError

from cdcflow import wiring
from cdcflow.config import load
from cdcflow.errors import ConfigurationError
from cdcflow.model.stores import StoreAddress, StorePlace, place_in_store
from cdcflow.stores.refusals import is_missing, refused_or_away

SETTINGS = "source: {kind: postgres, url: 'postgresql://db/shop'}\nlog: {path: log}\nmerge: "
AZURE = "shop.dfs.core.windows.net"


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("s3://lake/a/b", StorePlace("s3", "lake", "a/b")),
        ("s3a://lake/a/b", StorePlace("s3", "lake", "a/b")),
        ("gs://lake", StorePlace("gs", "lake")),
        ("az://lake/a", StorePlace("az", "lake", "a")),
        (f"abfss://lake@{AZURE}/a", StorePlace("az", "lake", "a", AZURE)),
        ("hdfs://host/lake", None),
        ("/a/gs:/b", None),
        ("lake", None),
    ],
)
def test_a_url_names_a_bucket(url: str, place: StorePlace | None) -> None:
    assert place_in_store(url) == place


def test_schemes_of_one_kind_name_the_same_bucket_and_accounts_do_not() -> None:
    roots = [place.root for url in ("s3://a/b", "s3a://a/c", "s3n://a") if (place := place_in_store(url)) is not None]
    assert roots == ["s3://a"] * 3
    one, other = place_in_store(f"abfss://lake@{AZURE}/a"), place_in_store("abfss://lake@else.dfs.core.windows.net/a")
    assert one is not None
    assert other is not None
    assert (one.account, one.endpoint) == ("shop", None)
    address = StoreAddress("lake", None, "us-east-1", "shop", "key", kind="az")
    assert address.for_place(one) == address
    assert address.for_place(other) == StoreAddress("lake", access_key="else", kind="az"), "no key of another account"


def test_another_cloud_of_azure_has_its_own_endpoint() -> None:
    place = place_in_store("abfss://lake@shop.dfs.core.chinacloudapi.cn/a")
    assert place is not None
    assert place.endpoint == "https://shop.blob.core.chinacloudapi.cn"


def test_settings_reach_each_kind_of_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", "the key")
    file = tmp_path / "cdcflow.yaml"

    def address(merge: str) -> StoreAddress | None:
        file.write_text(f"{SETTINGS}{{{merge}}}\n")
        return wiring.warehouse(load(file)).store

    assert address("warehouse: 'gs://lake/a', objects: {service_account: '${env:KEY}'}") == StoreAddress(
        "lake", None, "us-east-1", None, "the key", kind="gs"
    )
    of_azure = StoreAddress("lake", None, "us-east-1", "shop", "the key", kind="az")
    assert address(f"warehouse: 'abfss://lake@{AZURE}/a', objects: {{account_key: '${{env:KEY}}'}}") == of_azure
    assert address("warehouse: 'az://lake/a', objects: {account: shop, account_key: '${env:KEY}'}") == of_azure
    (tmp_path / "key").write_text("of a file")
    (tmp_path / "key").chmod(0o600)
    by_file = address("warehouse: 'gs://lake/a', objects: {service_account: '${file:key}'}")
    assert by_file == StoreAddress("lake", None, "us-east-1", None, "of a file", kind="gs")
    assert "the key" not in repr(of_azure)


@pytest.mark.parametrize(
    ("merge", "words"),
    [
        ("warehouse: 'gs://lake/a', objects: {access_key: '${env:A}', secret_key: '${env:B}'}", "objects.access_key"),
        ("warehouse: 's3://lake/a', objects: {account: shop}", "objects.account"),
        ("warehouse: 'az://lake/a', objects: {account_key: '${env:A}'}", "without objects.account"),
        (f"warehouse: 'abfss://lake@{AZURE}/a', objects: {{account: other}}", "another account"),
        ("warehouse: 's3://lake/a', objects: {endpoint: 'http://host/path'}", "which only Azure has"),
        ("warehouse: 'az://lake/a', objects: {endpoint: 'http://user@host/account'}", "without user"),
        ("warehouse: 'hdfs://lake/a', objects: {account: other}", "only a warehouse in a store"),
    ],
)
def test_keys_of_another_kind_of_store_are_refused(tmp_path: Path, merge: str, words: str) -> None:
    file = tmp_path / "cdcflow.yaml"
    file.write_text(f"{SETTINGS}{{{merge}}}\n")
    with pytest.raises(ConfigurationError, match=words):
        load(file)


@pytest.mark.parametrize(
    ("merge", "is_here"),
    [
        ("warehouse: 'gs://lake/a', objects: {service_account: '${env:KEY}'}", True),
        ("warehouse: 'gs://lake/a'", False),
        ("warehouse: 'gs://lake/a', engine: local", True),
        ("warehouse: 's3://lake/a'", True),
        ("warehouse: 's3://lake/a', spark: {spark.hadoop.fs.s3a.endpoint: 'http://x'}", False),
        ("warehouse: 'hdfs://lake/a'", False),
    ],
)
def test_auto_leaves_to_spark_what_only_spark_may_reach(
    tmp_path: Path, merge: str, is_here: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipeline whose Spark reached `gs://` by its own settings stays with Spark."""
    monkeypatch.setenv("KEY", "the key")
    file = tmp_path / "cdcflow.yaml"
    file.write_text(f"{SETTINGS}{{{merge}}}\n")
    config = load(file)
    assert wiring.warehouses.is_merged_here(config, wiring.warehouse(config)) is is_here


def test_refusals_name_the_settings_of_their_store() -> None:
    forbidden = PermissionDeniedError("status code: 403 Forbidden: <Code>AuthorizationFailure</Code>")
    assert "log.objects.account_key" in str(refused_or_away("reading x", forbidden, None, "az"))
    wrong_key = GenericError("status code: 403 Forbidden: <Code>AuthenticationFailed</Code>")
    assert "log.objects.account_key" in str(refused_or_away("reading x", wrong_key, None, "az"))
    assert "log.objects.service_account" in str(refused_or_away("reading x", forbidden, None, "gs"))
    no_role = GenericError("error sending request for url (http://metadata.google.internal/computeMetadata)")
    assert "GOOGLE_APPLICATION_CREDENTIALS" in str(refused_or_away("reading x", no_role, None, "gs"))


def test_a_missing_container_is_not_a_missing_object() -> None:
    assert is_missing(FileNotFoundError("Bulk delete request failed: The specified blob does not exist. (code: 404)"))
    gone = FileNotFoundError("Bulk delete request failed: The specified container does not exist. (code: 404)")
    assert not is_missing(gone)
    assert "create the bucket" in str(refused_or_away("removing x", gone, None, "az"))
