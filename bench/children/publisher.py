"""`cdcflow publish` in a separate process, next to a daemon, until a log's rows are published.

Argument: `config` (as in cdcflow.yaml), `until_offset` (of the log; it stops when this row is committed, and the clock
with it). Says a line once it publishes.
"""

from __future__ import annotations

from collections.abc import Mapping

from cdcflow.daemon.lean import lean

lean()  # as `cdcflow publish` does, before anything of it is imported

from bench.children.usage import Clock, given, tell  # noqa: E402
from cdcflow import wiring  # noqa: E402
from cdcflow.config import Config  # noqa: E402


def main() -> None:
    asked = given()
    until = int(str(asked["until_offset"]))
    figures: dict[str, float] = {}
    events: dict[str, int] = {}

    def hear(event: str, fields: Mapping[str, object]) -> None:
        events[event] = events.get(event, 0) + 1
        if event == "publishing begun":
            print("{}", flush=True)
        if event == "published" and int(str(fields["offset"])) >= until and not figures:
            figures.update(clock.stop())
            publisher.stop()

    publisher = wiring.publisher(Config.model_validate(asked["config"]), hear)
    clock = Clock()
    publisher.run()
    tell({**figures, "rows": until, "events": events})


if __name__ == "__main__":
    main()
