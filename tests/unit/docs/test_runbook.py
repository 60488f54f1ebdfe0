"""docs/runbook against the sections that errors name."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from cdcflow import errors
from cdcflow.cli import failure

ROOT = Path(__file__).parents[3]
SOURCES = ROOT / "src" / "cdcflow"
ERRORS = ROOT / "docs" / "runbook" / "errors.md"
ALERTS = ROOT / "docs" / "runbook" / "alerts.md"
RULES = ROOT / "docker" / "prometheus" / "alerts.yaml"
PARTS = ("Meaning", "Impact", "Diagnosis", "Mitigation")
# Where a daemon or a merge is at work. Mistakes in settings and on the command line have a separate section.
RUNNING = ("changelog", "sinks", "sources", "pipeline", "warehouse", "merge", "local", "spark")
MUST_NAME = {"HistoryLost", "ConfigurationError"}


def sections(page: Path, level: int) -> dict[str, str]:
    """The text of each section, by its heading."""
    parts = re.split(rf"^{'#' * level} (\S+)$", page.read_text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@functools.cache
def nodes() -> list[tuple[Path, ast.AST]]:
    """Every node of the code that these tests inspect, each with its file."""
    kinds = (ast.Call, ast.keyword, ast.FunctionDef, ast.ClassDef)
    return [
        (path, node)
        for path in sorted(SOURCES.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, kinds)
    ]


def kinds(kind: type[errors.CdcflowError]) -> Iterator[type[errors.CdcflowError]]:
    yield kind
    for inner in kind.__subclasses__():
        if inner.__module__.startswith("cdcflow."):
            yield from kinds(inner)


def named() -> set[str]:
    """Every section that code names: by an argument, as an argument's default, or for a whole kind."""
    found: set[str] = set()
    for _, node in nodes():
        match node:
            case ast.keyword(arg="runbook", value=ast.Constant(value=str(section))):
                found.add(section)
            case ast.FunctionDef(args=ast.arguments(kwonlyargs=arguments, kw_defaults=defaults)):
                for argument, default in zip(arguments, defaults, strict=True):
                    match argument, default:
                        case ast.arg(arg="runbook"), ast.Constant(value=str(section)):
                            found.add(section)
            case ast.ClassDef(body=body):
                found |= {value for statement in body if (value := _section(statement)) is not None}
    return found


def _section(statement: ast.stmt) -> str | None:
    match statement:
        case ast.Assign(targets=[ast.Name(id="section")], value=ast.Constant(value=str(section))):
            return section
        case ast.AnnAssign(target=ast.Name(id="section"), value=ast.Constant(value=str(section))):
            return section
    return None


def test_errors_name_exactly_the_sections_of_the_page() -> None:
    """A name that the page does not have leads nowhere at night; a section that no error names is never read."""
    there = sections(ERRORS, 3)
    assert named() - set(there) == set(), "named, and not on the page"
    assert set(there) - named() == set(), "on the page, and not named"


def test_every_error_of_running_work_names_its_section() -> None:
    """A lost history and a stop that needs an operator are the two that wake one."""
    bare = [
        f"{path.relative_to(SOURCES)}:{call.lineno}"
        for path, call in nodes()
        if path.relative_to(SOURCES).parts[0] in RUNNING
        and isinstance(call, ast.Call)
        and isinstance(call.func, ast.Name)
        and call.func.id in MUST_NAME
        and not any(keyword.arg == "runbook" for keyword in call.keywords)
    ]
    assert bare == []


def test_every_reason_of_a_table_skipped_in_a_cut_names_its_section() -> None:
    """The reason is stored with the cut, and read long after the merge: on the page, or in a notebook."""
    reasons = [
        (f"{path.relative_to(SOURCES)}:{call.lineno}", keyword.value)
        for path, call in nodes()
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "TableMergeReport"
        for keyword in call.keywords
        if keyword.arg == "left_out"
    ]
    assert len(reasons) >= 2
    assert [where for where, value in reasons if not _ends_with_its_section(value)] == []
    told = errors.ConfigurationError("it lost its key", remedy="add one", runbook="table-not-followed").with_section
    assert told.splitlines() == [
        "it lost its key",
        "  add one",
        "  read more: cdcflow explain-error table-not-followed",
    ]


def _ends_with_its_section(value: ast.expr) -> bool:
    return isinstance(value, ast.Attribute) and value.attr == "with_section"


def test_copy_of_an_error_keeps_its_section() -> None:
    """An error that is raised with other words (`type(found)(…)`) is still about the same problem."""
    copies = [
        (path, {keyword.arg for keyword in call.keywords})
        for path, call in nodes()
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Call)
        and isinstance(call.func.func, ast.Name)
        and call.func.func.id == "type"
    ]
    of_errors = [(path, given) for path, given in copies if "remedy" in given]
    assert of_errors
    assert [str(path) for path, given in of_errors if "runbook" not in given] == []


def test_every_kind_of_error_has_a_dedicated_section() -> None:
    """An error that names no section leads to what holds for all of its kind."""
    there = sections(ERRORS, 3)
    assert [kind.__name__ for kind in kinds(errors.CdcflowError) if kind.section not in there] == []
    own = [kind for kind in kinds(errors.CdcflowError) if "section" not in vars(kind)]
    assert own == []


@pytest.mark.parametrize(("page", "level"), [(ERRORS, 3), (ALERTS, 2)], ids=["errors", "alerts"])
def test_every_section_has_meaning_impact_diagnosis_and_mitigation(page: Path, level: int) -> None:
    """An operator who is woken at night finds the same four answers in the same order."""
    for name, text in sections(page, level).items():
        found = tuple(re.findall(r"^\*\*(\w+)\.\*\* \S", text, flags=re.MULTILINE))
        assert found == PARTS, name


def test_each_alert_has_a_section_and_each_section_an_alert() -> None:
    """An alert's annotation leads to its section."""
    groups = yaml.safe_load(RULES.read_text())["groups"]
    alerts = {rule["alert"] for group in groups for rule in group["rules"] if "alert" in rule}
    assert set(sections(ALERTS, 2)) == alerts


def test_failure_ends_with_its_section() -> None:
    """The last line is a command that the reader can run."""
    lost = errors.HistoryLost("the slot is gone", remedy="run it anew", runbook="publication-changed")
    assert failure.block(lost).splitlines()[-1] == "  read more: cdcflow explain-error publication-changed"
    assert failure.unexpected_error(KeyError("x")).splitlines()[-1] == "  read more: cdcflow explain-error unexpected"
