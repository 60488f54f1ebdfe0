"""Settings of the lease that decides which of several daemons is active."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from cdcflow.config import LeaseSettings

POSTGRES = "postgresql://cdc@db/locks"
MYSQL = "mysql://cdc@db:3306/"
TLS = {"mode": "off"}


@pytest.mark.parametrize(
    ("wrong", "said", "right"),
    [
        ({"at": "zookeeper"}, "must be source, file, kafka, or a URL", {"at": "file"}),
        ({"at": "source"}, "needs a name for the lock", {"at": "source", "name": "shop"}),
        ({"at": "file", "name": "shop"}, "only a lease in a database needs", {"at": "file"}),
        ({"at": "file", "ttl": "500ms"}, "must be at least 1s", {"at": "file", "ttl": "1s"}),
        (
            {"at": "source", "name": "shop", "password": "${env:P}"},
            "only a lease at another database server needs",
            {"at": POSTGRES, "name": "shop", "password": "${env:P}"},
        ),
        (
            {"at": POSTGRES, "name": "shop", "tls": TLS},
            "for PostgreSQL add ?sslmode=verify-full to the URL",
            {"at": f"{POSTGRES}?sslmode=verify-full", "name": "shop"},
        ),
        (
            {"at": "source", "name": "shop", "tls": TLS},
            "only a lease at a MySQL or MariaDB server needs",
            {"at": MYSQL, "name": "shop", "tls": TLS},
        ),
        (
            {"at": "file", "objects": {}},
            "only a lease in an object store",
            {"at": "s3://bucket/shop", "objects": {}},
        ),
    ],
)
def test_settings_that_would_have_no_effect_are_refused(
    wrong: dict[str, object], said: str, right: dict[str, object]
) -> None:
    """A certificate that is named and never checked is worse than none."""
    with pytest.raises(ValidationError) as refused:
        LeaseSettings.model_validate(wrong)
    assert said in str(refused.value)
    LeaseSettings.model_validate(right)
