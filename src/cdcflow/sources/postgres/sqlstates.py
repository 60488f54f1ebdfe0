"""What to do after the server has refused something, by SQLSTATE.

A refused statement is tried again if it may work later, and if the refusal leaves nothing about the data unverified.
Otherwise it stops the capture (for a chunk: that of its table), because it would be refused again until an operator
changes something. Codes that are not listed stop it, too: for an extension's own code the next attempt's result is
unknown.

Source: the appendix "PostgreSQL Error Codes".
"""

from __future__ import annotations

from collections.abc import Mapping

TRIED_AGAIN: Mapping[str, str] = {
    "08": "the connection is gone",
    "25P02": "the transaction had failed already; the next try uses a new session",
    "25P03": "a timeout ended the transaction",
    "25P04": "a timeout ended the transaction",
    "28": "the login worked shortly before: a password or pg_hba.conf is being changed",
    "40": "two transactions conflicted, and cdcflow's was rolled back",
    "53": "no memory, disk or connection is currently left",
    "55": "another session uses it, or it is not ready yet",
    "57": "an administrator or a shutdown ended the statement",
    "58": "the server's disk or operating system failed",
    "72": "the snapshot became too old; the next one is new",
    "XX000": "the server contradicted itself, mostly because a catalog entry went away under it",
}
"""Classes and codes that are tried again, each with the reason."""

STOPS: Mapping[str, str] = {
    "02": "no data, a warning, not a refusal",
    "03": "cdcflow's statement was wrong",
    "09": "a trigger of the user's refused it",
    "0A": "the server cannot do this at all",
    "0B": "cdcflow's statement was wrong",
    "0F": "cdcflow's statement was wrong",
    "0L": "a grant is missing",
    "0P": "the role does not exist",
    "0Z": "a function of the user's refused it",
    "10": "cdcflow's statement was wrong",
    "20": "a function of the user's refused it",
    "21": "the data is not what the statement expects",
    "22": "a value cannot be converted as requested, now or later",
    "23": "a constraint forbids it",
    "24": "cdcflow's statement was wrong",
    "25": "a standby, or cdcflow's statement was wrong",
    "26": "something between cdcflow and the server mixes sessions up (a pooler)",
    "27": "a trigger of the user's refused it",
    "2B": "objects depend on it",
    "2D": "a function of the user's refused it",
    "2F": "a function of the user's refused it",
    "34": "cdcflow's statement was wrong",
    "38": "a function of the user's refused it",
    "39": "a function of the user's refused it",
    "3B": "cdcflow's statement was wrong",
    "3D": "the database does not exist",
    "3F": "the schema does not exist",
    "42": "a grant, a table or a column is missing",
    "44": "a view forbids it",
    "54": "a row or statement is larger than the server can handle, and will be next time",
    "F0": "the server's settings file is wrong",
    "HV": "a foreign table refused it",
    "P0": "a function or event trigger of the user's refused it",
    "XX001": "a page of the table is damaged",
    "XX002": "an index is damaged",
}
"""Classes and codes that stop the capture, each with the reason. An entry for a code overrides that of its class."""


def is_tried_again(state: str) -> bool:
    """Whether a statement that was refused with this SQLSTATE is tried again."""
    for name in (state, state[:2]):
        if name in TRIED_AGAIN:
            return True
        if name in STOPS:
            return False
    return False
