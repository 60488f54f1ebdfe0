"""Policies for columns: what of a column leaves the source, before anything is stored."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    Field,
    TypeAdapter,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    field_validator,
    model_validator,
)

from cdcflow.config.base import Settings
from cdcflow.config.expressions import parse
from cdcflow.config.plugins import TRANSFORMS, plugged_settings
from cdcflow.config.references import SecretReference
from cdcflow.config.transforms import TransformSettings

PLAIN = ("drop", "null", "mask")
"""The policies that a single word in the settings selects."""


def _parse_first(text: str) -> str:
    parse(text)
    return text


Sql = Annotated[str, AfterValidator(_parse_first)]
"""An expression over a table's columns (`cdcflow.config.expressions`)."""
_SQL: TypeAdapter[str] = TypeAdapter(Sql)


def _computation(given: object, checked: ValidatorFunctionWrapHandler) -> object:
    """Return an expression, or a transform by the settings model of its kind."""
    if isinstance(given, TransformSettings):
        return given
    if not isinstance(given, dict):
        return _SQL.validate_python(given)
    kind = given.get("kind")
    return (plugged_settings(TRANSFORMS, kind) if isinstance(kind, str) else TransformSettings).model_validate(given)


Computed = Annotated[object, WrapValidator(_computation)]
"""How a column is computed: an expression as text, or `TransformSettings`."""


class ColumnKey(Settings):
    """The secret of a `hash` or `encrypt` policy; a reference alone is short for `{key: …}`."""

    key: SecretReference
    """A reference to the key, of at least 32 characters: `"${env:NAME}"` or `"${file:path}"`."""
    id: str = Field("", pattern=r"^[A-Za-z0-9_-]{0,32}$")
    """A name for this key, which begins each value that it made (`2026:…`), so that keys can be replaced."""

    @model_validator(mode="before")
    @classmethod
    def _reference_alone(cls, given: object) -> object:
        return {"key": given} if given is None or isinstance(given, str) else given

    @field_validator("key")
    @classmethod
    def _is_given(cls, key: str | None) -> str | None:
        if key is None:
            raise ValueError("must be a reference to the key: ${env:NAME} or ${file:path}")
        return key


class EncryptionKey(ColumnKey):
    """The secret of an `encrypt` policy."""

    key_by: tuple[str, ...] = ()
    """A column of the same table, such as `user_id`: each of its values gets its own key, which an erasure destroys
    ([erase a person](columns.md#erase-a-person)). If it is renamed, list both names: `[user_id, uid]`. Default: the
    policy's key encrypts all values."""

    @field_validator("key_by", mode="before")
    @classmethod
    def _one_name(cls, given: object) -> object:
        return (given,) if isinstance(given, str) else given


class MaskOptions(Settings):
    """What a mask leaves readable."""

    keep_last: int = Field(0, ge=0, le=64)
    """How many characters at the end of a text stay; a text of less than twice as many is masked whole."""


class ColumnRule(Settings):
    """The policy for one column: `drop`, `null` or `mask`, or one of the following ([columns.md](columns.md)); or a
    new name for it, or both."""

    word: Literal["drop", "null", "mask"] | None = None
    """`drop`: the column is not captured; `null`: every value is NULL; `mask`: every value is `****`."""
    constant: bool | int | float | str | None = None
    """Every value is this one, of the column's type."""
    mask: MaskOptions | None = None
    """`{keep_last: 4}`: every value is `****` and its last characters."""
    truncate: int | None = Field(None, ge=1)
    """How many characters (or bytes) of each value stay."""
    hash: ColumnKey | None = None
    """HMAC-SHA-256 with a key: equal values stay equal."""
    encrypt: EncryptionKey | None = None
    """AES-GCM-SIV with a key: equal values stay equal, and `cdcflow decrypt` reads them."""
    rename: str | None = Field(None, min_length=1, pattern=r"^[^\x00]*$")
    """`{rename: amount}`: the column's name in the log and in tables ([rows.md](rows.md#names))."""

    @model_validator(mode="before")
    @classmethod
    def _word_alone(cls, given: object) -> object:
        if given is None:
            return {"word": "null"}  # YAML reads the plain word `null` as no value
        if isinstance(given, str):
            if given not in PLAIN:
                raise ValueError(
                    "must be drop, null or mask, or one of {constant: …}, {mask: {keep_last: 4}}, {truncate: 100}, "
                    '{hash: "${env:NAME}"}, {encrypt: "${env:NAME}"}'
                )
            return {"word": given}
        return given

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if len(self._policies) > 1 or not (self._policies or self.rename):
            raise ValueError("must be exactly one policy: drop, null, constant, mask, truncate, hash or encrypt")
        if self.word == "drop" and self.rename:
            raise ValueError("has a new name for a column that is dropped")
        return self

    @property
    def _policies(self) -> list[str]:
        return [name for name in self.model_fields_set - {"rename"} if getattr(self, name) is not None]

    @property
    def has_policy(self) -> bool:
        """Whether there is a policy; otherwise the rule is a new name alone."""
        return bool(self._policies)

    @property
    def kind(self) -> str:
        """The policy's name."""
        [name] = self._policies
        return self.word or name

    @property
    def key_by(self) -> tuple[str, ...]:
        """The past and present names of the column each of whose values has its own key, for `encrypt`. Empty if no
        column has."""
        return () if self.encrypt is None else self.encrypt.key_by


class TableRules(Settings):
    """A policy for one table, or for all tables that a pattern matches: which rows leave the source, and what of
    their columns."""

    where: Sql | None = None
    """A condition: only rows for which it is true are captured, `"tenant_id = 7 AND status <> 'draft'"`
    ([rows.md](rows.md)). A row that no longer fits is deleted. If several patterns match a table, the condition of its
    exact name counts, and otherwise that of the first pattern in the file."""
    computed: dict[str, Computed] = Field(default_factory=dict)
    """Columns that are computed from others: `{day: "date_trunc('day', created_at)"}` ([rows.md](rows.md)), or by a
    function of a package: `{place: {kind: geo, columns: [lat, lon]}}` ([rows.md](rows.md#your-own-function))."""
    columns: dict[str, ColumnRule] = Field(default_factory=dict)
    """The policy of each column, by its name: `{ssn: drop, email: {hash: "${env:KEY}"}, name: mask}`. If several
    patterns match a table, the table's own name decides about a column first, and then the first pattern in the file
    that names the column."""
    optional: tuple[str, ...] = ()
    """Columns that the table may lack: its next columns, and columns that were dropped or renamed. If a column with a
    policy disappears otherwise, the table fails: it may have another name now."""
