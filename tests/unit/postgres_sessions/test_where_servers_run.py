"""What an address and a server's settings show about where it runs; and which source a log may be continued from."""

from __future__ import annotations

import psycopg
import pytest

from cdcflow.errors import ConfigurationError
from cdcflow.model.position import SourceIdentity
from cdcflow.sources.postgres.connection import Address, _connect_error
from cdcflow.sources.postgres.identity import decodes
from cdcflow.sources.postgres.platforms import OWN, RDS, SERVICES
from cdcflow.sources.postgres.poolers import pooler_of


@pytest.mark.parametrize(
    ("host", "port", "name"),
    [
        ("ep-cool-1-pooler.eu-central-1.aws.neon.tech", "5432", "Neon"),
        ("aws-0-eu-central-1.pooler.supabase.com", "6543", "Supavisor"),
        ("shop.proxy-abc.eu-central-1.rds.amazonaws.com", "5432", "RDS Proxy"),
        ("shop.postgres.database.azure.com", "6432", "Azure"),
        ("shop.postgres.database.azure.com", "5432", "a connection pooler"),
        ("shop.proxy-abc.example.org", "5432", "a connection pooler"),
        ("127.0.0.1", "6432", "a connection pooler"),
    ],
)
def test_pooler_is_named_where_the_host_shows_it(host: str, port: str, name: str) -> None:
    """The remedy of one service is wrong at another."""
    assert name in pooler_of(host, port)[0]


@pytest.mark.parametrize(
    "said", ["unsupported startup parameter: replication", "unsupported startup parameter in options: row_security"]
)
def test_refusal_of_a_pooler_is_no_failure_to_try_again(said: str) -> None:
    """It was retried indefinitely, as if the server would answer once."""
    error = _connect_error(
        psycopg.OperationalError(f"connection failed: FATAL:  {said}"),
        Address.parse("postgresql://a@h/b"),
        has_password=True,
    )
    assert isinstance(error, ConfigurationError)
    assert "pooler" in str(error)
    assert said in str(error)


def test_server_without_wal_senders_is_set_up_and_not_waited_for() -> None:
    """At wal_level = minimal there can be none, and no other consumer has them."""
    text = 'FATAL:  number of requested standby connections exceeds "max_wal_senders" (currently 0)'
    error = _connect_error(psycopg.OperationalError(text), Address.parse("postgresql://a@h/b"), has_password=True)
    assert isinstance(error, ConfigurationError)
    full = _connect_error(
        psycopg.OperationalError(text.replace("0", "5")), Address.parse("postgresql://a@h/b"), has_password=True
    )
    assert not isinstance(full, ConfigurationError)


@pytest.mark.parametrize(
    ("level", "effective", "expected"),
    [
        ("logical", None, True),
        ("replica", None, False),
        ("minimal", None, False),
        ("replica", "replica", True),
        ("replica", "logical", True),
        ("minimal", "minimal", False),
        ("logical", "logical", True),
    ],
)
def test_replica_is_enough_where_the_server_raises_it_by_itself(
    level: str, effective: str | None, expected: bool
) -> None:
    """Since PostgreSQL 19 the first logical slot raises it."""
    assert decodes(level, effective) is expected


def test_settings_are_changed_where_the_service_has_them() -> None:
    """Only a self-managed server accepts ALTER SYSTEM."""
    assert OWN.setting_remedy("a", "1", restart=True).sql == ("ALTER SYSTEM SET a = '1'",)
    assert OWN.setting_remedy("a", "1").sql == ("ALTER SYSTEM SET a = '1'", "SELECT pg_reload_conf()")
    for service in SERVICES:
        assert service.setting_remedy("a", "1").sql == ()
        assert service.logical_remedy().sql == ()
    assert RDS.replication_remedy('c"d').sql == ('GRANT rds_replication TO "c""d"',)


KNOWN = SourceIdentity("postgres", "7", "shop", "1")


@pytest.mark.parametrize(
    ("now", "plainly", "renamed", "replaced"),
    [
        (KNOWN, True, True, True),
        (SourceIdentity("postgres", "7", "shop", "2"), True, True, True),
        (SourceIdentity("postgres", "7", "store", "1"), False, True, False),
        (SourceIdentity("postgres", "8", "shop", "1"), False, False, True),
        (SourceIdentity("postgres", "8", "store", "1"), False, False, False),
        (SourceIdentity("mysql", "7", "shop", "1"), False, False, False),
    ],
)
def test_log_is_continued_from_its_source_alone(
    now: SourceIdentity, plainly: bool, renamed: bool, replaced: bool
) -> None:
    """A renamed database is the same; a replaced server only if an operator confirms it; and both at once never."""
    assert now.is_source_of(KNOWN) is plainly
    assert now.is_source_of(KNOWN, renamed=True) is renamed
    assert now.is_source_of(KNOWN, replaced=True) is replaced
