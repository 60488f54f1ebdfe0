"""Every code of every multi-byte character set, compared with the server's: the same character, or none on both
sides.
"""

from __future__ import annotations

import itertools

import pytest
from tests.servers.mysql import Flavor, MySQLDatabase

from cdcflow.sources.mysql.types.charsets import UNKNOWN, decode_text, decoder

pytestmark = pytest.mark.mysql

HIGH = range(0x80, 0x100)
TWO = [bytes(code) for code in itertools.product(HIGH, range(0x100))]
THREE = [bytes([0x8F, *code]) for code in itertools.product(range(0xA1, 0xFF), repeat=2)]
FOUR = [
    bytes(code)
    for code in itertools.product(
        (0x81, 0x84, 0x90, 0xE3, 0xFE), range(0x30, 0x3A), range(0x81, 0xFF, 3), range(0x30, 0x3A)
    )
]
SETS = ("big5", "cp932", "eucjpms", "euckr", "gb2312", "gbk", "sjis", "ujis")
WIDE = ("ucs2", "utf16")


@pytest.mark.spread(1)
def test_every_code_is_the_servers_character_or_none(mysql_database: MySQLDatabase, flavor: Flavor) -> None:
    """What the server cannot map must not become another character: that would never be noticed."""
    codes = [*([byte] for byte in HIGH), *TWO, *THREE, *FOUR]
    rows = [f"(X'{bytes(code).hex()}')" for code in codes]
    mysql_database.execute(
        "CREATE TABLE codes (code varbinary(4) PRIMARY KEY) ENGINE = MEMORY",
        *(f"INSERT INTO codes VALUES {','.join(rows[at : at + 30_000])}" for at in range(0, len(rows), 30_000)),
    )
    for charset in (*SETS, *WIDE, *(("gb18030",) if flavor == "mysql" else ())):
        mysql_database.execute(
            f"CREATE TABLE {charset} (code varbinary(4) PRIMARY KEY, said varchar(4) CHARACTER SET {charset}) "
            "ENGINE = MEMORY",
            f"INSERT IGNORE INTO {charset} SELECT code, code FROM codes",
        )
        # A value that the server did not store unchanged has no meaning there.
        told = mysql_database.execute(
            f"SELECT code, CAST(CONVERT(said USING utf8mb4) AS binary) FROM {charset} WHERE CAST(said AS binary) = code"
            + " AND LENGTH(code) = 2" * (charset in WIDE)
        )
        assert len(told) > 7000, charset
        found = ((code, _ours(charset, code), _theirs(code, said)) for code, said in told)
        wrong = {code.hex(): (ours, theirs) for code, ours, theirs in found if ours != theirs}
        assert not wrong, f"{charset}: {len(wrong)} codes, {list(wrong.items())[:9]}"


def _ours(charset: str, code: bytes) -> str:
    """With U+FFFD for what stops the capture."""
    replaced = decoder(charset, "replace")(code)
    try:
        assert decode_text(charset, code) == replaced
    except UnicodeDecodeError:
        assert UNKNOWN in replaced
    return replaced


def _theirs(code: bytes, said: bytes | None) -> str:
    """For what they cannot convert, the servers return a question mark, NULL, or half a surrogate unchanged."""
    try:
        text = UNKNOWN if said is None else said.decode()
    except UnicodeDecodeError:
        return UNKNOWN
    return text if b"?" in code else text.replace("?", UNKNOWN)
