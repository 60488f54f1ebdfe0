"""The requirements on every source, as a suite of tests.

Subclass `SourceContract`, name its `kit`, and give it a `source_kit` fixture. The suite accesses a source only through
`cdcflow.ports`, and its database through a `SourceKit`: plain SQL that every dialect supports, and named acts where SQL
differs. A source that passes it can be wired to the machine and to any sink.

    stream.py      what was committed, once and in order, large or small; marks
    chunks.py      existing rows and their fences; what happens to a plan when its table changes
    statements.py  DDL: a whole capture, at whose end the log equals the source
    restarts.py    positions, what was acknowledged, histories that are lost
    service.py     rights, status, doctor, closing
"""

from __future__ import annotations

from typing import ClassVar

from cdcflow.testing.sources.chunks import ChunkScenarios
from cdcflow.testing.sources.kit import Act, SourceKit, needs
from cdcflow.testing.sources.reading import (
    LOG_ID,
    PATIENCE_S,
    Row,
    Scenarios,
    collect,
    refuse_spool,
    rows_of,
    rows_of_run,
    seen_mark,
)
from cdcflow.testing.sources.restarts import RestartScenarios
from cdcflow.testing.sources.service import ServiceScenarios
from cdcflow.testing.sources.statements import StatementScenarios
from cdcflow.testing.sources.stream import StreamScenarios


class Contract(Scenarios):
    """The common base of all suites.

    A subclass names its kit, so that it is known before tests run which acts the kit's database cannot do.
    """

    kit: ClassVar[type[SourceKit]]
    unclaimed: ClassVar[dict[str, str]] = {}
    """Scenarios that do not run, each with the reason."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.unclaimed = {}
        for name in scenarios(cls) if hasattr(cls, "kit") else ():
            act: Act | None = getattr(getattr(cls, name), "needs", None)
            if act is not None and act in cls.kit.cannot:
                cls.unclaimed[name] = f"{act}: {cls.kit.cannot[act]}"
                setattr(cls, name, None)  # so that pytest does not collect it

    def test_only_what_the_database_cannot_do_is_unclaimed(self) -> None:
        """No scenario is skipped silently: one that does not run needs an act that the kit's database cannot do, and
        the kit gives the reason."""
        suite = next(base for base in type(self).__mro__ if Contract in base.__bases__)
        missing = {name for name in scenarios(suite) if getattr(self, name, None) is None}
        assert missing == set(self.unclaimed)
        acts = {getattr(getattr(suite, name), "needs", None) for name in missing}
        assert acts <= set(self.kit.cannot)
        assert all(reason.strip() for reason in self.kit.cannot.values())


def scenarios(suite: type[Contract]) -> list[str]:
    """Return the names of all scenarios of a suite."""
    return [name for name in dir(suite) if name.startswith("test_") and not hasattr(Contract, name)]


class SourceContract(Contract, StreamScenarios, ChunkScenarios, StatementScenarios, RestartScenarios, ServiceScenarios):
    """The whole suite, with all scenarios."""


class FenceContract(Contract, StreamScenarios, ChunkScenarios):
    """The scenarios that depend on how a source knows what its chunks see.

    Use it if a dialect has two kinds of fences, and passes the whole contract with the other kind.
    """


__all__ = [
    "LOG_ID",
    "PATIENCE_S",
    "Act",
    "Contract",
    "FenceContract",
    "Row",
    "SourceContract",
    "SourceKit",
    "collect",
    "needs",
    "refuse_spool",
    "rows_of",
    "rows_of_run",
    "scenarios",
    "seen_mark",
]
