"""Compiles expressions over the columns of a table to functions over Arrow arrays, with the type of their result. Pure.

Operands get a common type first: integers the wider one, integers and decimals a decimal that holds both, doubles with
any number a double. A text in quotes becomes a value of the type that it is compared with. Where databases disagree
about a result (the quotient of two integers, the text of a timestamp), the expression is refused, with what to write
instead.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from cdcflow.config.expressions import Call, Cast, ColumnName, Constant, Expression, json_path
from cdcflow.model.suggestions import did_you_mean
from cdcflow.sources.rows import kernels
from cdcflow.sources.rows.kernels import Evaluate, InputRows, Value, as_array, convert
from cdcflow.sources.rows.text_comparisons import SourceText, obstacle_of, uuid_text

BOOLEAN, TEXT, DOUBLE, BIGINT = pa.bool_(), pa.string(), pa.float64(), pa.int64()
DATE, TIMESTAMP, TIMESTAMPTZ = pa.date32(), pa.timestamp("us"), pa.timestamp("us", tz="UTC")
_CASTS: Mapping[str, pa.DataType] = {
    "bigint": BIGINT,
    "boolean": BOOLEAN,
    "date": DATE,
    "double": DOUBLE,
    "integer": pa.int32(),
    "smallint": pa.int16(),
    "text": TEXT,
    "timestamp": TIMESTAMP,
    "timestamptz": TIMESTAMPTZ,
}
_COMPARISONS = ("=", "<>", "<", "<=", ">", ">=")
_UNITS = ("year", "quarter", "month", "week", "day", "hour", "minute", "second")


NOT_FOLLOWED: Mapping[str, str] = {}
NO_SOURCES: Mapping[str, str] = {}


class Unusable(Exception):
    """Raised when an expression does not fit the table. The message can be shown after the name of its setting."""


class UnknownColumn(Unusable):
    """Raised when the table has no column of that name."""


@dataclass(frozen=True, slots=True)
class ColumnFunction:
    """A compiled expression. `columns`: the names of the columns that it uses. `can_fail`: it raises pa.ArrowException
    for some values. `constant`: the constant as written, if it is one. `texts`: the columns whose texts are its values,
    unchanged. `compared`: the columns whose texts it compares."""

    arrow: pa.DataType
    columns: frozenset[str]
    evaluate: Evaluate
    can_fail: bool = False
    constant: Constant | None = None
    texts: tuple[SourceText, ...] = ()
    compared: frozenset[str] = frozenset()


def compile_expression(
    expression: Expression,
    schema: pa.Schema,
    optional: frozenset[str] = frozenset(),
    followed: Mapping[str, str] = NOT_FOLLOWED,
    sources: Mapping[str, str] = NO_SOURCES,
) -> ColumnFunction:
    """Compile an expression.

    `schema`: the table's columns. `optional`: names in lower case of columns that it may lack, and which COALESCE then
    ignores. `followed`: maps names in the expression (see `name_written`) to the present names of columns that were
    renamed. `sources`: the types at the source of columns whose values are text.

    Raises:
        Unusable: a column does not exist, or an operator does not support the types of its operands.
    """
    match expression:
        case ColumnName():
            return _column(expression, schema, followed, sources)
        case Constant():
            return _constant(expression)
        case Cast(operand, name, digits):
            arrow = pa.decimal128(*digits) if digits else _CASTS[name]
            return _cast(compile_expression(operand, schema, optional, followed, sources), arrow, name)
        case Call(name, operands):
            if name == "coalesce" and optional:
                operands = _that_exist(operands, schema, optional, followed)
            found = [compile_expression(operand, schema, optional, followed, sources) for operand in operands]
            return _call(name, found)


def columns_named(expression: Expression, schema: pa.Schema, followed: Mapping[str, str]) -> dict[str, str]:
    """Map the names of columns in an expression, as `name_written` has them, to the column that each means.

    Names without one column are not in the result.
    """
    match expression:
        case ColumnName():
            found = _columns_called(expression, schema, followed)
            return {name_written(expression): found[0]} if len(found) == 1 else {}
        case Constant():
            return {}
        case Cast(operand):
            return columns_named(operand, schema, followed)
        case Call(_, operands):
            return {k: v for one in operands for k, v in columns_named(one, schema, followed).items()}


def name_written(column: ColumnName) -> str:
    """Return a text that identifies a name in an expression: in lower case unless it is quoted, as names are
    compared."""
    return f'"{column.name}"' if column.is_quoted else column.name.lower()


# ── columns and constants ───────────────────────────────────────────────────────────────────────────────────


def _column(
    column: ColumnName, schema: pa.Schema, followed: Mapping[str, str], sources: Mapping[str, str]
) -> ColumnFunction:
    found = _columns_called(column, schema, followed)
    if not found:
        meant = did_you_mean(column.name, schema.names).strip()
        raise UnknownColumn(f"uses the unknown column {column.name}; {meant}".rstrip("; "))
    if len(found) > 1:
        raise Unusable(f"uses column {column.name}; which several columns are called: write it in double quotes")
    name = found[0]
    arrow = schema.field(name).type
    texts = (SourceText(name, sources[name]),) if name in sources else ()
    return ColumnFunction(arrow, frozenset([name]), lambda rows: rows.columns[name], texts=texts)


def _columns_called(column: ColumnName, schema: pa.Schema, followed: Mapping[str, str]) -> list[str]:
    """Return the columns that a name means."""
    if (renamed := followed.get(name_written(column))) is not None:
        return [renamed]
    names: list[str] = schema.names
    found = [n for n in names if n == column.name]
    if not found and not column.is_quoted:
        found = [n for n in names if n.lower() == column.name.lower()]
    return found


def _that_exist(
    operands: tuple[Expression, ...], schema: pa.Schema, optional: frozenset[str], followed: Mapping[str, str]
) -> tuple[Expression, ...]:
    """Return the operands without optional columns that the table lacks; but if no other operand is a column, return
    all."""
    left = tuple(
        one
        for one in operands
        if not isinstance(one, ColumnName) or one.name.lower() not in optional or _columns_called(one, schema, followed)
    )
    return left if any(isinstance(one, ColumnName) for one in left) else operands


def _constant(constant: Constant) -> ColumnFunction:
    text = constant.text
    match constant.type:
        case "integer" | "decimal":
            digits = _digits(constant)
            if digits is None:
                raise Unusable(f"has the number {text}, which has more than {kernels.DECIMAL128_DIGITS} digits")
            arrow = BIGINT if constant.type == "integer" and digits.precision <= 18 else digits
        case "boolean":
            arrow = BOOLEAN
        case "null":
            return _scalar(pa.scalar(None, pa.null()), constant)
        case "date":
            arrow = DATE
        case "timestamp":
            arrow = TIMESTAMP
        case "text":
            arrow = TEXT
    return _scalar(_scalar_of(text, arrow), constant)


def _scalar(scalar: pa.Scalar, constant: Constant | None = None) -> ColumnFunction:
    return ColumnFunction(scalar.type, frozenset(), lambda rows: scalar, constant=constant)


def _scalar_of(text: str, arrow: pa.DataType) -> pa.Scalar:
    """Return a constant as a value of a type.

    Raises:
        Unusable: the constant is not a value of that type.
    """
    try:
        if arrow == TIMESTAMPTZ:
            try:
                return pc.cast(pa.array([text]), TIMESTAMPTZ)[0]
            except pa.ArrowException:  # without an offset it is in UTC
                return pc.cast(pc.cast(pa.array([text]), TIMESTAMP), TIMESTAMPTZ)[0]
        return pc.cast(pa.array([text]), arrow)[0]
    except pa.ArrowException:
        raise Unusable(f"has the constant '{text}', which is not a value of type {arrow}") from None


# ── common types ────────────────────────────────────────────────────────────────────────────────────────────


def _alike(operands: Sequence[ColumnFunction], sign: str) -> list[ColumnFunction]:
    """Convert operands to a common type."""
    typed = [one.arrow for one in operands if not _is_loose(one)]
    if not typed:
        typed = [one.arrow for one in operands if one.arrow != pa.null()] or [TEXT]
    arrow = functools.reduce(lambda a, b: _common(a, b, sign), typed)
    for one in operands:
        if _is_loose(one) and one.constant is not None and one.constant.type in ("integer", "decimal"):
            arrow = _common_with_number(arrow, one, sign)
    return [_in_type(one, arrow) for one in operands]


def _is_loose(one: ColumnFunction) -> bool:
    """Whether the operand is a constant that takes the type of the other operands."""
    return one.constant is not None and one.constant.type in ("text", "null", "integer", "decimal")


def _common_with_number(arrow: pa.DataType, one: ColumnFunction, sign: str) -> pa.DataType:
    assert one.constant is not None  # noqa: S101  the caller has asked
    if pa.types.is_integer(arrow) and one.constant.type == "integer":
        try:
            pc.cast(pa.array([one.constant.text]), arrow)
            return arrow
        except pa.ArrowException:
            pass
    return _common(arrow, one.arrow, sign)


def _common(a: pa.DataType, b: pa.DataType, sign: str) -> pa.DataType:
    if a == b or b == pa.null():
        return a
    if a == pa.null():
        return b
    if _is_number(a) and _is_number(b):
        return _common_number(a, b)
    if {a, b} == {DATE, TIMESTAMP}:
        return TIMESTAMP
    raise Unusable(f"uses {sign} with {a} and {b}: CAST one of them")


def _common_number(a: pa.DataType, b: pa.DataType) -> pa.DataType:
    if pa.types.is_floating(a) or pa.types.is_floating(b):
        return DOUBLE
    if pa.types.is_integer(a) and pa.types.is_integer(b) and pa.uint64() not in (a, b):
        bits = [t.bit_width * (1 if pa.types.is_signed_integer(t) else 2) for t in (a, b)]
        return {8: pa.int8(), 16: pa.int16(), 32: pa.int32(), 64: BIGINT}[max(bits)]
    one, other = _as_decimal(a), _as_decimal(b)
    scale = max(one.scale, other.scale)
    return _decimal(max(one.precision - one.scale, other.precision - other.scale) + scale, scale)


def _as_decimal(arrow: pa.DataType) -> pa.DataType:
    if pa.types.is_decimal(arrow):
        return arrow
    digits = {8: 3, 16: 5, 32: 10, 64: 19}[arrow.bit_width]
    return pa.decimal128(20 if arrow == pa.uint64() else digits, 0)


def _decimal(precision: int, scale: int) -> pa.DataType:
    if precision > 76:
        raise Unusable("calculates a decimal with more than 76 digits: CAST an operand to a shorter one or to double")
    return (
        pa.decimal128(precision, scale) if precision <= kernels.DECIMAL128_DIGITS else pa.decimal256(precision, scale)
    )


def _in_type(one: ColumnFunction, arrow: pa.DataType) -> ColumnFunction:
    if one.arrow == arrow:
        return one
    if one.constant is not None:
        if one.constant.type == "null":
            return _scalar(pa.scalar(None, arrow), one.constant)
        return replace(_scalar(_scalar_of(one.constant.text, arrow)), constant=one.constant)
    evaluate = one.evaluate
    return replace(one, arrow=arrow, evaluate=lambda rows: convert(evaluate(rows), arrow), constant=None)


def _is_number(arrow: pa.DataType) -> bool:
    return bool(pa.types.is_integer(arrow) or pa.types.is_decimal(arrow) or pa.types.is_floating(arrow))


def _is_time(arrow: pa.DataType) -> bool:
    return arrow == DATE or bool(pa.types.is_timestamp(arrow))


# ── operators and functions ─────────────────────────────────────────────────────────────────────────────────


def _call(name: str, operands: list[ColumnFunction]) -> ColumnFunction:
    if name in _COMPARISONS or name in ("is distinct from", "between", "in"):
        return _comparison(name, operands)
    if name in ("and", "or", "not", "is true", "is false"):
        return _logic(name, operands)
    if name in ("+", "-", "*", "/", "%", "negate", "abs", "ceil", "floor"):
        return _arithmetic(name, operands)
    if name in ("case", "coalesce", "nullif"):
        return _choice(name, operands)
    if name == "is null":
        return _result(BOOLEAN, operands, pc.is_null)
    if name == "->>":
        path = json_path(_literal(operands[1], "->>", "text"))
        [document] = _operands_of_type(operands[:1], TEXT, "->>")
        return _result(TEXT, [document], lambda values: kernels.json_text(values, path), can_fail=True)
    if name in ("date_trunc", "year", "month", "day", "hour", "minute"):
        return _time(name, operands)
    return _text(name, operands)


def _result(
    arrow: pa.DataType, operands: Sequence[ColumnFunction], kernel: Callable[..., Value], *, can_fail: bool = False
) -> ColumnFunction:
    """Return the function that applies a kernel to the operands' values."""
    columns = frozenset[str]().union(*(one.columns for one in operands))
    parts = [one.evaluate for one in operands]
    compared = frozenset[str]().union(*(one.compared for one in operands))
    fails = can_fail or any(one.can_fail for one in operands)
    return ColumnFunction(
        arrow, columns, lambda rows: kernel(*[part(rows) for part in parts]), fails, compared=compared
    )


def _operands_of_type(operands: Sequence[ColumnFunction], arrow: pa.DataType, name: str) -> list[ColumnFunction]:
    """Convert operands that must have a type to that type."""
    for one in operands:
        if one.arrow not in (arrow, pa.null()):
            raise Unusable(f"uses {name.upper()} with {one.arrow}, and it takes {arrow}: CAST it")
    return [_in_type(one, arrow) for one in operands]


def _comparison(name: str, operands: list[ColumnFunction]) -> ColumnFunction:
    found = _comparable(_alike(operands, name.upper()), name)
    if pa.types.is_nested(found[0].arrow):
        raise Unusable(f"uses {name.upper()} with {found[0].arrow}, which cannot be compared")
    match name:
        case "is distinct from":
            return _result(BOOLEAN, found, kernels.differs)
        case "between":
            return _result(
                BOOLEAN,
                found,
                lambda v, a, b: pc.and_kleene(kernels.compare(">=", v, a), kernels.compare("<=", v, b)),
            )
        case "in":
            return _among(found)
    return _result(BOOLEAN, found, functools.partial(kernels.compare, name))


def _comparable(operands: list[ColumnFunction], name: str) -> list[ColumnFunction]:
    """Convert operands to one type. Texts are compared as their source would compare them."""
    texts = [text for one in operands for text in one.texts]
    if (why := obstacle_of(texts, name)) is not None:
        raise Unusable(why)
    compared = frozenset(text.column for text in texts)
    found = [_uuid(one) for one in operands] if any(text.is_uuid for text in texts) else operands
    return [replace(one, compared=one.compared | compared) for one in found]


def _uuid(one: ColumnFunction) -> ColumnFunction:
    if one.constant is None or one.constant.type != "text":
        return one
    try:
        return _scalar(pa.scalar(uuid_text(one.constant.text)), one.constant)
    except ValueError:
        raise Unusable(f"has the constant '{one.constant.text}', which is not a value of type uuid") from None


def _among(operands: list[ColumnFunction]) -> ColumnFunction:
    tested, *listed = operands
    if any(one.constant is None or one.constant.type == "null" for one in listed) or pa.types.is_floating(tested.arrow):
        return _result(BOOLEAN, operands, lambda value, *others: kernels.among(value, others))
    none = InputRows({}, 1)
    known = pa.concat_arrays([as_array(one.evaluate(none), 1) for one in listed])

    def among(value: Value) -> Value:
        return pc.if_else(pc.is_valid(value), pc.is_in(value, known), pa.scalar(None, BOOLEAN))

    return _result(BOOLEAN, [tested], among)


def _logic(name: str, operands: list[ColumnFunction]) -> ColumnFunction:
    found = _operands_of_type(operands, BOOLEAN, name)
    match name:
        case "not":
            return _result(BOOLEAN, found, pc.invert)
        case "is true":
            return _result(BOOLEAN, found, kernels.is_true)
        case "is false":
            return _result(BOOLEAN, found, kernels.is_false)
    if found[1].can_fail:
        join = kernels.and_then if name == "and" else kernels.or_else
        made = _result(BOOLEAN, found, pc.and_kleene)
        return replace(made, evaluate=join(found[0].evaluate, found[1].evaluate))
    return _result(BOOLEAN, found, pc.and_kleene if name == "and" else pc.or_kleene)


def _arithmetic(name: str, operands: list[ColumnFunction]) -> ColumnFunction:
    for one in operands:
        if not _is_number(one.arrow) and one.arrow != pa.null():
            raise Unusable(f"uses {name.upper()} with {one.arrow}, which is not a number: CAST it")
    kinds = [_type_to_calculate(one.arrow) for one in operands]
    arrow = functools.reduce(_common_number, kinds)
    if name in ("/", "%") and arrow != (DOUBLE if name == "/" else BIGINT):
        raise Unusable(
            "divides numbers that are not doubles, for which databases have different results: "
            "write CAST(… AS double) / …"
            if name == "/"
            else f"uses % with {arrow}, and it takes integers"
        )
    if pa.types.is_decimal(arrow):
        pairs = zip(operands, kinds, strict=True)
        return _decimals(name, [_in_type(one, _digits_of(one) or _as_decimal(kind)) for one, kind in pairs])
    found = [_in_type(one, arrow) for one in operands]
    kernel = {
        "+": pc.add_checked,
        "-": pc.subtract_checked,
        "*": pc.multiply_checked,
        "/": kernels.divide,
        "%": kernels.remainder,
        "negate": pc.negate_checked,
        "abs": pc.abs_checked,
        "ceil": pc.ceil,
        "floor": pc.floor,
    }[name]
    if name in ("ceil", "floor") and arrow == BIGINT:
        return found[0]
    return _result(arrow, found, kernel, can_fail=True)


def _type_to_calculate(arrow: pa.DataType) -> pa.DataType:
    """Return the type in which operators calculate with a number."""
    if pa.types.is_floating(arrow):
        return DOUBLE
    if arrow == pa.null() or (pa.types.is_integer(arrow) and arrow != pa.uint64()):
        return BIGINT
    return _as_decimal(arrow)


def _decimals(name: str, operands: list[ColumnFunction]) -> ColumnFunction:
    """Return an operator or a function on decimals; the result has as many digits as it needs to be exact."""
    types = [one.arrow for one in operands]
    scale = max(t.scale for t in types)
    whole = max(t.precision - t.scale for t in types)
    match name:
        case "*":
            # Arrow's product of two decimals has the sum of their digits, and one more; their sum has one more.
            arrow = _decimal(sum(t.precision for t in types) + 1, sum(t.scale for t in types))
            return _result(
                arrow, [_in_type(o, _as_wide(arrow, o.arrow.precision, o.arrow.scale)) for o in operands], pc.multiply
            )
        case "+" | "-":
            arrow = _decimal(whole + scale + 1, scale)
            found = [_in_type(one, _as_wide(arrow, whole + scale, scale)) for one in operands]
            return _result(arrow, found, pc.add if name == "+" else pc.subtract)
        case "negate" | "abs":
            return _result(types[0], operands, pc.negate if name == "negate" else pc.abs)
    arrow = _decimal(whole + 1, 0)
    rounding = pc.ceil if name == "ceil" else pc.floor
    wider = _in_type(operands[0], _decimal(whole + 1 + scale, scale))
    return _result(arrow, [wider], lambda value: pc.cast(rounding(value), arrow))


def _as_wide(arrow: pa.DataType, precision: int, scale: int) -> pa.DataType:
    """Return a decimal type with as many bytes as another."""
    return (pa.decimal128 if pa.types.is_decimal128(arrow) else pa.decimal256)(precision, scale)


def _digits_of(one: ColumnFunction) -> pa.DataType | None:
    is_number = one.constant is not None and one.constant.type in ("integer", "decimal")
    return _digits(one.constant) if one.constant is not None and is_number else None


def _digits(number: Constant) -> pa.DataType | None:
    """Return the shortest decimal type for a number."""
    whole, _, fraction = number.text.lstrip("-").partition(".")
    digits = max(len(whole.lstrip("0")) + len(fraction), 1)
    return pa.decimal128(digits, len(fraction)) if digits <= kernels.DECIMAL128_DIGITS else None


def _choice(name: str, operands: list[ColumnFunction]) -> ColumnFunction:
    if name == "nullif":
        a, b = _comparable(_alike(operands, "NULLIF"), name)
        first = operands[0] if operands[0].constant is None else a
        made = _result(first.arrow, [first, a, b], lambda value, x, y: _null_if(value, kernels.compare("=", x, y)))
        return _with_texts(made, [first])
    if name == "coalesce":
        found = _alike(operands, "COALESCE")
        if not any(one.can_fail for one in found[1:]):
            return _with_texts(_result(found[0].arrow, found, pc.coalesce), found)
        tests = [_result(BOOLEAN, [one], pc.is_valid) for one in found]
        return _cases(list(zip(tests, found, strict=True))[:-1], found[-1])
    conditions = _operands_of_type(operands[:-1:2], BOOLEAN, "WHEN")
    values = _alike([*operands[1::2], operands[-1]], "CASE")
    return _cases(list(zip(conditions, values, strict=False)), values[-1])


def _null_if(value: Value, same: Value) -> Value:
    return pc.if_else(kernels.is_true(same), pa.scalar(None, value.type), value)


def _cases(branches: list[tuple[ColumnFunction, ColumnFunction]], otherwise: ColumnFunction) -> ColumnFunction:
    made = _result(otherwise.arrow, [one for branch in branches for one in branch] + [otherwise], pc.coalesce)
    made = replace(made, evaluate=kernels.case([(c.evaluate, v.evaluate) for c, v in branches], otherwise.evaluate))
    return _with_texts(made, [*(value for _, value in branches), otherwise])


def _with_texts(made: ColumnFunction, values: Sequence[ColumnFunction]) -> ColumnFunction:
    """Return a function whose values are unchanged values of others, with the texts of those."""
    return replace(made, texts=tuple(text for one in values for text in one.texts))


def _time(name: str, operands: list[ColumnFunction]) -> ColumnFunction:
    value = operands[-1]
    if not _is_time(value.arrow):
        raise Unusable(f"uses {name.upper()} with {value.arrow}, which is neither a date nor a timestamp: CAST it")
    if name == "date_trunc":
        unit = _literal(operands[0], name, "text").lower()
        if unit not in _UNITS:
            near = did_you_mean(unit, _UNITS).strip() or f"known are {', '.join(_UNITS)}"
            raise Unusable(f"has date_trunc with the unknown unit '{unit}': {near}")
        return _result(value.arrow, [value], lambda v: _truncate(v, unit))
    if value.arrow == DATE and name in ("hour", "minute"):
        raise Unusable(f"uses {name.upper()} with a date")
    part = {"year": pc.year, "month": pc.month, "day": pc.day, "hour": pc.hour, "minute": pc.minute}[name]
    return _result(BIGINT, [value], lambda v: pc.cast(part(_local(v)), BIGINT))


def _local(value: Value) -> Value:
    """Return a timestamp in UTC without a time zone, so that no database of time zones is needed."""
    return pc.cast(value, TIMESTAMP) if pa.types.is_timestamp(value.type) else value


def _truncate(value: Value, unit: str) -> Value:
    if unit in ("hour", "minute", "second") and value.type == DATE:
        return value
    found = pc.floor_temporal(_local(value), unit=unit)
    return pc.cast(found, value.type)


def _literal(one: ColumnFunction, name: str, kind: str) -> str:
    if one.constant is None or one.constant.type != kind:
        raise Unusable(f"uses {name.upper()} with something else than a constant ({kind})")
    return one.constant.text


def _text(name: str, operands: list[ColumnFunction]) -> ColumnFunction:
    if name in ("substr", "left", "right"):
        return _part_of_text(name, operands)
    found = _operands_of_type(operands, TEXT, name)
    match name:
        case "||":
            return _result(TEXT, found, lambda a, b: pc.binary_join_element_wise(a, b, ""))
        case "concat":
            return _result(TEXT, found, lambda *v: pc.binary_join_element_wise(*v, "", null_handling="skip"))
        case "like" | "ilike":
            pattern = _literal(operands[1], name, "text")
            ignore_case = name == "ilike"
            found = found if ignore_case else _comparable(found, name)
            return _result(BOOLEAN, found[:1], lambda v: pc.match_like(v, pattern, ignore_case=ignore_case))
        case "char_length":
            return _result(BIGINT, found, lambda v: pc.cast(pc.utf8_length(v), BIGINT))
        case "replace":
            old, new = (_literal(one, name, "text") for one in operands[1:])
            return _result(TEXT, found[:1], lambda v: pc.replace_substring(v, old, new) if old else v)
        case "trim":
            return _result(TEXT, found, lambda v: pc.utf8_trim(v, " "))
    return _result(TEXT, found, pc.utf8_lower if name == "lower" else pc.utf8_upper)


def _part_of_text(name: str, operands: list[ColumnFunction]) -> ColumnFunction:
    found = _operands_of_type(operands[:1], TEXT, name)
    numbers = [int(_literal(one, name, "integer")) for one in operands[1:]]
    if min(numbers) < 0 or (name == "substr" and numbers[0] < 1):
        raise Unusable(
            f"has {name} with a place before the first character, for which databases have different results"
        )
    if name == "left":
        start, stop = 0, numbers[0]
    elif name == "right":
        if not numbers[0]:
            return _result(TEXT, found, lambda v: pc.utf8_slice_codeunits(v, 0, 0))
        start, stop = -numbers[0], None
    else:
        start, stop = numbers[0] - 1, sum(numbers) - 1 if len(numbers) == 2 else None
    return _result(TEXT, found, lambda v: pc.utf8_slice_codeunits(v, start, stop))


# ── casts ───────────────────────────────────────────────────────────────────────────────────────────────────


def _cast(one: ColumnFunction, arrow: pa.DataType, name: str) -> ColumnFunction:
    """Return a CAST. A value that the type does not hold is an error; only decimals are rounded."""
    given = one.arrow
    if one.constant is not None and one.constant.type == "null":
        return _scalar(pa.scalar(None, arrow))
    if one.constant is not None and one.constant.type == "text":
        return _scalar(_scalar_of(one.constant.text, arrow))
    if given == arrow:
        return replace(one, constant=None, texts=())
    is_text = given == TEXT
    if pa.types.is_decimal(arrow) and (pa.types.is_decimal(given) or is_text):
        return _result(arrow, [one], lambda v: kernels.round_decimal(v, arrow), can_fail=True)
    if _is_number(arrow) and _is_number(given):
        fails = not (arrow == DOUBLE and pa.types.is_integer(given))
        return _result(arrow, [one], lambda v: convert(v, arrow), can_fail=fails)
    if arrow == TEXT and (pa.types.is_integer(given) or pa.types.is_decimal(given) or given in (BOOLEAN, DATE)):
        return _result(arrow, [one], lambda v: pc.cast(v, TEXT))
    if is_text and (_is_number(arrow) or arrow in (BOOLEAN, DATE, TIMESTAMP, TIMESTAMPTZ)):
        return _result(arrow, [one], lambda v: pc.cast(v, arrow), can_fail=True)
    if _is_time(given) and _is_time(arrow):
        return _result(arrow, [one], lambda v: _convert_time(v, arrow))
    raise Unusable(f"casts {given} to {name}, for which databases have different results")


def _convert_time(value: Value, arrow: pa.DataType) -> Value:
    """Convert between dates and timestamps, in UTC."""
    if arrow == DATE:
        return pc.cast(pc.floor_temporal(_local(value), unit="day"), DATE)
    return pc.cast(pc.cast(_local(value), TIMESTAMP), arrow)
