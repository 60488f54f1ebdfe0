"""A test file of MySQL's or MariaDB's suite as commands, statements and blocks.

A line that begins with `--` is a command, anything else goes to the delimiter (`;` until `delimiter` changes it). A
statement whose first word is a command's name is that command; every other one is SQL. `while` and `if` open a block
in braces. The texts are bytes of any character set, so they are handled as latin1 throughout.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeAlias

COMMANDS = frozenset(
    (
        "append_file",
        "assert",
        "cat_file",
        "change_user",
        "character_set",
        "chmod",
        "connect",
        "connection",
        "copy_file",
        "copy_files",
        "copy_files_wildcard",
        "dec",
        "delimiter",
        "die",
        "diff_files",
        "dirty_close",
        "disable_abort_on_error",
        "disable_async_client",
        "disable_column_names",
        "disable_connect_log",
        "disable_cursor_protocol",
        "disable_info",
        "disable_metadata",
        "disable_non_blocking_api",
        "disable_parsing",
        "disable_prepare_protocol",
        "disable_prepare_warnings",
        "disable_ps2_protocol",
        "disable_ps_protocol",
        "disable_query_log",
        "disable_reconnect",
        "disable_result_log",
        "disable_rpl_parse",
        "disable_service_connection",
        "disable_session_track_info",
        "disable_testcase",
        "disable_view_protocol",
        "disable_warnings",
        "disconnect",
        "echo",
        "enable_abort_on_error",
        "enable_async_client",
        "enable_column_names",
        "enable_connect_log",
        "enable_cursor_protocol",
        "enable_info",
        "enable_metadata",
        "enable_non_blocking_api",
        "enable_parsing",
        "enable_prepare_protocol",
        "enable_prepare_warnings",
        "enable_ps2_protocol",
        "enable_ps_protocol",
        "enable_query_log",
        "enable_reconnect",
        "enable_result_log",
        "enable_rpl_parse",
        "enable_service_connection",
        "enable_session_track_info",
        "enable_testcase",
        "enable_view_protocol",
        "enable_warnings",
        "end_timer",
        "error",
        "eval",
        "evalp",
        "exec",
        "exec_in_background",
        "execw",
        "exit",
        "expr",
        "file_exists",
        "force-cpdir",
        "force-rmdir",
        "horizontal_results",
        "if",
        "inc",
        "include",
        "let",
        "list_files",
        "list_files_append_file",
        "list_files_write_file",
        "lowercase_result",
        "mkdir",
        "move_file",
        "optimizer_trace",
        "output",
        "partially_sorted_result",
        "perl",
        "ping",
        "pop_connection",
        "prepare_warnings",
        "query",
        "query_attributes",
        "query_get_value",
        "query_horizontal",
        "query_vertical",
        "real_sleep",
        "reap",
        "remove_file",
        "remove_files_wildcard",
        "replace_column",
        "replace_numeric_round",
        "replace_regex",
        "replace_result",
        "require",
        "reset_connection",
        "result",
        "result_format",
        "rmdir",
        "save_master_pos",
        "send",
        "send_eval",
        "send_quit",
        "send_shutdown",
        "shutdown_server",
        "skip",
        "skip_if_hypergraph",
        "sleep",
        "sorted_result",
        "source",
        "start_timer",
        "sync_slave_with_master",
        "sync_with_master",
        "system",
        "vertical_results",
        "wait_for_slave_to_stop",
        "while",
        "write_file",
        "write_line",
    )
)
_TEXT_FOLLOWS = frozenset(("write_file", "append_file", "perl"))
_WORD = re.compile(r"[A-Za-z0-9_-]+")
_CLOSING = re.compile(r"\}|--[ \t]*\}")
_QUOTES = "'\"`"


@dataclass(frozen=True, slots=True)
class Sql:
    text: str


@dataclass(frozen=True, slots=True)
class Command:
    name: str
    rest: str
    text: str = ""
    """The lines up to the end mark, of the commands that have such."""


@dataclass(frozen=True, slots=True)
class Block:
    """`kind` is `while` or `if`."""

    kind: str
    condition: str
    body: tuple[Node, ...]


Node: TypeAlias = Sql | Command | Block


class NotReadable(Exception):
    """The file is not in the language as far as it is known here."""


def parsed(text: str) -> tuple[Node, ...]:
    """The commands of a file.

    Raises:
        NotReadable: a block without its end, or a brace without its block.
    """
    return _Parser(text).nodes(nested=False)


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text.replace("\r\n", "\n")
        self._at = 0
        self._delimiter = ";"

    def nodes(self, *, nested: bool) -> tuple[Node, ...]:
        found: list[Node] = []
        while self._skip_space():
            if closing := _CLOSING.match(self._text, self._at):
                if not nested:
                    raise NotReadable("a brace ends what did not begin")
                self._at = closing.end()
                return tuple(found)
            node = self._node()
            if node is not None:
                found.append(node)
        if nested:
            raise NotReadable("a block has no end")
        return tuple(found)

    def _skip_space(self) -> bool:
        """Go to the next thing that is neither space nor comment; False at the end of the file."""
        while self._at < len(self._text):
            if self._text[self._at].isspace():
                self._at += 1
            elif self._text[self._at] == "#":
                self._line()
            else:
                return True
        return False

    def _line(self) -> str:
        end = self._text.find("\n", self._at)
        end = len(self._text) if end < 0 else end
        line, self._at = self._text[self._at : end], end + 1
        return line

    def _node(self) -> Node | None:
        if self._text.startswith("--", self._at):
            return self._made(self._line()[2:].strip(), of_a_line=True)
        if found := re.compile(r"(while|if)\s*\(", re.IGNORECASE).match(self._text, self._at):
            return self._block(found[1].lower(), found.end())
        if self._text[self._at] == "{":
            raise NotReadable("a block without a condition")
        return self._made(self._statement(), of_a_line=False)

    def _made(self, text: str, *, of_a_line: bool) -> Node | None:
        word = _WORD.match(text)
        name = word[0].lower() if word else ""
        if name in ("while", "if"):
            return self._block_of_a_line(name, text)
        if name == "delimiter":
            self._delimiter = text[len(name) :].strip() or ";"
            return None
        if name not in COMMANDS:
            return None if of_a_line or not text else Sql(text)
        rest = text[len(name) :].strip()
        if name in _TEXT_FOLLOWS:
            return Command(name, rest, self._text_to_its_end(name, rest))
        return Command(name, rest)

    def _text_to_its_end(self, name: str, rest: str) -> str:
        words = rest.split()
        end = words[-1] if len(words) > (0 if name == "perl" else 1) else "EOF"
        if self._at < len(self._text) and not self._text[self._at - 1 :].startswith("\n"):
            self._line()  # what follows the delimiter
        lines: list[str] = []
        while self._at < len(self._text):
            line = self._line()
            if line.strip() == end:
                break
            lines.append(line)
        return "\n".join(lines)

    def _block(self, kind: str, start: int) -> Block:
        self._at = start
        depth, quote, begun = 1, "", start
        while depth and self._at < len(self._text):
            sign = self._text[self._at]
            if quote:
                quote = "" if sign == quote else quote
            elif sign in _QUOTES:
                quote = sign
            else:
                depth += {"(": 1, ")": -1}.get(sign, 0)
            self._at += 1
        condition = self._text[begun : self._at - 1].strip()
        if not self._skip_space() or self._text[self._at] != "{":
            raise NotReadable("a condition without a block")
        self._at += 1
        return Block(kind, condition, self.nodes(nested=True))

    def _block_of_a_line(self, kind: str, text: str) -> Block:
        inner = text[len(kind) :].strip().removesuffix("{").strip()
        if not text.rstrip().endswith("{"):
            if not self._skip_space() or self._text[self._at] != "{":
                raise NotReadable("a condition without a block")
            self._at += 1
        return Block(kind, inner.removeprefix("(").removesuffix(")").strip(), self.nodes(nested=True))

    def _statement(self) -> str:
        begun, quote = self._at, ""
        word = _WORD.match(self._text, begun)
        is_sql = word is None or word[0].lower() not in COMMANDS
        while self._at < len(self._text):
            sign = self._text[self._at]
            if quote:
                if sign == "\\" and quote != "`":
                    self._at += 1
                elif sign == quote:
                    quote = ""
            elif self._text.startswith(self._delimiter, self._at):
                text = self._text[begun : self._at]
                self._at += len(self._delimiter)
                return text.strip()
            elif sign in _QUOTES:
                quote = sign
            elif is_sql and self._is_past_comment():
                continue
            self._at += 1
        return self._text[begun:].strip()

    def _is_past_comment(self) -> bool:
        """Whether there was a comment of SQL here. A command has none: `echo # this;` ends at its delimiter."""
        if self._text[self._at] == "#" or self._text.startswith("-- ", self._at):
            self._line()
            return True
        if self._text.startswith("/*", self._at):
            end = self._text.find("*/", self._at + 2)
            self._at = len(self._text) if end < 0 else end + 2
            return True
        return False


__all__ = ["Block", "Command", "Node", "NotReadable", "Sql", "parsed"]
