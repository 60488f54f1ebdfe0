"""The statements behind the stored logs, for PostgreSQL, MySQL and MariaDB."""

from __future__ import annotations

from typing import Literal

Kind = Literal["postgres", "mysql", "mariadb"]

NUMBERS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {})"
"""Rows 1, 2, 3, … in the SQL of all three."""

_TABLES: dict[bool, list[str]] = {
    True: [
        "CREATE SCHEMA shop",
        "CREATE TABLE shop.orders (id bigint PRIMARY KEY, note text, amount numeric(10,2), placed timestamptz,"
        " body text)",
        "ALTER TABLE shop.orders ALTER COLUMN body SET STORAGE EXTERNAL",  # an update does not send it again
        "CREATE TABLE shop.items (id bigint, line text, n int, PRIMARY KEY (id, line))",
        "CREATE TABLE shop.bare (a int, b text)",
        "ALTER TABLE shop.bare REPLICA IDENTITY FULL",
        "CREATE TABLE shop.doomed (id int PRIMARY KEY, v text)",
        "CREATE TABLE shop.steps (id int PRIMARY KEY)",
        "CREATE TYPE shop.mood AS ENUM ('sad', 'glad')",
        "CREATE TABLE shop.kinds (id int PRIMARY KEY, b boolean, i2 smallint, i4 int, i8 bigint, f4 real,"
        " f8 double precision, n numeric, d date, t time, ts timestamp, tz timestamptz, u uuid, j jsonb,"
        " bin bytea, a int[], e shop.mood, r int4range, x bit(5))",
        "INSERT INTO shop.kinds VALUES (1, true, -7, 8, 9007199254740993, 1.5, 'NaN', 12.3400, '2024-02-29',"
        " '23:59:59.5', '2024-01-02 03:04:05.678901', '2024-01-02 03:04:05+02', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11',"
        """ '{"k": [1, null]}', '\\x00ff', '{1,NULL,3}', 'glad', '[1,5)', B'10101'), (2""" + ", NULL" * 18 + ")",
        "CREATE TABLE shop.parts (id int, region text, v text, PRIMARY KEY (id, region)) PARTITION BY LIST (region)",
        "CREATE TABLE shop.parts_eu PARTITION OF shop.parts FOR VALUES IN ('eu')",
        "CREATE TABLE shop.parts_us PARTITION OF shop.parts FOR VALUES IN ('us')",
        "INSERT INTO shop.parts VALUES (1, 'eu', 'a'), (2, 'us', 'b')",
    ],
    False: [
        "CREATE TABLE shop.orders (id bigint PRIMARY KEY, note text, amount decimal(10,2), placed timestamp(6) NULL,"
        " body text)",
        "CREATE TABLE shop.items (id bigint, line varchar(20), n int, PRIMARY KEY (id, line))",
        "CREATE TABLE shop.bare (a int, b text)",
        "CREATE TABLE shop.doomed (id int PRIMARY KEY, v text)",
        "CREATE TABLE shop.steps (id int PRIMARY KEY)",
        "CREATE TABLE shop.kinds (id int PRIMARY KEY, b tinyint(1), i2 smallint, m mediumint unsigned,"
        " i8 bigint unsigned, f4 float, f8 double, n decimal(30,10), d date, t time(3), dt datetime(6),"
        " ts timestamp NULL, y year, j json, bin varbinary(20), bl blob, e enum('sad', 'glad'),"
        " s set('a', 'b', 'c'), x bit(10), l varchar(20) CHARACTER SET latin1)",
        "INSERT INTO shop.kinds VALUES (1, 1, -7, 16777215, 18446744073709551615, 1.5, -2.25, 12.34, '2024-02-29',"
        " '-23:59:59.500', '2024-01-02 03:04:05.678901', '2024-01-02 03:04:05', 2024, '{\"k\": [1, null]}', x'00ff',"
        " x'00', 'glad', 'a,c', b'1010101010', 'Ü'), (2" + ", NULL" * 19 + ")",
    ],
}

_ROWS = [
    f"INSERT INTO shop.orders {NUMBERS.format(300)} SELECT i, concat('order ', i), i * 1.5, '2024-01-01 00:00:00', NULL"
    " FROM n",
    "UPDATE shop.orders SET body = repeat('body ', 1000) WHERE id <= 3",
    f"INSERT INTO shop.items {NUMBERS.format(120)} SELECT i, concat('line ', i % 3), i FROM n",
    "INSERT INTO shop.bare VALUES (1, 'one'), (2, 'two'), (2, 'two'), (NULL, NULL)",
    "INSERT INTO shop.doomed VALUES (1, 'old')",
    "INSERT INTO shop.steps VALUES (0)",
]

CHANGES = [
    "BEGIN",
    "INSERT INTO shop.orders (id, note, amount) VALUES (1001, 'new', 7.25), (1002, NULL, NULL)",
    "UPDATE shop.items SET n = n + 1 WHERE id < 10",
    "DELETE FROM shop.orders WHERE id = 20",
    "COMMIT",
    "UPDATE shop.orders SET note = 'the body did not change' WHERE id IN (1, 2, 21)",
    "UPDATE shop.orders SET id = 2000 WHERE id = 22",
    "UPDATE shop.bare SET b = 'three' WHERE a = 1",
    "DELETE FROM shop.bare WHERE a IS NULL",
    "UPDATE shop.kinds SET b = NULL WHERE id = 1",
    "DELETE FROM shop.kinds WHERE id = 2",
]

SHAPES = {
    True: [
        "ALTER TABLE shop.orders ADD COLUMN grade int DEFAULT 5",
        "ALTER TABLE shop.orders RENAME COLUMN note TO remark",
        "ALTER TABLE shop.items ALTER COLUMN n TYPE bigint",
    ],
    False: [
        "ALTER TABLE shop.orders ADD COLUMN grade int DEFAULT 5",
        "ALTER TABLE shop.orders CHANGE note remark text",
        "ALTER TABLE shop.items MODIFY n bigint",
    ],
}

RESHAPED = [
    "INSERT INTO shop.orders (id, remark, grade) VALUES (3001, 'reshaped', 1)",
    "UPDATE shop.orders SET remark = 'renamed' WHERE id = 2000",
    "UPDATE shop.items SET n = 5000000000 WHERE id = 3",
]

LARGE = f"INSERT INTO shop.items {NUMBERS.format(600)} SELECT 10000 + i, repeat('large ', 3), i FROM n"

ENDED = [
    "DROP TABLE shop.doomed",
    "CREATE TABLE shop.doomed (id int PRIMARY KEY, w int)",
    "INSERT INTO shop.doomed VALUES (1, 11), (2, 22)",
]

ENDED_AGAIN = [
    "DROP TABLE shop.doomed",
    "CREATE TABLE shop.doomed (id int PRIMARY KEY, x text)",
    "INSERT INTO shop.doomed VALUES (2, 'twice'), (7, 'seven')",
]

EMPTIED = ["TRUNCATE TABLE shop.doomed", "INSERT INTO shop.doomed VALUES (3, 33)"]

OPEN = [
    "INSERT INTO shop.orders (id, remark) VALUES (4001, 'in the journal')",
    LARGE.replace("10000 + i", "20000 + i"),
    "DELETE FROM shop.orders WHERE id = 5",
    "UPDATE shop.orders SET id = 4002 WHERE id = 6",
]

STREAMED = [
    "BEGIN",
    LARGE.replace("10000 + i", "30000 + i").replace("n WHERE i < 600", "n WHERE i < 1500"),
    "SAVEPOINT a",
    LARGE.replace("10000 + i", "40000 + i").replace("n WHERE i < 600", "n WHERE i < 1500"),
    "ROLLBACK TO a",
    "UPDATE shop.items SET n = -1 WHERE id = 30001",
    "COMMIT",
]
"""A transaction that a server with little memory for decoding sends before it commits, with a part that is undone."""

PREPARED = [
    "XA START 'stored'",
    LARGE.replace("10000 + i", "30000 + i"),
    "UPDATE shop.items SET n = -1 WHERE id = 30001",
    "XA END 'stored'",
    "XA PREPARE 'stored'",
]

LATER = [
    "INSERT INTO shop.orders (id, remark) VALUES (5001, 'while no daemon ran')",
    "UPDATE shop.orders SET amount = 3 WHERE id = 50",
    "DELETE FROM shop.items WHERE id = 11",
]


def tables(kind: Kind) -> list[str]:
    """What is at the source before the capture begins."""
    return [*_TABLES[kind == "postgres"], *_ROWS]


def reshaped(kind: Kind) -> list[str]:
    """Columns that are added, renamed and get another type, and rows of the new shapes."""
    return [*SHAPES[kind == "postgres"], *RESHAPED]
