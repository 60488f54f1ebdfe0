"""What a statement will do to tables in the warehouse and to the settings, before it is executed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.plugins import install_target_of_the_template, on_path

from cdcflow.capture.ports.source import Preview, TablePreview
from cdcflow.config import Config, load
from cdcflow.errors import ConfigurationError
from cdcflow.model.position import Checkpoint
from cdcflow.model.table import Column, Table, TableId
from cdcflow.reports.rehearsed_statements import rehearsal_lines
from cdcflow.sources.mysql.tables import column_numbers
from cdcflow.wiring.migrations import Rehearsal, rehearse
from cdcflow.wiring.type_names import column_type

PAGE = Path(__file__).parents[3] / "docs" / "migrations.md"
KEY = "${env:COLUMN_KEY}"
COLUMNS = {"id": "integer", "customer": "text", "amount": "numeric(10,2)", "note": "text"}


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMN_KEY", "0123456789abcdef" * 4)


class Rehearsing:
    """Settings, and the tables `orders` and `users` of 1000 rows each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.source: dict[str, Any] = {"kind": "postgres", "url": "postgresql://u@localhost/shop"}
        self.version = "18.1"

    def config(self, **settings: Any) -> Config:
        file = self.folder / "cdcflow.yaml"
        merge = {"warehouse": str(self.folder / "tables"), **settings.pop("merge", {})}
        whole = {"source": self.source, "log": {"path": str(self.folder / "log")}, "merge": merge, **settings}
        file.write_text(yaml.safe_dump(whole))
        return load(file)

    def run(self, ddl: str, **settings: Any) -> Rehearsal:
        config = self.config(**settings)
        schema = "public" if self.source["kind"] == "postgres" else "shop"
        types = COLUMNS if schema == "public" else {**COLUMNS, "amount": "decimal(10,2)", "id": "int"}
        tables = []
        for name in ("orders", "users"):
            table = TableId(schema, name)
            columns = [
                Column(column, number, column_type(config, table, column, text))
                for number, (column, text) in enumerate(types.items(), 1)
            ]
            if schema == "shop":
                numbers = column_numbers(list(types))
                columns = [replace(column, number=n) for column, n in zip(columns, numbers, strict=True)]
            shape = Table(table, 1, tuple(columns), ("id",))
            tables.append(TablePreview(table, 1, 1000, 50_000, shape=shape))
        facts = {"server_version": self.version}
        return rehearse(config, ddl, Preview(tuple(tables)), facts, Checkpoint(), rows_per_second=100.0)


@pytest.fixture
def rehearsing(tmp_path: Path) -> Rehearsing:
    return Rehearsing(tmp_path)


def findings(found: Rehearsal) -> list[tuple[str, bool]]:
    return [(one.setting, one.breaks) for one in (*(f for t in found.tables for f in t.findings), *found.derived)]


def columns(found: Rehearsal) -> list[str]:
    return list(found.tables[0].columns)


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        ("ADD city text", ["new: city string"]),
        ("DROP note", ["kept: note; new rows have NULL in it"]),
        ("RENAME amount TO total", ["renamed: amount → total"]),
        ("ALTER amount TYPE numeric(12,2)", ["retyped: amount decimal(10,2) → decimal(12,2)"]),
        (
            "DROP note, ADD note int",
            ["kept: note, under the name note__dropped_4; new rows have NULL in it", "new: note int"],
        ),
        ("ALTER note SET DEFAULT 'x'", []),
    ],
)
def test_columns_of_the_table_in_the_warehouse(action: str, expected: list[str], rehearsing: Rehearsing) -> None:
    """By the rules of the merge itself."""
    found = rehearsing.run(f"ALTER TABLE orders {action}")
    assert (columns(found), found.breaks) == (expected, False)


@pytest.mark.parametrize(
    ("policy", "action", "breaks"),
    [
        ({"evolve": "freeze"}, "ADD city text", True),
        ({"evolve": "add_only"}, "ADD city text", False),
        ({"evolve": "add_only"}, "DROP note", True),
        ({}, "ALTER amount TYPE int", True),
        ({"incompatible": "new_column"}, "ALTER amount TYPE text", False),
        ({}, "DROP CONSTRAINT orders_pkey, ADD PRIMARY KEY (customer)", True),
    ],
)
def test_table_that_may_not_follow_is_reported(
    policy: Mapping[str, str], action: str, breaks: bool, rehearsing: Rehearsing
) -> None:
    """The next merge would exclude it."""
    found = rehearsing.run(f"ALTER TABLE orders {action}", merge={"tables": {"each": {"public.orders": dict(policy)}}})
    assert findings(found) == ([("merge.tables: public.orders", True)] if breaks else [])


def test_time_is_that_of_the_tables_that_are_read(rehearsing: Rehearsing) -> None:
    """Rows by the server's statistics, by the rate of the last reading."""
    found = rehearsing.run("ALTER TABLE orders ALTER id TYPE bigint; ALTER TABLE users ADD x int")
    assert [(t.name, t.effect) for t in found.tables] == [("public.orders", "read again"), ("public.users", "nothing")]
    assert (found.cost.rows, found.cost.seconds) == (1000, 10.0)
    assert "to read: 1,000 rows by the server's statistics, about 10.0 s" in rehearsal_lines(found)


@pytest.mark.parametrize(
    ("rules", "ddl", "expected"),
    [
        ({"columns": {"note": "mask"}}, "RENAME customer TO buyer", []),
        ({"where": "amount > 5"}, "RENAME amount TO total", []),
        ({"where": "amount > 5"}, "ALTER amount TYPE text", [("tables: public.orders", True)]),
        ({"computed": {"big": "amount > 5"}}, "DROP amount", [("tables: public.orders", True)]),
        ({"computed": {"city": "customer"}}, "ADD city text", [("tables: public.orders", True)]),
        ({"columns": {"note": {"hash": KEY}}}, "ADD phone text", [("tables: public.orders", False)]),
        ({"columns": {"note": "drop"}}, "DROP note", []),
    ],
)
def test_policies_and_row_rules(
    rules: Mapping[str, Any], ddl: str, expected: list[tuple[str, bool]], rehearsing: Rehearsing
) -> None:
    """They are applied to the next shape as a capture would."""
    found = rehearsing.run(f"ALTER TABLE orders {ddl}", tables={"public.orders": dict(rules)})
    assert findings(found) == expected


@pytest.mark.parametrize(
    ("promise", "ddl", "breaks"),
    [
        ({"amount": {"type": "decimal(10,2)"}}, "ALTER amount TYPE numeric(12,2)", [True]),
        ({"amount": {"type": "decimal(10,2)", "on_violation": "warn"}}, "ALTER amount TYPE numeric(12,2)", [False]),
        ({"amount": {"not_null": True}}, "RENAME amount TO total", [True]),
        ({"amount": {"not_null": True}}, "DROP amount", [True]),
        ({"id": {"check": "amount >= 0"}}, "RENAME amount TO total", [True]),
        ({"id": {"check": "amount >= 0"}}, "DROP amount", [False]),
        ({"id": {"check": "amount >= 0"}}, "DROP note", []),
    ],
)
def test_contracts(promise: Mapping[str, Any], ddl: str, breaks: list[bool], rehearsing: Rehearsing) -> None:
    """A promise about a column that has another name or type would stop the table."""
    found = rehearsing.run(f"ALTER TABLE orders {ddl}", contracts={"public.orders": dict(promise)})
    assert [is_broken for _, is_broken in findings(found)] == breaks


@pytest.mark.parametrize(
    ("ddl", "expected", "text"),
    [
        ("ALTER TABLE orders DROP note", [], ""),
        ("ALTER TABLE orders RENAME amount TO total", [True, True], "amount"),
        ("ALTER TABLE orders ALTER amount TYPE numeric(20,5)", [True, True], "total"),
        ("ALTER TABLE orders ALTER id TYPE bigint", [False], "computed as a whole"),
        ("ALTER TABLE users ADD city text", [], ""),
    ],
)
def test_derived_tables(ddl: str, expected: list[bool], text: str, rehearsing: Rehearsing) -> None:
    """Their queries are run over tables without rows, before and after; also one that reads another."""
    sums = "SELECT customer, sum(amount) AS total FROM orders GROUP BY customer"
    derive = {
        "public.totals": {"key": ["customer"], "sql": sums},
        "public.best": {"key": ["customer"], "sql": "SELECT customer, total FROM public.totals WHERE total > 5"},
    }
    found = rehearsing.run(ddl, merge={"engine": "local", "derive": derive})
    assert [one.breaks for one in found.derived] == expected
    assert any(text in one.text for one in found.derived) == bool(expected), found.derived


def test_route_of_many_tables_does_not_follow_a_rename(rehearsing: Rehearsing) -> None:
    """Columns of such a table are identified by their names."""
    routes = {r"public\.(?P<kind>orders|users)": "shop.everything"}
    found = rehearsing.run("ALTER TABLE orders RENAME note TO remark", merge={"tables": {"routes": routes}})
    assert found.tables[0].destination == "shop.everything"
    assert findings(found) == [("merge.tables: public.orders", True)]


def test_settings_that_name_a_table_which_ends(rehearsing: Rehearsing) -> None:
    """The new name has none of them."""
    contracts = {"public.orders": {"id": {"not_null": True}}}
    found = rehearsing.run("ALTER TABLE orders RENAME TO sales; ALTER TABLE sales ADD x int", contracts=contracts)
    assert [(t.name, t.effect) for t in found.tables] == [("public.orders", "kept"), ("public.sales", "added")]
    assert findings(found) == [("contracts: public.orders", False)]
    assert found.cost.rows == 1000


def test_mysql_reads_again_what_its_log_does_not_have(rehearsing: Rehearsing) -> None:
    """A rename is another column there, and the old one is kept."""
    rehearsing.source = {"kind": "mysql", "url": "mysql://u@localhost/", "tables": ["shop.*"]}
    rehearsing.version = ""
    found = rehearsing.run("ALTER TABLE shop.orders RENAME COLUMN note TO remark")
    assert (found.tables[0].effect, columns(found)) == (
        "read again",
        ["kept: note; new rows have NULL in it", "new: remark string"],
    )


@pytest.mark.parametrize("ddl", ["", "SELECT 1", "ALTER TABLE orders ADD x int; DROP ROLE a"])
def test_statement_that_is_not_known_gives_no_answer(ddl: str, rehearsing: Rehearsing) -> None:
    with pytest.raises(ConfigurationError, match="plan --ddl"):
        rehearsing.run(ddl)


def test_names_and_texts_of_a_statement_are_never_executed(rehearsing: Rehearsing, tmp_path: Path) -> None:
    """Hostile names are data, for the queries over tables without rows as well."""
    target = tmp_path / "stolen"
    name = f'"x""; COPY (SELECT 1) TO \'{target}\'; --"'
    derive = {"public.copy": {"key": ["id"], "sql": "SELECT * FROM orders"}}
    found = rehearsing.run(f"ALTER TABLE orders ADD {name} int", merge={"engine": "local", "derive": derive})
    assert [one.text.startswith("it gets new columns") for one in found.derived] == [True]
    assert not target.exists()


def test_example_on_the_page(rehearsing: Rehearsing) -> None:
    """What readers see is what the command prints."""
    page = PAGE.read_text()
    settings = yaml.safe_load(page.partition("```yaml\n")[2].partition("```")[0])
    given = {"merge": settings["merge"], "contracts": settings["contracts"]}
    examples = re.findall(r'^\$ cdcflow plan --ddl "(.*)"\n((?:.*\n)*?)```', page, re.MULTILINE)
    assert len(examples) == 2
    for ddl, printed in examples:
        assert "\n".join(rehearsal_lines(rehearsing.run(ddl, **given))) == printed.rstrip("\n")


def notes(found: Rehearsal) -> list[str]:
    """What is reported of targets and topics."""
    settings = ("targets.", "publish")
    return [
        f"{one.setting}: {one.text}" for t in found.tables for one in t.findings if one.setting.startswith(settings)
    ]


KAFKA = {"brokers": "127.0.0.1:1", "topic_prefix": "shop"}


@pytest.mark.parametrize(
    ("ddl", "target", "topic"),
    [
        (
            "ALTER TABLE orders ADD city text",
            "gets all of its rows again with the next change, in other columns (new: city string)",
            "messages of the topic shop.public.orders get other fields (new: city string)",
        ),
        (
            "ALTER TABLE orders RENAME amount TO total",
            "in other columns (new: total decimal128(10, 2); gone: amount)",
            "(new: total bytes (org.apache.kafka.connect.data.Decimal, scale 2, connect.decimal.precision 10); "
            "gone: amount)",
        ),
        ("ALTER TABLE orders ALTER id TYPE bigint", "(id int32 → int64)", "gets a message for each row that is read"),
        ("TRUNCATE orders", "gets the table without rows", None),
        ("DROP TABLE orders", "gets no more changes of it, and keeps its rows", "gets no more messages"),
        (
            "CREATE TABLE items (id int PRIMARY KEY)",
            "gets the table when all of its rows are in the log",
            "for each row",
        ),
        ("ALTER TABLE orders ALTER note SET DEFAULT 'x'", None, None),
    ],
)
def test_targets_and_topics_that_get_the_table_are_named(
    ddl: str, target: str | None, topic: str | None, rehearsing: Rehearsing, tmp_path: Path
) -> None:
    """Those who read them learn of other columns before they arrive. A target that does not get the table is silent."""
    with on_path(*install_target_of_the_template(tmp_path / "mydb")):
        copy = {"kind": "mydb", "file": "x.sqlite", "tables": ["public.*"]}
        targets = {"copy": copy, "users": {**copy, "tables": ["public.users"]}}
        found = notes(rehearsing.run(ddl, targets=targets, publish={"kafka": KAFKA}))
    expected = [(name, text) for name, text in (("targets.copy: ", target), ("publish: ", topic)) if text is not None]
    assert len(found) == len(expected), found
    for line, (setting, text) in zip(found, expected, strict=True):
        assert line.startswith(setting)
        assert text in line


def test_registry_must_accept_other_fields(rehearsing: Rehearsing) -> None:
    """It refuses them by its own rule, which stops the publisher then."""
    kafka = {**KAFKA, "format": "avro", "registry": {"url": "http://127.0.0.1:1"}}
    (note,) = notes(rehearsing.run("ALTER TABLE orders DROP note", publish={"kafka": kafka}))
    assert "must accept them for the subjects shop.public.orders-key and shop.public.orders-value" in note


def test_topics_of_mysql_have_the_fields_of_its_dialect(rehearsing: Rehearsing) -> None:
    """A decimal is bytes with its scale, or a text: as the settings of the publisher have it."""
    rehearsing.source = {"kind": "mysql", "url": "mysql://u@localhost/", "tables": ["shop.*"]}
    rehearsing.version = ""
    kafka = {**KAFKA, "decimal_handling_mode": "string"}
    ddl = "ALTER TABLE shop.orders MODIFY amount decimal(12,4), ADD due date"
    assert notes(rehearsing.run(ddl, publish={"kafka": kafka})) == [
        "publish: messages of the topic shop.shop.orders get other fields (new: due int32 (io.debezium.time.Date)); "
        "the topic shop.shop.orders gets a message for each row that is read"
    ]
