"""Tests of pipelines, run: each mode, policy and evolution gives what the settings say, and mistakes are found."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from cdcflow.cli.app import app
from cdcflow.config import Config
from cdcflow.errors import ConfigurationError
from cdcflow.rehearsal.scratch import key_for
from cdcflow.sources.memory_database import Transaction
from cdcflow.testing import pipeline

ORDERS = {
    "public.orders": {
        "columns": {"id": "integer", "customer": "text", "amount": "numeric(12,2)", "note": "text"},
        "key": ["id"],
    }
}
TWO = {
    "public.orders": [{"id": 1, "customer": "Ada", "amount": "1.00"}, {"id": 2, "customer": "Bob", "amount": "2.00"}]
}
CHANGES: list[Any] = [
    {"insert": {"public.orders": [{"id": 3, "customer": "Cid", "amount": "3.00"}]}},
    {"update": {"public.orders": [{"id": 1, "amount": "1.50"}]}},
    {"delete": {"public.orders": [{"id": 2}]}},
]


def settings(**more: Any) -> Config:
    source = {"kind": "postgres", "url": "postgresql://u@h/d", **more.pop("source", {})}
    return Config.model_validate({"source": source, "log": {"path": "log"}, **more})


@pytest.mark.parametrize("format_", ["delta", "iceberg"])
def test_changes_are_in_the_tables_of_each_format(format_: str) -> None:
    """The smallest test of all: what existed, what was changed, and a key that was."""
    pipeline.check(
        settings(merge={"format": format_}),
        tables=ORDERS,
        before=TWO,
        changes=[*CHANGES, {"update": {"public.orders": [{"where": {"id": 3}, "set": {"id": 4}}]}}],
        expected={
            "public.orders": [
                {"id": 4, "customer": "Cid", "amount": "3.00", "note": None},
                {"id": 1, "customer": "Ada", "amount": "1.50", "note": None},
            ]
        },
    )


def test_mode_of_a_table_is_that_of_the_settings() -> None:
    """A deleted row stays with `mode: soft_delete`."""
    row = {"id": 2, "customer": "Bob", "_is_deleted": True}
    rest: list[dict[str, Any]] = [
        {"id": 1, "customer": "Ada", "_is_deleted": False},
        {"id": 3, "customer": "Cid", "_is_deleted": False},
    ]
    merge = {"tables": {"each": {"public.orders": {"mode": "soft_delete"}}}}
    pipeline.check(
        settings(merge=merge), tables=ORDERS, before=TWO, changes=CHANGES, expected={"public.orders": [row, *rest]}
    )
    appended = [(1, "r"), (2, "r"), (3, "c"), (1, "u"), (2, "d")]
    pipeline.check(
        settings(merge={"tables": {"mode": "append"}}),
        tables=ORDERS,
        before=TWO,
        changes=CHANGES,
        expected={"public.orders": [{"id": id_, "_op": op} for id_, op in appended]},
    )


def test_policies_of_columns_apply_with_keys_of_tests() -> None:
    """A test must run where the secret does not exist, and expect the same hash everywhere."""
    key = key_for("${env:NOT_SET_ANYWHERE}")
    hashed = hmac.new(key.encode(), b"Ada", hashlib.sha256).hexdigest()
    rules = {"public.*": {"columns": {"customer": {"hash": "${env:NOT_SET_ANYWHERE}"}, "note": "drop"}}}
    pipeline.check(
        settings(tables=rules),
        tables=ORDERS,
        before={"public.orders": [{"id": 1, "customer": "Ada", "note": "secret"}]},
        expected={"public.orders": {"columns": ["id", "customer", "amount"], "rows": [{"id": 1, "customer": hashed}]}},
    )
    assert key_for("${env:A}") != key_for("${env:B}")


def test_keys_of_persons_in_a_test_are_not_those_of_the_pipeline(tmp_path: Path) -> None:
    file = tmp_path / "person-keys"
    by_id = {"encrypt": {"key": "${env:NOT_SET_ANYWHERE}", "key_by": "id"}}
    pipeline.check(
        settings(tables={"public.*": {"columns": {"customer": by_id}}}, person_keys=str(file)),
        tables=ORDERS,
        before={"public.orders": [{"id": 1, "customer": "Ada"}]},
        expected={"public.orders": [{"id": 1}]},
    )
    assert not file.exists()


def test_stages_follow_the_source_through_changes_of_its_columns() -> None:
    """Evolution is where settings matter most, and where a mistake costs a table."""
    changed: list[Any] = [
        {"alter": {"public.orders": {"add": {"city": "text"}, "rename": {"note": "remark"}}}},
        {"insert": {"public.orders": [{"id": 3, "city": "Paris", "remark": "x"}]}},
    ]
    incompatible = [
        {"alter": {"public.orders": {"type": {"customer": "bytea"}}}},
        {"update": {"public.orders": [{"id": 1, "customer": "0x01"}]}},
    ]
    pipeline.check(
        settings(),
        tables=ORDERS,
        before=TWO,
        changes=changed,
        expected={"public.orders": [{"id": i, "city": c} for i, c in ((1, None), (2, None), (3, "Paris"))]},
        then=[{"changes": incompatible, "excluded": {"public.orders": "customer was string and is binary now"}}],
    )


def test_value_that_the_log_does_not_repeat_stays() -> None:
    """An update that left a large value out must not make it NULL."""
    change = {"where": {"id": 1}, "set": {"amount": "9.00"}, "unchanged": ["note"]}
    pipeline.check(
        settings(),
        tables=ORDERS,
        before={"public.orders": [{"id": 1, "amount": "1.00", "note": "large"}]},
        changes=[{"update": {"public.orders": [change]}}],
        expected={"public.orders": [{"id": 1, "amount": "9.00", "note": "large"}]},
    )


def test_capture_that_stops_is_expected_or_reported() -> None:
    """A column with a policy that gets another name stops the capture."""
    case: dict[str, Any] = {
        "tables": ORDERS,
        "before": TWO,
        "changes": [
            {"alter": {"public.orders": {"rename": {"note": "remark"}}}},
            {"insert": {"public.orders": [{"id": 3}]}},
        ],
    }
    config = settings(tables={"public.orders": {"columns": {"note": "mask"}}})
    pipeline.check(config, **case, stops="it has no column note, which has a policy")
    with pytest.raises(AssertionError, match="the pipeline stopped with ConfigurationError"):
        pipeline.check(config, **case, expected={"public.orders": []})
    with pytest.raises(AssertionError, match="did not stop"):
        pipeline.check(settings(), **case, stops="anything")


def test_table_without_a_key_and_truncate() -> None:
    tables = {"shop.lines": {"columns": {"n": "int unsigned", "t": "varchar(9)"}}}
    source = {"kind": "mysql", "url": "mysql://u@h/", "tables": ["shop.*"], "tables_without_key": "whole"}
    pipeline.check(
        settings(source=source),
        tables=tables,
        before={"shop.lines": [{"n": 1, "t": "a"}]},
        changes=[
            {"truncate": ["shop.lines"]},
            [{"insert": {"shop.lines": [{"n": 4294967295, "t": "b"}, {"n": 3, "t": "c"}]}}],
            {"delete": {"shop.lines": [{"where": {"t": "c"}}]}},
        ],
        expected={"shop.lines": [{"n": 4294967295, "t": "b"}]},
    )


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ({"expected": {"public.order": []}}, "no table public.order after the merge; did you mean public.orders"),
        ({"expected": {"public.orders": [{"ida": 1}]}}, "and public.orders has no such column; did you mean id"),
        ({"expected": {"public.orders": [{"amount": "1.234"}]}}, "it has at most 12 digits, 2 of them"),
        ({"changes": [{"insert": {"public.orders": [{"customer": "x"}]}}]}, "needs a value for id, its key"),
        ({"changes": [{"delete": {"public.orders": [{"id": 9}]}}]}, "has no row with id=9 to delete"),
        ({"changes": [{"insert": {"public.orders": [{"id": 9, "amout": 1}]}}]}, "did you mean amount"),
        ({"changes": [{"alter": {"public.orders": {"drop": ["noet"]}}}]}, "did you mean note"),
        ({"tables": {"audit.t": {"columns": {"id": "integer"}, "key": ["id"]}}}, "source.tables is public.*"),
    ],
)
def test_name_or_value_that_cannot_be_is_a_mistake_with_its_place(case: dict[str, Any], words: str) -> None:
    """The pipeline did not fail, and no report may claim that it did."""
    before = {} if "tables" in case else TWO
    given = {"tables": ORDERS, "before": before, "expected": {"public.orders": []}, **case}
    with pytest.raises(ConfigurationError) as error:
        pipeline.check(settings(), **given)
    assert words in str(error.value)


def test_planted_fault_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that runs through other code than the capture's would not notice that updates are lost."""
    expected = {"public.orders": [{"id": 1, "amount": "1.50"}, {"id": 3, "amount": "3.00"}]}
    pipeline.check(settings(), tables=ORDERS, before=TWO, changes=CHANGES, expected=expected)
    log: Callable[..., None] = Transaction._log

    def forget_updates(self: Transaction, table: Any, op: str, values: Any, before: Any = None) -> None:
        if op != "u":
            log(self, table, op, values, before)

    monkeypatch.setattr(Transaction, "_log", forget_updates)
    with pytest.raises(AssertionError, match=r"id=1 +amount +1\.50 +1\.00"):
        pipeline.check(settings(), tables=ORDERS, before=TWO, changes=CHANGES, expected=expected)


# ── the page and the command ────────────────────────────────────────────────────────────────────────────────

PAGE = Path(__file__).parents[3] / "docs" / "pipeline-tests.md"


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The example of the page, written as its reader writes it; and its blocks by language."""
    found = re.findall(r"^```(\w*)\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    blocks = dict(reversed(found))
    (tmp_path / "tests").mkdir()
    (tmp_path / "cdcflow.yaml").write_text(blocks["yaml"])
    (tmp_path / "tests" / "shop.yaml").write_text(blocks["yml"])
    monkeypatch.chdir(tmp_path)
    return blocks


def test_example_of_the_page_prints_what_the_page_shows(page: dict[str, str]) -> None:
    """The example has a failure, so the page shows one, and the exit code is 1."""
    ended = CliRunner().invoke(app, ["test"])
    assert ended.exit_code == 1, ended.output
    printed = re.sub(r" \(\d+ ms\)", "", ended.output).replace(f"{Path.cwd()}/", "")
    assert printed.strip() == page[""].strip()
    part = CliRunner().invoke(app, ["test", "tests/shop.yaml", "--only", "no name", "--json"])
    assert (part.exit_code, json.loads(part.stdout)["passed"], json.loads(part.stdout)["failed"]) == (0, 1, 0)


def test_python_of_the_page_runs(page: dict[str, str]) -> None:
    names: dict[str, Any] = {}
    exec(compile(page["python"], "page", "exec"), names)  # noqa: S102  the page's own code
    names["test_cancelled_order_stays"]()
    with pytest.raises(AssertionError, match=r"5\.50 +6\.00"):
        names["test_every_claim_of_a_file"]()
    claims = pipeline.claims("tests/shop.yaml")
    pipeline.check_file("cdcflow.yaml", "tests/shop.yaml", claims[0])
    with pytest.raises(ConfigurationError, match="has no test"):
        pipeline.check_file("cdcflow.yaml", "tests/shop.yaml", "nothing like that")


def test_settings_without_tests_or_with_a_wrong_file_are_refused(page: dict[str, str]) -> None:
    """A pattern that matches nothing would mean that nothing is tested, silently."""
    given = yaml.safe_load(page["yaml"])
    for tests, words in (([], "name no tests"), (["test/*.yaml"], "there is no such file")):
        Path("cdcflow.yaml").write_text(yaml.safe_dump({**given, "tests": tests}))
        ended = CliRunner().invoke(app, ["test"])
        assert ended.exit_code not in (0, 1)
        assert words in ended.output
    ended = CliRunner().invoke(app, ["test", "tests/shop.yaml", "--only", "nothing"])
    assert "no test's claim contains" in ended.output
