"""Registers schemas in a schema registry that supports Confluent's HTTP interface.

cdcflow only requests the number of a schema under a subject: one request per schema and start, so Python's own HTTP
client is enough. Confluent's client would add seven packages.
"""

from __future__ import annotations

import base64
import http.client
import json
import urllib.error
import urllib.parse
import urllib.request

from cdcflow.config import Registry, secret
from cdcflow.errors import ConfigurationError, SinkUnavailable
from cdcflow.publish.formats import Register

WAIT_S = 30.0
_JSON = "application/vnd.schemaregistry.v1+json"


def registrar(settings: Registry) -> Register:
    """Return a function that registers a schema under a subject and returns the schema's number."""

    def register(subject: str, kind: str, text: str) -> int:
        # Avro is a registry's default, and the oldest ones support no other type.
        body = {"schema": text} if kind == "AVRO" else {"schema": text, "schemaType": kind}
        url = f"{settings.url.rstrip('/')}/subjects/{urllib.parse.quote(subject, safe='')}/versions"
        headers = {"Content-Type": _JSON, "Accept": f"{_JSON}, application/json", **_login(settings)}
        request = urllib.request.Request(url, json.dumps(body).encode(), headers)  # noqa: S310  http(s), by config
        return _request_id(request, f"registering the schema of {subject}")

    return register


def _login(settings: Registry) -> dict[str, str]:
    if settings.username is None:
        return {}
    said = f"{settings.username}:{secret(settings.password) or ''}".encode()
    return {"Authorization": f"Basic {base64.b64encode(said).decode()}"}


def _request_id(request: urllib.request.Request, attempted: str) -> int:
    try:
        with urllib.request.urlopen(request, timeout=WAIT_S) as answer:  # noqa: S310  http(s), by config
            return int(json.load(answer)["id"])
    except urllib.error.HTTPError as error:
        if error.code >= 500 or error.code in (408, 429):
            raise SinkUnavailable(
                f"{attempted}: the registry answered {error.code}", runbook="registry-refuses"
            ) from None
        raise ConfigurationError(
            f"{attempted}: the registry refused it ({error.code})",
            remedy="check the subject's compatibility (409, 422), or registry.username (401, 403)",
            runbook="registry-refuses",
        ) from None
    except (OSError, http.client.HTTPException) as error:
        raise SinkUnavailable(
            f"{attempted}: the registry does not answer ({type(error).__name__})", runbook="registry-refuses"
        ) from None
    except (ValueError, KeyError, TypeError):
        raise ConfigurationError(
            f"{attempted}: the server that answers is not a schema registry",
            remedy="correct publish.kafka.registry.url",
            runbook="registry-refuses",
        ) from None
