"""Record what real servers write: `python tests/corpus/record_mysql.py` rewrites tests/corpus/mysql."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1]))

from tests.servers.mysql import FLAVORS, Flavor, MySQLServer  # noqa: E402
from tests.support.mysql.binlog_corpus import Recording, events_of  # noqa: E402  # found by the lines above

TABLE = "CREATE TABLE t (id int PRIMARY KEY, v varchar(100), n decimal(8, 2), e enum('a', 'ö'))"
MARKS = (
    "CREATE TABLE cdcflow.cdcflow_marks (slot varchar(64) PRIMARY KEY, token varchar(255) NOT NULL, at timestamp(6))"
)

STORIES: dict[str, list[list[str]]] = {
    "transactions": [
        [
            TABLE,
            "INSERT INTO t VALUES (1, 'one', 1.5, 'a'), (2, NULL, NULL, 'ö')",
            "BEGIN",
            "UPDATE t SET v = 'uno' WHERE id = 1",
            "SAVEPOINT s",
            "DELETE FROM t",
            "ROLLBACK TO s",
            "UPDATE t SET id = 22 WHERE id = 2",
            "COMMIT",
            "REPLACE INTO cdcflow.cdcflow_marks VALUES ('me', 'e1/1/low', now(6))",
            "CREATE TABLE u (id int PRIMARY KEY) ENGINE = MyISAM",
            "INSERT INTO u VALUES (1)",
            "FLUSH BINARY LOGS",
            "CREATE TABLE w (id int PRIMARY KEY)",
            "INSERT INTO w VALUES (1)",
            "UPDATE t, w SET t.v = 'both', w.id = 2 WHERE t.id = 1",
            "REPLACE INTO cdcflow.cdcflow_marks VALUES ('me', 'e1/1/high', now(6))",
        ]
    ],
    "xa": [
        [TABLE, "XA START 'held'", "INSERT INTO t (id) VALUES (1)", "XA END 'held'", "XA PREPARE 'held'"],
        [
            "INSERT INTO t (id) VALUES (2)",
            "XA COMMIT 'held'",
            "XA START 'whole'",
            "INSERT INTO t (id) VALUES (3)",
            "XA END 'whole'",
            "XA COMMIT 'whole' ONE PHASE",
        ],
    ],
    "compressed": [
        [
            TABLE,
            "{compress}",
            "BEGIN",
            "INSERT INTO t (id, v) VALUES (1, repeat('x', 100)), (2, repeat('y', 100)), (3, repeat('z', 100))",
            "UPDATE t SET v = concat(v, '') WHERE id < 3",
            "UPDATE t SET n = 5",
            "DELETE FROM t WHERE id = 2",
            "COMMIT",
        ]
    ],
    "images": [
        [
            TABLE,
            "INSERT INTO t VALUES (1, 'one', 1.5, 'a'), (2, 'two', 2.5, 'a')",
            "SET binlog_row_image = MINIMAL",
            "UPDATE t SET v = NULL WHERE id = 1",
            "DELETE FROM t WHERE id = 2",
            "SET binlog_row_image = NOBLOB",
            "UPDATE t SET n = 3 WHERE id = 1",
        ]
    ],
    "ddl": [
        [
            TABLE,
            "INSERT INTO t (id) VALUES (1)",
            "CREATE TABLE _t_gho LIKE t",
            "ALTER TABLE _t_gho ADD w int FIRST, DROP n",
            "INSERT INTO _t_gho (id, w) VALUES (1, 10)",
            "RENAME TABLE t TO _t_del, _t_gho TO t",
            "INSERT INTO t (id, w) VALUES (2, 20)",
            "TRUNCATE TABLE t",
            "CREATE TABLE made SELECT id, w FROM t UNION SELECT 5, 6",
            "INSERT INTO t (id) VALUES (3)",
            "DROP TABLE t",
        ]
    ],
}


def record(flavor: Flavor) -> None:
    settings = {"log_bin_compress": "ON", "log_bin_compress_min_len": "10"} if flavor == "mariadb" else {}
    for name, sessions in STORIES.items():
        with MySQLServer(flavor, settings if name == "compressed" else {}) as server:
            server.execute("CREATE DATABASE shop CHARACTER SET utf8mb4", "CREATE DATABASE cdcflow", MARKS)
            server.execute("RESET BINARY LOGS AND GTIDS" if flavor == "mysql" else "RESET MASTER")
            on = "SET binlog_transaction_compression = ON" if flavor == "mysql" else "DO 0"
            for session in sessions:
                server.execute(*(s.format(compress=on) for s in session), database="shop")
            names = [str(row[0]) for row in server.execute("SHOW BINARY LOGS")]
            files = {n: events_of((server.data / n).read_bytes()) for n in names}
        made = Recording(flavor, files, [])
        told = made.decoded(1 << 30)
        (HERE / "mysql" / f"{flavor}-{name}.txt").write_text(Recording(flavor, files, told).text())
        print(f"{flavor} {name}: {len(told)} lines")


if __name__ == "__main__":
    for wanted in FLAVORS:
        if wanted in sys.argv[1:] or len(sys.argv) == 1:
            record(wanted)
