"""Classify errors of catalogs: the catalog does not answer, it refuses this client, or it may have executed a request
although it reported an error.

No message contains a secret: a server's own text is only repeated where it explains a refused request, and then without
anything that is, or looks like, a token.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Literal

from pyiceberg.exceptions import (
    AuthorizationExpiredError,
    CommitFailedException,
    CommitStateUnknownException,
    ForbiddenError,
    OAuthError,
    RESTError,
    ServerError,
    ServiceUnavailableError,
    TooManyRequestsError,
    UnauthorizedError,
)
from requests import RequestException

from cdcflow.errors import CdcflowError, ConfigurationError, SinkUnavailable

Kind = Literal["away", "denied", "refused"]

_TEXT_MAX = 200
_TOKEN_LIKE = re.compile(r"(?i)bearer\s+\S+|\beyJ[\w-]+(\.[\w-]+)*|[\w+/=-]{40,}")

_AWAY = (RequestException, ServiceUnavailableError, ServerError, TooManyRequestsError, CommitStateUnknownException)
_DENIED = (UnauthorizedError, ForbiddenError, OAuthError, AuthorizationExpiredError)

_SQL_DENIED = ("28", "3D", "42501")
_SQL_AWAY = ("08", "53", "57")
"""Classes of SQLSTATE that mean that a server does not answer at present:
https://www.postgresql.org/docs/current/errcodes-appendix.html"""

_SQL_REFUSED = re.compile(r"authentication failed|no pg_hba\.conf entry|FATAL: .*does not exist|no password supplied")

_BOTO_AWAY = {
    "ConnectTimeoutError",
    "ConnectionClosedError",
    "EndpointConnectionError",
    "HTTPClientError",
    "ReadTimeoutError",
}
_BOTO_DENIED = {"NoCredentialsError", "NoRegionError", "PartialCredentialsError", "ProfileNotFound"}
_AWS_AWAY = {"InternalServiceException", "OperationTimeoutException", "ServiceUnavailable", "ThrottlingException"}
_AWS_DENIED = {
    "AccessDeniedException",
    "ExpiredTokenException",
    "IncompleteSignature",
    "InvalidClientTokenId",
    "InvalidSignatureException",
    "UnrecognizedClientException",
}


def kind_of(error: BaseException) -> Kind | None:
    """Return the kind of an error of a catalog server; `None` for other errors."""
    for one in _chain(error):
        if isinstance(one, _AWAY):
            return "away"
        if isinstance(one, _DENIED):
            return "denied"
        match _package(one):
            case "psycopg":
                return _of_sql(one)
            case "botocore":
                return _of_aws(one)
            case "thrift":
                return "away"
        if isinstance(one, ConnectionError | TimeoutError):
            return "away"
        if isinstance(one, RESTError):
            return "refused"
    return None


def _of_sql(error: BaseException) -> Kind | None:
    state = str(getattr(error, "sqlstate", None) or "")
    if not state:  # the connection failed, for which libpq has no state
        return "denied" if _SQL_REFUSED.search(str(error)) else "away"
    if state.startswith(_SQL_AWAY):
        return "away"
    return "denied" if state.startswith(_SQL_DENIED) else None


def _of_aws(error: BaseException) -> Kind | None:
    name = type(error).__name__
    answer = getattr(error, "response", None)
    code = answer.get("Error", {}).get("Code", "") if isinstance(answer, dict) else ""
    if name in _BOTO_AWAY or code in _AWS_AWAY:
        return "away"
    return "denied" if name in _BOTO_DENIED or code in _AWS_DENIED else None


def may_be_executed(error: BaseException) -> bool:
    """Return whether a commit that ended with this error may have been executed: its answer was lost, or the request
    was repeated on the way and the second one was refused."""
    return isinstance(error, CommitFailedException) or kind_of(error) == "away"


def as_own(error: BaseException, catalog: str, attempted: str, secrets: Sequence[str] = ()) -> CdcflowError | None:
    """Return cdcflow's error for an error of a catalog server; `None` for other errors. `catalog` names the catalog and
    its address."""
    kind = kind_of(error)
    if kind is None:
        return None
    told = f"{attempted}: {catalog}"
    if kind == "away":
        return SinkUnavailable(
            f"{told} is not available ({_names(error)})",
            remedy="nothing is lost; merge again when it is",
            runbook="catalog-unreachable",
        )
    if kind == "denied":
        return ConfigurationError(
            f"{told} denies access ({_names(error)})",
            remedy="correct the credential, token or keys in merge.catalog, or grant this user to read, create and"
            " change its tables",
            runbook="catalog-refuses",
        )
    return ConfigurationError(
        f"{told} refuses the request ({_names(error)}: {_text(error, secrets)})",
        remedy="correct merge.catalog, or what the message names in the catalog",
        runbook="catalog-refuses",
    )


def _names(error: BaseException) -> str:
    """Return the error's class, with its HTTP status, its SQLSTATE or AWS's code for it."""
    answers = [getattr(one, "response", None) for one in _chain(error)]
    codes = [answer.get("Error", {}).get("Code") for answer in answers if isinstance(answer, dict)]
    statuses = [getattr(answer, "status_code", None) for answer in answers]
    states = [getattr(one, "sqlstate", None) for one in _chain(error)]
    more = next((str(found) for found in (*codes, *statuses, *states) if found), None)
    return type(error).__name__ if more is None else f"{type(error).__name__} {more}"


def _text(error: BaseException, secrets: Sequence[str]) -> str:
    """Return the text that a server reported, shortened, without secrets."""
    text = (str(error).splitlines() or [""])[0]
    for secret in secrets:
        text = text.replace(secret, "…")
    return _TOKEN_LIKE.sub("…", text)[:_TEXT_MAX]


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and the errors from which it was raised. An error of SQLAlchemy has the driver's error as
    `orig`."""
    found: BaseException | None = error
    while found is not None:
        yield found
        found = getattr(found, "orig", None) or found.__cause__


def _package(error: BaseException) -> str:
    return type(error).__module__.partition(".")[0]
