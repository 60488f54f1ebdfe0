"""Collections: the log holds what one writer decides, in the order of the answers."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.polling import wait_until
from tests.support.push.collections import ORDERS, Pushed, asked, table

from cdcflow.config import Seal
from cdcflow.errors import OutcomeUnknown, SinkUnavailable
from cdcflow.log.read.folder import FolderReader
from cdcflow.push.remembered import TABLE, Once
from cdcflow.push.writer import Answer, Refused, Written
from cdcflow.sinks.files.log import FileLog


@pytest.fixture
def pushed(tmp_path: Path) -> Iterator[Pushed]:
    made = Pushed(tmp_path / "log")
    yield made
    made.stop()


def put(id_: int, **values: Any) -> dict[str, Any]:
    return {"op": "put", "value": {"id": id_, **values}}


def told(answer: Answer) -> dict[str, Any]:
    assert isinstance(answer, Written), answer
    return dict(json.loads(answer.answer))


def refused(answer: Answer) -> list[tuple[int, str]]:
    assert isinstance(answer, Refused)
    return [(failure.number, failure.code) for failure in answer.failures]


def ops(folder: Path) -> list[tuple[int, str]]:
    """Each change of the collection: its offset and letter."""
    parts = asked(folder).changes("push.orders")
    return sorted((r["_offset"], r["_op"]) for _, _, rows in parts for r in rows.select(["_offset", "_op"]).to_pylist())


def test_row_is_inserted_then_updated_then_deleted(pushed: Pushed) -> None:
    """Merge and history distinguish inserts from updates, so the writer must know whether a key exists."""
    assert told(pushed.send(put(1, note="a")))["results"] == [{"number": 1, "op": "c", "offset": 1}]
    assert told(pushed.send([put(1, note="b"), {"op": "delete", "key": 1}, put(1)]))["last_offset"] == 4
    assert [op for _, op in ops(pushed.folder)] == ["c", "u", "d", "c"]
    assert table(pushed.folder)[1] == {"id": 1, "note": None, "hits": None, "at": None, "tags": None}


def test_delete_of_an_absent_key_is_reported_and_writes_nothing(pushed: Pushed) -> None:
    """A program that expected a row learns that it did not exist."""
    found = told(pushed.send({"op": "delete", "key": 9}))
    assert found["results"] == [{"number": 1, "op": None, "absent": True}]
    assert found["transaction"] is None
    assert pushed.writer.checkpoint.next_offset == 1


def test_transaction_with_one_wrong_operation_writes_nothing(pushed: Pushed) -> None:
    """All or nothing: also what was staged for its own later operations is gone."""
    answer = pushed.send([put(1), put(2, note="x" * 21), {"op": "increment", "key": 7, "value": {"hits": 1}}])
    assert refused(answer) == [(2, "invalid"), (3, "absent")]
    assert told(pushed.send({"op": "delete", "key": 1}))["results"][0]["op"] is None


def test_good_operations_are_written_where_it_need_not_be_all(pushed: Pushed) -> None:
    """A batch of webhooks in which one is broken: the others are written, in one transaction."""
    found = told(pushed.send([put(1), {"op": "put", "value": {"id": "x"}}, put(3)], atomic=False))
    assert [one["number"] for one in found["results"]] == [1, 3]
    assert [(one["number"], one["code"]) for one in found["errors"]] == [(2, "invalid")]
    assert (found["first_offset"], found["last_offset"]) == (1, 2)


def test_increment_and_compare_see_what_was_written_before_them(pushed: Pushed) -> None:
    """Also in the same request, and after what they saw was sealed."""
    pushed.send(put(1, hits=1))
    pushed.seal()
    add = {"op": "increment", "key": 1, "value": {"hits": 2}}
    assert told(pushed.send([add, add]))["results"][1]["values"] == {"hits": 5}
    swap = {"op": "compare_and_set", "key": 1, "expect": {"hits": 5}, "value": {"note": "five"}}
    assert told(pushed.send(swap))["results"][0]["op"] == "u"
    assert refused(pushed.send({**swap, "expect": {"hits": 4}})) == [(1, "mismatch")]
    assert refused(pushed.send({"op": "compare_and_set", "key": 1, "expect": None, "value": {}})) == [(1, "mismatch")]
    assert refused(pushed.send({"op": "increment", "key": 1, "value": {"hits": 996}})) == [(1, "invalid")]
    assert table(pushed.folder)[1]["hits"] == 5


def test_same_idempotency_key_gives_the_first_answer_also_after_a_restart(tmp_path: Path) -> None:
    """A program that lost the answer sends the request again; it must not count twice."""
    once = Once.of("shop", "orders", "k1", b"body")
    pushed = Pushed(tmp_path / "log")
    add = [put(1, hits=1), {"op": "increment", "key": 1, "value": {"hits": 1}}]
    first = pushed.send(add, once=once)
    assert pushed.send(add, once=once) == Written(told_text(first), again=True)
    pushed.stop()
    pushed = Pushed(tmp_path / "log")
    assert pushed.send(add, once=once) == Written(told_text(first), again=True)
    other = pushed.send(add, once=Once.of("shop", "orders", "k1", b"other body"))
    assert isinstance(other, Refused)
    assert other.conflict
    assert table(tmp_path / "log")[1]["hits"] == 2
    pushed.stop()


def told_text(answer: Answer) -> str:
    assert isinstance(answer, Written)
    return answer.answer


def test_forgotten_answers_are_deleted_from_the_log_as_well(tmp_path: Path) -> None:
    """The memory is bounded, also in the tables that are built from the log, and after a restart."""
    pushed = Pushed(tmp_path / "log", keys_max=3)
    for number in range(6):
        pushed.send(put(number), once=Once.of("shop", "orders", f"k{number}", b""))
    kept = asked(tmp_path / "log").current(str(TABLE.id))
    assert kept.num_rows == 3
    pushed.stop()
    pushed = Pushed(tmp_path / "log", keys_max=3)
    again = [pushed.send(put(n), once=Once.of("shop", "orders", f"k{n}", b"")) for n in (5, 0)]
    assert [isinstance(one, Written) and one.again for one in again] == [True, False]
    pushed.now_us += 3601 * 1_000_000
    late = pushed.send(put(5), once=Once.of("shop", "orders", "k5", b""))
    assert isinstance(late, Written)
    assert not late.again
    pushed.stop()


@pytest.mark.spread(4)
@pytest.mark.parametrize("seed", range(12))
def test_random_requests_equal_a_dict(tmp_path: Path, seed: int) -> None:
    """JSON and columns, seals and restarts in between: the letters and the rows are those of a plain table."""
    print(f"seed={seed}")
    rng = random.Random(seed)
    pushed, model, letters = Pushed(tmp_path / "log"), dict[int, dict[str, Any]](), list[str]()
    for _ in range(40):
        match rng.choice(["json"] * 5 + ["columns"] * 2 + ["seal", "restart"]):
            case "json":
                wanted = [operation(rng) for _ in range(rng.randint(1, 4))]
                expected = [expect(model, one) for one in wanted]
                found = pushed.send(wanted, atomic=False)
                results = told(found)["results"] if isinstance(found, Written) else []
                written = {one["number"]: one["op"] for one in results}
                assert [written.get(n, "refused") for n in range(1, len(wanted) + 1)] == expected
                letters += [one for one in expected if one is not None and one != "refused"]
            case "columns":
                rows = [{"id": rng.randrange(8), "hits": rng.randrange(9)} for _ in range(rng.randint(1, 5))]
                assert told(pushed.send_columns(rows))["rows"] == len(rows)
                for row in rows:
                    letters.append("u" if row["id"] in model else "c or u")
                    model[row["id"]] = row
            case "seal":
                pushed.seal()
            case _:
                pushed.stop()
                pushed = Pushed(tmp_path / "log")
    pushed.stop()
    there = [op for _, op in ops(tmp_path / "log")]
    # In bulk a missing key may be written as an update, never the other way round.
    assert len(there) == len(letters)
    assert all(op == said or (said == "c or u" and op in "cu") for op, said in zip(there, letters, strict=True))
    kept = {id_: {"id": id_, "hits": row["hits"]} for id_, row in table(tmp_path / "log").items()}
    assert kept == {id_: {"id": id_, "hits": row.get("hits")} for id_, row in model.items()}


def operation(rng: random.Random) -> dict[str, Any]:
    id_ = rng.randrange(8)
    match rng.choice(["put", "delete", "increment", "compare_and_set"]):
        case "put":
            return put(id_, hits=rng.randrange(9))
        case "delete":
            return {"op": "delete", "key": id_}
        case "increment":
            return {"op": "increment", "key": id_, "value": {"hits": 1}}
        case _:
            return {"op": "compare_and_set", "key": id_, "expect": {"hits": rng.randrange(9)}, "value": {"hits": 0}}


def expect(model: dict[int, dict[str, Any]], one: dict[str, Any]) -> str | None:
    """What an operation should become, done to the model."""
    id_ = one["value"]["id"] if one["op"] == "put" else one["key"]
    now = model.get(id_)
    match one["op"]:
        case "put":
            model[id_] = dict(one["value"])
            return "c" if now is None else "u"
        case "delete":
            return None if model.pop(id_, None) is None else "d"
        case "increment" if now is not None:
            model[id_] = {**now, "hits": now["hits"] + 1}
            return "u"
        case "compare_and_set" if now is not None and now["hits"] == one["expect"]["hits"]:
            model[id_] = {**now, "hits": 0}
            return "u"
    return "refused"


def test_counters_of_many_clients_lose_nothing(pushed: Pushed) -> None:
    """Concurrent increments: each answer is a different number, and offsets are in the same order."""
    pushed.send(put(1, hits=0))
    answers: list[tuple[int, int]] = []

    def add() -> None:
        for _ in range(25):
            [one] = told(pushed.send({"op": "increment", "key": 1, "value": {"hits": 1}}))["results"]
            answers.append((one["offset"], one["values"]["hits"]))

    threads = [threading.Thread(target=add) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [hits for _, hits in sorted(answers)] == list(range(1, 201))
    assert pushed.writer.checkpoint.cut < 200, "requests that wait together share a sync"


def test_tables_are_whole_from_the_beginning(pushed: Pushed) -> None:
    """A merge need not wait for a backfill, and an empty collection is a table."""
    tables = FolderReader(pushed.folder).newest_checkpoint().progress["tables"]
    assert isinstance(tables, dict)
    assert {name: (one["state"], one["since"]) for name, one in tables.items()} == {
        "push.orders": ("done", 1),
        str(TABLE.id): ("done", 1),
    }


def test_failed_sync_answers_no_request_and_ends_the_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer promises durability: without it no answer is sent, and no further request is accepted."""
    pushed = Pushed(tmp_path / "log")

    def fail(log: FileLog) -> object:
        raise SinkUnavailable("no room")

    with monkeypatch.context() as patch:
        patch.setattr(FileLog, "sync", fail)
        with pytest.raises(OutcomeUnknown, match="Idempotency-Key"):
            pushed.send(put(1))
    assert isinstance(pushed.writer.failure, SinkUnavailable)
    with pytest.raises(SinkUnavailable):
        pushed.send(put(2))
    pushed.stop()


def test_journal_is_sealed_by_its_age(tmp_path: Path) -> None:
    """A merge sees only what is sealed."""
    pushed = Pushed(tmp_path / "log", seal=Seal(age_max=0.1))
    pushed.send(put(1))
    wait_until(lambda: "segment sealed" in pushed.told, "a segment")
    pushed.stop()


def test_shape_of_the_collection_is_in_the_log(pushed: Pushed) -> None:
    """Types are exact, so that no reader has to guess."""
    types = {c.name: str(c.type.arrow) for c in ORDERS.table.columns}
    assert types == {"id": "int64", "note": "string", "hits": "int64", "at": "timestamp[us, tz=UTC]", "tags": "string"}
