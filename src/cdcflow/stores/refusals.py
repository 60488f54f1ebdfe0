"""Classifies the client library's errors: unavailable (try again), refused (which setting to change), or no such
object.

The library classifies by status alone, and stores differ: one answers a wrong access key with 404. Taken for "no such
object" that would be a loss that never happened, so the code in the answer decides. The library's own text repeats
whole requests: only status and code are taken from it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError

from cdcflow.errors import CdcflowError, ConfigurationError, SinkUnavailable
from cdcflow.model.stores import StoreKind

_CODE = re.compile(r"<Code>(\w+)</Code>")
_STATUS = re.compile(r"status code: (\d+[ \w]*)")
_NO_OBJECT = {"NoSuchKey", "NoSuchVersion", "NotFound", "BlobNotFound"}
_NO_BUCKET = {"NoSuchBucket", "ContainerNotFound"}
_NO_SUCH_CONTAINER = "The specified container does not exist"
"""The text by which Azure reports a missing container in answer to a request for several objects; it has no code
there."""
_ROLE_ADDRESSES = ("169.254.169.254", "169.254.170.2", "metadata.google.internal")


@dataclass(frozen=True, slots=True)
class _Words:
    """The settings and rights of a kind of store, as remedies name them. `keys`: the settings with keys; `variables`:
    those of the environment; `grants`: the rights that are needed."""

    keys: str
    variables: str
    grants: str


_WORDS: Mapping[StoreKind, _Words] = {
    "s3": _Words(
        "log.objects.access_key and log.objects.secret_key",
        "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
        "s3:GetObject, s3:PutObject, s3:DeleteObject and s3:ListBucket",
    ),
    "gs": _Words("log.objects.service_account", "GOOGLE_APPLICATION_CREDENTIALS", "the role roles/storage.objectUser"),
    "az": _Words(
        "log.objects.account and log.objects.account_key",
        "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
        "the role Storage Blob Data Contributor",
    ),
}
_KEYS = "{} (or AWS_* of the environment, if the settings have no keys)"
_REMEDIES = {
    "InvalidBucketName": "change log.objects.url",
    "InvalidResourceName": "change log.objects.url",
    "InvalidAccessKeyId": f"change {_KEYS.format('log.objects.access_key')}",
    "XAdminUserNotFound": f"change {_KEYS.format('log.objects.access_key')}",
    "SignatureDoesNotMatch": f"change {_KEYS.format('log.objects.secret_key')}",
    "AuthorizationHeaderMalformed": "change log.objects.region",
    "IllegalLocationConstraintException": "change log.objects.region",
    "PermanentRedirect": "change log.objects.region, or log.objects.endpoint",
    "RequestTimeTooSkewed": "correct this machine's clock",
    "AuthenticationFailed": f"change {_WORDS['az'].keys} (or AZURE_* of the environment), or correct this machine's"
    " clock",
    "KeyBasedAuthenticationNotPermitted": "remove log.objects.account_key, and give this machine's identity "
    + _WORDS["az"].grants,
}
_REFUSED = {"AccessDenied"}


def is_missing(error: FileNotFoundError) -> bool:
    """Whether the store reports that there is no such object; otherwise its 404 means something else."""
    text = str(error)
    code = _CODE.search(text)
    if code is not None:
        return code[1] in _NO_OBJECT
    return _NO_SUCH_CONTAINER not in text


def is_beyond_end(error: Exception) -> bool:
    """Whether the store reports that an object ends before the requested part of it."""
    text = str(error)
    return "416" in text or "InvalidRange" in text or "Range started at" in text


def refused_or_away(
    attempt: str, error: Exception, endpoint: str | None = None, kind: StoreKind = "s3"
) -> CdcflowError:
    """Return the library's error as cdcflow's: `attempt` names the request and the object, `endpoint` the store's
    address."""
    text, words = str(error), _WORDS[kind]
    status, code = _STATUS.search(text), _code_of(text)
    if any(address in text for address in _ROLE_ADDRESSES):
        return SinkUnavailable(
            f"{attempt}: no keys: neither the settings nor the environment have any, and this machine has no role "
            f"that provides them",
            remedy=f"set {words.keys}, or {words.variables}",
            runbook="store-unreachable",
        )
    if status is None:
        said = code or text.splitlines()[0].rpartition(" - ")[2][:200]
    else:
        said = " ".join(part for part in (status[1].strip(), code) if part)
    if code in _NO_BUCKET:
        remedy = "create the bucket, or change log.objects.url"
        return ConfigurationError(f"{attempt}: there is no such bucket", remedy=remedy, runbook="store-refuses")
    change = _change_after(code, error, words)
    if change is not None:
        return ConfigurationError(f"{attempt}: the store refuses ({said})", remedy=change, runbook="store-refuses")
    if status is not None:
        return SinkUnavailable(f"{attempt}: {said}", runbook="store-unreachable")
    where = "the store" if endpoint is None else endpoint
    return SinkUnavailable(
        f"{attempt}: {where} does not answer ({said})",
        remedy=f"check that this machine reaches {where}, and that log.objects.endpoint is right",
        runbook="store-unreachable",
    )


def _code_of(text: str) -> str | None:
    if (found := _CODE.search(text)) is not None:
        return found[1]
    if _NO_SUCH_CONTAINER in text:
        return "ContainerNotFound"
    return next((known for known in (*_REMEDIES, *sorted(_NO_BUCKET | _REFUSED)) if known in text), None)


def _change_after(code: str | None, error: Exception, words: _Words) -> str | None:
    """Return what to change if the store refuses; None if it does not refuse."""
    if code in _REMEDIES:
        return _REMEDIES[code]
    if code in _REFUSED:
        return f"grant {words.grants}"
    if isinstance(error, PermissionDeniedError | UnauthenticatedError):
        return f"grant {words.grants}, or change {words.keys}"
    if isinstance(error, FileNotFoundError):
        return "change log.objects.access_key, log.objects.url or log.objects.endpoint"
    return None


__all__ = ["BaseError", "is_missing", "refused_or_away"]
