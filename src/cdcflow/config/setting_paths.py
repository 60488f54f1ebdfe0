"""A settings file as YAML, and the line of each setting."""

from __future__ import annotations

from pathlib import Path

import yaml

from cdcflow.errors import ConfigurationError

SettingPath = tuple[str | int, ...]
"""A setting by its keys, and numbers in lists, from the top of the file."""
SettingMarks = dict[SettingPath, yaml.Mark]


def compose_file(path: Path, what: str = "settings file") -> yaml.Node:
    """Return the document of a file. `what` names the kind of file in messages."""
    remedy = "run `cdcflow init` to write one, or name yours with --config" if what == "settings file" else None
    try:
        text = path.read_text(encoding="utf-8")
        _check_quoted(path, text)
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except FileNotFoundError:
        raise ConfigurationError(f"there is no {what} {path}", remedy=remedy) from None
    except OSError as error:
        raise ConfigurationError(f"the {what} {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"the {what} {path} is not UTF-8 text") from None
    except yaml.composer.ComposerError as error:
        # Not the error's own text: it repeats the value, which may be a password that begins with *.
        raise ConfigurationError(
            f"{location(path, error.problem_mark)}: a value that begins with * needs quotes"
        ) from None
    except yaml.MarkedYAMLError as error:
        if "alias" in str(error.context):
            raise ConfigurationError(
                f"{location(path, error.problem_mark)}: a value that begins with * needs quotes"
            ) from None
        raise ConfigurationError(f"{location(path, error.problem_mark)}: not YAML: {error.problem}") from None
    except yaml.YAMLError:
        raise ConfigurationError(f"{path}: not YAML: a character that YAML does not allow") from None
    if not isinstance(node, yaml.MappingNode):
        raise ConfigurationError(
            f"{path}: holds no {'tests' if remedy is None else 'settings'}",
            remedy=None if remedy is None else "run `cdcflow init` in another folder to see a complete file",
        )
    return node


def _check_quoted(path: Path, text: str) -> None:
    """Reject values that YAML parses as tags: YAML would drop them, or report an error at a different line."""
    try:
        for token in yaml.scan(text, Loader=yaml.SafeLoader):
            if isinstance(token, yaml.TagToken) and token.value[0] != "!!":
                raise _quotes_needed(path, token.start_mark)
    except yaml.scanner.ScannerError as error:
        if "tag" in str(error.context):
            raise _quotes_needed(path, error.context_mark) from None


def _quotes_needed(path: Path, mark: yaml.Mark | None) -> ConfigurationError:
    return ConfigurationError(
        f'{location(path, mark)}: a value that begins with ! needs quotes, such as "!public.audit_*"'
    )


def note_marks(path: Path, node: yaml.Node, setting: SettingPath, marks: SettingMarks) -> None:
    if len(setting) > 16:
        raise ConfigurationError(f"{location(path, node.start_mark)}: settings are not nested this deep")
    match node:
        case yaml.MappingNode():
            for key, value in node.value:
                if key.tag == "tag:yaml.org,2002:bool":
                    key.tag = "tag:yaml.org,2002:str"  # YAML reads `on` as true; a setting's name is always text
                inner = (*setting, str(key.value) if isinstance(key, yaml.ScalarNode) else "?")
                if inner in marks:
                    raise ConfigurationError(f"{location(path, key.start_mark)}: {dotted_name(inner)} is set twice")
                marks[inner] = key.start_mark
                note_marks(path, value, inner, marks)
        case yaml.SequenceNode():
            for number, value in enumerate(node.value):
                marks[(*setting, number)] = value.start_mark
                note_marks(path, value, (*setting, number), marks)
        case _:
            pass


def dotted_name(setting: SettingPath) -> str:
    return "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in setting).removeprefix(".")


def location(path: Path, mark: yaml.Mark | None) -> str:
    return str(path) if mark is None else f"{path}:{mark.line + 1}:{mark.column + 1}"
