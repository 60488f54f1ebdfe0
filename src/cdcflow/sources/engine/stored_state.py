"""Reads the state that an earlier run stored about its source in a checkpoint. Pure.

Each dialect has one frozen class for it, with a pair of `read` and `write`. The stored form is a mapping of texts. An
earlier cdcflow may have stored fewer entries. Entries that a later cdcflow added under the same version are preserved.
"""

from __future__ import annotations

from collections.abc import Mapping

from cdcflow.errors import ConfigurationError

VERSION = "version"


class StoredEntries:
    """The entries of a checkpoint's `source`, taken one by one. `rest`: the entries that were not taken.

    Version 1 has no entry for its version.

    Raises:
        ConfigurationError: another version wrote it, or an entry that `take` needs is missing.
    """

    def __init__(self, stored: Mapping[str, str], kind: str, *, version: int) -> None:
        self._kind = kind
        self.rest = dict(stored)
        found = self.rest.pop(VERSION, "1")
        if found != str(version):
            raise ConfigurationError(
                f"reading what the log's checkpoint has about its {kind} source: another cdcflow wrote it (version "
                f"{found}, this one reads {version})",
                remedy="install the newer cdcflow again",
                runbook="newer-format",
            )

    def get(self, name: str) -> str | None:
        return self.rest.pop(name, None)

    def take(self, name: str) -> str:
        found = self.get(name)
        if found is None:
            raise ConfigurationError(
                f"reading what the log's checkpoint has about its {self._kind} source: {name} is missing",
                remedy="set log.path to the log that belongs to this source, or begin a new log",
                runbook="other-log",
            )
        return found
