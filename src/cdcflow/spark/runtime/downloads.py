"""The repository of the packages, and how often a failing download is tried again.

Spark's own chain of repositories has one more than the user configured, and treats a package without a description as
one without dependencies. cdcflow's has one repository, and a missing description is an error:

    CDCFLOW_IVY_SETTINGS names a file     that file
    DEFAULT_ARTIFACT_REPOSITORY is set    this repository
    otherwise                             Maven Central, as Ivy itself knows it
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from xml.sax.saxutils import quoteattr

import structlog
import tenacity

from cdcflow.errors import SourceUnavailable


class NotPublished(SourceUnavailable):
    """The error for a file that the repository does not have, by its own answer. Trying again is useless."""

    section = "package-missing"


ATTEMPTS = 6
WAIT_S_MAX = 15.0

_log = structlog.get_logger()
# By default Java waits without a limit for a server that does not answer.
_SETTINGS = """<ivysettings>
  <settings defaultResolver="configured"/>
  <timeout-constraints>
    <timeout-constraint name="patience" connectionTimeout="20000" readTimeout="60000"/>
  </timeout-constraints>
  <resolvers>
    <ibiblio name="configured" m2compatible="true" descriptor="required" checksums="sha1,md5"
      timeoutConstraint="patience"{root}/>
  </resolvers>
</ivysettings>
"""


def attempts(what: str) -> tenacity.Retrying:
    """Return a runner that repeats a download after a temporary `SourceUnavailable`, at most `ATTEMPTS` times, with
    growing waits."""

    def report(state: tenacity.RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        wait_s = round(state.next_action.sleep, 1) if state.next_action else 0
        _log.warning("download failed", what=what, error=str(error).partition("\n")[0], again_in_s=wait_s)

    return tenacity.Retrying(
        retry=tenacity.retry_if_exception(_may_pass),
        wait=tenacity.wait_exponential(multiplier=1, max=WAIT_S_MAX),
        stop=tenacity.stop_after_attempt(ATTEMPTS),
        before_sleep=report,
        reraise=True,
    )


def _may_pass(error: BaseException) -> bool:
    return isinstance(error, SourceUnavailable) and not isinstance(error, NotPublished)


@contextmanager
def ivy_settings(folder: Path, environment: Mapping[str, str] = os.environ) -> Iterator[Path]:
    """Yield the settings file for Ivy. A generated one is in `folder`, readable by its owner only, and is removed at
    the end."""
    if named := environment.get("CDCFLOW_IVY_SETTINGS"):
        yield Path(named)
        return
    repository = environment.get("DEFAULT_ARTIFACT_REPOSITORY")
    root = f" root={quoteattr(repository)}" if repository else ""
    file = folder / "ivysettings.xml"
    folder.mkdir(parents=True, exist_ok=True)
    file.unlink(missing_ok=True)
    # The address may contain a password.
    with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
        out.write(_SETTINGS.format(root=root))
    try:
        yield file
    finally:
        file.unlink(missing_ok=True)
