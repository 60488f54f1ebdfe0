"""One policy on one column: the column as it leaves the source, and its values.

| policy   | the column's type | values                                     | for keys |
| -------- | ----------------- | ------------------------------------------ | -------- |
| drop     | no column         |                                            | no       |
| null     | unchanged         | NULL                                       | no       |
| constant | unchanged         | the constant                               | no       |
| mask     | text              | `****`, and perhaps the last characters    | no       |
| truncate | unchanged         | the first characters of text or bytes      | no       |
| hash     | text              | HMAC-SHA-256                               | yes      |
| encrypt  | text              | AES-GCM-SIV, the same for the same value   | yes      |
| `key_by` | text              | the same for the same value and person     | no       |
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

import pyarrow as pa

from cdcflow.config.columns import ColumnKey, ColumnRule, EncryptionKey
from cdcflow.errors import ConfigurationError, TableMisfit
from cdcflow.model.keytexts import values
from cdcflow.model.table import Column, TableId
from cdcflow.model.types import ERASABLE, HASHED, ColumnType
from cdcflow.sources.privacy.kernels import Convert, bytes_of, constant_of, mask_of, nulls_of, text_of, truncate_of
from cdcflow.sources.privacy.person_keys import PersonEncryption, PersonKeys
from cdcflow.sources.privacy.secret_keys import PolicyKey

_TEXTS = re.compile(
    r"(n?char|character|n?varchar|character varying|text|citext|(tiny|medium|long)text"
    r"|bytea|binary|varbinary|(tiny|medium|long)?blob)\b",
    re.IGNORECASE,
)
"""The types, as servers name them, for which the beginning of a value is a value too."""


@dataclass(frozen=True, slots=True)
class PrivacyPolicy:
    """A policy for columns. `text` describes it without a secret, and is equal for equal policies; `key` is the key of
    `hash` and `encrypt`; `persons` encrypts by persons, for a policy with `key_by`."""

    rule: ColumnRule
    text: str
    key: PolicyKey | None = None
    persons: PersonEncryption | None = None

    @classmethod
    def of(cls, rule: ColumnRule, persons: PersonKeys | None = None) -> PrivacyPolicy:
        """Create the policy of a rule. `persons`: the keys for policies with `key_by`. Raises ConfigurationError if the
        policy's key cannot be used."""
        name = rule.kind
        if rule.word is not None:
            return cls(rule, name)
        given = getattr(rule, name)
        if isinstance(given, ColumnKey):
            key = PolicyKey.read(given)
            text = f"{name} with key {key.prefix}{key.fingerprint}"
            if not isinstance(given, EncryptionKey) or not given.key_by:
                return cls(rule, text, key)
            if persons is None:
                raise ConfigurationError(
                    "tables: a policy has key_by, and the keys of persons cannot be used here", runbook="person-keys"
                )
            return cls(rule, f"{text} by {' or '.join(given.key_by)}", key, PersonEncryption(key, persons))
        if name == "mask":
            return cls(rule, f"mask, keep_last {given.keep_last}" if given.keep_last else "mask")
        # The text may contain the constant, because it is a setting and not a row's value.
        return cls(rule, f"{name} {given!r}")

    @property
    def key_by(self) -> tuple[str, ...]:
        """The name of the column whose values are the persons that the policy encrypts by; empty if it does not."""
        return self.rule.key_by

    @property
    def is_for_keys(self) -> bool:
        return self.key is not None and self.persons is None

    @property
    def is_reversible(self) -> bool:
        return self.rule.encrypt is not None and self.persons is None

    def apply(self, table: TableId, column: Column) -> tuple[Column | None, Convert]:
        """Return the column as it leaves the source (None if it is dropped), and the conversion of its values.

        Raises:
            ConfigurationError: the policy makes no sense for the column's type.
        """
        rule = self.rule
        if rule.word == "drop":
            return None, lambda values: values
        if rule.word == "null":
            return replace(column, nullable=True, missing=None), nulls_of(column.type.arrow)
        if rule.constant is not None:
            scalar = _constant(table, column, rule.constant)
            text = _text_constant(rule.constant)
            return replace(column, missing=None if column.missing is None else text), constant_of(scalar)
        if rule.truncate is not None:
            _check_text(table, column)
            return self._with_missing(table, column, column.type, truncate_of(rule.truncate))
        if rule.word == "mask" or rule.mask is not None:
            keep_last = 0 if rule.mask is None else rule.mask.keep_last
            if keep_last:
                self._check(table, column, text_of)
            return self._with_missing(table, column, ColumnType("mask", pa.string()), mask_of(keep_last))
        assert self.key is not None  # noqa: S101  the others have returned
        self._check(table, column, bytes_of)
        if self.persons is not None:
            if column.missing is not None:
                raise _default_without_policy(table, column)
            # Applied with the persons of the rows: see PrivateTable.
            return replace(column, type=ColumnType(ERASABLE, pa.string()), nullable=True), lambda values: values
        if rule.hash is not None:
            return self._with_missing(table, column, ColumnType(HASHED, pa.string()), self.key.hash())
        return self._with_missing(table, column, ColumnType("encrypt", pa.string()), self.key.encrypt())

    def _check(self, table: TableId, column: Column, text: Callable[[pa.Array], pa.Array]) -> None:
        arrow = column.type.arrow
        try:
            if not pa.types.is_binary(arrow) or text is bytes_of:
                text(pa.nulls(0, arrow))
                return
        except pa.ArrowException:
            pass
        raise misfit(
            table,
            f"column {column.name} ({column.type.source}) has no text, which {self.rule.kind} needs",
            "use drop, null or mask for it",
        )

    def _with_missing(
        self, table: TableId, column: Column, type_: ColumnType, convert: Convert
    ) -> tuple[Column, Convert]:
        changed = replace(column, type=type_)
        if column.missing is None:
            return changed, convert
        try:
            found = convert(values([column.missing], column.type.arrow))[0].as_py()
            return replace(changed, missing=f"\\x{found.hex()}" if isinstance(found, bytes) else found), convert
        except (ValueError, pa.ArrowException):
            raise _default_without_policy(table, column) from None


def misfit(table: TableId, why: str, remedy: str) -> TableMisfit:
    return TableMisfit(f"tables: {table}: {why}", remedy=remedy, runbook="column-policies")


def _default_without_policy(table: TableId, column: Column) -> TableMisfit:
    return misfit(
        table,
        f"column {column.name} was added with a default for older rows, to which its policy cannot be applied",
        "use drop, null or mask for it",
    )


def _constant(table: TableId, column: Column, value: bool | float | str) -> pa.Scalar:
    try:
        return pa.array([_text_constant(value)]).cast(column.type.arrow)[0]
    except pa.ArrowException:
        raise misfit(
            table,
            f"the constant for column {column.name} is not a value of its type ({column.type.source})",
            "write one of that type, or use null",
        ) from None


def _text_constant(value: bool | float | str) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _check_text(table: TableId, column: Column) -> None:
    arrow = column.type.arrow
    if not (pa.types.is_string(arrow) or pa.types.is_binary(arrow)) or _TEXTS.match(column.type.source) is None:
        raise misfit(
            table,
            f"column {column.name} ({column.type.source}) is neither text nor bytes, so its values cannot be truncated",
            "use drop, null, mask, hash or encrypt for it",
        )
