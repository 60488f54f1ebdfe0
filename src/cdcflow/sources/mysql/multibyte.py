"""East Asia's character sets, as the servers read them: Python's codec, and what the servers mean otherwise.

Each multi-byte code of every set was compared with what MySQL 9.7 and MariaDB 11.8 make of it
(`tests/integration/mysql/test_every_code_of_a_set.py`). A code differs in one of three ways: Python does not know it,
Python takes it for another character, or only Python knows it. What a server knows no character for has none here
either, even where its own table has U+FFFD for it.

A code without a character is one U+FFFD, whole: its second byte is no letter, although it may look like one.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

UNKNOWN = "\ufffd"

_CODECS = {
    "big5": "big5", "cp932": "cp932", "eucjpms": "euc_jp", "euckr": "cp949", "gb18030": "gb18030", "gb2312": "gb2312",
    "gbk": "gbk", "sjis": "shift_jis", "ucs2": "utf_16_be", "ujis": "euc_jp", "utf16": "utf_16_be",
    "utf16le": "utf_16_le", "utf32": "utf_32_be", "utf8mb3": "utf_8", "utf8mb4": "utf_8",
}  # fmt: skip

_EUC = rb"\x8e[\xa1-\xdf]|\x8f[\xa1-\xfe]{2}|[\xa1-\xfe]{2}"
_SHIFT_JIS = rb"[\x81-\x9f\xe0-\xfc][\x40-\x7e\x80-\xfc]"
_GBK = rb"[\x81-\xfe][\x40-\x7e\x80-\xfe]"
_CODES = {
    "big5": rb"[\xa1-\xf9][\x40-\x7e\xa1-\xfe]",
    "cp932": _SHIFT_JIS,
    "eucjpms": _EUC,
    "euckr": rb"[\x81-\xfe][\x41-\x5a\x61-\x7a\x81-\xfe]",
    "gb18030": rb"[\x81-\xfe][\x30-\x39][\x81-\xfe][\x30-\x39]|" + _GBK,
    "gb2312": rb"[\xa1-\xf7][\xa1-\xfe]",
    "gbk": _GBK,
    "sjis": _SHIFT_JIS,
    "ujis": _EUC,
}
"""What the servers take for one code of several bytes, whether or not it has a character."""

_OTHERWISE = {
    "sjis": str.maketrans("＼", "\\"),
    "ujis": str.maketrans("＼", "\\"),
    "eucjpms": str.maketrans("〜‖−¢£¬¦", "～∥－￠￡￢￤"),
}
"""Characters that have one code in Python's set, for which the servers mean others."""

_ROWS_83_84 = bytes.fromhex(
    "21702171217221732174217521762177217821792160216121622163216421652166216721682169ff07ff0232312116212170bb"
    "4efc50f451ec53075324fa0e548a5759fa0ffa10589e5bec5cf55d53fa115fb760856120654e663b6665fa12f9296801fa13fa14"
    "6a6b6ae26df86df27028fa15fa1675017682769efa177930fa18fa19fa1afa1b7ae7fa1cfa1d7da07dd6fa1e8362fa1f85b0fa20"
    "fa218807fa228b7f8cf48d76fa23fa24fa2590defa269115fa27fa289592f9dcfa29973b974d9751fa2afa2bfa2c999e9ad99b72"
    "fa2d9ed1"
).decode("utf_16_be")
"""eucjpms from 8F F3 F3 to 8F F4 FE: IBM's characters, in the order of cp932. Some change when text is normalized, so
they are written as numbers."""


@dataclass(frozen=True, slots=True)
class _Own:
    """What the servers have for codes that Python has no character for, and for those that it has another for."""

    unknown: dict[bytes, str]
    known: dict[bytes, str]


@cache
def _own(charset: str) -> _Own:
    match charset:
        case "big5":
            letters = {bytes([0xF9, trail]): bytes([0xF9, trail]).decode("cp950") for trail in range(0xD6, 0xDD)}
            nothing = ("a15a", "a1c3", "a1c5", "a1fe", "a240", "a2cc", "a2ce")
            return _Own(letters, dict.fromkeys(map(bytes.fromhex, nothing), UNKNOWN))
        case "ujis":
            return _Own(_of_users(), {})
        case "eucjpms":
            return _Own(_of_users() | _of_vendors(), {b"\x8f\xa2\xb7": "～"})
        case "gb18030":
            return _Own({}, {b"\x81\x35\xf4\x37": "\ue7c7", b"\xa8\xbc": "ḿ"})
    return _Own({}, {})


def _of_users() -> dict[bytes, str]:
    """The rows F5 to FE of the two planes of EUC, for characters of one's own."""
    found: dict[bytes, str] = {}
    for plane, first in ((b"", 0xE000), (b"\x8f", 0xE3AC)):
        found |= {
            plane + bytes([lead, trail]): chr(first + (lead - 0xF5) * 94 + trail - 0xA1)
            for lead in range(0xF5, 0xFF)
            for trail in range(0xA1, 0xFF)
        }
    return found


def _of_vendors() -> dict[bytes, str]:
    """Row 13, which cp932 has at 87 40, and rows 83 and 84 of the second plane."""
    found: dict[bytes, str] = {}
    for trail in range(0xA1, 0xFF):
        letter = bytes([0x87, trail - 0x61 + (trail > 0xDF)]).decode("cp932", "replace")
        if UNKNOWN not in letter:
            found[bytes([0xAD, trail])] = letter
    codes = [bytes([0x8F, lead, trail]) for lead in (0xF3, 0xF4) for trail in range(0xA1, 0xFF)]
    return found | dict(zip(codes[-len(_ROWS_83_84) :], _ROWS_83_84, strict=True))


@cache
def decoder(charset: str, errors: str) -> Callable[[bytes], str]:
    """Text of one of these sets. `errors`: "stop" raises UnicodeDecodeError, "replace" puts U+FFFD."""
    codec, otherwise = _CODECS[charset], _OTHERWISE.get(charset)
    if charset not in _CODES:
        policy = {"stop": "strict", "replace": "replace"}[errors]
        return lambda value: value.decode(codec, policy)
    policy = f"cdcflow.{charset}.{errors}"
    codecs.register_error(policy, _going_on(charset, errors))
    known = _own(charset).known
    if not known:
        if otherwise is None:
            return lambda value: value.decode(codec, policy)
        return lambda value: value.decode(codec, policy).translate(otherwise)
    return lambda value: _by_code(value, charset, policy, known)


def _going_on(charset: str, errors: str) -> Callable[[UnicodeError], tuple[str, int]]:
    """What Python's codec asks before it gives up on a character."""
    code, unknown = re.compile(_CODES[charset], re.DOTALL), _own(charset).unknown

    def go_on(problem: UnicodeError) -> tuple[str, int]:
        if not isinstance(problem, UnicodeDecodeError):
            raise problem
        found = code.match(problem.object, problem.start)
        letter = UNKNOWN if found is None else unknown.get(found[0], UNKNOWN)
        if letter == UNKNOWN and errors != "replace":
            raise problem
        return letter, problem.start + 1 if found is None else found.end()

    return go_on


def _by_code(value: bytes, charset: str, policy: str, known: dict[bytes, str]) -> str:
    """The same where Python has another character for some codes: what stands between those goes to its codec."""
    codec, otherwise = _CODECS[charset], _OTHERWISE.get(charset, {})
    pieces: list[str] = []
    begin = 0
    for found in _walk(charset).finditer(value) if _has_any(charset).search(value) else ():
        letter = known.get(found[0])
        if letter is None:
            continue
        if letter == UNKNOWN and policy.endswith("stop"):
            raise UnicodeDecodeError(charset, value, found.start(), found.end(), "no character")
        pieces += value[begin : found.start()].decode(codec, policy).translate(otherwise), letter
        begin = found.end()
    return "".join([*pieces, value[begin:].decode(codec, policy).translate(otherwise)])


@cache
def _walk(charset: str) -> re.Pattern[bytes]:
    """One code after the other, of whatever bytes."""
    return re.compile(_CODES[charset] + b"|.", re.DOTALL)


@cache
def _has_any(charset: str) -> re.Pattern[bytes]:
    return re.compile(b"|".join(map(re.escape, _own(charset).known)))
