"""The settings for one client library, translated for another: nothing that secures the connection is lost on the
way."""

from __future__ import annotations

import pytest

from cdcflow.errors import ConfigurationError
from cdcflow.spark.runtime.java_options import java_options

LOGIN = {"sasl.username": "cdc", "sasl.password": 'a"b\\c'}


def test_login_over_tls_is_written_in_java_s_options() -> None:
    """A password may have any character; the module's line must not end at one of them."""
    found = java_options(
        {"security.protocol": "sasl_ssl", "sasl.mechanisms": "SCRAM-SHA-512", "ssl.ca.location": "/ca.pem", **LOGIN}
    )
    assert found == {
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.location": "/ca.pem",
        "kafka.sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required"
        ' username="cdc" password="a\\"b\\\\c";',
    }


@pytest.mark.parametrize(
    "name", ["ssl.key.location", "sasl.kerberos.service.name", "enable.ssl.certificate.verification"]
)
def test_unknown_security_option_is_refused_with_an_error_that_names_it(name: str) -> None:
    """If it were silently omitted, the connection would differ from the requested one."""
    with pytest.raises(ConfigurationError, match=name.replace(".", r"\.")):
        java_options({name: "x"})


def test_tuning_options_of_the_other_library_are_ignored() -> None:
    """The daemon and the merge share one settings file."""
    assert java_options({"compression.type": "zstd", "linger.ms": "5", "socket.timeout.ms": "9"}) == {}


def test_a_mechanism_without_a_login_module_is_refused() -> None:
    """OAUTHBEARER needs more than a name and a password."""
    with pytest.raises(ConfigurationError, match="OAUTHBEARER"):
        java_options({"sasl.mechanism": "OAUTHBEARER", **LOGIN})
