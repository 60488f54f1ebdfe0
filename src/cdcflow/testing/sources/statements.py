"""Scenarios of statements that change tables: at the end the log equals the source, in whatever way a dialect learns of
a statement."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from cdcflow.testing.sources.capturing import Captured
from cdcflow.testing.sources.kit import SourceKit, needs
from cdcflow.testing.sources.reading import Scenarios

ROWS = "INSERT INTO items VALUES (1, '11'), (2, '22'), (3, NULL)"
LAST = "INSERT INTO items (id, name) VALUES (9, '99')"


class StatementScenarios(Scenarios):
    """Statements, each between rows written before and after it."""

    def in_stream(self, kit: SourceKit, *acts: Callable[[], object], tables: tuple[str, ...] = ("items",)) -> None:
        """Run these acts during a capture that has read the tables, then write a last row, and wait until the log
        equals the source."""
        kit.execute(ROWS, "INSERT INTO others VALUES (5, '55')")
        captured = Captured(kit)
        with captured.running():
            captured.settle("items", "others")
            for act in acts:
                act()
            kit.execute(LAST)
            captured.settle(*tables)
        captured.settle(*tables)

    @needs("alter tables")
    def test_column_without_values_is_null_in_rows_of_before(self, source_kit: SourceKit) -> None:
        """Rows from before the statement have NULL in the new column, without being read again."""
        self.in_stream(
            source_kit,
            lambda: source_kit.execute("ALTER TABLE items ADD COLUMN extra integer"),
            lambda: source_kit.execute("UPDATE items SET extra = 4 WHERE id = 2"),
        )

    @needs("alter tables")
    def test_column_with_values_has_them_in_rows_of_before(self, source_kit: SourceKit) -> None:
        """The statement gives every row a value, and the source's log has none of these values (hard case M36)."""
        self.in_stream(source_kit, lambda: source_kit.add_column_with_values("items", "extra"))

    @needs("alter tables")
    def test_column_with_values_written_while_no_capture_ran(self, source_kit: SourceKit) -> None:
        """A statement may also run while nothing is captured: the next start must detect its effect."""
        source_kit.execute(ROWS)
        captured = Captured(source_kit)
        with captured.running():
            captured.settle("items")
        source_kit.add_column_with_values("items", "extra")
        with captured.running():
            captured.settle("items")

    @needs("alter tables")
    def test_column_with_values_that_comes_during_a_backfill(self, source_kit: SourceKit) -> None:
        """Some rows were read before the statement and some are read after it: all must have its values at the end."""
        source_kit.execute(ROWS)
        captured = Captured(source_kit)
        altered: list[str] = []

        def alter(event: str, fields: Mapping[str, object]) -> None:
            if event == "range chunk read" and fields["table"] == str(source_kit.table) and not altered:
                source_kit.add_column_with_values("items", "extra")
                source_kit.execute(LAST)
                altered.append(event)  # only now: the log must contain the source's rows after this

        captured.on_event = alter
        with captured.running():
            while not altered:
                captured.settle("others")
            captured.settle("items")

    @needs("alter tables")
    def test_column_that_is_dropped_and_added_again_is_a_new_column(self, source_kit: SourceKit) -> None:
        """Values of the dropped column must not reappear in the new column of the same name (hard cases P19, G27)."""
        self.in_stream(
            source_kit,
            lambda: source_kit.execute("ALTER TABLE items DROP COLUMN name"),
            lambda: source_kit.execute("ALTER TABLE items ADD COLUMN name varchar(100)"),
        )

    @needs("alter tables")
    def test_column_of_another_type_has_its_values_in_that_type(self, source_kit: SourceKit) -> None:
        """The statement converts every row's value, and the source's log has none of the new values."""
        self.in_stream(source_kit, lambda: source_kit.retype("items", "name"))

    @needs("alter tables")
    def test_table_that_is_renamed_and_back_is_what_it_was(self, source_kit: SourceKit) -> None:
        """Rows that the table got under its other name must be in it at the end (hard case P20)."""
        self.in_stream(
            source_kit,
            lambda: source_kit.rename(("items", "elsewhere")),
            lambda: source_kit.execute("INSERT INTO elsewhere VALUES (4, '44')", "DELETE FROM elsewhere WHERE id = 1"),
            lambda: source_kit.rename(("elsewhere", "items")),
        )

    @needs("alter tables")
    def test_two_tables_that_exchange_their_names_exchange_their_rows(self, source_kit: SourceKit) -> None:
        """Tools for online schema changes exchange the names of tables, and rows must not follow the name."""
        self.in_stream(
            source_kit,
            lambda: source_kit.rename(("items", "aside"), ("others", "items"), ("aside", "others")),
            lambda: source_kit.execute("DELETE FROM others WHERE id = 2"),
            tables=("items", "others"),
        )

    @needs("alter tables")
    def test_table_that_is_dropped_and_recreated_has_its_own_rows_only(self, source_kit: SourceKit) -> None:
        """Rows of the dropped table must not remain in the new table of the same name (hard case P25)."""
        self.in_stream(
            source_kit,
            lambda: source_kit.execute("DROP TABLE items"),
            lambda: source_kit.create("items"),
            lambda: source_kit.execute("INSERT INTO items VALUES (2, '2')"),
        )

    def test_truncate_leaves_only_what_came_after_it(self, source_kit: SourceKit) -> None:
        """A truncate is one row in the log, and removes all earlier rows downstream."""
        self.in_stream(
            source_kit,
            lambda: source_kit.truncate("items"),
            lambda: source_kit.execute("INSERT INTO items VALUES (2, '2')"),
        )

    # ── commands ────────────────────────────────────────────────────────────────────────────────────────────

    def test_requested_rows_are_read_again(self, source_kit: SourceKit) -> None:
        """Rows are requested by keys and by a predicate, while changes arrive. A deleted row yields nothing, and stays
        deleted."""
        source_kit.execute(ROWS)
        captured = Captured(source_kit)
        with captured.running():
            captured.settle("items")
            before = len(captured.ids_read("items"))
            source_kit.execute("DELETE FROM items WHERE id = 2")
            answer = captured.order("reread", "items", keys=[["1"], ["2"], ["99"]])
            assert [one["outcome"] for one in answer["tables"].values()] == ["ordered"]
            source_kit.execute("UPDATE items SET name = '12' WHERE id = 1")
            captured.settle("items")
            captured.order("reread", "items", where="id = 3")
            source_kit.execute(LAST)
            captured.settle("items")
            assert captured.ids_read("items")[before:] == [1, 3]

    @needs("write past the log")
    def test_rows_missing_in_the_log_are_right_after_a_repair(self, source_kit: SourceKit) -> None:
        """A repair must be right for a deleted row, a new row, a changed row, a row that the log has already, and a key
        that neither side has.

        It writes deletes first, and only for rows that the source does not have.
        """
        source_kit.execute(ROWS)
        # To write past the log, a kit may change the server's settings. PostgreSQL's heartbeat rightly stops the
        # capture for that, so no heartbeat runs here.
        captured = Captured(source_kit, heartbeat_s=3600)
        with captured.running():
            captured.settle("items")
            source_kit.execute_unlogged(
                "DELETE FROM items WHERE id = 1",
                "UPDATE items SET name = 'other' WHERE id = 2",
                "INSERT INTO items VALUES (4, '44')",
            )
            source_kit.execute("UPDATE items SET name = '33' WHERE id = 3")
            captured.wait_for("items", "u", 3)
            assert all(op != "d" for op, _ in captured.tail("items", 9)), "the log has the deletes"
            keys = [["1"], ["2"], ["3"], ["4"], ["99"]]
            answer = captured.order("repair", "items", keys=keys, known_until="here")
            assert [one["outcome"] for one in answer["tables"].values()] == ["ordered"]
            captured.settle("items")
            wrote = captured.tail("items", 5)
            assert (sorted(wrote[:2]), sorted(wrote[2:])) == ([("d", 1), ("d", 99)], [("r", 2), ("r", 3), ("r", 4)])
            (record,) = captured.repairs()
            assert (record.table, record.last_offset - record.first_offset) == (source_kit.table, 4)
            assert (record.keys, record.deleted, record.left, record.known_until) == (5, 2, 0, "here")
            assert record.position
            source_kit.execute("INSERT INTO items VALUES (1, 'again')", LAST)
            captured.settle("items")

    def test_paused_capture_continues_without_a_gap(self, source_kit: SourceKit) -> None:
        """Changes committed during a pause must arrive after it, each once."""
        source_kit.execute(ROWS)
        captured = Captured(source_kit)
        with captured.running():
            captured.settle("items")
            assert captured.order("pause-capture")["capture"] == {"outcome": "paused"}
            source_kit.execute("UPDATE items SET name = '12' WHERE id = 1")
        with captured.running():
            source_kit.execute("DELETE FROM items WHERE id = 2")
            assert captured.order("resume-capture")["capture"] == {"outcome": "resumed"}
            source_kit.execute(LAST)
            captured.settle("items")
