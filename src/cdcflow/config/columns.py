"""Policies for columns: what of a column leaves the source, before anything is stored."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from cdcflow.config.base import Settings
from cdcflow.config.references import SecretReference

PLAIN = ("drop", "null", "mask")
"""Policies that a plain word names."""


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

    key_by: str | None = Field(None, min_length=1)
    """A column of the same table, such as `user_id`: each of its values gets its own key, which an erasure
    destroys ([erase a person](columns.md#erase-a-person)). Default: the policy's key encrypts all values."""


class MaskOptions(Settings):
    """What a mask leaves readable."""

    keep_last: int = Field(0, ge=0, le=64)
    """How many characters at the end of a text stay; a text of less than twice as many is masked whole."""


class ColumnRule(Settings):
    """The policy for one column: `drop`, `null` or `mask`, or one of the following ([columns.md](columns.md))."""

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
        if len([name for name in self.model_fields_set if getattr(self, name) is not None]) != 1:
            raise ValueError("must be exactly one policy: drop, null, constant, mask, truncate, hash or encrypt")
        return self

    @property
    def kind(self) -> str:
        """The policy's name."""
        [name] = (name for name in self.model_fields_set if getattr(self, name) is not None)
        return self.word or name

    @property
    def key_by(self) -> str | None:
        """The column each of whose values has its own key, for `encrypt`."""
        return None if self.encrypt is None else self.encrypt.key_by


class TableRules(Settings):
    """The policies for the columns of a table, or of all tables that a pattern matches."""

    columns: dict[str, ColumnRule] = Field(default_factory=dict)
    """The policy of each column, by its name: `{ssn: drop, email: {hash: "${env:KEY}"}, name: mask}`. If several
    patterns match a table, the table's own name decides about a column first, and then the first pattern in the file
    that names the column."""
    optional: tuple[str, ...] = ()
    """Columns that the table may lack: its next columns, and columns that were dropped or renamed. If a column with a
    policy disappears otherwise, the capture stops: it may have another name now."""
