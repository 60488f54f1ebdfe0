"""Which files faults are planted in, and which tests should find them: near ones first, so that most are found early.

A suite is a list of stages; the next stage runs only for the faults that the one before has not found.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

ROOMS: tuple[str, ...] = (
    "model/*.py",
    "capture/interleave/*.py",
    *(f"log/{room}/*.py" for room in ("format", "files", "read", "index", "fold")),
    "tables/merge/*.py",
    "capture/*.py",
    *(
        f"tables/local/{name}.py"
        for name in ("deltalog", "key_filter", "position_deletes", "file_rewrites", "scan", "vectors")
    ),
    *(f"sources/engine/{name}.py" for name in ("selection", "changes", "spooled", "connections", "table_key")),
    *(
        f"sources/postgres/{name}.py"
        for name in (
            *("publication", "keys", "types/describe", "types/decimals"),
            *("wire", "rewrites", "overlap", "sqlstates"),
        )
    ),
    *(
        f"sources/mysql/{name}.py"
        for name in ("statements", "alters", "sql", "ddl", "fences", "keys", "gtids", "position")
    ),
    *(f"sources/mysql/types/{name}.py" for name in ("registry", "labels", "text", "special", "temporal")),
)

Stages = tuple[tuple[str, ...], ...]

_UNIT = "tests/unit"
_JOURNALS = tuple(
    f"{_UNIT}/log/test_{name}.py" for name in ("framing", "journal_records", "frames_that_lie", "recovery")
)
_SIMULATION = "tests/simulation/test_simulation.py::test_every_schedule_keeps_the_invariants"
_LOCAL = "tests/integration/local"  # merges in this process
_SINKS = ("tests/contracts/test_sinks.py::TestFileLog",)
_FILES: Stages = ((f"{_UNIT}/log",), _SINKS)
_LOG_FILES = f"{_UNIT}/log/test_log_files.py"
_READERS = tuple(f"{_UNIT}/log/test_{name}.py" for name in ("inventory", "following", "readers"))
_BINLOG = tuple(f"{_UNIT}/mysql/test_binlog_{n}.py" for n in ("statements", "transactions", "cases", "histories"))
_MYSQL: Stages = ((*_BINLOG, f"{_UNIT}/mysql/test_fences.py"), ("tests/corpus/test_mysql_corpus.py",))
_POSTGRES: Stages = ((f"{_UNIT}/postgres", f"{_UNIT}/postgres_sessions", "tests/corpus/test_postgres_corpus.py"),)
_MERGE: Stages = (
    tuple(
        f"{_UNIT}/merge/test_{n}.py"
        for n in (
            "fold",
            "evolution",
            "shapes_that_follow_one_another",
            "types_in_spark",
            "reduce_and_statement",
            "standing",
        )
    ),
    (f"{_UNIT}/merge/test_merge_on_an_embedded_engine.py",),
    (f"{_LOCAL}/test_random_histories.py::test_histories_of_tables_give_what_the_fold_gives",),
)

_NEAR: dict[str, Stages] = {
    "model/": (
        (f"{_UNIT}/model",),
        (f"{_UNIT}/interleave", f"{_UNIT}/merge/test_evolution.py"),
        ("tests/scenarios",),
        _SINKS,
    ),
    "capture/interleave/": ((f"{_UNIT}/interleave", "tests/scenarios"), (f"{_UNIT}/capture",), (_SIMULATION,)),
    "log/format/framing": ((f"{_UNIT}/log/test_format_numbers.py", *_JOURNALS), *_FILES),
    "log/format/journal": ((f"{_UNIT}/log/test_journal_encoder.py", *_JOURNALS), *_FILES),
    "log/format/recovery": (_JOURNALS, *_FILES),
    "log/format/rows": ((f"{_UNIT}/log/test_rows_frames.py", *_JOURNALS), *_FILES),
    "log/format/transactions": ((f"{_UNIT}/log/test_headers_of_runs.py", *_JOURNALS), *_FILES),
    "log/files/compaction": (
        tuple(f"{_UNIT}/log/test_{n}.py" for n in ("compaction_of_some", "compaction")),
        *_FILES,
    ),
    "log/files/segment_writer": ((f"{_UNIT}/log/test_sealing.py",), *_FILES),
    "log/files/parquet": (tuple(f"{_UNIT}/log/test_{n}.py" for n in ("parquet_files", "sealing")), *_FILES),
    "log/files/layout": ((f"{_UNIT}/log/test_layout.py", _LOG_FILES), *_FILES),
    "log/format/segment": ((_LOG_FILES,), *_FILES),
    "log/format/spool": ((f"{_UNIT}/log/test_spools.py",), *_FILES),
    "log/read/lookup": (tuple(f"{_UNIT}/log/test_{n}.py" for n in ("lookup", "past_lookups")), *_FILES),
    "log/read/check": ((f"{_UNIT}/log/test_checking.py",), *_FILES),
    "log/format/records": ((f"{_UNIT}/log/test_tail.py",), *_FILES),
    "log/format/topic_tail": ((f"{_UNIT}/log/test_tail.py",),),
    "log/format/numbers": ((f"{_UNIT}/log/test_lying_frames.py",), *_FILES),
    "log/format/schema_history": ((f"{_UNIT}/log/test_schema_history.py", _LOG_FILES), *_FILES),
    **{
        f"log/{name}": (_READERS, *_FILES)
        for name in ("files/inventory", "files/extents", "read/journal_follower", "read/reader", "read/folder")
    },
    "log/format/keyruns": ((f"{_UNIT}/log/test_key_runs.py",), *_FILES),
    "log/": _FILES,
    "log/fold/": _MERGE,
    "tables/merge/": _MERGE,
    **dict.fromkeys(
        (f"tables/merge/{name}" for name in ("shape_policy", "column_versions", "evolution", "refusals")),
        (tuple(f"{_UNIT}/merge/test_{n}.py" for n in ("policies_of_shape", "evolution")), *_MERGE),
    ),
    "tables/merge/file_layouts": ((f"{_UNIT}/merge/test_recorded_layouts.py",), *_MERGE),
    "tables/merge/history": ((f"{_UNIT}/merge/test_versions.py",), *_MERGE),
    "tables/merge/live": ((f"{_UNIT}/local/test_live_shapes.py",), *_MERGE, (f"{_LOCAL}/test_live_view.py",)),
    "tables/merge/soft_delete": (*_MERGE, tuple(f"{_LOCAL}/test_{n}.py" for n in ("purges", "table_modes"))),
    "model/digest": ((f"{_UNIT}/model",), *_MERGE),
    "model/sqltypes": _MERGE,
    "model/file_layout": ((f"{_UNIT}/config/test_file_layouts.py",),),
    "capture/spans": ((f"{_UNIT}/cli/test_traces.py",), (f"{_UNIT}/capture",)),
    "capture/": ((f"{_UNIT}/capture",), (_SIMULATION,)),
    "tables/local/": ((f"{_UNIT}/local",), (_LOCAL,)),
    "sources/mysql/statements": (
        tuple(f"{_UNIT}/mysql/test_{n}.py" for n in ("statements", "statement_ends", "alters")),
        _BINLOG,
    ),
    "sources/mysql/alters": (
        tuple(f"{_UNIT}/mysql/test_{n}.py" for n in ("alters", "alters_words")),
        (f"{_UNIT}/mysql/test_statements.py",),
    ),
    "sources/mysql/sql": (
        tuple(f"{_UNIT}/mysql/test_{n}.py" for n in ("sql", "alters", "statements", "statement_ends")),
        _BINLOG,
    ),
    "sources/mysql/ddl": (
        tuple(
            f"{_UNIT}/mysql/test_{n}.py" for n in ("binlog_statements", "copies_and_set_keys", "statements_told_once")
        ),
        *_MYSQL,
    ),
    "sources/mysql/fences": ((f"{_UNIT}/mysql/test_fences.py",),),
    "sources/mysql/gtids": (
        tuple(f"{_UNIT}/mysql/test_{n}.py" for n in ("gtids", "gtids_exactly", "purge_marks")),
        _BINLOG,
    ),
    "sources/mysql/position": (
        tuple(f"{_UNIT}/mysql/test_{n}.py" for n in ("gtids", "gtids_exactly", "stream_progress")),
        *_MYSQL,
    ),
    **dict.fromkeys(
        ("sources/mysql/keys", "sources/engine/table_key"),
        (tuple(f"{_UNIT}/mysql/test_{n}.py" for n in ("keys_as_sql", "ranges", "copies_and_set_keys")),),
    ),
    "sources/mysql/types/": (
        tuple(
            f"{_UNIT}/mysql/test_{n}.py"
            for n in (
                *("odd_types", "temporal_edges", "type_families", "catalog_columns", "keys_as_sql"),
                *("types", "table_map", "temporal"),
            )
        ),
        tuple(f"{_UNIT}/mysql/test_{n}.py" for n in ("charsets", "rows")),
    ),
    "sources/mysql/": _MYSQL,
    "sources/engine/selection": ((f"{_UNIT}/engine/test_selection.py",), (f"{_UNIT}/engine",)),
    "sources/engine/connections": ((f"{_UNIT}/engine",), (f"{_UNIT}/postgres_sessions",)),
    "sources/engine/": (
        (f"{_UNIT}/engine", f"{_UNIT}/mysql/test_binlog_transactions.py"),
        (f"{_UNIT}/postgres/test_pgoutput_decoder.py",),
    ),
    "sources/postgres/rewrites": (
        tuple(f"{_UNIT}/postgres/test_{n}.py" for n in ("row_versions", "versions_of_tables")),
    ),
    "sources/postgres/overlap": ((f"{_UNIT}/postgres_sessions",),),
    "sources/postgres/sqlstates": ((f"{_UNIT}/postgres_sessions",),),
    "sources/postgres/types": (
        tuple(f"{_UNIT}/postgres/test_{n}.py" for n in ("described_tables", "types_of_columns", "decimals_by_groups")),
        *_POSTGRES,
    ),
    "sources/postgres/keys": ((f"{_UNIT}/postgres/test_keys_as_sql.py",), *_POSTGRES),
    "sources/postgres/messages": ((f"{_UNIT}/postgres/test_rare_messages.py",), *_POSTGRES),
    "sources/postgres/publication": (
        tuple(f"{_UNIT}/postgres/test_{n}.py" for n in ("publication", "publications_since")),
        *_POSTGRES,
    ),
    "sources/postgres/": _POSTGRES,
}

_REST = (_UNIT, "tests/scenarios", "tests/corpus", "tests/contracts/test_memory_source.py", *_SINKS)
"""Every quick test: one that is far from a file may cover it too."""
_SERVED = "tests/integration"
_ON_POSTGRES, _ON_MYSQL = "tests/contracts/test_postgres_source.py", "tests/contracts/test_mysql_source.py"
_RULES = tuple(f"{_SERVED}/spark/test_merge_{name}.py" for name in ("rules", "schema_changes"))
_COMMANDS = f"{_SERVED}/cli/test_commands_on_a_server.py"
_DAEMON: Stages = ((_COMMANDS, f"{_SERVED}/daemon/test_visibility_trap.py"), (f"{_SERVED}/daemon",))

_SERVERS: dict[str, Stages] = {
    "model/": ((_LOCAL,), _REST, (_ON_POSTGRES, _ON_MYSQL), _RULES, *_DAEMON),
    "capture/interleave/": (_REST, (_ON_POSTGRES,), (f"{_SERVED}/postgres/test_chunks.py",), *_DAEMON),
    "log/": (
        (_LOCAL, f"{_SERVED}/log"),
        _REST,
        ("tests/contracts/test_kafka_sink.py", *(f"{_SERVED}/kafka/test_{n}.py" for n in ("tail", "history", "copy"))),
        (f"{_SERVED}/objects", _COMMANDS),
    ),
    "log/format/spool": ((f"{_SERVED}/log",), _REST, (f"{_SERVED}/postgres/test_streaming.py",), (_COMMANDS,)),
    "log/fold/": ((_LOCAL,), _REST, _RULES, (f"{_SERVED}/spark",)),
    "model/digest": ((_LOCAL,), _REST, _RULES, (f"{_SERVED}/spark",)),
    "model/sqltypes": ((_LOCAL,), _REST, _RULES, (f"{_SERVED}/spark",)),
    "tables/merge/": ((_LOCAL,), _REST, _RULES, (f"{_SERVED}/spark",)),
    "capture/": (_REST, (_ON_POSTGRES,), *_DAEMON),
    "tables/local/": (_REST, _RULES, (f"{_SERVED}/spark",)),
    "sources/engine/": (
        _REST,
        (_ON_POSTGRES, _ON_MYSQL),
        (
            f"{_SERVED}/postgres/test_chunks.py",
            *(f"{_SERVED}/mysql/test_{n}.py" for n in ("parts", "links_and_rights")),
        ),
        (f"{_SERVED}/postgres", *_DAEMON[0]),
    ),
    "sources/mysql/": (
        _REST,
        (_ON_MYSQL,),
        (f"{_SERVED}/mysql", f"{_SERVED}/mysql_stream"),
        (f"{_SERVED}/mysql_daemon",),
    ),
    "sources/mysql/types/": (
        tuple(
            f"{_SERVED}/mysql/test_{n}.py"
            for n in ("same_value_on_both_paths", "catalog_and_log", "every_code_of_a_set")
        ),
        _REST,
        (_ON_MYSQL, f"{_SERVED}/mysql"),
    ),
    "sources/mysql/keys": (
        tuple(f"{_SERVED}/mysql/test_{n}.py" for n in ("chunks_by_key", "parts")),
        _REST,
        (_ON_MYSQL, f"{_SERVED}/mysql"),
    ),
    "sources/postgres/": (
        _REST,
        (_ON_POSTGRES,),
        (f"{_SERVED}/postgres",),
        (f"{_SERVED}/postgres_types", f"{_SERVED}/daemon/test_rewritten_rows.py"),
    ),
    "sources/postgres/types/": ((f"{_SERVED}/postgres_types",), _REST, (_ON_POSTGRES, f"{_SERVED}/postgres")),
}
"""Near and quick ones first: what no test finds meets them all."""


def quick(path: str) -> Stages:
    """The stages of tests without servers for a file; of several that fit, the most exact one's."""
    stages = _longest(_NEAR, path)
    found = (tuple(t for t in stage if Path(t.split("::")[0]).exists()) for stage in stages)
    return tuple(stage for stage in found if stage)


def with_servers(path: str) -> Iterator[tuple[str, ...]]:
    """The same with servers, and with the quick tests that are not near; each without what those before it had."""
    before: list[str] = []
    for stage in _longest(_SERVERS, path):
        had = (test for test in before if any(test.startswith(f"{folder}/") for folder in stage))
        yield (*stage, *(f"--ignore={test}" for test in had))
        before += stage


def _longest(known: dict[str, Stages], path: str) -> Stages:
    return known[max((p for p in known if path.startswith(p)), key=len)]


def files(package: Path, rooms: tuple[str, ...] = ROOMS) -> list[str]:
    found = (path.relative_to(package).as_posix() for room in rooms for path in sorted(package.glob(room)))
    return [path for path in found if not path.endswith("__init__.py")]
