"""The operations on a collection, checked against its schema; and what one operation does to one row.

    put               the whole row, whether the key exists or not
    delete            the row of a key; if it does not exist, nothing happens, and the answer reports that
    increment         numbers added to columns of an existing row
    compare_and_set   columns set, if the row has the values that are expected (null: if there is no row)

Nothing here depends on the log. Reasons name properties and what is wrong with them, never a value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from cdcflow.model.change import DELETE, INSERT, UPDATE
from cdcflow.push.schemas import INTEGER_MAX, INTEGER_MIN, CollectionShape, Wrong

OPERATIONS_MAX = 10_000
"""The maximum number of operations in a request. For more rows use an Arrow stream."""
Kind = Literal["put", "delete", "increment", "compare_and_set"]
Code = Literal["invalid", "absent", "mismatch"]
Row = Mapping[str, Any]
_MEMBERS: Mapping[str, frozenset[str]] = {
    "put": frozenset(("op", "key", "value")),
    "delete": frozenset(("op", "key")),
    "increment": frozenset(("op", "key", "value")),
    "compare_and_set": frozenset(("op", "key", "value", "expect")),
}


@dataclass(frozen=True, slots=True)
class OperationFailure:
    """The failure of an operation.

    `invalid`: it can never succeed; `absent`: its row does not exist; `mismatch`: the row is not as expected. `number`
    counts the operations (or rows) of the request from 1.
    """

    number: int
    code: Code
    detail: str

    def to_json(self) -> dict[str, object]:
        return {"number": self.number, "code": self.code, "detail": self.detail}


@dataclass(frozen=True, slots=True)
class RowOperation:
    """One operation. `values`: the whole row, the columns to set, or the numbers to add. `expect` `None`: expects no
    row."""

    number: int
    kind: Kind
    key: tuple[Any, ...]
    values: Row = field(default_factory=dict)
    expect: Row | None = None


@dataclass(frozen=True, slots=True)
class Done:
    """The result for a row: the letter of its change (`None`: nothing changed), and the row.

    `row` is the row afterwards, or the deleted one; `None` if there is no row. `told`: columns whose new value the
    answer contains.
    """

    op: str | None
    row: Row | None
    told: tuple[str, ...] = ()


def parse_operations(shape: CollectionShape, given: Any) -> list[RowOperation | OperationFailure]:
    """Return the operations of a request: a list of them, or one.

    Raises:
        Wrong: it is neither, or there are too many.
    """
    listed = [given] if isinstance(given, Mapping) else given
    if not isinstance(listed, Sequence) or isinstance(listed, str) or not listed:
        raise Wrong("the body must be a list of operations, each an object with op")
    if len(listed) > OPERATIONS_MAX:
        raise Wrong(f"a request has at most {OPERATIONS_MAX} operations; send several, or rows as an Arrow stream")
    return [_parse_one(shape, number, one) for number, one in enumerate(listed, 1)]


def apply_operation(shape: CollectionShape, operation: RowOperation, now: Row | None) -> Done | OperationFailure:
    """Return the result of an operation on a row whose current state is `now` (`None` if there is no row)."""
    match operation.kind:
        case "put":
            return Done(INSERT if now is None else UPDATE, operation.values)
        case "delete":
            return Done(None if now is None else DELETE, now)
        case "increment":
            return _increment(shape, operation, now)
        case "compare_and_set":
            return _set(shape, operation, now)


# ── inside ──────────────────────────────────────────────────────────────────────────────────────────────────


def _parse_one(shape: CollectionShape, number: int, given: Any) -> RowOperation | OperationFailure:
    try:
        return _operation(shape, number, given)
    except Wrong as error:
        return OperationFailure(number, "invalid", error.reason)


def _operation(shape: CollectionShape, number: int, given: Any) -> RowOperation:
    kind = given.get("op") if isinstance(given, Mapping) else None
    if not isinstance(kind, str) or kind not in _MEMBERS:
        raise Wrong(f"op: must be one of {', '.join(_MEMBERS)}")
    if given.keys() - _MEMBERS[kind]:
        raise Wrong(f"{kind} has {', '.join(sorted(_MEMBERS[kind]))} and nothing else")
    match kind:
        case "put":
            return _put(shape, number, given)
        case "delete":
            return RowOperation(number, "delete", _key(shape, given))
        case "increment":
            return RowOperation(number, "increment", _key(shape, given), _amounts(shape, given.get("value")))
        case _:
            if "expect" not in given:
                raise Wrong("expect: missing; null means that there must be no row")
            expect = None if given["expect"] is None else _part(shape, "expect", given["expect"])
            values = _part(shape, "value", given.get("value"))
            key = _key(shape, given)
            if expect is None:
                values = _whole(shape, key, given.get("value"))
            return RowOperation(number, "compare_and_set", key, values, expect)


def _put(shape: CollectionShape, number: int, given: Mapping[str, Any]) -> RowOperation:
    if "key" not in given:
        row = shape.row(given.get("value"))
        return RowOperation(number, "put", tuple(row[name] for name in shape.table.key), row)
    key = _key(shape, given)
    return RowOperation(number, "put", key, _whole(shape, key, given.get("value")))


def _whole(shape: CollectionShape, key: tuple[Any, ...], given: Any) -> Row:
    """Return a whole row. Its key may be given in the row or separately."""
    if not isinstance(given, Mapping):
        raise Wrong("value: not an object")
    values = shape.part(given)
    own = dict(zip(shape.table.key, key, strict=True))
    if any(name in values and values[name] != value for name, value in own.items()):
        raise Wrong("value: another key than the operation's")
    row = {**dict.fromkeys(shape.properties), **values, **own}
    if missing := sorted(name for name in shape.required if row[name] is None):
        raise Wrong(f"{', '.join(missing)}: missing")
    return row


def _key(shape: CollectionShape, given: Mapping[str, Any]) -> tuple[Any, ...]:
    if "key" not in given:
        raise Wrong("key: missing")
    return shape.key(given["key"])


def _part(shape: CollectionShape, member: str, given: Any) -> Row:
    if not isinstance(given, Mapping):
        raise Wrong(f"{member}: not an object")
    return shape.part(given)


def _amounts(shape: CollectionShape, given: Any) -> Row:
    if not isinstance(given, Mapping) or not given:
        raise Wrong("value: must name columns, each with the number to add")
    for name in given:
        known = shape.properties.get(name)
        if known is None or known.kind not in ("integer", "number") or name in shape.table.key:
            raise Wrong("value: only columns that are numbers, and no part of the key, are incremented")
    try:
        # The bounds of the schema apply to the sum, not to what is added.
        return {name: shape.properties[name].read(amount) for name, amount in given.items()}
    except Wrong as error:
        raise Wrong(f"value: {error.reason}") from None


def _increment(shape: CollectionShape, operation: RowOperation, now: Row | None) -> Done | OperationFailure:
    if now is None:
        return OperationFailure(operation.number, "absent", "there is no row to increment; put it first")
    row = dict(now)
    for name, amount in operation.values.items():
        total = (row[name] or 0) + amount
        if shape.properties[name].kind == "integer" and not INTEGER_MIN <= total <= INTEGER_MAX:
            return OperationFailure(operation.number, "invalid", f"{name}: the sum does not fit into 64 bits")
        try:
            row[name] = shape.properties[name].value(total)
        except Wrong as error:
            return OperationFailure(operation.number, "invalid", f"the sum of {error.reason}")
    return Done(UPDATE, row, tuple(operation.values))


def _set(shape: CollectionShape, operation: RowOperation, now: Row | None) -> Done | OperationFailure:
    if operation.expect is None:
        if now is not None:
            return OperationFailure(operation.number, "mismatch", "there is a row, but no row was expected")
        return Done(INSERT, operation.values)
    if now is None:
        return OperationFailure(operation.number, "absent", "there is no row, and one was expected")
    differing = [name for name, value in operation.expect.items() if now[name] != value]
    if differing:
        return OperationFailure(operation.number, "mismatch", f"{', '.join(differing)}: not as expected")
    if any(operation.values.get(name, now[name]) != now[name] for name in shape.table.key):
        return OperationFailure(operation.number, "invalid", "value: another key than the operation's")
    return Done(UPDATE, {**now, **operation.values})
