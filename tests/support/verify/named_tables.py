"""Tables of a shop whose names, keys and columns are those that occur in cdcflow's own statements (`sql_names`)."""

from __future__ import annotations

from typing import Any

from tests.support.verify.compared_shop import ComparedShop

MODES = ("current", "soft_delete", "history")
SYSTEM_COLUMNS = {"ctid", "xmin", "xmax", "cmin", "cmax", "tableoid"}
"""PostgreSQL's own: no column may have such a name."""


class Named:
    """Tables in a shop, each named and keyed by some of the names. The tables of each mode share all the names as
    columns outside of their keys, so that none has hundreds."""

    def __init__(self, shop: ComparedShop, quote: str, columns: tuple[str, ...], key_columns_max: int) -> None:
        self.shop, self.quote = shop, quote
        parts = [columns[at : at + key_columns_max] for at in range(0, len(columns), key_columns_max)]
        self.keys = {part[-1]: part for part in parts}
        self.columns: dict[str, tuple[str, ...]] = {}
        for mode in range(len(MODES)):
            tables = list(self.keys)[mode :: len(MODES)]
            for i, table in enumerate(tables):
                # The columns of its key are others of the mode's previous table.
                others = parts[i :: len(tables)]
                after = self.keys[tables[(i + 1) % len(tables)]]
                listed = (*self.keys[table], *(name for part in others for name in part), *after)
                self.columns[table] = tuple(dict.fromkeys(listed))
            plain = {name for table in tables for name in self.columns[table] if name not in self.keys[table]}
            assert plain == set(columns) or len(tables) == 1, "each name is a column outside of a key in each mode"
        each = {f"{shop.schema}.{t}": {"mode": MODES[i % len(MODES)]} for i, t in enumerate(self.keys)}
        shop.settings["merge"]["tables"] = {"each": each}
        shop.write()

    @property
    def current(self) -> list[str]:
        """The tables whose rows are the source's, in their mode."""
        return list(self.keys)[:: len(MODES)]

    def quoted(self, name: str) -> str:
        return f"{self.quote}{name}{self.quote}"

    def create(self) -> None:
        for table, key in self.keys.items():
            columns = ", ".join(
                f"{self.quoted(c)} int {'NOT NULL' if c in key else 'NULL'}" for c in self.columns[table]
            )
            keyed = ", ".join(map(self.quoted, key))
            self.shop.execute(f"CREATE TABLE {self.quoted(table)} ({columns}, PRIMARY KEY ({keyed}))")
            for row in range(1, 6):
                self.insert(table, row)

    def insert(self, table: str, row: int) -> None:
        """A row whose values differ from column to column; some are NULL."""
        key = self.keys[table]
        values = [
            str(row * 1000 + number) if name in key or (number + row) % 3 else "NULL"
            for number, name in enumerate(self.columns[table])
        ]
        self.shop.execute(f"INSERT INTO {self.quoted(table)} VALUES ({', '.join(values)})")

    def change(self) -> None:
        """An insert, a change of each column that is not in the key, a change of the key, a delete."""
        for table, key in self.keys.items():
            name, first = self.quoted(table), self.quoted(key[0])
            sets = ", ".join(f"{self.quoted(c)} = {n}" for n, c in enumerate(self.columns[table]) if c not in key)
            at = self.columns[table].index(key[0])
            self.insert(table, 9)
            self.shop.execute(
                f"UPDATE {name} SET {sets} WHERE {first} = {1000 + at}",
                f"UPDATE {name} SET {first} = {7000 + at} WHERE {first} = {2000 + at}",
                f"DELETE FROM {name} WHERE {first} = {3000 + at}",
            )

    def rows(self, table: str) -> list[tuple[Any, ...]]:
        listed = ", ".join(map(self.quoted, self.columns[table]))
        return sorted(self.shop.execute(f"SELECT {listed} FROM {self.quoted(table)}"), key=repr)

    def rows_of(self, table: str, merged: Any) -> list[tuple[Any, ...]]:
        """The same of the merged table, in Arrow."""
        return sorted(zip(*(merged[c].to_pylist() for c in self.columns[table]), strict=True), key=repr)
