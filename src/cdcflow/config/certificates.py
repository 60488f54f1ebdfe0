"""Certificates and their private keys: the one that a client shows to a server, and the one of an HTTP server."""

from __future__ import annotations

import ssl
import stat
from pathlib import Path

from cdcflow.errors import ConfigurationError


def load_certificate(context: ssl.SSLContext, certificate: Path, key: Path | None, setting: str) -> None:
    """Make connections with this context show a certificate. `setting`: the setting that has `cert` and `key`.

    Raises:
        ConfigurationError: a file cannot be read or used, or every user of the machine may read the key.
    """
    private = key or certificate
    try:
        if private.stat().st_mode & stat.S_IROTH:
            raise ConfigurationError(
                f"every user of this machine can read the private key in {private}",
                remedy=f"chmod o-rwx {private}",
                runbook="tls",
            )
        # Without the function OpenSSL would wait for a passphrase at the terminal.
        context.load_cert_chain(certificate, key, password=lambda: b"")
    except (OSError, ValueError) as error:  # an SSLError is an OSError
        raise ConfigurationError(
            f"the certificate in {certificate} with the key in {private} cannot be used: {_reason(error)}",
            remedy=f"correct {setting}.cert and {setting}.key: PEM files, the key without a passphrase",
            runbook="tls",
        ) from None


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        if error.reason == "KEY_VALUES_MISMATCH":
            return "the key does not belong to the certificate"
        return "a file is not in PEM, or the key cannot be read, or has a passphrase"
    return str(getattr(error, "strerror", None) or error)
