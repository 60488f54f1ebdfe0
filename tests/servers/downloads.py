"""Downloads by external programs (go, apt): retried when they fail, and their last output when they finally fail."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from cdcflow.errors import SourceUnavailable
from cdcflow.spark.runtime.downloads import attempts


def run(
    command: Sequence[str],
    what: str,
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout_s: float = 600,
) -> str:
    """The command's output, from the first run that succeeded.

    Raises:
        SourceUnavailable: each of them failed, or took too long.
    """
    return attempts(what)(_run_once, command, what, cwd, env, timeout_s)


def _run_once(
    command: Sequence[str], what: str, cwd: Path | None, env: Mapping[str, str] | None, timeout_s: float
) -> str:
    try:
        done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise SourceUnavailable(f"{what}: {' '.join(command)} took more than {timeout_s:.0f} s") from None
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip()
        raise SourceUnavailable(f"{what}: {' '.join(command)} failed: {said[-1500:]}")
    return done.stdout


__all__ = ["run"]
