"""A password that a command prints: the tokens of clouds, which a server accepts for some minutes only."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, field_validator

from cdcflow.config.base import Settings
from cdcflow.config.references import by_reference
from cdcflow.config.units import Seconds


class PasswordCommand(Settings):
    """A command that prints the password."""

    command: tuple[str, ...]
    """Instead of a reference: a command, as a list, that prints the password ([managed.md](managed.md#tokens)). It runs
    without a shell, as the daemon's user."""
    expires: Seconds = 600.0
    """How long a printed password is used for new connections. If the server refuses it earlier, the command runs again
    at once."""
    timeout: Seconds = 15.0
    """The command is killed if it takes longer."""

    @field_validator("command")
    @classmethod
    def _some_command(cls, command: tuple[str, ...]) -> tuple[str, ...]:
        if not command or not command[0]:
            raise ValueError("is empty; write the program and its arguments as a list")
        return command


def _reference_or_command(password: object) -> object:
    if isinstance(password, PasswordCommand):
        return password
    # Parsed here: the errors of a union would name its alternatives.
    return PasswordCommand.model_validate(password) if isinstance(password, dict) else by_reference(password)


PasswordSetting = Annotated[str | PasswordCommand | None, BeforeValidator(_reference_or_command)]
"""A reference to a password, or the command that prints it."""
