"""The Python peers that read a binary log: rows become dictionaries, and nothing is stored.

Argument: `with` (the library's module), `flavor`, `port`, `file` and `position` to begin at, `schema`, `table`, and
`rows` to stop after.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from bench.children.usage import Clock, given, peak_rss_bytes, tell


def by_replication(asked: Mapping[str, object]) -> int:
    from pymysqlreplication import BinLogStreamReader
    from pymysqlreplication.row_event import WriteRowsEvent

    stream = BinLogStreamReader(
        connection_settings={"host": "127.0.0.1", "port": asked["port"], "user": "root", "passwd": ""},
        server_id=5402,
        log_file=asked["file"],
        log_pos=asked["position"],
        resume_stream=True,
        only_events=[WriteRowsEvent],
        only_schemas=[asked["schema"]],
        only_tables=[asked["table"]],
        is_mariadb=asked["flavor"] == "mariadb",
    )
    seen = 0
    for event in stream:
        seen += len(event.rows)
        if seen >= int(str(asked["rows"])):
            break
    stream.close()
    return seen


def by_event_stream(asked: Mapping[str, object]) -> int:
    from mysql_event_stream import CdcStream

    async def read() -> int:
        seen = 0
        stream = CdcStream(
            host="127.0.0.1",
            port=int(str(asked["port"])),
            server_id=5403,
            start_binlog_file=str(asked["file"]),
            start_binlog_position=int(str(asked["position"])),
            include_tables=[f"{asked['schema']}.{asked['table']}"],
        )
        async with stream:
            async for _ in stream:
                seen += 1
                if seen >= int(str(asked["rows"])):
                    break
        return seen

    return asyncio.run(read())


def main() -> None:
    asked = given()
    clock = Clock()
    seen = by_replication(asked) if asked["with"] == "pymysqlreplication" else by_event_stream(asked)
    tell({**clock.stop(), "rows": seen, "rss_bytes": peak_rss_bytes()})


if __name__ == "__main__":
    main()
