"""Values that the settings' policies encrypted, decrypted with their keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cdcflow.config import Config
from cdcflow.config.columns import ColumnKey
from cdcflow.errors import ConfigurationError
from cdcflow.sources.privacy.secret_keys import PolicyKey


@dataclass(frozen=True, slots=True)
class Decryption:
    """The keys that may have made a value."""

    keys: tuple[PolicyKey, ...]

    @classmethod
    def of(cls, config: Config, others: Sequence[str] = ()) -> Decryption:
        """The keys of the settings. `others`: `ID=reference` or a reference alone.

        Raises:
            ConfigurationError: the settings have no key; or one does not exist, or is too short.
        """
        rules = [rule for table in config.tables.values() for rule in table.columns.values()]
        keys = [rule.encrypt for rule in rules if rule.encrypt is not None]
        for given in others:
            id_, _, reference = given.rpartition("=")
            keys.append(_key(id_, reference))
        if not keys:
            raise ConfigurationError(
                "decrypting: the settings encrypt no column",
                remedy="name a key with --key '${env:NAME}', or the settings file with --config",
                runbook="column-policies",
            )
        return cls(tuple(dict.fromkeys(map(PolicyKey.read, keys))))

    def decrypt(self, value: str) -> bytes:
        """Raises ConfigurationError if none of the keys made the value."""
        for key in self.keys:
            try:
                return key.decrypt(value)
            except ValueError:
                continue
        raise ConfigurationError(
            "decrypting: no key made this value",
            remedy="name the key that was in the settings when it was captured: --key 'ID=${env:NAME}'",
            runbook="column-policies",
        )


def _key(id_: str, reference: str) -> ColumnKey:
    try:
        return ColumnKey.model_validate({"key": reference, "id": id_})
    except ValueError:
        raise ConfigurationError(
            "decrypting: --key is neither a reference nor ID=reference",
            remedy="write --key '${env:NAME}', or --key '2026=${env:NAME}'",
            runbook="column-policies",
        ) from None
