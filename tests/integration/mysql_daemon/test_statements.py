"""Statements on captured tables under a running daemon: the log folds to what the tables hold, whatever was altered."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pymysql
import pytest
from pymysql.constants import COMMAND
from tests.servers.mysql import Flavor, MySQLDatabase
from tests.support.daemon.mysql_bank import MySQLBank

from cdcflow import wiring
from cdcflow.capture.attempt import LoopIntervals
from cdcflow.capture.interleave.limits import Limits
from cdcflow.capture.interleave.progress import Progress, TableProgress
from cdcflow.capture.interleave.window_sequence import SUSPECTED_WHILE_READ
from cdcflow.errors import ConfigurationError
from cdcflow.model.position import Offset
from cdcflow.model.table import TableId
from cdcflow.wiring import captures

pytestmark = [pytest.mark.mysql, pytest.mark.spread(1)]


@contextlib.contextmanager
def following(bank: MySQLBank, **options: bool) -> Iterator[list[str]]:
    """A capture that has read everything, and the tables that it reads again. At its end the log is compared."""
    seen: list[str] = []

    def tell(event: str, fields: Mapping[str, object]) -> None:
        if event == "table to be read again":
            seen.append(str(fields["table"]).partition(".")[2])

    with bank.capturing(on_event=tell, **options):
        begun = bank.fence()
        bank.wait_until(lambda: has_followed(bank, begun), "the backfill")
        yield seen
        fence = bank.fence()
        bank.wait_until(lambda: has_followed(bank, fence), "the statements to be followed")
    bank.assert_log_equals_source()


def has_followed(bank: MySQLBank, fence: str) -> bool:
    """The log is past `fence`, and the bank's tables are read; others may have been created and dropped."""
    checkpoint = bank.reader.newest_checkpoint() if bank.reader.exists() else None
    if checkpoint is None or checkpoint.position is None or not bank.is_past(checkpoint.position.text, fence):
        return False
    states = {t.name: p.state for t, p in Progress.from_json(checkpoint.progress).tables.items()}
    return all(states.get(t) == "done" for t in bank.tables)


@pytest.fixture
def small(mysql_database: MySQLDatabase, tmp_path: Path) -> MySQLBank:
    """A few tables with a few rows, made by the test."""
    return MySQLBank(mysql_database, tmp_path, create=False)


def state_of(bank: MySQLBank, table: str) -> tuple[str, str]:
    """The state of a table of the bank, and its reason."""
    progress = Progress.from_json(bank.reader.newest_checkpoint().progress).tables[TableId(bank.schema, table)]
    return progress.state, progress.reason or ""


def test_columns_that_change_their_character_set_are_decoded_in_the_new_one(small: MySQLBank) -> None:
    """The shape is the same before and after; as a key, updates and deletes would miss their rows."""
    small.tables = ("t", "u")
    small.database.execute(
        "CREATE TABLE t (k varchar(20) CHARACTER SET latin1 PRIMARY KEY, v int)",
        "CREATE TABLE u (id int PRIMARY KEY, a varchar(20) CHARACTER SET utf8mb4, b varchar(20) CHARACTER SET utf8mb4)",
        "INSERT INTO t VALUES ('ä', 1), ('ö', 2), ('ü', 3)",
        "INSERT INTO u VALUES (1, 'ä', 'ж'), (2, 'ö', 'я')",
    )
    with following(small) as seen:
        small.database.execute(
            "UPDATE t SET v = 4",
            "ALTER TABLE t CONVERT TO CHARACTER SET utf8mb4",
            "UPDATE t SET v = 5 WHERE k = 'ö'",
            "DELETE FROM t WHERE k = 'ü'",
            "SET sql_mode = ''",
            "ALTER TABLE u MODIFY a varchar(20) CHARACTER SET latin1, MODIFY b varchar(20) CHARACTER SET latin1",
            "INSERT INTO u VALUES (3, 'é', 'é')",
        )
    assert set(seen) == {"t", "u"}


def test_tables_without_transactions_do_not_stop_the_others(
    small: MySQLBank, flavor: Flavor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wildcard met one table of such an engine, and nothing was captured; a captured one that got it stopped all."""
    monkeypatch.setattr(wiring.captures, "LoopIntervals", partial(LoopIntervals, tables_look_s=0.5))
    small.tables = ("t", "u", "v")
    engines = ["MyISAM", "MEMORY", "CSV", *(["Aria"] if flavor == "mariadb" else [])]
    small.database.execute(
        *(f"CREATE TABLE {t} (id int PRIMARY KEY, v int)" for t in small.tables),
        *(f"INSERT INTO {t} VALUES (1, 1), (2, 2)" for t in small.tables),
        *(f"CREATE TABLE has_{e} (id int NOT NULL) ENGINE = {e}" for e in engines),
    )
    left_out: list[str] = []

    def note(event: str, fields: Mapping[str, object]) -> None:
        if event == "table skipped":
            left_out.append(str(fields["table"]).partition(".")[2])

    state = partial(state_of, small)

    def continues(value: int) -> None:
        small.database.execute(f"UPDATE u SET v = {value}")
        fence = small.fence()
        small.wait_until(lambda: small.has_passed(fence), "the other tables' changes")

    with small.capturing(on_event=note) as capture:
        small.wait_until(lambda: small.has_reached(""), "the backfill")
        assert sorted(left_out) == sorted(f"has_{e}" for e in engines)
        small.database.execute("CREATE TABLE later (id int PRIMARY KEY) ENGINE = MyISAM")
        small.wait_until(lambda: "later" in left_out, "a table that is created to be skipped")
        skipped = capture.status()["left_out"]
        assert isinstance(skipped, list)
        assert {n.partition(".")[2] for n in skipped} == {"later", *(f"has_{e}" for e in engines)}
        small.database.execute("UPDATE t SET v = 3", "ALTER TABLE t COMMENT 'x', ENGINE = MyISAM")
        small.wait_until(lambda: state("t")[0] == "failed", "the altered table to fail")
        small.database.execute("INSERT INTO t VALUES (3, 3)")
        continues(4)
        small.database.execute("CREATE TABLE other LIKE v", "ALTER TABLE other ENGINE = MEMORY")
        small.database.execute("RENAME TABLE v TO gone, other TO v", "INSERT INTO v VALUES (7, 7)")
        small.wait_until(lambda: state("v")[0] == "failed", "the replaced table to fail")
        continues(5)
    small.database.execute("ALTER TABLE u ENGINE = MyISAM", "ALTER TABLE u ENGINE = InnoDB", "DROP TABLE gone")
    failed_first: list[str] = []

    def note_failures(event: str, fields: Mapping[str, object]) -> None:
        if event == "table failed":
            failed_first.append(str(fields["table"]).partition(".")[2])

    with small.capturing(on_event=note_failures):
        small.wait_until(lambda: state("u")[0] == "done" and "u" in failed_first, "the table that is fit again")
        assert (state("t")[0], state("v")[0]) == ("failed", "failed")
        for table, engine in (("t", "MyISAM"), ("v", "MEMORY")):
            fixed = f"run ALTER TABLE `{small.schema}`.`{table}` ENGINE = InnoDB"
            assert state(table)[1] == (
                f"{small.schema}.{table} uses the storage engine {engine}, which has no transactions; {fixed}; "
                "the table is then read again"
            )
            small.database.execute(fixed.removeprefix("run "))
        small.wait_until(lambda: {state(t)[0] for t in small.tables} == {"done"}, "the remedy")
        small.database.execute("INSERT INTO t VALUES (8, 8)", "DELETE FROM v WHERE id = 7", "UPDATE u SET v = 6")
        fence = small.fence()
        small.wait_until(lambda: small.has_passed(fence), "the latest changes")
    small.assert_log_equals_source()


def test_table_without_transactions_that_the_settings_name_is_refused(small: MySQLBank) -> None:
    """An operator who names a table expects it."""
    small.database.execute("CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE m (id int PRIMARY KEY) ENGINE = MEMORY")
    small.configure(tables=[f"{small.schema}.*", f"{small.schema}.m"])
    with pytest.raises(ConfigurationError, match=r"m uses the storage engine MEMORY") as refused:
        small.capture_to_its_end()
    assert refused.value.remedy is not None
    assert f"run ALTER TABLE `{small.schema}`.`m` ENGINE = InnoDB" in refused.value.remedy


def test_values_that_the_log_does_not_contain_are_read(small: MySQLBank) -> None:
    """P18: dropped and added in one statement or in two, shortened, relabelled, filled by an old TIMESTAMP."""
    kinds = ("together", "apart", "short", "labels", "moment", "swapped", "wider", "parts", "signs")
    small.tables = kinds
    columns = {"labels": "enum('a', 'b', 'c')", "short": "varchar(20)", "wider": "varchar(20)"}
    small.database.execute(
        *(f"CREATE TABLE {t} (id int PRIMARY KEY, v {columns.get(t, 'int')}, w int)" for t in kinds),
        *(f"INSERT INTO {t} VALUES (1, '1', 10), (2, '2', 20), (3, NULL, 30)" for t in kinds),
        "UPDATE short SET v = 'abcdef'",
        "ALTER TABLE parts PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (2), "
        "PARTITION p1 VALUES LESS THAN (3), PARTITION p2 VALUES LESS THAN MAXVALUE)",
        "CREATE TABLE beside LIKE parts",
        "ALTER TABLE beside REMOVE PARTITIONING",
        "INSERT INTO beside VALUES (1, 100, 1000)",
    )
    with following(small) as seen:
        small.database.execute(
            *(f"UPDATE {t} SET w = w + 1 WHERE id = 1" for t in kinds),
            "SET sql_mode = ''",
            "SET explicit_defaults_for_timestamp = OFF",
            "ALTER TABLE together DROP COLUMN v, ADD COLUMN v int",
            "ALTER TABLE apart DROP v",
            "ALTER TABLE apart ADD v int NULL",
            "ALTER TABLE short MODIFY v varchar(3)",
            "ALTER TABLE labels MODIFY v enum('x', 'b', 'a', 'c')",
            "ALTER TABLE moment ADD COLUMN at timestamp",
            "ALTER TABLE swapped CHANGE v w int, CHANGE w v int",
            "ALTER TABLE wider MODIFY v varchar(40), MODIFY w bigint",
            "ALTER TABLE signs MODIFY v int unsigned NOT NULL",
            "ALTER TABLE parts TRUNCATE PARTITION p1",
            "ALTER TABLE parts DROP PARTITION p2",
            "ALTER TABLE parts EXCHANGE PARTITION p0 WITH TABLE beside",
            *(f"UPDATE {t} SET w = 7 WHERE id = 1" for t in kinds),
        )
    assert set(seen) == {*kinds, "beside"} - {"wider"}


def test_every_clause_of_an_alter_counts(small: MySQLBank, flavor: Flavor) -> None:
    """P18: together with a rename to itself in each form, in a comment that the server executes, with a tool's copy
    that takes the name; and none of an ALTER that failed.
    """
    kinds = ("plain", "sign", "letters", "comment", "tool", "failed", "other", "téxt")
    small.tables = (*kinds[:-2], "téxt")
    small.database.execute(
        *(f"CREATE TABLE {t} (id int PRIMARY KEY, v varchar(20) CHARACTER SET latin1)" for t in kinds),
        *(f"INSERT INTO {t} VALUES (1, 'ä'), (2, 'ä')" for t in kinds),
    )
    with following(small) as seen:
        small.database.execute(
            "ALTER TABLE plain RENAME TO plain, ADD COLUMN d int DEFAULT 7",
            "ALTER TABLE sign ADD COLUMN d int NOT NULL, RENAME = `sign`",
            "ALTER TABLE letters RENAME letters, CONVERT TO CHARACTER SET utf8mb4",
            f"ALTER TABLE comment /*!50001 RENAME AS {small.schema}.comment, */ ADD COLUMN d int DEFAULT 7",
            "CREATE TABLE _tool_gho LIKE tool",
            "INSERT INTO _tool_gho SELECT * FROM tool",
            "RENAME TABLE tool TO _tool_del",
            "ALTER TABLE _tool_gho ADD COLUMN d int DEFAULT 7, RENAME tool",
            "ALTER TABLE other ADD COLUMN d int DEFAULT 7, RENAME elsewhere",
        )
        with contextlib.closing(small.database.connect()) as connection, connection.cursor() as cursor:
            if flavor == "mariadb":
                cursor.execute("SET binlog_alter_two_phase = ON")
            with pytest.raises(pymysql.err.IntegrityError):
                cursor.execute("ALTER TABLE failed ADD UNIQUE KEY (v), RENAME TO gone, ALGORITHM = COPY")
            cursor.execute("SET character_set_client = latin1")
            connection._execute_command(
                COMMAND.COM_QUERY, "ALTER TABLE téxt ADD COLUMN d int DEFAULT 7".encode("latin1")
            )
            connection._read_query_result()
        small.database.execute(*(f"UPDATE {t} SET v = 'ö' WHERE id = 1" for t in small.tables))
    assert set(seen) == {"plain", "sign", "letters", "comment", "tool", "téxt"}


def test_columns_whose_names_get_another_case_are_read_again(small: MySQLBank) -> None:
    """The servers use the name as MODIFY and CHANGE write it: in the log it is then another column."""
    small.tables = ("modified", "changed")
    small.database.execute(
        *(f"CREATE TABLE {t} (id int PRIMARY KEY, v varchar(20), w int)" for t in small.tables),
        *(f"INSERT INTO {t} VALUES (1, 'a', 1), (2, 'b', 2)" for t in small.tables),
    )
    with following(small) as seen:
        small.database.execute(
            *(f"UPDATE {t} SET w = 3 WHERE id = 1" for t in small.tables),
            "ALTER TABLE modified MODIFY V varchar(40)",
            "ALTER TABLE changed CHANGE w W bigint",
            *(f"UPDATE {t} SET w = 4 WHERE id = 1" for t in small.tables),
        )
    assert set(seen) == {"modified", "changed"}


def test_tables_that_swap_their_names_are_captured_without_interruption(small: MySQLBank) -> None:
    """M37, M38: through a third name, in one statement or three, and an old table renamed to make room for a
    new one.
    """
    small.tables = ("a", "b", "c", "t")
    names = (*small.tables, "t_new")
    small.database.execute(
        *(f"CREATE TABLE {t} (id int PRIMARY KEY, v varchar(20))" for t in names),
        "ALTER TABLE b ADD w int, MODIFY v char(9)",
        *(f"INSERT INTO {t} (id, v) VALUES ({n}, '{t}'), (9, '{t}')" for n, t in enumerate(names)),
    )
    with following(small):
        small.database.execute(
            "RENAME TABLE a TO x, b TO a, x TO b",
            "UPDATE a SET w = 1 WHERE id = 9",
            "DELETE FROM b WHERE id = 9",
            "RENAME TABLE c TO x",
            "RENAME TABLE b TO c",
            "ALTER TABLE x RENAME TO b",
            "INSERT INTO b VALUES (100, 'later')",
            "RENAME TABLE t TO t_old, t_new TO t",
            "INSERT INTO t VALUES (100, 'later')",
            "DROP TABLE t_old",
        )
    assert not small.logged_rows("t_new")
    with following(small):
        pass


def test_rows_that_lack_some_of_their_columns_are_read_by_key(small: MySQLBank, flavor: Flavor) -> None:
    """M08: the log contains no default, and of a document only what changed in it."""
    small.tables = ("t", "keyless", "stopped")
    small.configure(tables_without_key="whole")
    columns = "v int DEFAULT 5, w varchar(20) DEFAULT 'default', b text, doc json, at datetime(6) DEFAULT now(6)"
    small.database.execute(
        *(f"CREATE TABLE {t} (id int PRIMARY KEY, {columns})" for t in ("t", "stopped")),
        f"CREATE TABLE keyless (id int, {columns})",
        *(f"INSERT INTO {t} (id, doc) VALUES (1, '{DOCUMENT}'), (2, '{DOCUMENT}')" for t in small.tables),
    )
    partial = ["SET binlog_row_value_options = PARTIAL_JSON"] if flavor == "mysql" else []
    changed = "SET v = v + 1, doc = json_set(doc, '$.a', 2)"
    with following(small) as seen:
        for image in ("MINIMAL", "NOBLOB"):
            small.database.execute(
                f"SET binlog_row_image = {image}",
                *partial,
                "INSERT INTO t (id) SELECT max(id) + 1 FROM t",
                "INSERT INTO t (id, v, doc) SELECT max(id) + 1, NULL, NULL FROM t",
                f"UPDATE t {changed}, id = id + 100 WHERE id IN (2, 3)",
                f"UPDATE t {changed} WHERE id = 1",
                "DELETE FROM t WHERE id = 4",
                "INSERT INTO keyless (v) VALUES (7)",
                f"UPDATE keyless {changed} WHERE id = 1",
                "DELETE FROM keyless WHERE v = 7",
            )
        small.database.execute("SET binlog_row_image = FULL", *partial, f"UPDATE t {changed} WHERE id = 1")
    assert set(seen) == ({"keyless"} if flavor == "mysql" else set())
    small.database.execute(
        "SET binlog_row_image = MINIMAL",
        *partial,
        "BEGIN",
        "INSERT INTO stopped (id) VALUES (3), (4)",
        f"UPDATE stopped {changed} WHERE id IN (1, 3)",
        "COMMIT",
    )
    with following(small) as seen:
        pass
    assert not seen


def test_rows_have_the_values_that_updates_omit(small: MySQLBank) -> None:
    """M08: MariaDB logs REPLACE as an update, with MINIMAL or NOBLOB without the columns that got their defaults, and
    never virtual columns. The rows seemed to have kept their values."""
    small.tables = ("one", "two", "computed")
    small.database.execute(
        "CREATE TABLE one (id int PRIMARY KEY, v int DEFAULT 5, b text)",
        "CREATE TABLE two (id int PRIMARY KEY, u int NOT NULL UNIQUE, v int DEFAULT 5, b text)",
        "CREATE TABLE computed (id int PRIMARY KEY, v int, w int AS (v + 1) VIRTUAL, s int AS (v + 2) STORED, b text)",
        "INSERT INTO computed (id, v) VALUES (1, 1), (2, 2)",
        "INSERT INTO one VALUES (1, 1, 'b'), (2, 2, 'b'), (3, 3, 'b')",
        "INSERT INTO two VALUES (1, 1, 1, 'b'), (2, 2, 2, 'b'), (3, 3, 3, 'b'), (4, 4, 4, 'b')",
    )
    with following(small) as seen:
        for image, number in (("MINIMAL", 1), ("NOBLOB", 2)):
            small.database.execute(
                f"SET binlog_row_image = {image}",
                f"REPLACE INTO one (id) VALUES ({number})",
                f"REPLACE INTO two (id, u) VALUES ({number + 10}, {number})",
                "REPLACE INTO two (id, u) SELECT 3, u FROM one JOIN two ON two.id = 4 LIMIT 1",
                "UPDATE one SET v = v + 1 WHERE id = 3",
                f"UPDATE computed SET v = v + 10 WHERE id = {number}",
            )
    assert not seen


def test_table_of_marks_that_is_dropped_is_created_again(small: MySQLBank) -> None:
    """A chunk needs marks, and so does the heartbeat: neither may stop the capture until it is started again."""
    small.tables = ("t",)
    small.database.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    with following(small) as seen:
        small.database.execute("DROP DATABASE cdcflow", "ALTER TABLE t ADD v int NOT NULL DEFAULT 4")
    assert seen == ["t"]


def test_statements_that_mean_other_than_their_text_says(small: MySQLBank, flavor: Flavor) -> None:
    """M37, P18: a temporary table with the name of a captured one, a default that a generated column uses, a copy
    that lost rows, names in brackets."""
    small.tables = ("hidden", "computed", "copied", "bracketed")
    small.database.execute(
        *(f"CREATE TABLE {t} (id int PRIMARY KEY, v int DEFAULT 3)" for t in small.tables if t != "computed"),
        "CREATE TABLE computed (id int PRIMARY KEY, v int(4) UNSIGNED ZEROFILL DEFAULT 3, "
        "d varchar(20) AS (concat(default(v))) VIRTUAL, z varchar(20) AS (concat(v)) VIRTUAL)",
        *(f"INSERT INTO {t} (id, v) VALUES (1, 1), (2, 1)" for t in small.tables),
    )
    temporary = ("CREATE TEMPORARY TABLE hidden (id int)", "TRUNCATE TABLE hidden", "ALTER TABLE hidden RENAME x")
    brackets = ("SET sql_mode = 'MSSQL'", "TRUNCATE TABLE [bracketed]") if flavor == "mariadb" else ()
    with following(small) as seen:
        small.database.execute("SET binlog_format = STATEMENT", *temporary)
        small.database.execute(
            "UPDATE computed SET v = 2",
            "ALTER TABLE computed ALTER v SET DEFAULT 9",
            "UPDATE computed SET v = 4 WHERE id = 1",
            "ALTER TABLE computed MODIFY v bigint UNSIGNED DEFAULT 9",
            "CREATE TABLE _copied_gho LIKE copied",
            "ALTER TABLE _copied_gho ADD UNIQUE (v)",
            "INSERT IGNORE INTO _copied_gho SELECT * FROM copied",
            "RENAME TABLE copied TO _copied_del, _copied_gho TO copied",
            *brackets,
        )
    assert set(seen) == {"hidden", "computed", "copied"}


def test_statements_on_other_schemas_that_change_captured_rows_are_noticed(small: MySQLBank, flavor: Flavor) -> None:
    """M07: through a view, a trigger and a function, each of which another statement has removed since."""
    small.tables = ("viewed", "triggered", "called")
    other = f"{small.schema}_other"
    small.database.execute(
        *(f"CREATE TABLE {t} (id int PRIMARY KEY, v int)" for t in small.tables),
        *(f"INSERT INTO {t} VALUES (1, 1), (2, 2)" for t in small.tables),
        f"CREATE DATABASE {other}",
        f"CREATE TABLE {other}.plain (id int PRIMARY KEY)",
        f"CREATE TABLE {other}.armed (id int PRIMARY KEY)",
        f"CREATE VIEW {other}.seen AS SELECT * FROM viewed",
        f"CREATE TRIGGER {other}.fires AFTER INSERT ON {other}.armed FOR EACH ROW "
        f"UPDATE {small.schema}.triggered SET v = v + NEW.id",
        "SET GLOBAL log_bin_trust_function_creators = ON",
        f"CREATE FUNCTION {other}.calls() RETURNS int DETERMINISTIC MODIFIES SQL DATA "
        f"BEGIN DELETE FROM {small.schema}.called WHERE id = 1; RETURN 5; END",
    )
    try:
        with following(small) as seen:
            small.database.execute(
                "SET binlog_format = STATEMENT",
                f"USE {other}",
                "INSERT INTO plain VALUES (1)",
                "UPDATE seen SET v = 7 WHERE id = 2",
                "INSERT INTO armed VALUES (3)",
                "INSERT INTO plain VALUES (calls())",
                "DROP VIEW seen",
                "DROP TRIGGER fires",
                "DROP FUNCTION calls",
            )
        assert set(seen) == set(small.tables)
        with following(small) as seen:
            small.database.execute("SET binlog_format = STATEMENT", f"USE {other}", "INSERT INTO plain VALUES (9)")
        assert set(seen) == (set(small.tables) if flavor == "mariadb" else set()), "MySQL lists the schemas"
    finally:
        small.database.execute("SET GLOBAL log_bin_trust_function_creators = OFF", f"DROP DATABASE {other}")


class StatementWriter:
    """A session that writes STATEMENT format to a table of another schema, where a trigger changes a captured table:
    these changes are in no row event."""

    def __init__(self, bank: MySQLBank, table: str, rows: int) -> None:
        self._database = bank.database
        self._other = f"{bank.schema}_other"
        self._stop = threading.Event()
        bank.database.execute(
            f"CREATE DATABASE {self._other}",
            f"CREATE TABLE {self._other}.armed (id int PRIMARY KEY AUTO_INCREMENT)",
            f"CREATE TRIGGER {self._other}.fires AFTER INSERT ON {self._other}.armed FOR EACH ROW "
            f"UPDATE {bank.schema}.{table} SET v = v + 1 WHERE id = 1 + NEW.id % {rows}",
        )

    def write(self) -> None:
        """Write one statement."""
        self._database.execute("SET binlog_format = STATEMENT", f"INSERT INTO {self._other}.armed VALUES ()")

    def _write_all_the_time(self) -> None:
        while not self._stop.wait(0.1):
            self.write()

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Write one statement every 100 ms."""
        thread = threading.Thread(target=self._write_all_the_time)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()

    def drop(self) -> None:
        self._database.execute(f"DROP DATABASE {self._other}")


def statement_reads_without_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have suspected tables rest for a part of a second, not for a minute."""
    original = captures.limits

    def limits(*args: Any, **kwargs: Any) -> Limits:
        return replace(original(*args, **kwargs), statements_pause_us=300_000)

    monkeypatch.setattr(captures, "limits", limits)


@pytest.mark.long
def test_session_that_always_writes_statements_lets_reads_end(
    small: MySQLBank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M07: each statement may have changed a captured table, and one arrives before any read of it could end. Reads end
    all the same, and the table is done once one has ended that began after the last statement."""
    small.tables = ("t", "u")
    thousands = " UNION ALL ".join(f"SELECT {n} AS d" for n in range(10))
    small.database.execute(
        *(f"CREATE TABLE {t} (id int PRIMARY KEY, v int)" for t in small.tables),
        *(
            f"INSERT INTO {t} SELECT 1 + a.d + 10 * b.d + 100 * c.d + 1000 * e.d, 0"
            f" FROM ({thousands}) a, ({thousands}) b, ({thousands}) c, ({thousands}) e WHERE e.d < 3"
            for t in small.tables
        ),
    )
    small.configure(backfill={"chunk_time_target_ms": 5, "chunk_rows_max": 50})
    statement_reads_without_rests(monkeypatch)
    writer = StatementWriter(small, "t", 3000)
    seen: list[tuple[str, Mapping[str, object]]] = []

    def number_of(event: str, reason: str | None = None) -> int:
        return sum(
            e == event and str(f["table"]).endswith(".t") and reason in (None, f.get("reason")) for e, f in list(seen)
        )

    try:
        with small.capturing(on_event=lambda event, fields: seen.append((event, fields))):
            with writer.writing():
                small.wait_until(
                    lambda: number_of("table to be read again", SUSPECTED_WHILE_READ) >= 2,
                    "two reads to end while statements arrive",
                )
            fence = small.fence()
            small.wait_until(lambda: has_followed(small, fence), "the last read")
    finally:
        writer.drop()
    small.assert_log_equals_source()
    ended = number_of("table done") + number_of("table to be read again", SUSPECTED_WHILE_READ)
    assert number_of("table planned") == ended, "a read was begun again before its end"


def test_daemon_killed_while_it_reads_a_suspected_table_reads_it_once_more(
    small: MySQLBank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M07: the statements are before the position where the next daemon continues, and the row that they changed is
    before the cursor."""
    small.tables = ("t",)
    small.database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v int)",
        f"INSERT INTO t VALUES {', '.join(f'({n}, 0)' for n in range(1, 201))}",
    )
    small.configure(backfill={"chunk_rows_max": 5, "rows_per_second_max": 5})
    writer = StatementWriter(small, "t", 1)

    def known() -> TableProgress:
        checkpoint = small.reader.newest_checkpoint()
        tables = Progress.from_json(checkpoint.progress).tables
        return tables.get(TableId(small.schema, "t"), TableProgress("waiting", 0, Offset(0)))

    try:
        daemon = small.daemon()
        try:
            small.wait_until(lambda: small.reader.exists() and known().rows > 5, "rows to be read", daemon)
            writer.write()
            fence = small.fence()
            small.wait_until(
                lambda: small.has_passed(fence) and known().stale == "pending", "the statement to be stored", daemon
            )
        finally:
            daemon.kill()
            daemon.wait()
        assert known().state == "reading", "the daemon was killed too late"
        small.configure()
        statement_reads_without_rests(monkeypatch)
        with small.capturing():
            small.wait_until(lambda: has_followed(small, fence), "the last read")
    finally:
        writer.drop()
    small.assert_log_equals_source()


def test_tables_whose_unique_key_changes_are_read_again(small: MySQLBank) -> None:
    """P18: without a primary key, the first unique key without NULLs identifies rows. Updates that kept it changed the
    columns of the next one, and deletes may lack these."""
    small.tables = ("dropped", "separately", "nulled", "primary_dropped", "kept")
    columns = "a int NOT NULL, b int NOT NULL, v int, INDEX iv (v), UNIQUE ub (b)"
    small.database.execute(
        *(f"CREATE TABLE {t} ({columns}, UNIQUE ua (a))" for t in small.tables[:3]),
        *(f"CREATE TABLE {t} ({columns}, PRIMARY KEY (a))" for t in small.tables[3:]),
        *(f"ALTER TABLE {t} DROP INDEX ub, ADD UNIQUE ub (b)" for t in small.tables),
        *(f"INSERT INTO {t} VALUES (1, 10, 0), (2, 20, 0), (3, 30, 0)" for t in small.tables),
    )
    with following(small) as seen:
        small.database.execute(
            *(f"UPDATE {t} SET b = b + 100 WHERE a = 1" for t in small.tables),
            *(f"DELETE FROM {t} WHERE a = 2" for t in small.tables),
            "ALTER TABLE dropped DROP INDEX ua",
            "DROP INDEX ua ON separately",
            "ALTER TABLE nulled MODIFY a int NULL",
            "DROP INDEX `PRIMARY` ON primary_dropped",
            "ALTER TABLE kept DROP INDEX ub",
            *(f"UPDATE {t} SET v = 5 WHERE b = 30" for t in small.tables),
        )
    assert set(seen) == set(small.tables) - {"kept"}


def prepare(session: pymysql.Connection, setting: str, statement: str) -> None:
    """Prepare an XA transaction of one statement, under the number of its session."""
    name = session.thread_id()
    for text in (setting, f"XA START '{name}'", statement, f"XA END '{name}'", f"XA PREPARE '{name}'"):
        session.query(text)


def test_prepared_transaction_that_may_have_changed_rows_counts_when_it_is_committed(
    small: MySQLBank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M45, M07, M08: rows without their key fail their table, and a statement on another schema has a table read again.
    Done before the commit, neither showed what the transaction changed."""
    statement_reads_without_rests(monkeypatch)
    small.tables = ("keyless", "t")
    small.database.execute(
        "CREATE TABLE keyless (id int PRIMARY KEY DEFAULT 40, v int)",
        "CREATE TABLE t (id int PRIMARY KEY, v int)",
        *(f"INSERT INTO {t} VALUES (1, 0), (2, 0)" for t in small.tables),
    )
    writer = StatementWriter(small, "t", 1)
    state = partial(state_of, small)
    try:
        with small.capturing(), small.session() as one, small.session() as two:
            small.wait_until(lambda: small.has_reached(""), "the backfill")
            prepare(one, "SET binlog_row_image = MINIMAL", "INSERT INTO keyless (v) VALUES (1)")
            prepare(two, "SET binlog_format = STATEMENT", f"INSERT INTO {small.schema}_other.armed VALUES ()")
            small.database.execute("UPDATE t SET v = 7 WHERE id = 2")
            fence = small.fence()
            small.wait_until(lambda: small.has_passed(fence), "the prepared transactions")
            assert [state(t)[0] for t in small.tables] == ["done", "done"]
            for session in (one, two):
                session.query(f"XA COMMIT '{session.thread_id()}'")
            small.wait_until(lambda: state("keyless")[0] == "failed", "the table to fail")
        with small.capturing(backfill=[f"{small.schema}.keyless"]):
            fence = small.fence()
            small.wait_until(lambda: has_followed(small, fence), "both tables to be read")
    finally:
        writer.drop()
    small.assert_log_equals_source()


DOCUMENT = '{"a": 1, "text": "' + 100 * "x" + '"}'
"""Long enough for the server to log a change in it as a part."""

STOPS: Sequence[tuple[str, Sequence[str], Sequence[str]]] = [
    ("as a statement", ["SET binlog_format = STATEMENT", "UPDATE t SET v = 'b'"], []),
    (
        "may be a view of a captured table",
        ["CREATE OR REPLACE VIEW seen AS SELECT * FROM t", "SET binlog_format = STATEMENT", "UPDATE seen SET v = 'c'"],
        [],
    ),
    (
        "does not name its columns",
        ["SET GLOBAL binlog_row_metadata = MINIMAL", "INSERT INTO t VALUES (50, 'a')"],
        ["SET GLOBAL binlog_row_metadata = FULL"],
    ),
]
"""The message's text, the statements that cause it, and those that undo their cause, as the remedy requires."""


def test_stop_in_the_log_is_left_by_its_remedy(small: MySQLBank, flavor: Flavor) -> None:
    """M07, M08, M33: the event stays in the log; a start that meets it again would stop there permanently."""
    small.tables = ("t",)
    small.database.execute(
        "CREATE TABLE t (id int PRIMARY KEY DEFAULT 40, v text)", "INSERT INTO t VALUES (1, 'a'), (2, 'b')"
    )
    with following(small):
        pass
    for said, breaking, mending in STOPS:
        small.database.execute(*breaking)
        small.database.execute(*mending, "DO 0")
        with pytest.raises(ConfigurationError, match=said) as caught:
            small.capture_to_its_end()
        assert caught.value.remedy is not None
        assert "then `cdcflow run --accept-history-loss`" in caught.value.remedy.replace("then run", "then")
        with following(small, accept_history_loss=True):
            small.database.execute("INSERT INTO t SELECT max(id) + 1, 'later' FROM t")


def test_table_whose_rows_cannot_be_captured_fails_alone(small: MySQLBank, monkeypatch: pytest.MonkeyPatch) -> None:
    """M08, M33, N02: a table that lost its key, rows without their key, a date that does not exist. Each stopped the
    capture of all tables."""
    monkeypatch.setattr(wiring.captures, "LoopIntervals", partial(LoopIntervals, tables_look_s=0.5))
    small.tables = ("keyless", "nameless", "dated", "good")
    small.database.execute(
        *(f"CREATE TABLE {t} (id int PRIMARY KEY DEFAULT 40, v int, d date)" for t in small.tables),
        *(f"INSERT INTO {t} VALUES (1, 1, NULL), (2, 2, NULL)" for t in small.tables),
    )

    state = partial(state_of, small)

    with small.capturing():
        small.wait_until(lambda: small.has_reached(""), "the backfill")
        small.database.execute(
            "SET sql_mode = ''",
            "ALTER TABLE keyless DROP PRIMARY KEY, MODIFY id int NULL",
            "DELETE FROM keyless WHERE id = 1",
            "UPDATE dated SET d = '0000-00-00' WHERE id = 1",
            "SET binlog_row_image = MINIMAL",
            "INSERT INTO nameless (v) VALUES (3)",
            "UPDATE good SET v = 9",
        )
        fence = small.fence()
        small.wait_until(lambda: small.has_passed(fence), "the other table's changes")
        assert state("keyless")[0] == state("nameless")[0] == state("dated")[0] == "failed"
        assert "ADD PRIMARY KEY (…)" in state("keyless")[1]
        assert state("keyless")[1].endswith("; the table is then read again")
        for table in ("nameless", "dated"):
            assert f"run `cdcflow backfill {small.schema}.{table}`" in state(table)[1]
        small.database.execute("ALTER TABLE keyless ADD PRIMARY KEY (id)")
        small.wait_until(lambda: state("keyless")[0] == "done", "the remedy")
        small.database.execute("UPDATE dated SET d = NULL")
    with small.capturing(backfill=[f"{small.schema}.nameless", f"{small.schema}.dated"]):
        fence = small.fence()
        small.wait_until(lambda: small.has_reached(fence), "the remedies")
    small.assert_log_equals_source()


@pytest.mark.parametrize("flavor", ["mariadb"], indirect=True)
def test_history_of_rows_fails_its_table_until_its_remedy(small: MySQLBank, monkeypatch: pytest.MonkeyPatch) -> None:
    """M61: updates bring old rows, and deletes are updates; none of them may get out."""
    monkeypatch.setattr(wiring.captures, "LoopIntervals", partial(LoopIntervals, tables_look_s=0.5))
    small.tables = ("t", "u")
    small.database.execute(
        *(f"CREATE TABLE {t} (id int PRIMARY KEY, v int)" for t in small.tables),
        *(f"INSERT INTO {t} VALUES (1, 1), (2, 2), (3, 3)" for t in small.tables),
    )

    state = partial(state_of, small)

    with small.capturing():
        small.wait_until(lambda: small.has_reached(""), "the backfill")
        small.database.execute(
            "UPDATE t SET v = 4 WHERE id = 1",
            "ALTER TABLE t ADD SYSTEM VERSIONING",
            "UPDATE t SET v = 5 WHERE id = 1",
            "DELETE FROM t WHERE id = 2",
            "UPDATE u SET v = 5 WHERE id = 1",
        )
        fence = small.fence()
        small.wait_until(lambda: state("t")[0] == "failed" and small.has_passed(fence), "the failure")
    assert small.logged_rows("t") in ([(1, 1), (2, 2), (3, 3)], [(1, 4), (2, 2), (3, 3)])
    assert (1, 5) in small.logged_rows("u")
    assert f"run ALTER TABLE `{small.schema}`.`t` DROP SYSTEM VERSIONING; the table is then" in state("t")[1]
    small.database.execute(
        "INSERT INTO t VALUES (7, 7)",
        "ALTER TABLE t DROP SYSTEM VERSIONING",
        "UPDATE t SET v = 8 WHERE id = 7",
        "ALTER TABLE u ADD COLUMN a timestamp(6) AS ROW START, ADD COLUMN b timestamp(6) AS ROW END, "
        "ADD PERIOD FOR SYSTEM_TIME (a, b), ADD SYSTEM VERSIONING",
        "UPDATE u SET v = 6",
        "DELETE FROM u WHERE id = 3",
        "SET system_versioning_alter_history = KEEP",
        "ALTER TABLE u DROP SYSTEM VERSIONING, DROP PERIOD FOR SYSTEM_TIME, DROP COLUMN a, DROP COLUMN b",
    )
    with following(small) as seen:
        small.database.execute("UPDATE t SET v = 9")
    assert set(seen) == {"t", "u"}
