"""Files of tests: which files a pipeline has, and their contents. Every scalar is read as the text that is written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from cdcflow.config import Config
from cdcflow.config.setting_paths import SettingMarks, SettingPath, compose_file, location, note_marks
from cdcflow.errors import ConfigurationError
from cdcflow.rehearsal.cases import Cases, read_cases
from cdcflow.rehearsal.play import play
from cdcflow.rehearsal.results import CaseResult

_NULL = "tag:yaml.org,2002:null"
CONTENT = "file of tests"


def read_file(path: Path) -> Cases:
    """Return the tests of a file.

    Raises:
        ConfigurationError: the file cannot be read, or has a mistake; the error describes the first one.
    """
    node = compose_file(path, CONTENT)
    marks: SettingMarks = {}
    note_marks(path, node, (), marks)

    def locate(place: SettingPath) -> str:
        found = next((marks[place[:n]] for n in range(len(place), 0, -1) if place[:n] in marks), None)
        return location(path, found)

    return read_cases(_texts(node), locate)


def _texts(node: yaml.Node) -> Any:  # Any: a document
    """Return a document in which scalars are texts: 1.10 is a text with two decimals, and nothing is a date."""
    match node:
        case yaml.MappingNode():
            return {str(key.value): _texts(value) for key, value in node.value}
        case yaml.SequenceNode():
            return [_texts(value) for value in node.value]
        case _:
            return None if node.tag == _NULL else str(node.value)


def files_of(config: Config) -> list[Path]:
    """Return the files that the setting `tests` names, sorted; each pattern names at least one.

    Raises:
        ConfigurationError: a pattern names no file.
    """
    found: list[Path] = []
    for pattern in config.tests:
        folder = Path(pattern.anchor)
        matching = sorted(folder.glob(str(pattern.relative_to(folder))))
        if not matching:
            raise ConfigurationError(
                f"the setting tests names {pattern}, and there is no such file",
                remedy="write the file (docs/pipeline-tests.md), or correct `tests`",
                runbook="pipeline-tests",
            )
        found += [path for path in matching if path not in found]
    return found


def run_files(config: Config, files: Sequence[Path], only: str = "") -> Iterator[CaseResult]:
    """Run the tests of some files, those whose claims contain `only`, and return how each ended. All files are read
    before the first test runs.

    Raises:
        ConfigurationError: a mistake in a file, or no test has such a claim.
    """
    read = [(path, read_file(path)) for path in files]
    chosen = [(path, cases, case) for path, cases in read for case in cases.cases if only in case.name]
    if not chosen:
        raise ConfigurationError(f"no test's claim contains {only!r}", runbook="pipeline-tests")
    for path, cases, case in chosen:
        yield play(config, str(path), cases, case)
