"""Decrypt values that the settings' policies encrypted, with their keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cdcflow.config import Config
from cdcflow.config.columns import ColumnKey
from cdcflow.errors import ConfigurationError
from cdcflow.sources.privacy.key_file import KeyFile
from cdcflow.sources.privacy.person_keys import PersonKeys
from cdcflow.sources.privacy.secret_keys import PolicyKey, decrypt_with


@dataclass(frozen=True, slots=True)
class Decryption:
    """The keys with which a value may have been encrypted."""

    keys: tuple[PolicyKey, ...]
    person_keys: PersonKeys

    @classmethod
    def of(cls, config: Config, others: Sequence[str] = ()) -> Decryption:
        """Return the keys of the settings. `others`: `ID=reference` or a reference alone.

        Raises:
            ConfigurationError: the settings have no key; or one does not exist, or is too short.
        """
        rules = [rule for table in config.tables.values() for rule in table.columns.values()]
        keys = [rule.encrypt for rule in rules if rule.encrypt is not None]
        found = [*map(PolicyKey.read, keys), *earlier_keys(others, "decrypting")]
        if not found:
            raise ConfigurationError(
                "decrypting: the settings encrypt no column",
                remedy="name a key with --key '${env:NAME}', or the settings file with --config",
                runbook="column-policies",
            )
        return cls(tuple(dict.fromkeys(found)), KeyFile(config.person_keys_file))

    def decrypt(self, value: str) -> bytes | None:
        """Return the decrypted value; `None` if the person whose value it was is erased. Raises ConfigurationError if
        none of the keys encrypted it."""
        for key in self.keys:
            try:
                person = key.person_in(value)
                return key.decrypt(value) if person is None else self._decrypt_for(person, key, value)
            except (KeyError, ValueError):
                continue
        raise ConfigurationError(
            "decrypting: no key made this value",
            remedy="name the key that was in the settings when it was captured: --key 'ID=${env:NAME}'",
            runbook="column-policies",
        )

    def _decrypt_for(self, person: str, key: PolicyKey, value: str) -> bytes | None:
        wrapped = self.person_keys.find(person)
        return None if wrapped is None else decrypt_with(key.person_keys().unwrap(person, wrapped), value)


def earlier_keys(given: Sequence[str], attempt: str) -> list[PolicyKey]:
    """Return keys that a command names with --key: `ID=reference`, or a reference alone.

    Raises:
        ConfigurationError: one is neither, does not exist, or is too short.
    """
    found = []
    for one in given:
        id_, _, reference = one.rpartition("=")
        found.append(PolicyKey.read(_key(id_, reference, attempt)))
    return found


def _key(id_: str, reference: str, attempt: str) -> ColumnKey:
    try:
        return ColumnKey.model_validate({"key": reference, "id": id_})
    except ValueError:
        raise ConfigurationError(
            f"{attempt}: --key is neither a reference nor ID=reference",
            remedy="write --key '${env:NAME}', or --key '2026=${env:NAME}'",
            runbook="column-policies",
        ) from None
