"""What the daemon's status shows of the source and the log, while one of them does not answer."""

from __future__ import annotations

import threading

import pytest
from tests.support.polling import PATIENCE_S, wait_until

from cdcflow.config import Config
from cdcflow.daemon import daemon
from cdcflow.daemon.daemon import Problems

SETTINGS = {
    "source": {"kind": "postgres", "url": "postgresql://reader@127.0.0.1:1/shop", "tables": ["public.orders"]},
    "log": {"path": "log"},
}


def test_status_does_not_wait_for_a_log_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the brokers of a log in Kafka down, `cdcflow status` failed after ten seconds: it did not show that the
    capture waits for them."""
    answers = threading.Event()
    queries: list[Config] = []

    def silent(config: Config) -> list[dict[str, object]]:
        queries.append(config)
        answers.wait(PATIENCE_S)
        return [{"level": "error", "about": "slot"}]

    monkeypatch.setattr(daemon, "problems", silent)
    monkeypatch.setattr(daemon, "PROBLEMS_WITHIN_S", 0.01)
    settings = Config.model_validate(SETTINGS)
    problems = Problems(lambda: settings)
    assert [list(problems.now()) for _ in range(3)] == [[], [], []]
    assert queries == [settings], "a query that is not answered is not repeated"
    answers.set()
    wait_until(lambda: list(problems.now()) == [{"level": "error", "about": "slot"}], "the answer")


def test_fault_in_a_query_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next call queries again."""

    def fails(config: Config) -> list[dict[str, object]]:
        raise ValueError

    monkeypatch.setattr(daemon, "problems", fails)
    settings = Config.model_validate(SETTINGS)
    problems = Problems(lambda: settings)
    with pytest.raises(ValueError):  # noqa: PT011  it has no text
        problems.now()
    monkeypatch.setattr(daemon, "problems", lambda _: ["gone"])
    assert list(problems.now()) == ["gone"]
