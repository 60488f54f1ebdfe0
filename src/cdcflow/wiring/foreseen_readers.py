"""Foresee what targets and published topics get of a table after a statement at its source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from cdcflow.config import Config
from cdcflow.model.position import SourceIdentity
from cdcflow.model.table import Table, TableId
from cdcflow.sources.engine.selection import Selection
from cdcflow.sources.engine.statement_rules import StatementEffect

_LATER = "all of its rows again when they are in the log"
_WITHOUT_COLUMNS: Mapping[StatementEffect, str] = {
    "read again": _LATER,
    "depends": f"perhaps {_LATER}",
    "emptied": "the table without rows",
    "added": "the table when all of its rows are in the log",
    "kept": "no more changes, and keeps its rows",
}
"""For each effect of a statement, what a target gets of the table if the statement does not change its columns."""


@dataclass(frozen=True, slots=True)
class ForeseenRows:
    """A table as readers see it before and after a statement, in the columns that leave the source. A shape is `None`
    if the table does not exist at that time, or is unknown."""

    table: TableId
    effect: StatementEffect
    before: Table | None
    after: Table | None

    @property
    def has_other_shape(self) -> bool:
        return self.before is not None and self.after is not None and self.before != self.after


def reader_findings(config: Config, rows: ForeseenRows) -> Iterator[tuple[str, str]]:
    """Yield the changes for each target and for the table's topic: the setting that names it, and a text."""
    for name, target in config.targets.items():
        if Selection.parse(target.tables).selects(rows.table) and (text := _target_text(rows)):
            yield f"targets.{name}", text
    if config.publish is not None and (text := _topic_text(config, rows)):
        yield "publish", text


def _target_text(rows: ForeseenRows) -> str:
    if rows.before is not None and rows.after is None:
        return "the target gets no more changes of it, and keeps its rows"
    if rows.has_other_shape and rows.before is not None and rows.after is not None:
        changed = _changes(_types(rows.before), _types(rows.after)) or "other properties of columns or key"
        return f"the target gets all of its rows again with the next change, in other columns ({changed})"
    text = _WITHOUT_COLUMNS.get(rows.effect, "")
    return f"the target gets {text}" if text else ""


def _types(table: Table) -> dict[str, str]:
    return {column.name: str(column.type.arrow) for column in table.columns}


def _topic_text(config: Config, rows: ForeseenRows) -> str:
    """Return a text for what the table's topic gets, by the publisher's own rules."""
    assert config.publish is not None  # noqa: S101  checked by the caller
    from cdcflow.publish.assembly import rules_of
    from cdcflow.publish.events import field_types
    from cdcflow.publish.sources import SourceBlocks

    kafka, kind = config.publish.kafka, config.database.kind
    blocks = SourceBlocks(SourceIdentity(kind, "", ""), kafka.topic_prefix)
    topic = blocks.topic(rows.table)
    if rows.before is not None and rows.after is None:
        return f"the topic {topic} gets no more messages"
    parts = []
    if rows.before is not None and rows.after is not None:
        modes = rules_of(kafka, kind).modes
        if changed := _changes(*(field_types(table, blocks, modes) for table in (rows.before, rows.after))):
            parts.append(f"messages of the topic {topic} get other fields ({changed})")
            if kafka.registry is not None:
                parts.append(f"the registry must accept them for the subjects {topic}-key and {topic}-value")
        if rows.before.key != rows.after.key:
            parts.append(f"keys of the topic {topic} are ({', '.join(rows.after.key) or 'none'})")
    if rows.effect in ("read again", "added") and "r" not in kafka.skipped_operations:
        parts.append(f"the topic {topic} gets a message for each row that is read")
    return "; ".join(parts)


def _changes(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """Return a text for new and missing names, and for those with another value; "" if nothing differs."""
    new = [f"new: {name} {type_}" for name, type_ in after.items() if name not in before]
    gone = [f"gone: {name}" for name in before if name not in after]
    other = [f"{name} {before[name]} → {type_}" for name, type_ in after.items() if before.get(name, type_) != type_]
    return "; ".join([*new, *gone, *other])
