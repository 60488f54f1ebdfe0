"""What the client library's errors mean: unavailable (try again), refused (which setting to change), or no such object.

The library classifies by status alone, and stores differ: one answers a wrong access key with 404. Taken for "no such
object" that would be a loss that never happened, so the code in the answer decides. The library's own text repeats
whole requests: only status and code are taken from it.
"""

from __future__ import annotations

import re

from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError

from cdcflow.errors import CdcflowError, ConfigurationError, SinkUnavailable

_CODE = re.compile(r"<Code>(\w+)</Code>")
_STATUS = re.compile(r"status code: (\d+[ \w]*)")
_NO_OBJECT = {"NoSuchKey", "NoSuchVersion", "NotFound"}
_KEYS = "{} (or AWS_* of the environment, if the settings have no keys)"
_GRANTS = "s3:GetObject, s3:PutObject, s3:DeleteObject and s3:ListBucket"
_ROLE_ADDRESSES = ("169.254.169.254", "169.254.170.2")
_REMEDIES = {
    "NoSuchBucket": "create the bucket, or change log.objects.url",
    "InvalidBucketName": "change log.objects.url",
    "InvalidAccessKeyId": f"change {_KEYS.format('log.objects.access_key')}",
    "XAdminUserNotFound": f"change {_KEYS.format('log.objects.access_key')}",
    "SignatureDoesNotMatch": f"change {_KEYS.format('log.objects.secret_key')}",
    "AuthorizationHeaderMalformed": "change log.objects.region",
    "IllegalLocationConstraintException": "change log.objects.region",
    "PermanentRedirect": "change log.objects.region, or log.objects.endpoint",
    "RequestTimeTooSkewed": "correct this machine's clock",
    "AccessDenied": f"grant {_GRANTS}",
}


def is_missing(error: FileNotFoundError) -> bool:
    """Whether the store reports that there is no such object; otherwise its 404 means something else."""
    code = _CODE.search(str(error))
    return code is None or code[1] in _NO_OBJECT


def is_beyond_end(error: Exception) -> bool:
    """Return whether the store reports that an object ends before the requested part of it."""
    text = str(error)
    return "416" in text or "InvalidRange" in text or "Range started at" in text


def refused_or_away(attempt: str, error: Exception, endpoint: str | None = None) -> CdcflowError:
    """The library's error as cdcflow's: `attempt` names the request and the object, `endpoint` the store's address."""
    text = str(error)
    status, found = _STATUS.search(text), _CODE.search(text)
    code = found[1] if found is not None else next((known for known in _REMEDIES if known in text), None)
    if any(address in text for address in _ROLE_ADDRESSES):
        return SinkUnavailable(
            f"{attempt}: no keys: neither the settings nor the environment have any, and this machine has no role "
            f"that provides them",
            remedy="set log.objects.access_key and log.objects.secret_key, or AWS_ACCESS_KEY_ID and"
            " AWS_SECRET_ACCESS_KEY",
            runbook="store-unreachable",
        )
    if status is None:
        said = code or text.splitlines()[0].rpartition(" - ")[2][:200]
    else:
        said = " ".join(part for part in (status[1].strip(), code) if part)
    if code == "NoSuchBucket":
        return ConfigurationError(
            f"{attempt}: there is no such bucket", remedy=_REMEDIES[code], runbook="store-refuses"
        )
    if code in _REMEDIES:
        return ConfigurationError(
            f"{attempt}: the store refuses ({said})", remedy=_REMEDIES[code], runbook="store-refuses"
        )
    if isinstance(error, PermissionDeniedError | UnauthenticatedError):
        return ConfigurationError(
            f"{attempt}: the store refuses ({said})",
            remedy=f"grant {_GRANTS}, or change log.objects.access_key and log.objects.secret_key",
            runbook="store-refuses",
        )
    if isinstance(error, FileNotFoundError):
        return ConfigurationError(
            f"{attempt}: the store refuses ({said})",
            remedy="change log.objects.access_key, log.objects.url or log.objects.endpoint",
            runbook="store-refuses",
        )
    if status is not None:
        return SinkUnavailable(f"{attempt}: {said}", runbook="store-unreachable")
    where = "the store" if endpoint is None else endpoint
    return SinkUnavailable(
        f"{attempt}: {where} does not answer ({said})",
        remedy=f"check that this machine reaches {where}, and that log.objects.endpoint is right",
        runbook="store-unreachable",
    )


__all__ = ["BaseError", "is_missing", "refused_or_away"]
