"""The reference pages of settings, options and types match what the code does."""

from __future__ import annotations

import pytest
from tests.reference import commands, settings, types
from tests.reference.pages import DOCS, pages, written

from cdcflow.model.sqltypes import stored_type


@pytest.mark.parametrize("name", ["settings.md", "options.md", "types.md"])
def test_a_reference_page_is_generated_from_the_code(name: str) -> None:
    """A table that is written by hand is wrong after the first change. `make reference` writes it."""
    assert (DOCS / name).read_text() == pages()[DOCS / name]


def test_a_page_without_a_place_for_a_table_is_refused() -> None:
    """The check above can fail: a table that no page has would never be compared."""
    page = "<!-- a: written by make reference -->\nold\n<!-- end of a -->\n"
    assert written(page, "a", "new") == "<!-- a: written by make reference -->\n\nnew\n\n<!-- end of a -->\n"
    with pytest.raises(LookupError, match="end of b"):
        written(page, "b", "new")


def test_a_setting_has_its_values_default_and_meaning_from_its_model() -> None:
    """What the page calls a size, a time or a reference is what the loader accepts."""
    rows = {one.name: one for section in settings.sections().values() for one in section}
    assert rows["log.seal.bytes_max"].values == "size"
    assert rows["log.seal.bytes_max"].default == "`32MiB`"
    assert (rows["log.seal.age_max"].values, rows["log.seal.age_max"].default) == ("time", "`10s`")
    assert rows["log.kafka.password"].values == "reference"
    assert rows["merge.format"].values == "`delta`, `iceberg`"
    assert rows["source.slot"].default == "named after the log"
    assert rows["source.url"].default == "required"
    assert all(one.meaning.endswith(".") for one in rows.values())


def test_every_command_and_subcommand_has_a_section_and_every_option_a_meaning() -> None:
    """`cdcflow log compact` is found where `cdcflow merge` is."""
    found = dict(commands.commands())
    assert {"merge", "log compact", "table pause", "ctl stop", "consumer read"} <= set(found)
    silent = [(name, one.name) for name, command in found.items() for one in command.params if not one.help]
    assert silent == []


def test_every_command_is_explained_where_commands_are_listed() -> None:
    """The list of commands explains what each is for; a subcommand that is missing there is not found."""
    page = (DOCS / "commands.md").read_text().replace("\\|", "|")
    missing = [name for name, _ in commands.commands() if not _is_listed(name, page)]
    assert missing == []


def _is_listed(name: str, page: str) -> bool:
    group, _, last = name.rpartition(" ")
    if not group:
        return f"`cdcflow {name}" in page
    alternatives = (line for line in page.splitlines() if line.startswith(f"| `cdcflow {group} "))
    return any(last in line.split("`")[1].replace("|", " ").split() for line in alternatives)


def test_differences_are_described_for_each_type_that_is_kept_as_another() -> None:
    """Nothing is converted to text, or to a decimal, silently."""
    for line in (*types.postgres(), *types.mysql()):
        if stored_type(line.arrow).convert is not None or stored_type(line.arrow).table == "decimal(20,0)":
            assert line.cells()[-1], line
