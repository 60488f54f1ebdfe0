"""The language of MySQL's and MariaDB's test suites, as far as `tests.suites.mtr` reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.suites.mtr.interpreter import Interpreter, Limits, Ran
from tests.suites.mtr.refused import is_refused
from tests.suites.mtr.script import Block, Command, NotReadable, Sql, parsed
from tests.suites.mtr.variables import filled, holds, value_of

VALUES = {"a": "7", "name": "t1", "empty": ""}


def no_answer(query: str, column: str | None, row: int) -> str:
    raise AssertionError(f"asked {query}")


class Recorded:
    """Sessions that record which of them got which statement, and answer queries from a list."""

    def __init__(self, answers: dict[str, list[str]] | None = None) -> None:
        self.sent: list[str] = []
        self.answers = answers or {}
        self.name = "default"

    @property
    def now(self) -> Any:
        return self

    def execute(self, text: str) -> bool:
        self.sent.append(f"{self.name}: {text}")
        return "wrong" not in text

    send = execute

    def reap(self) -> None:
        self.sent.append(f"{self.name}: (reap)")

    def rows(self, query: str) -> tuple[list[str], list[tuple[str | None, ...]]]:
        self.sent.append(f"{self.name}: {query}")
        return ["value"], [(value,) for value in self.answers.get(query, [])]

    def connect(self, name: str, user: str, password: str, database: str) -> None:
        self.name = name

    def switch(self, name: str) -> None:
        self.name = name

    def close(self, name: str) -> None:
        self.name = "default"


def run(tmp_path: Path, text: str, answers: dict[str, list[str]] | None = None, **limits: Any) -> tuple[list[str], Ran]:
    file = tmp_path / "one.test"
    file.write_text(text, encoding="latin1")
    sessions: Any = Recorded(answers)
    test = Interpreter(sessions, [tmp_path], is_refused=is_refused, limits=Limits(**limits))
    return sessions.sent, test.run(file)


def test_statements_end_at_the_delimiter_and_commands_at_the_end_of_their_line() -> None:
    nodes = parsed("--disable_warnings\n# a comment; with a sign\ncreate table t1 (a int);\nlet $x= 1;\n-- echo done\n")
    assert nodes == (
        Command("disable_warnings", ""),
        Sql("create table t1 (a int)"),
        Command("let", "$x= 1"),
        Command("echo", "done"),
    )


def test_another_delimiter_lets_a_procedure_hold_semicolons() -> None:
    nodes = parsed("delimiter |;\ncreate procedure p() begin select 1; end|\ndelimiter ;|\nselect 2;\n")
    assert nodes == (Sql("create procedure p() begin select 1; end"), Sql("select 2"))


@pytest.mark.parametrize(
    "text",
    [
        "insert into t values ('a;b')",
        'insert into t values ("a;b", "it\'s")',
        "select 1 from `a;b`",
        "select 'a\\';b'",
        "select /* a;b */ 1",
    ],
)
def test_a_delimiter_in_quotes_or_a_comment_ends_nothing(text: str) -> None:
    assert parsed(f"{text};\nselect 2;") == (Sql(text), Sql("select 2"))


def test_a_command_has_no_comment() -> None:
    assert parsed("if ($a)\n{ echo # a; }\nselect 1;\n-- if ($a) {\nselect 2;\n-- }\n") == (
        Block("if", "$a", (Command("echo", "# a"),)),
        Sql("select 1"),
        Block("if", "$a", (Sql("select 2"),)),
    )


def test_blocks_hold_blocks() -> None:
    (outer,) = parsed("while ($a)\n{\n  if (`select 1`)\n  {\n    inc $b;\n  }\n  dec $a;\n}\n")
    assert isinstance(outer, Block)
    assert (outer.kind, outer.condition) == ("while", "$a")
    inner, last = outer.body
    assert isinstance(inner, Block)
    assert inner.condition == "`select 1`"
    assert last == Command("dec", "$a")


@pytest.mark.parametrize("text", ["while ($a)\n{\nselect 1;\n", "}\n", "if ($a)\nselect 1;\n"])
def test_a_block_without_its_end_or_beginning_is_not_readable(text: str) -> None:
    with pytest.raises(NotReadable):
        parsed(text)


def test_lines_of_a_file_are_no_statements() -> None:
    nodes = parsed("--write_file $dir/x END\nselect 1;\nEND\nselect 2;\n")
    assert nodes == (Command("write_file", "$dir/x END", "select 1;"), Sql("select 2"))


def test_variables_are_replaced_by_their_values() -> None:
    assert filled("drop table $name, ${name}_b, $unknown\\$a", VALUES) == "drop table t1, t1_b, $a"


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("$a", True),
        ("!$a", False),
        ("$empty", False),
        ("$a == 7", True),
        ("$a != 7", False),
        ("$a < 10", True),
        ("$a > 10", False),
        ("$name == T1", True),
        ("0", False),
    ],
)
def test_conditions(condition: str, expected: bool) -> None:
    assert holds(condition, VALUES, no_answer) is expected


def test_values_are_read_from_queries() -> None:
    asked = []

    def ask(query: str, column: str | None, row: int) -> str:
        asked.append((query, column, row))
        return "42"

    assert value_of("`select max(a) from $name`", VALUES, ask) == "42"
    assert value_of("query_get_value(SHOW TABLES LIKE 't1', Name, 2)", VALUES, ask) == "42"
    assert value_of("'$a'", VALUES, ask) == "7"
    assert asked == [("select max(a) from t1", None, 1), ("SHOW TABLES LIKE 't1'", "Name", 2)]


def test_a_loop_runs_its_statements(tmp_path: Path) -> None:
    sent, ran = run(tmp_path, "let $i= 3;\nwhile ($i)\n{\neval insert into t values ($i);\ndec $i;\n}\n")
    assert sent == [f"default: insert into t values ({i})" for i in (3, 2, 1)]
    assert ran.counts == {"run": 3}
    assert not ran.ended


def test_a_refused_statement_does_not_end_the_test(tmp_path: Path) -> None:
    _, ran = run(tmp_path, "--error 1064\nwrong;\nselect 1;\n")
    assert ran.counts == {"refused": 1, "run": 1}


def test_a_condition_may_skip_the_test(tmp_path: Path) -> None:
    sent, ran = run(tmp_path, "if (!`select 1`)\n{\n--skip not here\n}\nselect 2;\n", {"select 1": ["0"]})
    assert sent == ["default: select 1"]
    assert ran.ended == "skip not here"


def test_connections_are_used_under_their_names(tmp_path: Path) -> None:
    sent, _ = run(tmp_path, "connect (one,localhost,root,,);\nsend select 1;\nconnection default;\nselect 2;\n"
                            "connection one;\nreap;\ndisconnect one;\nselect 3;\n")  # fmt: skip
    assert sent == ["one: select 1", "default: select 2", "one: (reap)", "default: select 3"]


def test_the_connection_of_now_has_a_name(tmp_path: Path) -> None:
    """Included files switch to a different one, and back."""
    text = (
        "connect (b,localhost,root);\nlet $was= $CURRENT_CONNECTION;\n"
        "connection default;\nconnection $was;\nselect 1;\n"
    )
    assert run(tmp_path, text)[0] == ["b: select 1"]


def test_included_files_run_in_place(tmp_path: Path) -> None:
    (tmp_path / "more.inc").write_text("eval select '$a';\n")
    sent, _ = run(tmp_path, "let $a= 5;\n--source more.inc\nselect 2;\n")
    assert sent == ["default: select '5'", "default: select 2"]


def test_included_files_are_found_next_to_the_one_that_names_them(tmp_path: Path) -> None:
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "more.inc").write_text("--source ./rest.inc\n")
    (tmp_path / "include" / "rest.inc").write_text("select 1;\n")
    sent, ran = run(tmp_path, "--source include/more.inc   # and why\nselect 2;\n")
    assert (sent, ran.ended) == (["default: select 1", "default: select 2"], "")


def test_a_debug_server_is_not_needed_for_a_workload_and_another_start_is(tmp_path: Path) -> None:
    text = "--source include/have_debug_sync.inc\nselect 1;\n--source include/restart_mysqld.inc\nselect 2;\n"
    sent, ran = run(tmp_path, text)
    assert (sent, ran.ended) == (["default: select 1"], "it needs include/restart_mysqld.inc")


def test_what_a_condition_reads_changes_no_server(tmp_path: Path) -> None:
    asked = "SHOW GLOBAL VARIABLES LIKE 'log_bin'"
    text = f"if (`{asked}`)\n{{\n  select 1;\n}}\nlet $a= `SELECT 1 INTO @binlog_x`;\n"
    assert run(tmp_path, text, {asked: ["1"]})[0] == [f"default: {asked}", "default: select 1"]


def test_what_needs_a_program_ends_the_test(tmp_path: Path) -> None:
    sent, ran = run(tmp_path, "select 1;\n--exec $MYSQL_DUMP test\nselect 2;\n")
    assert sent == ["default: select 1"]
    assert ran.ended == "it needs exec"


def test_a_test_without_end_is_cut_off(tmp_path: Path) -> None:
    _, ran = run(tmp_path, "while (1)\n{\nselect 1;\n}\n", statements=50)
    assert ran.ended == "long enough"


@pytest.mark.parametrize(
    "text",
    [
        "SET sql_log_bin = 0",
        "SHUTDOWN",
        "RESET MASTER",
        "purge binary logs to 'x'",
        "change master to master_host='x'",
        "drop user root@localhost",
        "set global read_only = 1",
    ],
)
def test_statements_that_no_capture_survives_are_passed_over(text: str, tmp_path: Path) -> None:
    sent, ran = run(tmp_path, f"{text};\nselect 1;\n")
    assert sent == ["default: select 1"]
    assert ran.counts["passed over"] == 1
