"""SQL for readers without cdcflow: temporary views of every table at one cut.

    <warehouse>/_cdcflow_views/latest.sql      the latest cut, in Spark's SQL

A merge writes this one file atomically when it publishes a cut; it names a version of every table. Views in a
metastore, or a moving tag in each table, would change one after another, and a reader between two changes would see an
inconsistent state.
"""

# ruff: noqa: S608 - statements are built here; every name from outside goes through name_sql, every text through
# text_sql
from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime

from cdcflow.model.sqltypes import name_sql, text_sql
from cdcflow.tables.cut import Cut, CutTable
from cdcflow.tables.formats import delta, iceberg
from cdcflow.tables.paths import VIEWS, Warehouse

LATEST = (VIEWS, "latest.sql")


def spark_sql(cut: Cut, warehouse: Warehouse, format_: str) -> str:
    """Return SQL statements that create the views, each followed by `;` and a line end. A view is called
    `schema.table`, in one pair of backquotes.

    Comments name the tables that have no view, with the reason. Iceberg tables are named without a catalog: the
    reader's session selects it with USE.
    """
    committed = datetime.fromtimestamp(cut.commit_clock / 1e6, UTC).isoformat(timespec="microseconds")
    comments = [f"cut {cut.cut}: {_cut_text(cut)}, committed by {committed}"]
    views: dict[str, str] = {}
    for name, table in sorted(cut.tables.items()):
        if why := _absent(table, format_, twice=_as_spark_does(name) in views):
            comments.append(f"{name} is not here: {why}")
        else:
            views[_as_spark_does(name)] = _view(name, table, warehouse, format_)
    comments += [f"{name} is not here: {why}" for name, why in sorted(cut.left_out.items())]
    statements = [*_settings(format_, views), *views.values()]
    return "\n".join([*(f"-- {_one_line(one)}" for one in comments), *(f"{one};" for one in statements), ""])


def _cut_text(cut: Cut) -> str:
    if not cut.logs:
        return f"every table as of offset {cut.offset}"
    return f"tables of several logs, as of {', '.join(f'offset {p.offset} of {p.name}' for p in cut.logs.values())}"


def _settings(format_: str, names: Collection[str]) -> list[str]:
    """Return SET statements for the reader's session. Delta would otherwise refuse to read the old version of a table
    that has not changed for a week, and Spark would substitute a `${x}` in a name."""
    made = [f"SET {delta.TIME_TRAVEL_ENFORCED} = false"] if format_ == "delta" else []
    return made + ["SET spark.sql.variable.substitute = false"] * any("${" in name for name in names)


def _absent(table: CutTable, format_: str, *, twice: bool) -> str | None:
    """Return why a table has no view; `None` if it has one."""
    if not table.complete:
        return "not all of its rows were read at that cut"
    if format_ == "iceberg" and table.version and not table.tag:
        return "an older cdcflow published it; it comes with its next change"
    return "Spark takes its name for that of another table, which differs in case only" if twice else None


def _view(name: str, table: CutTable, warehouse: Warehouse, format_: str) -> str:
    path = table.path.split("/")
    if format_ != "iceberg":
        rows = f"delta.{name_sql(warehouse.location_of(path))} VERSION AS OF {table.version}"
    else:
        rows = ".".join(map(name_sql, iceberg.identifier(path)))
        rows += f" VERSION AS OF {text_sql(table.tag)}" if table.version else " WHERE false"
    return f"CREATE OR REPLACE TEMPORARY VIEW {name_sql(_one_line(name))} AS SELECT * FROM {rows}"


def _as_spark_does(name: str) -> str:
    return _one_line(name).lower()


def _one_line(text: str) -> str:
    """Join a text's lines and remove `;` at its end. A comment ends with its line, and a reader ends a statement at a
    `;` at the end of a line."""
    return " ".join(text.split()).rstrip(";")
