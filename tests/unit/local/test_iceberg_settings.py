"""Properties of Iceberg catalogs, as `merge.catalog` has them, in PyIceberg's names."""

from __future__ import annotations

import pytest

from cdcflow.tables.formats.iceberg import PLAIN_NAMES, catalog_type, check_name
from cdcflow.tables.local.iceberg_settings import OnlyForSpark, catalog_settings
from cdcflow.tables.merge.refusals import CannotFollow

LAKE = "s3a://shop/lake"


def test_database_of_a_jdbc_catalog_is_named_as_its_python_driver_names_it() -> None:
    """Both clients must open the same database, over an equally protected connection."""
    uri = "jdbc:postgresql://db.internal:6432/lake%20house?sslmode=verify-ca&user=reader"
    more = {"jdbc.user": "writer", "jdbc.password": "p@ss:w/rd", "jdbc.currentSchema": "tables", "clients": "1"}
    found = catalog_settings({"type": "jdbc", "uri": uri, **more}, LAKE)
    assert found.sql is not None
    assert (found.sql.driver, found.sql.database) == ("postgresql+psycopg", "lake house")
    assert (found.sql.host, found.sql.port, found.sql.user) == ("db.internal", 6432, "writer")
    assert found.sql.password == "p@ss:w/rd"  # noqa: S105  a mark
    assert found.sql.query == {"connect_timeout": "10", "sslmode": "verify-ca", "options": "-csearch_path=tables"}
    assert found.properties == {"warehouse": LAKE}


def test_encrypted_connection_of_java_is_checked_as_java_does() -> None:
    """`ssl=true` checks the server's certificate and name."""
    found = catalog_settings({"type": "jdbc", "uri": "jdbc:postgresql://db/lake?ssl=true"}, LAKE)
    assert found.sql is not None
    assert found.sql.query["sslmode"] == "verify-full"


def test_identity_is_not_among_the_properties() -> None:
    """PyIceberg passes a catalog's properties to files and tables; secrets are needed by one request only."""
    given = {
        "type": "rest",
        "uri": "https://catalog.internal/api/",
        "credential": "id:a-secret",
        "scope": "PRINCIPAL_ROLE:ALL",
        "warehouse": "lake",
        "prefix": "main",
    }
    found = catalog_settings(given, LAKE)
    assert found.properties == {"uri": "https://catalog.internal/api", "warehouse": "lake", "prefix": "main"}
    assert found.oauth is not None
    assert found.oauth.server == "https://catalog.internal/api/v1/oauth/tokens"
    assert (found.oauth.credential, found.oauth.more) == ("id:a-secret", {"scope": "PRINCIPAL_ROLE:ALL"})
    assert "a-secret" not in repr(found)


def test_signed_requests_use_the_keys_that_java_would_use() -> None:
    """Glue and S3 Tables offer REST catalogs whose requests are signed."""
    given = {
        "catalog-impl": "org.apache.iceberg.rest.RESTCatalog",
        "uri": "https://glue.eu-west-1.amazonaws.com/iceberg",
        "rest.auth.type": "sigv4",
        "rest.signing-name": "glue",
        "rest.access-key-id": "AKIA",
    }
    found = catalog_settings(given, LAKE)
    assert found.oauth is None
    assert found.properties["rest.sigv4-enabled"] == "true"
    assert (found.properties["rest.signing-name"], found.properties["client.access-key-id"]) == ("glue", "AKIA")


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"type": "nessie", "uri": "http://n"}, "type nessie"),
        ({"catalog-impl": "org.apache.iceberg.nessie.NessieCatalog"}, "NessieCatalog"),
        ({"type": "rest"}, "no uri"),
        ({"type": "rest", "uri": "http://r", "rest.auth.type": "google"}, "google"),
        ({"type": "rest", "uri": "http://r", "io-impl": "com.example.Files"}, "com.example.Files"),
        ({"type": "jdbc", "uri": "jdbc:mysql://db/lake"}, "neither PostgreSQL"),
        ({"type": "jdbc", "uri": "jdbc:postgresql://a,b/lake"}, "several hosts"),
        ({"type": "jdbc", "uri": "jdbc:postgresql://a/lake?targetServerType=primary"}, "targetServerType"),
        ({"type": "hive"}, "no uri"),
    ],
)
def test_catalog_that_pyiceberg_would_open_otherwise_is_left_to_spark(given: dict[str, str], why: str) -> None:
    """A property that is dropped silently could lead to another catalog, or to the same one without protection."""
    with pytest.raises(OnlyForSpark, match=why):
        catalog_settings(given, LAKE)


def test_hive_types_are_those_of_spark() -> None:
    """A metastore of Hive 2 refuses a timestamp with a time zone."""
    found = catalog_settings({"type": "hive", "uri": "thrift://host:9083"}, LAKE)
    assert found.properties["hive.hive2-compatible"] == "true"


@pytest.mark.parametrize(
    ("given", "type_"),
    [
        ({"type": "Hive"}, "hive"),
        ({"catalog-impl": "org.apache.iceberg.hive.HiveCatalog"}, "hive"),
        ({"catalog-impl": "org.apache.iceberg.aws.glue.GlueCatalog"}, "glue"),
        ({"catalog-impl": "org.apache.iceberg.rest.RESTCatalog"}, "rest"),
    ],
)
def test_a_catalog_s_class_has_the_type_of_the_same_catalog(given: dict[str, str], type_: str) -> None:
    """Its type decides which names it can have, and it refuses others in words that name no remedy."""
    assert catalog_type(given) == type_
    assert catalog_settings({**given, "uri": "http://host:1"}, LAKE).type == type_
    if type_ in PLAIN_NAMES:
        with pytest.raises(CannotFollow, match=f"a {type_} catalog has no names with other characters"):
            check_name(("shop", "order-lines"), catalog_type(given))
