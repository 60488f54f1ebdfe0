"""Derived tables with queries of TPC-H over tables that change."""

from __future__ import annotations

import random
from collections.abc import Mapping
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.support.log.hand_log import HandLog
from tests.support.merge.histories import make_table

from cdcflow import local, wiring
from cdcflow.config import Config

SCHEMAS: Mapping[str, Mapping[str, Any]] = {
    "lineitem": {
        "id": "int64", "l_orderkey": "int64", "l_partkey": "int64", "l_suppkey": "int64", "l_quantity": "int64",
        "l_extendedprice": "int64", "l_discount": "int64", "l_tax": "int64", "l_returnflag": "string",
        "l_linestatus": "string", "l_shipdate": "date32", "l_commitdate": "date32", "l_receiptdate": "date32",
        "l_shipmode": "string",
    },
    "orders": {
        "o_orderkey": "int64", "o_custkey": "int64", "o_totalprice": "int64", "o_orderdate": "date32",
        "o_orderpriority": "string", "o_shippriority": "int64",
    },
    "customer": {
        "c_custkey": "int64", "c_name": "string", "c_nationkey": "int64", "c_mktsegment": "string",
        "c_acctbal": "int64",
    },
    "supplier": {"s_suppkey": "int64", "s_nationkey": "int64"},
    "nation": {"n_nationkey": "int64", "n_name": "string", "n_regionkey": "int64"},
    "region": {"r_regionkey": "int64", "r_name": "string"},
    "part": {"p_partkey": "int64", "p_type": "string"},
}  # fmt: skip

QUERIES: Mapping[str, tuple[tuple[str, ...], str]] = {
    "q1": (
        ("l_returnflag", "l_linestatus"),
        """SELECT l_returnflag, l_linestatus, sum(l_quantity) AS sum_qty, sum(l_extendedprice) AS sum_base_price,
        sum(l_extendedprice * (100 - l_discount)) AS sum_disc_price, avg(l_quantity) AS avg_qty, count(*) AS n
        FROM lineitem WHERE l_shipdate <= DATE '1998-12-01' - INTERVAL 90 DAY GROUP BY l_returnflag, l_linestatus""",
    ),
    "q3": (
        ("l_orderkey",),
        """SELECT l_orderkey, sum(l_extendedprice * (100 - l_discount)) AS revenue, o_orderdate, o_shippriority
        FROM customer, orders, lineitem WHERE c_mktsegment = 'BUILDING' AND c_custkey = o_custkey
        AND l_orderkey = o_orderkey AND o_orderdate < DATE '1995-03-15' AND l_shipdate > DATE '1995-03-15'
        GROUP BY l_orderkey, o_orderdate, o_shippriority""",
    ),
    "q5": (
        ("n_name",),
        """SELECT n_name, sum(l_extendedprice * (100 - l_discount)) AS revenue
        FROM customer, orders, lineitem, supplier, nation, region WHERE c_custkey = o_custkey
        AND l_orderkey = o_orderkey AND l_suppkey = s_suppkey AND c_nationkey = s_nationkey
        AND s_nationkey = n_nationkey AND n_regionkey = r_regionkey AND r_name = 'ASIA'
        AND o_orderdate >= DATE '1994-01-01' AND o_orderdate < DATE '1994-01-01' + INTERVAL 3 YEAR GROUP BY n_name""",
    ),
    "q6": (
        ("k",),
        """SELECT 1 AS k, sum(l_extendedprice * l_discount) AS revenue FROM lineitem
        WHERE l_shipdate >= DATE '1994-01-01' AND l_discount BETWEEN 5 AND 7 AND l_quantity < 24""",
    ),
    "q10": (
        ("c_custkey",),
        """SELECT c_custkey, c_name, sum(l_extendedprice * (100 - l_discount)) AS revenue, c_acctbal, n_name
        FROM customer, orders, lineitem, nation WHERE c_custkey = o_custkey AND l_orderkey = o_orderkey
        AND o_orderdate >= DATE '1993-10-01' AND l_returnflag = 'R' AND c_nationkey = n_nationkey
        GROUP BY c_custkey, c_name, c_acctbal, n_name""",
    ),
    "q12": (
        ("l_shipmode",),
        """SELECT l_shipmode, sum(CASE WHEN o_orderpriority = '1-URGENT' OR o_orderpriority = '2-HIGH' THEN 1 ELSE 0
        END) AS high, sum(CASE WHEN o_orderpriority <> '1-URGENT' AND o_orderpriority <> '2-HIGH' THEN 1 ELSE 0 END)
        AS low FROM orders, lineitem WHERE o_orderkey = l_orderkey AND l_shipmode IN ('MAIL', 'SHIP')
        AND l_commitdate < l_receiptdate AND l_shipdate < l_commitdate GROUP BY l_shipmode""",
    ),
    "q14": (
        ("month",),
        """SELECT date_trunc('month', l_shipdate) AS month, 100.00 * sum(CASE WHEN p_type LIKE 'PROMO%'
        THEN l_extendedprice * (100 - l_discount) ELSE 0 END) / sum(l_extendedprice * (100 - l_discount)) AS promo
        FROM lineitem, part WHERE l_partkey = p_partkey GROUP BY month""",
    ),
    "q18": (
        ("o_orderkey",),
        """SELECT c_name, c_custkey, o_orderkey, o_orderdate, o_totalprice, sum(l_quantity) AS quantity
        FROM customer, orders, lineitem WHERE o_orderkey IN (SELECT l_orderkey FROM lineitem GROUP BY l_orderkey
        HAVING sum(l_quantity) > 60) AND c_custkey = o_custkey AND o_orderkey = l_orderkey
        GROUP BY c_name, c_custkey, o_orderkey, o_orderdate, o_totalprice""",
    ),
}
"""Keys and texts, without ORDER BY and LIMIT; prices are whole numbers."""

KEYS = {name: next(iter(columns)) for name, columns in SCHEMAS.items()}
COUNTS = {"lineitem": 600, "orders": 150, "customer": 40, "supplier": 10, "nation": 8, "region": 3, "part": 30}
TEXTS = {
    "l_returnflag": "ARN",
    "l_linestatus": "OF",
    "l_shipmode": ["MAIL", "SHIP", "AIR"],
    "o_orderpriority": ["1-URGENT", "2-HIGH", "3-MEDIUM"],
    "c_mktsegment": ["BUILDING", "MACHINERY"],
    "r_name": ["ASIA", "EUROPE"],
    "p_type": ["PROMO TIN", "SMALL TIN"],
}
REFERENCES = {
    "l_orderkey": "orders", "l_partkey": "part", "l_suppkey": "supplier", "o_custkey": "customer",
    "c_nationkey": "nation", "s_nationkey": "nation", "n_regionkey": "region",
}  # fmt: skip


def some_row(chance: random.Random, table: str, key: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, type_ in SCHEMAS[table].items():
        if name == KEYS[table]:
            found[name] = key
        elif name in REFERENCES:
            found[name] = chance.randrange(COUNTS[REFERENCES[name]])
        elif type_ == "date32":
            found[name] = date(1993, 6, 1) + timedelta(days=chance.randrange(1200))
        elif type_ == "string":
            found[name] = chance.choice(TEXTS.get(name, [f"{name} {n}" for n in range(6)]))
        else:
            found[name] = chance.randrange(40)
    return found


@pytest.mark.long
def test_queries_of_tpch_stay_equal_to_their_inputs(hand_log: HandLog, warehouse: Path, format_name: str) -> None:
    """Eight queries that databases are compared by, with rows that change, move and end."""
    chance = random.Random(18)
    tables = {name: make_table(name, key=(KEYS[name],), **columns) for name, columns in SCHEMAS.items()}
    rows = {name: {n: some_row(chance, name, n) for n in range(COUNTS[name])} for name in SCHEMAS}
    for table in tables.values():
        hand_log.state(table)
    hand_log.segment([(tables[name], "c", row) for name, listed in rows.items() for row in listed.values()])
    config = Config.model_validate(
        {
            "source": {"kind": "postgres", "url": "postgresql://localhost/shop"},
            "log": {"path": hand_log.root},
            "merge": {
                "engine": "local",
                "format": format_name,
                "warehouse": warehouse,
                "derive": {name: {"key": key, "sql": sql} for name, (key, sql) in QUERIES.items()},
            },
        }
    )
    for _ in range(4):
        report = local.merge(hand_log.root, warehouse, table_format=format_name, policies=wiring.policies(config))
        assert report.latest is not None
        assert report.latest.left_out == {}
        reports = wiring.report_derived(config, compares=True)
        assert [one.table for one in reports if not one.is_equal] == []
        steps: list[tuple[Any, str, dict[str, Any]]] = []
        for name, listed in rows.items():
            for key in chance.sample(range(COUNTS[name] + 5), 1 if COUNTS[name] < 20 else 6):
                if key in listed and chance.random() < 0.3 and name in ("lineitem", "orders"):
                    del listed[key]
                    steps.append((tables[name], "d", {KEYS[name]: key}))
                else:
                    is_new = key not in listed
                    listed[key] = some_row(chance, name, key)
                    steps.append((tables[name], "c" if is_new else "u", listed[key]))
        hand_log.segment(steps)
    how = {one.table: one.how for one in reports}
    by_key = sorted(name for name, words in how.items() if words.startswith("by "))
    assert by_key == [f"derived.{name}" for name in ("q1", "q10", "q12", "q14", "q3", "q5")]
