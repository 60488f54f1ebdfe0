"""The packages for schedulers and the files for dbt, in real ones: each in a separate environment.

`make test-schedulers` installs them, once, and runs these tests.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from tests.schedulers.environments import CDCFLOW, ROOT, environment_of, python_of
from tests.servers.postgres import PostgresServer
from tests.support.daemon.running_shop import Shop
from tests.support.docs.pages import DOCS
from tests.support.docs.pages import python_of as python_of_page
from tests.support.log.hand_log import HandLog
from tests.support.merge.histories import make_table

pytestmark = pytest.mark.long
ORDERS = make_table("orders", id="int64", product="int64")
PRODUCTS = make_table("products", id="int64", name="string")
SCRIPTS = ROOT / "tests" / "schedulers"
TABLES = ("public.orders", "public.products")


class Pipeline:
    """A log of two tables, and settings that merge it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = HandLog(folder / "log", has_transactions=True)
        for table in (ORDERS, PRODUCTS):
            self.log.state(table)
        self.config = folder / "cdcflow.yaml"
        self.config.write_text(
            "source: {kind: postgres, url: 'postgresql://nobody@127.0.0.1/shop'}\n"
            "log: {path: log}\nmerge: {engine: local, warehouse: lake, tables: {readable: wide}}\n"
        )
        self.number = 0

    def sell(self) -> None:
        """One order more, of a new product."""
        self.number += 1
        n = self.number
        self.log.segment([(PRODUCTS, "c", {"id": n, "name": f"p{n}"}), (ORDERS, "c", {"id": n, "product": n})])


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    return Pipeline(tmp_path)


def run(kind: str, script: Path, home: Path, *arguments: str, **variables: str) -> dict[str, Any]:
    """What a script prints in the environment of a scheduler."""
    home.mkdir(exist_ok=True)
    command = [str(python_of(kind)), str(script), *arguments]
    environment = {**environment_of(kind, home), **variables}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=home)
    results = [line.removeprefix("RESULT ") for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert results, done.stdout[-4000:]
    return dict(json.loads(results[0]))


def run_dag(config: Path, home: Path, since: str, *tables: str, compares: bool = False) -> dict[str, Any]:
    """A run of the DAG in `airflow_script.py`: the state and the result of each task."""
    variables = {"CONFIG": str(config), "SINCE": since, "TABLES": ",".join(tables), "COMPARES": "1" if compares else ""}
    return run("airflow", home / "dags" / "airflow_script.py", home, **variables)


PROFILE = """\
shop:
  target: dev
  outputs:
    dev: {type: duckdb, path: shop.duckdb, extensions: [delta], config_options: {extension_directory: extensions}}
"""
PROJECT = "name: shop\nversion: '1.0'\nprofile: shop\nmodel-paths: [models]\n"
MODEL = """\
select p.name, count(*) as sold
from {{ source('public', 'orders') }} o join {{ source('public', 'products') }} p on o.product = p.id
group by p.name order by p.name
"""


class DbtProject:
    """A project of dbt whose sources are those that `cdcflow dbt` writes."""

    def __init__(self, pipeline: Pipeline, folder: Path) -> None:
        self._pipeline = pipeline
        self.folder = folder
        (folder / "models").mkdir(parents=True)
        (folder / "dbt_project.yml").write_text(PROJECT)
        (folder / "models" / "sold.sql").write_text(MODEL)
        # The folder that INSTALL downloads into.
        (extension,) = python_of("dbt").parents[1].rglob("delta.duckdb_extension")
        code = "import duckdb; print(duckdb.sql('PRAGMA platform').fetchone()[0])"
        platform = subprocess.run([python_of("dbt"), "-c", code], capture_output=True, text=True, check=True).stdout
        place = folder / "extensions" / extension.parent.name / platform.strip()
        place.mkdir(parents=True)
        shutil.copy(extension, place)
        (folder / "profiles.yml").write_text(PROFILE)

    def write_sources(self, *arguments: str) -> None:
        output = str(self.folder / "models" / "sources.yml")
        done = subprocess.run(
            [str(CDCFLOW), "dbt", "--config", str(self._pipeline.config), "--output", output, *arguments],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr

    def dbt(self, *arguments: str) -> tuple[int, str]:
        program = python_of("dbt").parent / "dbt"
        done = subprocess.run(
            [str(program), *arguments, "--project-dir", ".", "--profiles-dir", "."],
            capture_output=True,
            text=True,
            check=False,
            cwd=self.folder,
            env=environment_of("dbt", self.folder),
        )
        return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def airflow_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("airflow")
    (home / "dags").mkdir()
    shutil.copy(SCRIPTS / "airflow_script.py", home / "dags")
    airflow = python_of("airflow").parent / "airflow"
    done = subprocess.run(
        [str(airflow), "db", "migrate"],
        capture_output=True,
        text=True,
        check=False,
        env=environment_of("airflow", home),
        cwd=home,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return home


def test_airflow_merges_and_waits_for_the_cut(pipeline: Pipeline, airflow_home: Path) -> None:
    """A run of a DAG in Airflow: the sensor gets the cut that the operator published."""
    pipeline.sell()
    found = run_dag(pipeline.config, airflow_home, "2020-01-01T00:00:00+00:00", *TABLES)
    assert found["merge"]["state"] == found["wait"]["state"] == "success"
    merged, waited = found["merge"]["value"], found["wait"]["value"]
    assert (merged["published"], merged["changes"], merged["excluded"]) == (True, dict.fromkeys(TABLES, 1), [])
    assert (waited["cut"], set(waited["versions"])) == (merged["cut"], set(TABLES))


@pytest.mark.parametrize(
    ("since", "table"), [("2199-01-01T00:00:00+00:00", "public.orders"), ("2020-01-01", "public.none")]
)
def test_airflow_waits_while_the_cut_is_too_old_or_lacks_the_table(
    pipeline: Pipeline, airflow_home: Path, since: str, table: str
) -> None:
    """A job that runs on yesterday's rows is worse than one that is late."""
    pipeline.sell()
    found = run_dag(pipeline.config, airflow_home, since, table)
    assert (found["merge"]["state"], found["wait"]["state"]) == ("success", "failed")


def lose_a_row(table: Path) -> None:
    """Take the first row out of the files of a Delta table, and change its commits accordingly."""
    for commit in (table / "_delta_log").glob("*.json"):
        actions = [json.loads(line) for line in commit.read_text().splitlines()]
        for added in [action["add"] for action in actions if "add" in action]:
            file = table / added["path"]
            pq.write_table(pq.read_table(file).slice(1), file)
            added["size"] = file.stat().st_size
        commit.write_text("".join(f"{json.dumps(action)}\n" for action in actions))


def test_airflow_compares_source_and_copy(own_postgres: PostgresServer, airflow_home: Path, tmp_path: Path) -> None:
    """A run fails unless they are equal: what depends on it then waits for an operator."""
    database = own_postgres.create_database("shop")
    database.execute("CREATE TABLE orders (id int PRIMARY KEY, note text)")
    database.execute("INSERT INTO orders SELECT n, 'new' FROM generate_series(1, 50) AS n")
    shop = Shop(tmp_path, database)
    shop.rest["merge"] = {"engine": "local", "warehouse": "lake"}
    shop.write()
    shop.start()
    try:
        found = run_dag(shop.file, airflow_home, "2020-01-01T00:00:00+00:00", "public.orders", compares=True)
        assert {name: task["state"] for name, task in found.items()} == dict.fromkeys(found, "success")
        assert set(found) == {"merge", "wait", "compare"}
        lose_a_row(tmp_path / "lake" / "public" / "orders")
        found = run_dag(shop.file, airflow_home, "2020-01-01T00:00:00+00:00", "public.orders", compares=True)
        assert found["compare"]["state"] == "failed"
    finally:
        shop.kill()


def test_dagster_has_the_tables_as_assets_and_reports_each_change_once(pipeline: Pipeline, tmp_path: Path) -> None:
    """By a job that merges, and by a sensor that reports what another process merged."""
    pipeline.sell()
    found = run("dagster", SCRIPTS / "dagster_script.py", tmp_path / "home", str(pipeline.config), *TABLES)
    assert found["success"], found["failures"]
    assert set(found["materialized"]) == {"lake/public/orders", "lake/public/products"}
    assert found["materialized"]["lake/public/orders"]["changes"] == 1
    first, second = found["sensor"]
    assert sorted(first["events"]) == ["public/orders", "public/products"]
    assert (second["events"], second["skip"]) == ([], "no table has changed in cut 1")
    assert found["assets"] == ["public/orders", "public/products"]


def test_dagster_fails_for_a_table_that_is_not_in_the_cut(pipeline: Pipeline, tmp_path: Path) -> None:
    """After it has reported the others: they are merged."""
    pipeline.sell()
    found = run(
        "dagster", SCRIPTS / "dagster_script.py", tmp_path / "home", str(pipeline.config), *TABLES, "public.none"
    )
    assert not found["success"]
    assert set(found["materialized"]) == {"lake/public/orders", "lake/public/products"}


@pytest.mark.parametrize("kind", ["airflow", "dagster"])
def test_example_on_the_page_runs(kind: str, tmp_path: Path) -> None:
    """It is copied."""
    (code,) = [code for code in python_of_page(DOCS / "schedulers.md", spark=None) if f"cdcflow_{kind}" in code]
    done = subprocess.run(
        [str(python_of(kind)), "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env=environment_of(kind, tmp_path),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_dbt_reads_the_tables_and_knows_how_fresh_they_are(pipeline: Pipeline, tmp_path: Path) -> None:
    """Also of a table that has not changed: it is fresh while cuts show it."""
    for _ in range(3):
        pipeline.sell()
    merge(pipeline)
    project = DbtProject(pipeline, tmp_path / "project")
    project.write_sources("--warn-after", "36500d", "--error-after", "36500d")
    code, said = project.dbt("run")
    assert code == 0, said
    code, said = project.dbt("show", "--inline", "select count(*) as n, min(sold) as least from {{ ref('sold') }}")
    assert code == 0, said
    assert "| 3 |" in said.replace("  ", " "), said
    code, said = project.dbt("source", "freshness")
    assert code == 0, said
    assert said.count("PASS freshness of") == 2
    project.write_sources("--error-after", "1h")
    code, said = project.dbt("source", "freshness")
    assert code != 0
    assert said.count("ERROR STALE freshness of") == 2, said


def merge(pipeline: Pipeline) -> None:
    subprocess.run([str(CDCFLOW), "merge", "--once", "--config", str(pipeline.config)], check=True, capture_output=True)
