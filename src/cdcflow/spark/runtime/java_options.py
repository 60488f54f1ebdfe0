"""Translate the settings' Kafka options, written for librdkafka, to those of the Java client that Spark reads with.

Only options that open the connection are translated; those that tune librdkafka have no meaning here. An option that
secures the connection and has no counterpart is refused: without it the connection would not be the requested one.
"""

from __future__ import annotations

from collections.abc import Mapping

from cdcflow.errors import ConfigurationError

_SAME = {
    "security.protocol": "security.protocol",
    "sasl.mechanism": "sasl.mechanism",
    "sasl.mechanisms": "sasl.mechanism",
    "client.dns.lookup": "client.dns.lookup",
}
_HANDLED = {*_SAME, "sasl.username", "sasl.password", "ssl.ca.location", "ssl.endpoint.identification.algorithm"}
_SECURING = ("ssl.", "sasl.", "security.", "enable.ssl.", "enable.sasl.", "https.")
_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
_SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
_LOGINS = {"PLAIN": _PLAIN, "SCRAM-SHA-256": _SCRAM, "SCRAM-SHA-512": _SCRAM}


def java_options(options: Mapping[str, str]) -> dict[str, str]:
    """Return options named as Spark's Kafka source expects them (`kafka.…`). One of the values contains the password.

    Raises:
        ConfigurationError: an option of the settings has no counterpart; the message names it.
    """
    unknown = sorted(name for name in options if name.startswith(_SECURING) and name not in _HANDLED)
    if unknown:
        raise ConfigurationError(
            f"reading the log in Kafka with Spark: log.kafka.options has {', '.join(unknown)}, which "
            f"cdcflow does not know as an option of Spark's client",
            remedy="secure the connection with security.protocol, sasl.mechanism (PLAIN, SCRAM-SHA-256 or -512) and "
            "ssl.ca.location; or copy the log into a folder (`cdcflow log copy`) and merge that",
            runbook="merge-session",
        )
    found = {_SAME[name]: value for name, value in options.items() if name in _SAME}
    if "security.protocol" in found:
        found["security.protocol"] = found["security.protocol"].upper()
    if "ssl.ca.location" in options:
        found |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": options["ssl.ca.location"]}
    if "ssl.endpoint.identification.algorithm" in options:
        asked = options["ssl.endpoint.identification.algorithm"]
        found["ssl.endpoint.identification.algorithm"] = "" if asked == "none" else asked
    if "sasl.username" in options:
        found["sasl.jaas.config"] = _login(found.get("sasl.mechanism", ""), options)
    return {f"kafka.{name}": value for name, value in found.items()}


def _login(mechanism: str, options: Mapping[str, str]) -> str:
    module = _LOGINS.get(mechanism.upper())
    if module is None:
        raise ConfigurationError(
            f"reading the log in Kafka with Spark: sasl.mechanism {mechanism or 'is not set'} with a username and "
            f"a password is not one that Spark's client supports",
            remedy=f"use one of {', '.join(_LOGINS)}",
            runbook="merge-session",
        )
    username, password = (_quote(options.get(name, "")) for name in ("sasl.username", "sasl.password"))
    return f"{module} required username={username} password={password};"


def _quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
