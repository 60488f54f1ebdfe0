"""Computed columns by functions of installed packages: settings, what is refused, and what leaves a source."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.support.plugins import install, install_transform_of_the_page, on_path
from tests.support.settings_files import complaint, write_settings

from cdcflow.config import Config, load
from cdcflow.config.plugins import TRANSFORMS
from cdcflow.errors import ConfigurationError
from cdcflow.model.change import ChangeBatch
from cdcflow.model.table import Column, Table, TableId
from cdcflow.model.types import ColumnType
from cdcflow.sources.privacy import transform_counts
from cdcflow.sources.privacy.rules import PolicyRules, changed_policies, with_stored
from cdcflow.sources.privacy.stored_rules import read_stored
from cdcflow.sources.privacy.transform_counts import TransformCounts
from cdcflow.wiring.plugged import part_findings

HEAD = "source: {kind: postgres, url: 'postgresql://cdc@db/shop'}\nlog: {path: shop-log}\n"
WHOLE = f"{HEAD}tables:\n  public.shops:\n    computed:\n      place: {{kind: geo, columns: [Lat, lon], digits: 1}}\n"
KINDS = {"id": pa.int32(), "lat": pa.float64(), "lon": pa.float64(), "name": pa.string()}
COLUMNS = tuple(Column(name, n, ColumnType(str(kind), kind)) for n, (name, kind) in enumerate(KINDS.items(), 1))
SHOPS = Table(TableId("public", "shops"), 1, COLUMNS, ("id",))
ODD = """
import pyarrow as pa
from cdcflow.ports import TransformPlugin, TransformSettings

class OddSettings(TransformSettings):
    fault: str = ""

def type_of(settings, schema):
    if settings.fault == "type":
        return "text"
    if settings.fault == "asked":
        raise ValueError("c4n4ry")
    return pa.int64()

def apply(settings, columns):
    (values,) = columns.values()
    if settings.fault == "raises":
        raise ValueError("c4n4ry")
    return {"short": values[1:], "list": [1], "text": values.cast(pa.string())}.get(settings.fault, values)

plugin = TransformPlugin(ports=1, settings=OddSettings, apply=apply, type_of=type_of, version="VERSION")
"""


@contextmanager
def geo(folder: Path) -> Iterator[None]:
    with on_path(install_transform_of_the_page(folder / "packages")):
        yield


@contextmanager
def odd(folder: Path, version: str = "1") -> Iterator[None]:
    code = ODD.replace("VERSION", version)
    with on_path(install(folder / f"v{version}", "cdcflow-odd", {"odd": "cdcflow_odd:plugin"}, code, TRANSFORMS)):
        yield


def rules(folder: Path, text: str = WHOLE) -> PolicyRules:
    config: Config = load(write_settings(folder, text))
    return PolicyRules(config.tables)


def with_fault(fault: str) -> str:
    return f"{HEAD}tables: {{public.shops: {{computed: {{twice: {{kind: odd, columns: [n], fault: '{fault}'}}}}}}}}\n"


def left(found: PolicyRules, *rows: dict[str, Any], table: Table = SHOPS) -> list[dict[str, Any]]:
    shape = found.shape(table)
    assert shape is not None
    batch = pa.RecordBatch.from_pylist(list(rows), schema=table.change_schema)
    return list(shape.changes(ChangeBatch(table, np.arange(len(rows)), batch)).rows.to_pylist())


def test_doctor_checks_a_transform(tmp_path: Path) -> None:
    """As the other parts of packages. Of an error only the type is shown."""
    check = (
        "def doctor(settings):\n    if settings.fault:\n        raise ValueError('c4n4ry')\n    return ()\n\nplugin ="
    )
    code = ODD.replace('version="VERSION"', "doctor=doctor").replace("plugin =", check)
    with on_path(install(tmp_path / "packages", "cdcflow-odd", {"odd": "cdcflow_odd:plugin"}, code, TRANSFORMS)):
        (well,) = part_findings(load(write_settings(tmp_path, with_fault(""))))
        assert (well.level, well.subject) == ("ok", "tables.public.shops.computed.twice")
        (bad,) = part_findings(load(write_settings(tmp_path, with_fault("x"))))
        assert (bad.level, bad.text) == ("error", "the check of kind odd raised ValueError")


def test_function_of_the_page_computes_a_column(tmp_path: Path) -> None:
    """Columns are found without case. One that was not sent leaves the computed one unchanged, too."""
    with geo(tmp_path):
        found = left(
            rules(tmp_path),
            {"id": 1, "lat": 50.72, "lon": 7.11, "_op": "c"},
            {"id": 2, "lat": None, "lon": 7.0, "_op": "u"},
            {"id": 3, "name": "x", "_op": "u", "_unchanged": ["lat", "lon"]},
        )
    assert [row["place"] for row in found] == ["50.7 7.1", None, None]
    assert found[2]["_unchanged"] == ["lat", "lon", "place"]


def test_function_is_known_in_other_processes(tmp_path: Path) -> None:
    """Executors get the rules, and import the package there."""
    with geo(tmp_path):
        again: PolicyRules = pickle.loads(pickle.dumps(rules(tmp_path)))  # noqa: S301  its own
        assert left(again, {"id": 1, "lat": 1.0, "lon": 2.0, "_op": "c"})[0]["place"] == "1 2"


@pytest.mark.parametrize(
    ("right", "wrong", "expected"),
    [
        (
            "digits",
            "digit",
            "cdcflow.yaml:6:47: unknown setting tables.public.shops.computed.place.digit; did you mean",
        ),
        ("columns: [Lat, lon]", "columns: []", "computed.place.columns must name at least one column, and none twice"),
        ("kind: geo", "kind: goe", "tables.public.shops.computed.place.kind must be 'geo'; did you mean geo?"),
        ("kind: geo, ", "", "tables.public.shops.computed.place.kind is missing"),
        ("{kind: geo, columns: [Lat, lon], digits: 1}", "lowr(lat)", "has the unknown function lowr: did you mean"),
    ],
)
def test_mistake_in_a_transform_has_its_line_and_the_nearest_name(
    tmp_path: Path, right: str, wrong: str, expected: str
) -> None:
    """As in cdcflow's own settings; an expression stays one."""
    with geo(tmp_path):
        assert expected in complaint(tmp_path, WHOLE.replace(right, wrong))


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ("latt, lon", "tables: public.shops: computed.place uses the unknown column latt; did you mean lat?"),
        ("lat, name", "is of kind geo: columns must be two of floating point: latitude and longitude"),
    ],
)
def test_columns_that_do_not_fit_stop_the_start(tmp_path: Path, columns: str, expected: str) -> None:
    """With the function's own words."""
    with geo(tmp_path), pytest.raises(ConfigurationError) as caught:
        rules(tmp_path, WHOLE.replace("Lat, lon", columns)).shape(SHOPS)
    assert expected in str(caught.value)


NUMBERS = Table(SHOPS.id, 1, (COLUMNS[0], Column("n", 2, ColumnType("bigint", pa.int64()))), ("id",))


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("raises", "a row has a value to which the computed column twice cannot be applied"),
        ("short", "computed.twice: kind odd returned something else than 2 values of int64"),
        ("list", "returned something else than 2 values"),
        ("text", "returned something else than 2 values"),
        ("type", "whose type_of returned no type"),
        ("asked", "whose type_of raised ValueError"),
    ],
)
def test_function_that_fails_stops_and_shows_no_value(tmp_path: Path, fault: str, expected: str) -> None:
    """Never NULL, and never another number of rows."""
    rows = [{"id": n, "n": n, "_op": "c"} for n in (1, 2)]
    with odd(tmp_path), pytest.raises(ConfigurationError) as caught:
        left(rules(tmp_path, with_fault(fault)), *rows, table=NUMBERS)
    assert expected in str(caught.value)
    assert "c4n4ry" not in str(caught.value)


def test_another_version_of_the_function_is_a_changed_table(tmp_path: Path) -> None:
    """Rows of both would be mixed. So would those of other settings."""
    with odd(tmp_path):
        before = rules(tmp_path, with_fault(""))
        stored = read_stored(with_stored({}, before, [NUMBERS], {}))
        assert changed_policies(stored, rules(tmp_path, with_fault("")), [NUMBERS]) == {}
        assert changed_policies(stored, rules(tmp_path, with_fault("text")), [NUMBERS]).keys() == {NUMBERS.id}
    with odd(tmp_path, "2"):
        assert changed_policies(stored, rules(tmp_path, with_fault("")), [NUMBERS]).keys() == {NUMBERS.id}


def test_computed_column_of_a_private_one_needs_a_policy(tmp_path: Path) -> None:
    """Whatever the function does with it."""
    private = WHOLE + "    columns: {lat: drop}\n"
    with geo(tmp_path), pytest.raises(ConfigurationError, match="the computed column place uses column lat, which has"):
        rules(tmp_path, private).shape(SHOPS)


def test_counts_are_those_of_each_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that do not fit are missing in what leaves; a stage that fails is an error, and its rows did not leave."""
    counts = TransformCounts()
    monkeypatch.setattr(transform_counts, "COUNTS", counts)
    computed = "    computed:\n      twice: {kind: odd, columns: [id], fault: FAULT}\n"
    text = f"{HEAD}tables:\n  public.shops:\n    where: id > 1\n    columns: {{name: mask}}\n{computed}"
    shops = replace(SHOPS, columns=(Column("id", 1, ColumnType("bigint", pa.int64())), *COLUMNS[1:]))
    row = {"id": 1, "lat": 1.0, "lon": 1.0, "name": "x", "_op": "c"}
    rows = pa.RecordBatch.from_pylist([row, {**row, "id": 2}, {**row, "id": 3}], schema=shops.change_schema)
    batch = ChangeBatch(shops, np.arange(3), rows)
    with odd(tmp_path):
        for fault in ("", "raises"):
            table = rules(tmp_path, text.replace("FAULT", fault or "''")).shape(shops)
            assert table is not None
            if fault:
                with pytest.raises(ConfigurationError, match="cannot be applied"):
                    table.leave(batch)
            else:
                table.leave(batch)
    found = {name: {k: v for k, v in one.items() if k != "seconds"} for name, one in counts.to_status().items()}
    assert found == {
        "row_rules": {"rows_in": 6, "rows_out": 2, "errors": 1},
        "odd": {"rows_in": 4, "rows_out": 2, "errors": 1},
        "policies": {"rows_in": 2, "rows_out": 2, "errors": 0},
    }
    assert all(float(str(one["seconds"])) > 0 for one in counts.to_status().values())
