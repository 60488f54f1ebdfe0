"""A Kafka broker that starts with the files of an earlier one."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.servers.kafka import KafkaBroker


class StoredBroker(KafkaBroker):
    """A broker. `stored`: the folder with another broker's files, whose topics it then has."""

    def __init__(self, stored: Path | None = None) -> None:
        super().__init__()
        self._stored = stored
        self.data = self.directory / "data"

    def format(self) -> None:
        if self._stored is None:
            super().format()
            return
        self._properties.write_text("".join(f"{name}={value}\n" for name, value in self._settings.items()))
        shutil.copytree(self._stored, self.data)
        for path in (self._properties, self.data, *self.data.rglob("*")):
            self._user.own(path)
