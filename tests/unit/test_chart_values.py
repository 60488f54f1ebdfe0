"""The chart's values without Helm: each is in the schema and on its page, and the page's examples are valid."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from tests.support.docs.pages import ROOT
from tests.unit.test_alerts_and_dashboard import ALERTS

from cdcflow import config
from cdcflow.version import __version__

CHART = ROOT / "charts" / "cdcflow"
PAGE = CHART / "README.md"
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
WHOLE = ("settings", "resources", "affinity")
"""Values that the page explains as a whole."""


def names(values: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in values.items():
        inner = isinstance(value, dict) and value and not name.endswith("esources")
        yield from names(value, f"{prefix}{name}.") if inner else [f"{prefix}{name}"]


def settings_examples() -> list[str]:
    return _blocks("yaml")


def values_examples() -> list[dict[str, Any]]:
    return [yaml.safe_load(block) for block in _blocks("text")]


def _blocks(language: str) -> list[str]:
    """Also those that are part of a list."""
    found = re.findall(rf"^ *```{language}\n(.*?)^ *```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return [textwrap.dedent(block) for block in found]


def validate(values: dict[str, Any]) -> None:
    jsonschema.Draft7Validator(SCHEMA).validate(values)


def test_each_value_is_on_the_page_and_each_on_the_page_is_a_value() -> None:
    """A value that is in no table is not used; one that does not exist is refused."""
    listed = re.findall(r"^\| `([\w.]+)` \|", PAGE.read_text(), re.MULTILINE)
    assert len(listed) == len(set(listed))
    assert set(listed) ^ set(names(VALUES)) == set()


def test_defaults_fit_the_schema_and_need_settings() -> None:
    """The one value without a default is the one that is missing."""
    validate(VALUES | {"settings": "source: {}"})
    with pytest.raises(jsonschema.ValidationError, match=r"non-empty|short"):
        validate(VALUES)


@pytest.mark.parametrize("place", ["", *sorted({n.rpartition(".")[0] for n in names(VALUES) if "." in n})])
def test_misspelt_value_is_refused_at_every_level(place: str) -> None:
    """Helm ignores a value that no template uses."""
    values = json.loads(json.dumps(VALUES | {"settings": "source: {}"}))
    inner = values
    for name in filter(None, place.split(".")):
        inner = inner[name]
    inner["enabledd"] = True
    with pytest.raises(jsonschema.ValidationError, match="enabledd"):
        validate(values)


def test_examples_of_values_on_the_page_fit_the_schema() -> None:
    """They are copied."""
    assert len(values_examples()) == 3
    for example in values_examples():
        validate({"settings": "source: {}"} | example)


def test_examples_of_settings_on_the_page_are_whole_or_belong_to_the_first(tmp_path: Path) -> None:
    """The example of a standby replaces two parts of the first example."""
    first, standby, merge = (yaml.safe_load(text) for text in settings_examples())
    standby["service"] = first["service"] | standby["service"]
    for number, whole in enumerate((first, first | standby, merge)):
        file = tmp_path / f"{number}.yaml"
        file.write_text(yaml.safe_dump(whole))
        config.load(file)


def test_chart_is_of_this_version_and_its_alerts_are_a_link() -> None:
    """The default tag of the image is the version; two copies of the alerts would differ one day."""
    assert yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"] == __version__
    assert (CHART / "files" / "alerts.yaml").resolve() == ALERTS
