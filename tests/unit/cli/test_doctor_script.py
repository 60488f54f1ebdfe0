"""`doctor --sql`: one script that an administrator can run unchanged; and what a terminal must never get."""

from __future__ import annotations

from cdcflow.capture.ports.findings import Finding
from cdcflow.cli.failure import block
from cdcflow.errors import ConfigurationError
from cdcflow.reports.doctor_script import script
from cdcflow.reports.readable import plain
from cdcflow.sources.engine.findings import ok, problem, run, warning


def test_each_statement_is_printed_once_in_order_and_restarts_at_the_end() -> None:
    """Two tables of a schema need the same GRANT USAGE; a restart in the middle would cut the script in two."""
    usage = run('GRANT USAGE ON SCHEMA "s" TO "cdc"')
    lines = list(
        script(
            [
                ok("server", "PostgreSQL 18"),
                problem(
                    "wal_level", "is replica", run("ALTER SYSTEM SET wal_level = logical", then="restart the server")
                ),
                problem("s.a", "no USAGE", usage),
                problem("s.b", "no USAGE", usage),
                problem("s.b", "may not read", run('GRANT SELECT ON "s"."b" TO "cdc"')),
                problem("source.url", "is a standby", "set source.url to the primary"),
                warning("keep", "is unlimited", run("ALTER SYSTEM SET a = '1'", "SELECT pg_reload_conf()")),
            ]
        )
    )
    assert [line for line in lines if line and not line.startswith("--")] == [
        "ALTER SYSTEM SET wal_level = logical;",
        'GRANT USAGE ON SCHEMA "s" TO "cdc";',
        'GRANT SELECT ON "s"."b" TO "cdc";',
    ]
    assert lines[-1] == "-- then: restart the server"
    assert "-- to do: set source.url to the primary" in lines
    assert "-- ALTER SYSTEM SET a = '1';" in lines, "a proposal is not applied unread"


def test_no_name_breaks_out_of_a_comment_or_reaches_a_terminal() -> None:
    """A table's name is data: a newline in it would end the comment, an escape code would act on the terminal."""
    hostile = 'x\nDROP TABLE y; \x1b[2J"'
    lines = list(script([problem(hostile, hostile, run(f'GRANT SELECT ON "{hostile}" TO "cdc"'))]))
    assert all(line == "" or line.startswith("--") for line in lines)
    assert all("\x1b" not in line and "\n" not in line for line in lines)
    spaced = run('GRANT SELECT ON "a  b" TO "cdc"')
    assert list(script([problem("t", "x", spaced)]))[-1] == 'GRANT SELECT ON "a  b" TO "cdc";'


def test_text_of_a_server_is_shown_without_control_characters() -> None:
    """A server's error message may contain anything."""
    assert plain("a\x1b[31mb\tc\nd\x07\x9b\u202e") == "a\\x1b[31mb\tc\nd\\x07\\x9b\\x202e"
    assert "\x1b" not in block(ConfigurationError("said \x1b[2J", remedy="run \x1b[2J"))


def test_finding_has_the_bare_statements_for_programs() -> None:
    """JSON is read by tools, which need the SQL and not a sentence around it."""
    found = problem("t", "x", run("A", "B", then="restart the server", note="why"))
    assert found == Finding(
        "error", "t", "x", "run A; B, and restart the server (why)", ("A", "B"), "restart the server"
    )
