"""A process that reads tables with DuckDB or ClickHouse: questions as JSON on standard input, an answer in Arrow's file
format, or the first line of an error, in the folder that is its argument."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Read = Callable[[Mapping[str, Any]], Any]


def main() -> None:
    asked = json.load(sys.stdin)
    sys.path.insert(0, asked["libraries"])
    os.chdir("/")  # ClickHouse opens files below its working directory only
    read = {"duckdb": duckdb, "clickhouse": clickhouse}[asked["program"]](asked)
    for n, question in enumerate(asked["questions"]):
        file = Path(sys.argv[1]) / str(n)
        try:
            write(read(question), file.with_suffix(".arrow"))
        except Exception as error:  # noqa: BLE001  any error is the reader's answer
            file.with_suffix(".arrow").unlink(missing_ok=True)
            file.with_suffix(".error").write_text((str(error).splitlines() or [repr(error)])[0])


def write(table: Any, file: Path) -> None:
    import pyarrow as pa

    with pa.OSFile(str(file), "wb") as out, pa.ipc.new_file(out, table.schema) as writer:
        writer.write_table(table)


def duckdb(asked: Mapping[str, Any]) -> Read:
    import duckdb

    connection = duckdb.connect()
    for extension in sorted(Path(asked["libraries"]).glob("duckdb_extension_*/extensions/*/*.duckdb_extension")):
        connection.execute(f"LOAD '{extension}'")
    store = asked["store"]
    if store is not None:
        endpoint = store["endpoint"].removeprefix("http://")
        connection.execute(
            f"CREATE SECRET (TYPE s3, KEY_ID '{store['key']}', SECRET '{store['secret']}', REGION 'us-east-1',"
            f" ENDPOINT '{endpoint}', URL_STYLE 'path', USE_SSL false)"
        )

    def read(question: Mapping[str, Any]) -> Any:
        for statement in question["before"]:
            connection.execute(statement)
        sql = question["sql"] or f"SELECT * FROM {question['format']}_scan('{question['place']}')"
        return connection.sql(sql).to_arrow_table()

    return read


def clickhouse(asked: Mapping[str, Any]) -> Read:
    import chdb  # type: ignore[import-not-found]  # its own libraries have it
    import pyarrow as pa

    function = {"delta": "deltaLake", "iceberg": "iceberg"}
    store = asked["store"]

    def read(question: Mapping[str, Any]) -> Any:
        if store is None:
            source = f"{function[question['format']]}Local('{question['place']}')"
        else:
            url = f"{store['endpoint']}/{question['place']}"
            source = f"{function[question['format']]}S3('{url}', '{store['key']}', '{store['secret']}')"
        return pa.ipc.open_file(chdb.query(f"SELECT * FROM {source}", "Arrow").bytes()).read_all()

    return read


if __name__ == "__main__":
    main()
