"""Names name: fewer functions that are one bare participle, and classes of one name in fewer modules."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.words import name_ceilings
from tests.words.name_ceilings import lower_names, read_names
from tests.words.names import functions_of, is_participle, participles, repeated_classes

SOURCE = """
def opened(): ...
class Log:
    def _kept(self):
        def told(): ...
    async def read(self): ...
"""


def test_no_more_functions_are_named_by_a_participle_than_before() -> None:
    """`python -m tests.words names src/` lists them. A function says what it returns, or the act."""
    found = participles()
    assert len(found) <= read_names().participles, f"a new one among {sorted({f.qualified for f in found})}"


def test_no_more_class_names_are_in_several_modules_than_before() -> None:
    """`python -m tests.words names` lists them with their modules."""
    found = repeated_classes()
    assert len(found) <= read_names().classes, f"a new one among {', '.join(found)}"


def test_each_class_name_of_several_modules_has_a_reason() -> None:
    """A new one gets a name of its own, or a reason in names.json."""
    assert {name for name, why in read_names().reasons.items() if why} == set(repeated_classes())


@pytest.mark.parametrize("name", ["opened", "_kept", "told", "one", "at", "_torn", "__held__"])
def test_participle_is_recognized(name: str) -> None:
    assert is_participle(name)


@pytest.mark.parametrize("name", ["read", "put", "feed", "is_opened", "opened_log", "open", "table_ids", "red"])
def test_verb_or_longer_name_is_not_a_participle(name: str) -> None:
    assert not is_participle(name)


def test_functions_of_a_module_are_found_with_their_classes() -> None:
    found = [(f.line, f.qualified) for f in functions_of("src/cdcflow/sinks/x.py", SOURCE)]
    assert found == [(2, "opened"), (4, "Log._kept"), (5, "Log._kept.told"), (6, "Log.read")]


def test_ceiling_of_names_is_never_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(name_ceilings, "CEILINGS", tmp_path / "names.json")
    before = {"participles": 3, "classes": 2, "reasons": {"Log": "a port", "Row": "two ports"}}
    (tmp_path / "names.json").write_text(json.dumps(before))
    lower_names(5, {"Log": ["a", "b"]})
    assert json.loads((tmp_path / "names.json").read_text()) == {
        "participles": 3,
        "classes": 1,
        "reasons": {"Log": "a port"},
    }
