"""The book of each version stays: `make docs-version` adds one to a branch, and a selector leads to the others.

`make test-docs` runs these tests.
"""

from __future__ import annotations

import functools
import http.server
import json
import subprocess
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

import pytest
from tests.page.browser import started
from tests.release.build import ROOT

pytestmark = pytest.mark.long
NEWS = "This sentence is in the second version only."


def run(folder: Path, *command: str) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def make_version(tree: Path) -> str:
    """`make docs-version` in a clone, which uses the environment of this checkout."""
    installed = [f"--old-file=.venv/{name}" for name in (".installed", ".book")]
    return run(tree, "make", *installed, "docs-version", "DOCS_BRANCH=book")


@pytest.fixture(scope="module")
def books(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the branch after two versions."""
    room = tmp_path_factory.mktemp("book")
    tree, files = room / "tree", room / "files"
    run(room, "git", "clone", "--quiet", str(ROOT), str(tree))
    (tree / ".venv").symlink_to(ROOT / ".venv")
    for name, text in (("user.name", "A Maintainer"), ("user.email", "maintainer@example.com")):
        run(tree, "git", "config", name, text)
    version = tree / "src" / "cdcflow" / "version.py"
    version.write_text('__version__ = "7.1.3"\n')
    assert "7.1 [latest]" in make_version(tree)
    version.write_text('__version__ = "7.2.0"\n')
    with (tree / "docs" / "index.md").open("a") as page:
        page.write(f"\n{NEWS}\n")
    assert "7.2 [latest]" in make_version(tree)
    archive = subprocess.run(["git", "archive", "book"], cwd=tree, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=BytesIO(archive)) as found:
        found.extractall(files, filter="data")
    return files


def test_versions_are_next_to_each_other(books: Path) -> None:
    """A user of an earlier version reads the book of that version."""
    listed = json.loads((books / "versions.json").read_text())
    assert [(one["version"], one["aliases"]) for one in listed] == [("7.2", ["latest"]), ("7.1", [])]
    assert NEWS in (books / "7.2" / "index.html").read_text()
    assert NEWS not in (books / "7.1" / "index.html").read_text()
    assert (books / "7.1" / "quickstart" / "index.html").exists()
    assert "../../7.2/quickstart/" in (books / "latest" / "quickstart" / "index.html").read_text()
    assert "latest/" in (books / "index.html").read_text()


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a web server with these files."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_selector_leads_to_another_version(books: Path) -> None:
    """As a reader does it."""
    with served(books) as url, started() as browser:
        browser.driver.get(f"{url}/latest/quickstart/")
        browser.until(lambda: browser.driver.current_url == f"{url}/7.2/quickstart/", "the latest version")
        links = browser.until(lambda: browser.all(".md-version__link"), "the selector")
        assert [browser.run("return arguments[0].textContent.trim()", one) for one in links] == ["7.2", "7.1"]
        browser.run("arguments[0].click()", links[1])
        browser.until(lambda: browser.driver.current_url.startswith(f"{url}/7.1/"), "the earlier version")
        browser.until(lambda: browser.text("h1"), "its page")
