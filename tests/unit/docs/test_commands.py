"""Every command on a page is one that works: it parses against the real CLI, or a list names where else it is run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import typer.main
from tests.support.docs.pages import blocks, commands, name_of, pages, spans

from cdcflow.cli import lazy
from cdcflow.cli.app import app

SHELL = {"bash", "sh", "console"}
ELSEWHERE = {
    "pip": "needs a registry; `make setup` installs with it",
    "cd": "test_own_source.py runs the commands in that folder",
    "pytest": "test_own_source.py runs it",
    "python3": "makes an environment; a long test in test_quickstart.py runs it",
    ".": "activates it, as above",
    "export": "sets a variable; test_quickstart.py runs it",
    "make": "`test_every_target_of_make_on_a_page_exists` looks for the target",
    "docker": "needs Docker; tests/integration/docker reads the files with Docker's own parsers",
    "gpg": "needs a signature; tests/release compares the checksums",
    "sha256sum": "the same",
    "/opt/cdcflow/bin/pip": "as pip",
    "/opt/cdcflow/bin/cdcflow": "a path that only a server has; `cdcflow init --systemd` is parsed elsewhere",
    "dbt": "needs a project; tests/schedulers runs it",
    "helm": "needs a cluster; tests/chart renders the chart",
    "kubectl": "needs a cluster; the commands of cdcflow in it are parsed here",
    "curl": "queries the stack of docker/, which tests/integration/docker starts",
    "open": "opens a browser",
    "useradd": "makes an account; docs/systemd.md, whose unit tests/unit/cli/test_systemd.py has verified",
    "install": "makes the service's folders; tests/ops/test_deploy.py runs it",
    "cp": "moves a pipeline; tests/ops/test_deploy.py runs it",
    "chown": "the same",
    "chmod": "protects secrets; tests/ops/test_deploy.py runs it",
    "mkdir": "makes a folder for secrets; tests/ops/test_deploy.py runs it",
    "printf": "writes a secret, as above",
    "openssl": "the same",
    "sudo": "needs an account of the image; the line before it is run",
    "git": "publishes the book; tests/release/test_book.py makes it",
    "ssh-keygen": "makes a key, as tests/servers/sshd.py does",
    "ssh-keyscan": "queries an SSH server; tests/integration/postgres/test_ssh_servers.py runs it as a remedy",
    "systemctl": "needs a machine that systemd runs",
    "journalctl": "needs a machine that systemd runs",
    "spark-submit": "tests/cluster and tests/integration/spark run the same way",
    "jars=$(python": "part of the spark-submit next to it",
    "python": "test_quickstart.py runs the quickstart's; the others fetch jars, as `make setup` does",
}
"""The first word of commands that are not cdcflow's, and why they are not parsed here."""

ONLY_PRINTED = ("--help", "--version", "--install-completion", "--show-completion")
"""Options that act as soon as they are read."""

STAND_INS = {
    "COMMAND": "status",
    "N": "5",
    "NUMBER": "5",
    "FILE": "x.yaml",
    "NAME": "shop.orders",
    "PID": "1",
    "RATE": "1000",
}


def cdcflow_commands() -> Iterator[tuple[str, list[str]]]:
    """Each command of cdcflow on any page, with the page: in blocks, after `docker` and `kubectl`, in sentences."""
    for page in pages():
        for block in blocks(page):
            if block.language in SHELL:
                for words in commands(block):
                    if "cdcflow" in words and (words[0] not in ELSEWHERE or words[0] in ("docker", "kubectl")):
                        line = words[: words.index(">")] if ">" in words else words
                        yield block.page, line[line.index("cdcflow") + 1 :]
        for span in spans(page):
            if re.match(r"cdcflow (--)?[a-z]", span) or span.startswith("cdcflow COMMAND"):
                for text in spelled_out(span):
                    yield name_of(page), shlex.split(text)[1:]


def spelled_out(span: str) -> list[str]:
    r"""A command as pages write it (`a\|b TABLE… [--opt 3]`), as the commands that it abbreviates."""
    text = re.sub(r"[\[\]…]", "", span).replace("\\|", "|").split("&&")[0]
    if " | --" in text:  # either these options or those
        first, *others = text.split(" | ")
        base = first.partition(" --")[0]
        return [text for one in (first, *(f"{base} {other}" for other in others)) for text in spelled_out(one)]
    text = text.replace(" | ", "|")
    choices = next((word for word in text.split() if "|" in word and not word.startswith("-")), None)
    if choices is not None:
        return [text.replace(choices, choice) for choice in choices.split("|")]
    return [text.replace("<", "").replace(">", "")]


class Refused(Exception):
    """The command line's error for a command that does not exist, or for an option or value that it does not accept."""


def parse(words: list[str]) -> None:
    """Read a command as the CLI does, without running it. Which package its classes are of depends on typer's version.

    Raises:
        Refused: it would not run.
    """
    words = [STAND_INS.get(word, word) for word in words if word not in ONLY_PRINTED]
    try:
        _parse(words)
    except Exception as error:
        said = getattr(error, "format_message", None)
        if said is None:
            raise
        raise Refused(said() or type(error).__name__) from None


@cache
def whole_command() -> Any:
    return typer.main.get_command(app)


def _parse(words: list[str]) -> None:
    command: Any = whole_command()
    name, parent = "cdcflow", None
    while words:
        context = command.make_context(name, _with_value(command, words), parent=parent)
        if not hasattr(command, "resolve_command"):
            return
        words = [*context._protected_args, *context.args]
        if not words:
            return  # options of all commands, such as `cdcflow --debug`
        name, found, words = command.resolve_command(context, words)
        if not words and hasattr(found, "resolve_command"):
            return  # a group is named, such as `cdcflow log`
        command, parent = found, context
        if not words:
            command.make_context(name, [], parent=parent)


def _with_value(command: Any, words: list[str]) -> list[str]:
    """A sentence may name an option without its value (`cdcflow merge --every`)."""
    options = {name: option for option in command.params for name in option.opts}
    option = options.get(words[-1])
    return list(words) if option is None or getattr(option, "is_flag", True) else [*words, "5"]


def test_every_command_of_cdcflow_on_a_page_parses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that is copied from a page and refused costs the reader's trust in all the others."""
    monkeypatch.setattr(lazy, "load_command", cache(lazy.load_command))
    refused = []
    for page, words in cdcflow_commands():
        try:
            parse(words)
        except Refused as error:
            refused.append(f"{page}: cdcflow {' '.join(words)}: {error}")
    assert refused == []


@pytest.mark.parametrize(
    "text", ["nope", "run --nope", "table pause", "merge --every 5s extra", "log show --from x", "log nope"]
)
def test_command_that_does_not_exist_is_found(text: str) -> None:
    """The check above can fail."""
    with pytest.raises(Refused):
        parse(text.split())


def test_every_other_command_is_listed_with_where_it_is_run() -> None:
    """A command that nothing runs or reads is wrong sooner or later."""
    found = {words[0] for page in pages() for b in blocks(page) if b.language in SHELL for words in commands(b)}
    found.discard("cdcflow")
    assert found - set(ELSEWHERE) == set(), "on a page, and not listed"
    assert set(ELSEWHERE) - found == set(), "listed, and on no page"


def test_every_target_of_make_on_a_page_exists() -> None:
    """`make help` and the pages list the same targets."""
    from tests.support.docs.pages import ROOT

    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z][a-z.-]*)(?=[a-z. -]*:)", makefile, re.MULTILINE))
    targets |= {t for line in re.findall(r"^\.PHONY:(.*)$", makefile, re.MULTILINE) for t in line.split()}
    benches = re.findall(r"^BENCHES := (.*)$", makefile, re.MULTILINE)
    targets |= {f"bench-{name}" for name in benches[0].split()}
    named: set[str] = set()
    for page in pages():
        in_blocks = [w for b in blocks(page) if b.language in SHELL for w in commands(b)]
        in_text = [span.split() for span in spans(page) if re.match(r"make [a-z]", span)]
        named |= {words[1] for words in [*in_blocks, *in_text] if words[0] == "make"}
    assert named - targets == set()
    assert {"demo", "test"} <= named
