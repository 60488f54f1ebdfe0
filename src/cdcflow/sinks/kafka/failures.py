"""Maps errors of the client library or of the brokers to cdcflow's, with the words for operators.

The library passes the reason for a broken connection to a callback; the waiting call only gets a timeout. So each
client has its `ErrorCallback`, and the last reported error becomes the reason.
"""

from __future__ import annotations

import re

from confluent_kafka import KafkaError, KafkaException

from cdcflow.errors import CdcflowError, ConfigurationError, InvariantViolated, SinkUnavailable

_AUTHENTICATION = frozenset(
    (KafkaError.SASL_AUTHENTICATION_FAILED, KafkaError._AUTHENTICATION, KafkaError._SSL, KafkaError.ILLEGAL_SASL_STATE)
)
_DENIED = frozenset(
    (
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
    )
)
_FENCED = frozenset((KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH))
_GONE = frozenset((KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION))
_IN_VAIN = frozenset((KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._FAIL))
_MOVING = frozenset(
    (KafkaError.LEADER_NOT_AVAILABLE, KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.OFFSET_NOT_AVAILABLE)
)
_TOO_LARGE = frozenset((KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE))


class Fenced(Exception):
    """The brokers refuse this producer. Never leaves this package: the log finds out why (`log.KafkaLog`)."""


class ErrorCallback:
    """The error callback of one client: remembers the last reason why brokers could not be reached."""

    def __init__(self) -> None:
        self.heard: KafkaError | None = None
        self.refused: KafkaError | None = None

    def __call__(self, error: KafkaError) -> None:
        self.heard = error
        if error.code() in _AUTHENTICATION:
            self.refused = error


def is_fenced(error: KafkaError) -> bool:
    """Whether the brokers gave this transactional id to another producer, or aborted the transaction that this one had
    begun."""
    return error.code() in _FENCED or (error.fatal() and "fenced" in error.str().lower())


def is_refused(error: KafkaError) -> bool:
    """Whether the brokers refuse this user's login or request."""
    return error.code() in _AUTHENTICATION | _DENIED


def is_missing(error: KafkaError) -> bool:
    return error.code() in _GONE


def is_moving(error: KafkaError) -> bool:
    """Whether the partition currently has no leader, or a new one that only some brokers know."""
    return error.code() in _MOVING


def map_error(error: KafkaException, attempted: str, errors: ErrorCallback | None = None) -> CdcflowError:
    """Return the error to raise in place of one of the library. Use this only after requests that certainly had no
    effect."""
    about: KafkaError = error.args[0]
    heard = errors.refused if errors is not None and errors.refused is not None else None
    if about.code() in _IN_VAIN and heard is None and errors is not None and errors.heard is not None:
        return SinkUnavailable(
            f"{attempted}: no broker answered ({_plain(errors.heard)})", remedy=_REACH, runbook="broker-unreachable"
        )
    code = (heard or about).code()
    said = f"{attempted}: {_plain(heard or about)}"
    if code in _AUTHENTICATION:
        return ConfigurationError(
            said,
            remedy="the brokers refused this client: check log.kafka.username, password and the security options "
            "(security.protocol, sasl.mechanism, ssl.ca.location)",
            runbook="broker-refuses",
        )
    if code in _DENIED:
        return ConfigurationError(
            said, remedy="grant this user the rights that docs/kafka.md lists", runbook="broker-refuses"
        )
    if code in _GONE:
        return InvariantViolated(f"{attempted}: the topic is gone ({_plain(about)})", remedy=GONE, runbook="topic-gone")
    if code in _TOO_LARGE:
        return ConfigurationError(
            said,
            remedy="set log.kafka.message_bytes below the topic's max.message.bytes, or raise the latter",
            runbook="message-too-large",
        )
    if code == KafkaError._INVALID_ARG:
        return ConfigurationError(said, remedy="correct log.kafka in the settings", runbook="broker-refuses")
    if code in _IN_VAIN:
        return SinkUnavailable(said, remedy=_REACH, runbook="broker-unreachable")
    return SinkUnavailable(said)


def refused_option(error: KafkaException, attempted: str) -> ConfigurationError:
    """Return the error for settings that the library rejects. Its own message may repeat a value, so only the name is
    reported."""
    found = re.search(r'property:? "([\w.]+)"', str(error.args[0]))
    which = f"option {found[1]}" if found else "its options"
    return ConfigurationError(
        f"{attempted}: the client library does not take {which}",
        remedy="correct log.kafka.options in the settings",
        runbook="broker-refuses",
    )


GONE = "bring the topics back from a copy, or begin a new log under another name with a backfill"
_REACH = "check log.kafka.brokers and the network; cdcflow tries again, and nothing that was acknowledged is lost"


def _plain(error: KafkaError) -> str:
    # The library's messages begin with the client's and the broker's names, once or twice.
    return re.sub(r"^(?:[\w-]+#\S*\s*)?(?:\[thrd:[^\]]*\]:\s*)?", "", error.str())
