"""A capture in a thread of the test, watched as a daemon's is: by its status and its metrics page."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from tests.support.polling import PATIENCE_S, wait_for

from cdcflow import wiring
from cdcflow.config import Config
from cdcflow.daemon.status import Watch
from cdcflow.http.metrics import exposition


class Watched:
    """Runs until the block ends, or until something ends it: `error` then."""

    def __init__(self, folder: Path, source: dict[str, Any], **service: Any) -> None:
        settings = {
            "source": source,
            "log": {"path": str(folder / "log")},
            "service": {"freshness_every": "100ms", **service},
        }
        self.config = Config.model_validate(settings)
        self.told: list[tuple[str, dict[str, object]]] = []
        self.capture = wiring.capture(
            self.config, on_event=lambda event, fields: self.told.append((event, dict(fields)))
        )
        self.watch = Watch(self.config, self.capture)
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="watched")

    def _run(self) -> None:
        try:
            self.capture.run()
        except BaseException as error:  # noqa: BLE001  the test checks it
            self.error = error

    def __enter__(self) -> Watched:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.capture.stop()
        self._thread.join(PATIENCE_S)

    def ended(self) -> BaseException | None:
        """What ended it, once it has."""
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), self.told[-5:]
        return self.error

    def until(self, wished: Callable[[dict[str, Any]], object], what: str) -> dict[str, Any]:
        """The first status in which it is so."""
        return wait_for(
            lambda: self.watch.status(at_most_old_s=0.0),
            wished,
            what,
            pause_max_s=0.02,  # some states pass soon
            more=lambda: f"{self.error!r}; {self.told[-5:]}",
        )

    def until_fresh(self, table: str, *words: str) -> dict[str, Any]:
        """The table's entry once its freshness is one of these."""
        found = self.until(
            lambda s: s["tables"].get(table, {}).get("freshness") in words, f"{table} to be {' or '.join(words)}"
        )
        return dict(found["tables"][table])

    def until_fresh_by(self, change: Callable[[], object], table: str) -> None:
        """Change the table until it is seen to be fresh: that lasts from one canary to the next."""

        def is_fresh(status: dict[str, Any]) -> bool:
            change()
            return bool(status["tables"].get(table, {}).get("freshness") == "fresh")

        self.until(is_fresh, f"{table} to be fresh")

    def metrics(self, status: dict[str, Any]) -> dict[str, float]:
        """The samples of a status, by their names and the first label's value."""
        families = text_string_to_metric_families(exposition(status))
        return {" ".join([s.name, *s.labels.values()]): s.value for f in families for s in f.samples}
