"""The entries of `tables` in the settings, with their expressions as trees. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cdcflow.config.columns import TableRules
from cdcflow.config.expressions import Expression, parse
from cdcflow.config.transforms import TransformSettings
from cdcflow.model.table import Table
from cdcflow.sources.engine.selection import Pattern
from cdcflow.sources.privacy.person_keys import PersonKeys
from cdcflow.sources.privacy.policies import PrivacyPolicy
from cdcflow.sources.privacy.transforms import text_of, transform_columns
from cdcflow.sources.rows.compilation import NOT_FOLLOWED, columns_named

WHERE = "where"


def setting_of(computed: str) -> str:
    """Return the key of a computed column among the expressions of a table."""
    return f"computed.{computed}"


@dataclass(frozen=True, slots=True)
class TableEntry:
    """One entry of `tables`. Names of columns are compared without case, as servers and readers do."""

    pattern: Pattern
    policies: Mapping[str, PrivacyPolicy]
    optional: frozenset[str]
    renamed: Mapping[str, str]
    where: RowExpression | None
    computed: Mapping[str, RowExpression]

    @property
    def columns(self) -> frozenset[str]:
        """The columns that the entry has a policy or a name for."""
        return frozenset(self.policies) | frozenset(self.renamed)


@dataclass(frozen=True, slots=True)
class RowExpression:
    """A setting that computes a value: an expression as a tree, or the settings of a function; `text` identifies it."""

    text: str
    tree: Expression | TransformSettings

    @classmethod
    def of(cls, given: object) -> RowExpression:
        if isinstance(given, TransformSettings):
            return cls(text_of(given), given)
        return cls(str(given), parse(str(given)))

    def columns_in(self, table: Table, followed: Mapping[str, str] = NOT_FOLLOWED) -> dict[str, str]:
        """Return the names of columns in the expression, each with the column of the table that it means."""
        if isinstance(self.tree, TransformSettings):
            return transform_columns(self.tree, table, followed)
        return columns_named(self.tree, table.row_schema, followed)


@dataclass(frozen=True, slots=True)
class RowTexts:
    """A table's filter, its computed columns, and the new names of columns by their names."""

    where: RowExpression | None
    computed: Mapping[str, RowExpression]
    renamed: Mapping[str, str]

    @property
    def settings(self) -> dict[str, RowExpression]:
        """All expressions, by their settings' names."""
        found = {} if self.where is None else {WHERE: self.where}
        return found | {setting_of(name): one for name, one in self.computed.items()}


def table_entry(name: str, rules: TableRules, person_keys: PersonKeys | None) -> TableEntry:
    columns = {column.lower(): rule for column, rule in rules.columns.items()}
    return TableEntry(
        Pattern.parse(name),
        {column: PrivacyPolicy.of(rule, person_keys) for column, rule in columns.items() if rule.has_policy},
        lower_names(rules.optional),
        {column: rule.rename for column, rule in columns.items() if rule.rename},
        None if rules.where is None else RowExpression.of(rules.where),
        {column: RowExpression.of(text) for column, text in rules.computed.items()},
    )


def lower_names(names: Iterable[str]) -> frozenset[str]:
    return frozenset(name.lower() for name in names)
