"""Erases a person: destroys the keys that encrypted their values, so that no copy of those can be read."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from cdcflow.config import Config
from cdcflow.config.columns import ColumnRule
from cdcflow.errors import ConfigurationError
from cdcflow.model.suggestions import did_you_mean
from cdcflow.model.table import TableId
from cdcflow.sources.engine.selection import Pattern
from cdcflow.sources.privacy.key_file import KeyFile
from cdcflow.sources.privacy.secret_keys import PolicyKey
from cdcflow.wiring.decryption import earlier_keys


@dataclass(frozen=True, slots=True)
class Erasure:
    """The keys that `cdcflow erase` will destroy. `columns`: the columns that they encrypt, by patterns of `tables`."""

    keys: tuple[PolicyKey, ...]
    columns: Mapping[str, tuple[str, ...]]
    file: KeyFile

    @classmethod
    def of(
        cls, config: Config, table: str, key_by: str | None, others: Sequence[str] = (), lost: Collection[str] = ()
    ) -> Erasure:
        """`key_by`: the column with the person, if the table's policies name several. `others`: keys that the settings
        had earlier, as `earlier_keys` takes them; `lost`: fingerprints of keys that no longer exist.

        Raises:
            ConfigurationError: the table has no policy with `key_by`, or with several; or keys in the file were
                wrapped by keys that neither the settings nor `others` and `lost` name.
        """
        rules = _rules_with_persons(config)
        mine = _choose(table, key_by, _rules_of(table, rules))
        now = {PolicyKey.read(rule.encrypt) for rule in mine if rule.encrypt is not None}
        earlier = earlier_keys(others, "erasing")
        known = {
            PolicyKey.read(rule.encrypt) for of_table in rules.values() for rule in of_table.values() if rule.encrypt
        }
        file = KeyFile(config.person_keys_file)
        if not file.identity():
            raise ConfigurationError(
                f"erasing: there are no keys of persons in {config.person_keys_file}, so nothing was encrypted yet",
                remedy="run this where the daemon runs, with its settings file; or start the daemon first",
                runbook="person-keys",
            )
        _check_makers(file.makers() - {key.fingerprint for key in (*known, *earlier)} - set(lost))
        columns = {
            name: tuple(c for c, rule in of_table.items() if rule.encrypt and PolicyKey.read(rule.encrypt) in now)
            for name, of_table in rules.items()
        }
        return cls(tuple({*now, *earlier}), {name: found for name, found in columns.items() if found}, file)

    def run(self, value: str, *, unseen: bool = False) -> bool:
        """Destroy the keys of the person with this value in `key_by`. Return False if the person has none; with
        `unseen` they never get one."""
        forms = [pa.array([value.encode()])]
        if value.startswith("\\x"):
            with contextlib.suppress(ValueError):
                forms.append(pa.array([bytes.fromhex(value[2:])]))
        persons = [person for key in self.keys for form in forms for person in key.person_keys().persons(form)]
        known = [person for person in persons if self._is_known(person)]
        if known or unseen:
            self.file.erase(persons)
        return bool(known)

    def _is_known(self, person: str) -> bool:
        try:
            self.file.find(person)
        except KeyError:
            return False
        return True


def _rules_with_persons(config: Config) -> dict[str, dict[str, ColumnRule]]:
    found = {
        name: {column: rule for column, rule in table.columns.items() if rule.key_by}
        for name, table in config.tables.items()
    }
    return {name: columns for name, columns in found.items() if columns}


def _rules_of(table: str, rules: Mapping[str, Mapping[str, ColumnRule]]) -> list[ColumnRule]:
    """Return the policies with `key_by` that apply to a table, under its own name or by a pattern."""
    asked = Pattern.parse(table).exact
    mine = [
        rule
        for name, columns in rules.items()
        if name == table or (asked is not None and Pattern.parse(name).matches(TableId(asked.schema, asked.name)))
        for rule in columns.values()
    ]
    if not mine:
        raise ConfigurationError(
            f"erasing: no policy of {table} has key_by",
            remedy=f"{did_you_mean(table, rules)}name a table whose policies have it: {', '.join(rules) or 'none has'}",
            runbook="person-keys",
        )
    return mine


def _choose(table: str, key_by: str | None, rules: Sequence[ColumnRule]) -> list[ColumnRule]:
    """Return the policies whose `key_by` is this column; it may be omitted if they all have the same one."""
    names = sorted({tuple(map(str.lower, rule.key_by)) for rule in rules})
    chosen = names if key_by is None else [known for known in names if key_by.lower() in known]
    if len(chosen) != 1:
        raise ConfigurationError(
            f"erasing: the policies of {table} have key_by {', '.join(known[-1] for known in names)}",
            remedy=f"add --by with the column that the value is from, such as --by {names[0][-1]}",
            runbook="person-keys",
        )
    return [rule for rule in rules if tuple(map(str.lower, rule.key_by)) == chosen[0]]


def _check_makers(unknown: Collection[str]) -> None:
    """Check that no keys in the file were wrapped by keys that the settings do not name. A person's earlier key that an
    earlier key of a policy wraps would still read the person's earlier values."""
    if unknown:
        first = sorted(unknown)[0]
        raise ConfigurationError(
            f"erasing: a policy's earlier key wrapped some of the keys (its fingerprint: {', '.join(sorted(unknown))})",
            remedy="name each earlier key, so that those are destroyed, too: --key 'ID=${env:NAME}'; of one that no "
            f"longer exists, its fingerprint: --lost-key {first}",
            runbook="person-keys",
        )
