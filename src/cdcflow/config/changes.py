"""The differences between two settings files, and how a running daemon applies each of them. Pure.

| applied    | how                                                                                                  |
| ---------- | ---------------------------------------------------------------------------------------------------- |
| running    | at once, while the capture continues                                                                 |
| next cut   | the capture ends at a cut and resumes there with the new settings, in the same process                |
| restart    | when the daemon is restarted                                                                         |
| merge      | by the next merge; a daemon that merges has it begin with them                                        |
| when made  | only when the object that it describes is created                                                    |
| refused    | never: this log cannot continue with it                                                              |

A setting without a rule here requires a restart, which is always correct.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from cdcflow.config.whole import Config

Taken = Literal["running", "next cut", "restart", "merge", "when made", "refused"]
HIDDEN = "(not shown)"
_TOPIC = "log.kafka.topic"
_OF_TABLES = (
    *("source.columns.", "service.tokens", "serve.tokens", "serve.collections."),
    *("tables.", "contracts.", "merge.tables.", "merge.derive."),
)
_REFERENCE = re.compile(r"\$\{(?:env|file):[^}]*\}")
_SECRET = re.compile(r"password|secret|token|credential|passphrase|private|\.pem$|jaas|access[._-]?key", re.IGNORECASE)
_OTHER_LOG = "it names another log, and position and progress are in the one that the daemon has open"


@dataclass(frozen=True, slots=True)
class SettingRule:
    """The rule for how the settings whose names begin with `name` are applied. `why`: the reason, unless they are
    applied at once or at a cut."""

    name: str
    taken: Taken
    why: str = ""
    remedy: str = ""


_ANOTHER = "stop the daemon and run cdcflow with the new file and a new log, or set {name} back"
_FOUND_BY = "commands find the daemon in the folder that their settings file names, so it keeps the one it began in"
_MOVE = (
    "set {name} back, run `cdcflow ctl stop`, set it again, and start `cdcflow run`; sealed segments stay where they "
    "are"
    " if log.kafka.history names their folder"
)

_FILES = (
    "only new files have it, which costs nothing by itself; existing files stay unchanged"
    " until their rows change or maintenance rewrites them; `cdcflow rebuild --into` gives it to all rows, and reads"
    " the whole log for that"
)
_OF_FILES = {name: SettingRule(f"merge.tables.{name}", "merge", _FILES) for name in ("partition_by", "sort_by")}

RULES: tuple[SettingRule, ...] = (
    SettingRule("source.kind", "refused", "a log holds the changes of one server", _ANOTHER),
    SettingRule("source.failover", "when made", "it only matters when the slot is created"),
    *(
        SettingRule(f"source.backfill.{name}", "running")
        for name in (
            *("chunk_time_target_ms", "chunk_time_live_ms", "chunk_time_busy_ms", "chunk_rows_max"),
            *("rows_per_second_max", "held_bytes_max", "hours", "per_day", "limits"),
        )
    ),
    SettingRule("source", "next cut"),
    SettingRule("tables", "next cut"),
    SettingRule("person_keys", "restart", "the file is open, and erasures must find the keys that are in use"),
    SettingRule("log.path", "refused", _OTHER_LOG, _ANOTHER),
    SettingRule("log.kafka.topic", "refused", _OTHER_LOG, _ANOTHER),
    SettingRule("log.kafka.work", "restart", _FOUND_BY, _MOVE),
    SettingRule("log.kafka.replicas", "when made", "it only matters when the topics are created"),
    SettingRule("log.kafka.history", "merge"),
    SettingRule("log.kafka.objects", "merge"),
    SettingRule("log.retention", "running"),
    SettingRule("log.index", "running"),
    SettingRule("log.compact", "running"),
    SettingRule("log.seal", "next cut"),
    SettingRule(
        "log.replicate",
        "restart",
        "the peers are fixed while the log is written: others prove nothing about what these have",
        "stop the daemon, follow docs/replicated-log.md, and start it again",
    ),
    SettingRule("log.objects", "next cut"),
    SettingRule("log.kafka", "next cut"),
    *(SettingRule(f"merge.{name}", "running") for name in ("every", "memory_max", "progress_timeout")),
    *_OF_FILES.values(),
    SettingRule("merge", "merge"),
    SettingRule("contracts", "merge"),
    SettingRule("publish", "running"),
    SettingRule("targets", "running"),
    SettingRule("service.traces", "next cut"),
    SettingRule("service.lease", "restart", "the daemon holds the lease, or waits for it, from its start to its end"),
    SettingRule("service", "running"),
    SettingRule("tests", "when made", "`cdcflow test`, `plan` and `apply` read it, and the daemon does not"),
    SettingRule("serve", "restart", "cdcflow serve reads it when it starts"),
)
"""The first rule whose `name` is a prefix of a setting's name applies."""


@dataclass(frozen=True, slots=True)
class SettingChange:
    """One setting that differs: its name, both values as readable text (None if not set), and how it is applied."""

    name: str
    before: str | None
    now: str | None
    taken: Taken
    why: str = ""
    remedy: str = ""

    def to_json(self) -> dict[str, object]:
        return asdict(self)


def settings_as_text(config: Config) -> dict[str, str]:
    """Return every setting by its name, as text, without secrets: references remain references, and a value that may be
    a secret of another library is hidden."""
    found: dict[str, str] = {}
    given = config.model_dump(mode="json")
    _flatten("", given, found)
    ordered = {
        "tables": [name for name in given.get("tables") or () if "*" in name],
        "merge.tables.routes": list(((given.get("merge") or {}).get("tables") or {}).get("routes") or ()),
    }
    # Of several patterns that match a table, the first one counts.
    return found | {name: ", ".join(patterns) for name, patterns in ordered.items() if len(patterns) > 1}


def digest(settings: Mapping[str, str]) -> str:
    """Return a text that differs if the settings differ, given as `settings_as_text` returns them."""
    return hashlib.sha256(json.dumps(sorted(settings.items())).encode()).hexdigest()


def changes(before: Mapping[str, str], now: Mapping[str, str]) -> tuple[SettingChange, ...]:
    """Return the settings that differ, sorted by name; both are given as `settings_as_text` returns them. Hidden values
    are not compared."""
    names = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
    if (_TOPIC in before) != (_TOPIC in now):
        # A switch from a folder to Kafka or back is one change, whichever other settings differ with it.
        names = sorted({"log.path", *(name for name in names if not name.startswith("log."))})
    return tuple(_change(name, before.get(name), now.get(name)) for name in names)


def rule_for(name: str) -> SettingRule:
    """Return how a setting is applied."""
    if name.startswith("merge.tables.") and (of_files := _OF_FILES.get(name.rpartition(".")[2])) is not None:
        return of_files
    for rule in RULES:
        if name == rule.name or name.startswith(rule.name + "."):
            return rule
    return SettingRule(name, "restart", "the daemon reads it when it starts")


def _change(name: str, before: str | None, now: str | None) -> SettingChange:
    rule = rule_for(name)
    return SettingChange(name, before, now, rule.taken, rule.why, rule.remedy.format(name=name))


def _flatten(name: str, value: Any, found: dict[str, str]) -> None:  # Any: a value in pydantic's JSON
    if isinstance(value, dict):
        for key, inner in value.items():
            _flatten(f"{name}.{key}" if name else str(key), inner, found)
    elif isinstance(value, list) and any(isinstance(one, dict) for one in value):
        for number, one in enumerate(value, 1):
            _flatten(f"{name}.{one.get('name', number)}", one, found)
    elif isinstance(value, list):
        if value:
            found[name] = ", ".join(map(str, value))
    elif value is not None:
        text = str(value).lower() if isinstance(value, bool) else str(value)
        found[name] = HIDDEN if _may_be_secret(name, text) else text


def _may_be_secret(name: str, text: str) -> bool:
    return _SECRET.search(_own_words(name)) is not None and _REFERENCE.fullmatch(text) is None


def _own_words(name: str) -> str:
    """Return the part of a setting's name that describes its value. A table or a column may be called password, and
    what is done with its values is no secret; a token is always a reference."""
    if name.startswith("source.password."):
        return ""  # how a command prints it: arguments are in the machine's list of processes anyway
    if name.startswith(_OF_TABLES):
        return name.partition(".computed.")[2].partition(".")[2]  # what a function of a package is given
    return name
