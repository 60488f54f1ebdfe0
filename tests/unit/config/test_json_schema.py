"""The JSON Schema of the settings: it accepts what cdcflow accepts, and refuses unknown names."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from pydantic import ValidationError
from tests.support.docs.pages import Block
from tests.support.plugins import (
    FILES,
    install_notifier_of_the_page,
    install_project,
    install_target_of_the_template,
    install_transform_of_the_page,
    on_path,
)
from tests.unit.docs.test_examples import examples

from cdcflow.config import Config
from cdcflow.config.json_schema import settings_schema
from cdcflow.config.setting_paths import note_marks
from cdcflow.config.template import DatabaseKind, template

WHOLE = """\
source: {kind: postgres, url: postgresql://cdcflow@db/shop, tables: [public.*]}
log: {path: log}
"""


@pytest.fixture(scope="module")
def schema(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """With the kinds of the plug-ins on the pages."""
    folder = tmp_path_factory.mktemp("plugins")
    notifier, target = install_notifier_of_the_page(folder / "n"), install_target_of_the_template(folder / "t")
    transform = install_transform_of_the_page(folder / "f")
    with on_path(*install_project(folder, FILES), notifier, *target, transform):
        return settings_schema()


def mistakes(schema: dict[str, Any], document: Any, *, is_part: bool = False) -> list[str]:
    """What is wrong with a document; `is_part`: settings that are missing are not."""
    used = without_required(schema) if is_part else schema
    return [error.message for error in jsonschema.Draft202012Validator(used).iter_errors(as_json(document))]


def as_json(document: Any) -> Any:
    return json.loads(json.dumps(document, default=str))


def without_required(schema: Any) -> Any:
    """The same for a part of a file: conditions stay, requirements go."""
    if isinstance(schema, list):
        return [without_required(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {}
    for name, value in schema.items():
        if name == "required" and isinstance(value, list):
            continue
        if name == "anyOf" and all(one.keys() == {"required"} for one in value):
            continue
        if name in ("then", "else", "not") and value.keys() <= {"required", "not"}:
            continue
        kept[name] = value if name == "if" else without_required(value)
    return kept


def read(text: str) -> Any:
    """As cdcflow does: `on` is a name, not a boolean."""
    node = yaml.compose(text, yaml.SafeLoader)
    assert node is not None
    note_marks(Path("page"), node, (), {})
    return yaml.SafeLoader("").construct_document(node)


def settings_examples() -> list[Block]:
    """Those of `cdcflow.yaml`: the settings of a fleet are another file."""
    return [block for block in examples("yaml") if not block.text.startswith("# fleet.yaml")]


def test_schema_is_a_valid_one_and_json(schema: dict[str, Any]) -> None:
    """An editor that cannot read it shows nothing."""
    jsonschema.Draft202012Validator.check_schema(schema)
    assert as_json(schema) == schema


def test_every_example_on_the_pages_is_accepted(schema: dict[str, Any]) -> None:
    """An editor that marks a valid file teaches its user to ignore it."""
    wrong = {
        f"{block.page}: {block.text}": said
        for block in settings_examples()
        if (said := mistakes(schema, read(block.text), is_part=True))
    }
    assert wrong == {}
    assert len(settings_examples()) > 50


@pytest.mark.parametrize("kind", DatabaseKind)
def test_the_file_that_init_writes_is_accepted_whole(schema: dict[str, Any], kind: DatabaseKind) -> None:
    """The first file that a user opens in an editor."""
    document = read(template(kind))
    Config.model_validate(document)
    assert mistakes(schema, document) == []


def places(document: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Each mapping in a document."""
    if isinstance(document, dict):
        yield path
        for name, value in document.items():
            yield from places(value, (*path, name))
    if isinstance(document, list):
        for number, value in enumerate(document):
            yield from places(value, (*path, number))


def is_refused(document: Any) -> bool:
    """Whether cdcflow refuses it because of a setting that does not exist."""
    try:
        Config.model_validate(document)
    except ValidationError as error:
        return any(one["type"] == "extra_forbidden" for one in error.errors())
    return False


def test_misspelt_setting_is_shown_wherever_cdcflow_refuses_it(schema: dict[str, Any]) -> None:
    """In each example at each place: a setting that does not exist."""
    count = 0
    for block in settings_examples():
        document = read(block.text)
        for path in places(document):
            changed = copy.deepcopy(document)
            inner = changed
            for name in path:
                inner = inner[name]
            inner["misspelt"] = 1
            if is_refused(changed):
                assert mistakes(schema, changed, is_part=True), f"{block.page}: {path} of\n{block.text}"
                count += 1
    assert count > 150


WRONG = {
    "log is missing": "source: {kind: postgres, url: postgresql://h/d, tables: [a.b]}",
    "unknown setting": WHOLE + "merge: {evry: 2s}",
    "unknown unit": WHOLE + "merge: {every: 2 fortnights}",
    "unknown kind of source": WHOLE.replace("kind: postgres", "kind: oracle"),
    "setting of another kind": WHOLE.replace("tables:", "server_id: 5, tables:"),
    "secret in the file": WHOLE.replace("tables:", "password: hunter2, tables:"),
    "unknown word": WHOLE + "merge: {engine: flink}",
    "topic of notifications": WHOLE + "service: {notify: [{on: [nothing], webhook: 'https://h'}]}",
    "policy": WHOLE + "tables: {a.b: {columns: {c: shred}}}",
    "source with serve": WHOLE + "serve: {listen: '127.0.0.1:1', collections: {}}",
    "text for a number": WHOLE + "source2: 5",
    "zero bytes": WHOLE.replace("path: log", "path: log, seal: {bytes_max: 0}"),
}


@pytest.mark.parametrize("name", WRONG)
def test_mistake_is_shown(schema: dict[str, Any], name: str) -> None:
    """Each of them is one that cdcflow refuses."""
    assert mistakes(schema, read(WHOLE)) == []
    assert mistakes(schema, read(WRONG[name]))


def test_kind_of_a_plug_in_brings_its_settings(schema: dict[str, Any]) -> None:
    """Kinds of installed packages are completed and checked as cdcflow's own."""
    pager = "service: {notify: [{kind: pager, on: [lag], file: pages.jsonl%s}]}"
    assert mistakes(schema, read(WHOLE + pager % "")) == []
    assert mistakes(schema, read(WHOLE + pager % ", filee: x"))
    bare = settings_schema()
    assert mistakes(bare, read(WHOLE + pager % "")), "the package is not installed"


def test_settings_have_their_meaning(schema: dict[str, Any]) -> None:
    """What an editor shows next to a setting."""
    seal = schema["$defs"]["Seal"]["properties"]["bytes_max"]
    assert seal["description"] == "The journal becomes a Parquet segment at this size. Default: `32MiB`."
    texts = json.dumps(schema, ensure_ascii=False)
    assert "](" not in texts, "links lead nowhere in an editor"


def test_file_with_the_schema_is_printed_by_init(tmp_path: Path) -> None:
    """`cdcflow init --schema` writes no file, and prints nothing else."""
    from typer.testing import CliRunner

    from cdcflow.cli.app import app

    done = CliRunner().invoke(app, ["init", "--schema"])
    assert done.exit_code == 0
    assert json.loads(done.stdout)["title"] == "cdcflow.yaml"
    assert list(tmp_path.iterdir()) == []
