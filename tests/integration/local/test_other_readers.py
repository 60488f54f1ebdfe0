"""Other programs read the tables that cdcflow wrote, and get the rows that cdcflow itself reads: what docs/readers.md
calls tested. DuckDB and ClickHouse have processes and versions of their own (`tests/servers/readers.py`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import polars
import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaProtocolError
from pyiceberg.table import StaticTable
from tests.servers.catalogs import RestCatalog
from tests.servers.objects import ACCESS_KEY, SECRET_KEY, ObjectServer
from tests.servers.readers import ClickHouse, DuckDB, Program, Question, Refused, Store
from tests.servers.trino import Trino
from tests.support.log.hand_log import HandLog
from tests.support.readers.shapes import NAMES, Row, by_key, own_rows, write_shapes
from tests.support.tables.catalogs import catalog_of, hadoop_of

from cdcflow.model.table import TableId
from cdcflow.tables.formats.iceberg import identifier
from cdcflow.tables.local import file_rewrites, position_deletes
from cdcflow.tables.local.engine import LocalEngine
from cdcflow.tables.local.iceberg_catalogs import TableCatalog
from cdcflow.tables.paths import Warehouse, table_path

Read = Callable[[str], Any]
MAPPED = {"created", "changed", "renamed", "wide_renamed"}
"""The Delta tables with column mapping."""
REFUSED: Mapping[tuple[str, str], set[str]] = {("polars", "delta"): MAPPED, ("delta-rs by Arrow", "delta"): MAPPED}


class Lake:
    """A warehouse in a folder, and the files that its tables begin with."""

    def __init__(self, warehouse: Warehouse, format_name: str) -> None:
        self.warehouse = warehouse
        self.format_name = format_name

    def place(self, name: str) -> str:
        """A Delta table's folder; an Iceberg table's latest file of metadata."""
        path = table_path(TableId("shop", name))
        if self.format_name == "delta":
            return self.warehouse.location_of(path)
        with closing(TableCatalog(self.warehouse)) as catalog:
            found = catalog.load(identifier(path))
        assert found is not None
        return found.metadata_location.removeprefix("file://")

    def own(self, name: str) -> list[Row]:
        return own_rows(self.warehouse, self.format_name, name)


LARGE = "iceberg, large files"
"""Tables in which a data file has several delete files that no other shares."""


def make_lake(folder: Path, kind: str, warehouse: Warehouse | None = None) -> Lake:
    lake = Lake(warehouse or Warehouse(folder / "lake"), kind.partition(",")[0])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_rewrites, "TINY_BYTES", 0)  # marks, also in small files
        if kind == LARGE:
            patch.setattr(position_deletes, "SHARING_BYTES", 0)
            patch.setattr(position_deletes, "OWN_TIMES", 0)
        write_shapes(HandLog(folder / "log"), lake.warehouse, lake.format_name)
    return lake


@pytest.fixture(scope="module", params=["delta", "iceberg", LARGE])
def lake(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    return make_lake(tmp_path_factory.mktemp(request.param), request.param)


def test_a_large_file_has_several_delete_files(tmp_path: Path) -> None:
    """What the readers below read are such tables."""
    lake = make_lake(tmp_path, LARGE)
    with closing(LocalEngine(lake.warehouse, "iceberg")) as engine:
        there = engine.table(table_path(TableId("shop", "renamed")))
        assert there.snapshot() is not None
        assert max(len(file.delete_files) for file in there.files()) > 1


def by_query(place: str) -> Any:
    return pa.table(QueryBuilder().register("t", DeltaTable(place)).execute("SELECT * FROM t"))


IN_PROCESS: Mapping[str, Mapping[str, Read]] = {
    "polars": {
        "delta": lambda place: polars.scan_delta(place).collect().to_arrow(),
        "iceberg": lambda place: polars.scan_iceberg(place).collect().to_arrow(),
    },
    "delta-rs": {"delta": by_query},
    "delta-rs by Arrow": {"delta": lambda place: DeltaTable(place).to_pyarrow_table()},
    "pyiceberg": {"iceberg": lambda place: StaticTable.from_metadata(place).scan().to_arrow()},
}


@pytest.mark.filterwarnings("ignore:Iceberg scan planning with the polars_iceberg")
@pytest.mark.parametrize("reader", IN_PROCESS)
def test_libraries_read_what_cdcflow_reads_or_name_what_they_refuse(reader: str, lake: Lake) -> None:
    """A reader that shows a deleted row, or an old name's values under the new one, is worse than one that refuses."""
    read = IN_PROCESS[reader].get(lake.format_name)
    if read is None:
        return
    refused: set[tuple[str, bool]] = set()
    for name in NAMES:
        try:
            found = read(lake.place(name))
        except DeltaProtocolError as error:
            refused.add((name, "columnMapping" in str(error)))
        else:
            assert by_key(found.to_pylist()) == lake.own(name), name
    assert refused == {(name, True) for name in REFUSED.get((reader, lake.format_name), ())}


def as_in_clickhouse(row: Row) -> Row:
    """ClickHouse has times without a zone in UTC, bytes as text, and no NULL of lists."""
    raw = row["raw"].encode("latin-1") if isinstance(row["raw"], str) else row["raw"]
    return {**row, "local": row["local"].replace(tzinfo=None), "raw": raw, "_missing": row["_missing"] or []}


AS_IN: Mapping[str, Callable[[Row], Row]] = {"duckdb": lambda row: row, "clickhouse": as_in_clickhouse}
"""How a reader's types show a row."""


def check(program: Program, lake: Lake, questions: Mapping[str, Question], store: Store | None = None) -> None:
    """Check that the program's answers are the rows that cdcflow itself reads."""
    shown = AS_IN[program.name]
    for name, answer in zip(questions, program.read(list(questions.values()), store), strict=True):
        assert not isinstance(answer, Refused), f"{name}: {answer}"
        assert by_key(map(shown, answer.to_pylist())) == [shown(row) for row in lake.own(name)], name


def folder_of(lake: Lake, name: str) -> str:
    """Where a table's files are, without the scheme of a URL and the bucket."""
    place = lake.warehouse.location_of(table_path(TableId("shop", name)))
    return place.removeprefix("s3a://")


def test_duckdb_reads_every_shape_with_its_own_extensions(lake: Lake) -> None:
    check(DuckDB(), lake, {name: Question(lake.format_name, lake.place(name)) for name in NAMES})


@pytest.mark.long
def test_clickhouse_reads_every_shape(lake: Lake) -> None:
    check(ClickHouse(), lake, {name: Question(lake.format_name, folder_of(lake, name)) for name in NAMES})


@pytest.mark.long
@pytest.mark.parametrize("format_name", ["delta", "iceberg"])
def test_tables_in_a_bucket_are_read_by_the_same_programs(
    format_name: str, tmp_path: Path, object_server: ObjectServer
) -> None:
    """Their addresses begin with `s3a://`, which not every reader takes for S3."""
    bucket = f"readers-{format_name}"
    address = object_server.objects(bucket).address(bucket)
    store = Store(object_server.endpoint, ACCESS_KEY, SECRET_KEY)
    with catalog_of("glue", "") as catalog:
        warehouse = Warehouse(f"s3a://{bucket}/lake", address, catalog if format_name == "iceberg" else None)
        lake = make_lake(tmp_path, format_name, warehouse)
        check(DuckDB(), lake, {n: Question(format_name, lake.place(n).replace("s3a:", "s3:")) for n in NAMES}, store)
        check(ClickHouse(), lake, {name: Question(format_name, folder_of(lake, name)) for name in NAMES}, store)


@pytest.mark.long
def test_duckdb_reads_names_of_a_rest_catalog_and_an_earlier_cut_by_its_snapshot(tmp_path: Path) -> None:
    """Names, columns and snapshots are the catalog's; nothing is given but its address."""
    with RestCatalog(str(tmp_path / "lake")) as server:
        warehouse = Warehouse(tmp_path / "lake", catalog={"type": "rest", "uri": server.uri})
        lake = make_lake(tmp_path, "iceberg", warehouse)
        with closing(TableCatalog(warehouse)) as catalog:
            found = catalog.load(identifier(table_path(TableId("shop", "changed"))))
        assert found is not None
        first = found.refs()["cdcflow_cut_1"].snapshot_id
        attach = f"ATTACH '' AS lake (TYPE iceberg, ENDPOINT '{server.uri}', AUTHORIZATION_TYPE 'none')"
        check(
            DuckDB(),
            lake,
            {
                name: Question(
                    "",
                    sql=f"SELECT * FROM lake.shop.{name}",
                    before=(attach,) * (name == NAMES[0]),
                )
                for name in NAMES
            },
        )
        (earlier,) = DuckDB().read(
            [Question("", sql=f"SELECT id FROM lake.shop.changed AT (VERSION => {first})", before=(attach,))]
        )
        assert isinstance(earlier, pa.Table)
        assert sorted(earlier["id"].to_pylist()) == list(range(100))


@pytest.mark.long
def test_ducklake_adopts_tables_without_copying_a_row(tmp_path: Path) -> None:
    """The files of a wide table whose columns kept their names become those of a table of DuckLake."""
    delta = make_lake(tmp_path / "delta", "delta")
    made = f"ATTACH 'ducklake:{tmp_path}/lake.ducklake' AS lake (DATA_PATH '{tmp_path}/ducklake')"
    questions: dict[str, Question] = {}
    for name in ("wide_created", "wide_changed"):
        files = [uri.removeprefix("file://") for uri in DeltaTable(delta.place(name)).file_uris()]
        like = f"CREATE TABLE lake.{name} AS SELECT * FROM read_parquet({files}) LIMIT 0"
        added = [f"CALL ducklake_add_data_files('lake', '{name}', '{file}')" for file in files]
        before = (*([] if questions else [made]), like, *added)
        questions[name] = Question("", sql=f"SELECT * FROM lake.{name}", before=before)
    check(DuckDB(), delta, questions)


def in_milliseconds(row: Row) -> Row:
    """Trino reads times with a zone of Delta tables so."""
    return {**row, "at": row["at"].replace(microsecond=row["at"].microsecond // 1000 * 1000)}


@pytest.mark.long
def test_trino_reads_every_shape_in_a_bucket(tmp_path: Path, object_server: ObjectServer) -> None:
    """Iceberg tables by the names of a REST catalog, also an earlier cut by its tag; Delta tables by their places."""
    bucket = "readers-trino"
    address = object_server.objects(bucket).address(bucket)
    root = f"s3a://{bucket}/iceberg"
    with (
        RestCatalog(root, hadoop_of(object_server)) as catalog,
        Trino(Store(object_server.endpoint, ACCESS_KEY, SECRET_KEY), catalog.uri) as trino,
    ):
        for format_name, place in (("iceberg", root), ("delta", f"s3a://{bucket}/delta")):
            named = {"type": "rest", "uri": catalog.uri} if format_name == "iceberg" else None
            lake = make_lake(tmp_path / format_name, format_name, Warehouse(place, address, named))
            for name in NAMES:
                if format_name == "delta":
                    trino.register("shop", name, lake.place(name))
                shown = trino.ask(f"SELECT * FROM {'lake' if named else 'delta'}.shop.{name}")
                own = lake.own(name) if named else list(map(in_milliseconds, lake.own(name)))
                assert by_key(shown) == own, (format_name, name)
        earlier = trino.ask("SELECT id FROM lake.shop.changed FOR VERSION AS OF 'cdcflow_cut_1'")
        assert sorted(row["id"] for row in earlier) == list(range(100))
