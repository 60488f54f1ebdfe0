"""Files at URLs: when they are read, and what happens when a server does not answer as it should."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from captured_files import CapturedFiles

from cdcflow.errors import SourceUnavailable
from cdcflow.sources.polled import Changing
from cdcflow_files import WebFiles

CANARY = "c4n4ry-s3cret"
YEAR_2026 = 1767225600


class Site:
    """A web server in a thread. `files`: what it has by path, each with headers. `got`: requests with their
    Authorization."""

    def __init__(self) -> None:
        self.files: dict[str, tuple[bytes, dict[str, str]]] = {}
        self.codes: dict[str, int] = {}
        self.got: list[tuple[str, str | None]] = []
        self.without_head = False
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _requests_of(self))
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def publish(self, path: str, text: str, **headers: str) -> None:
        self.files[path] = (text.encode(), headers or {"ETag": f'"{hash(text)}"'})

    def gets(self, path: str) -> int:
        return sum(one == f"GET {path}" for one, _ in self.got)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _requests_of(site: Site) -> type[BaseHTTPRequestHandler]:
    class Requests(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self._answer(405 if site.without_head else 200, has_body=False)

        def do_GET(self) -> None:
            self._answer(200, has_body=True)

        def _answer(self, code: int, *, has_body: bool) -> None:
            site.got.append((f"{self.command} {self.path}", self.headers.get("Authorization")))
            content, headers = site.files.get(self.path, (b"", {}))
            known = self.path in site.files
            self.send_response_only(site.codes.get(self.path, code if known else 404))
            for name, value in headers.items():
                self.send_header(name, value)
            if "Content-Length" not in headers:
                self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if has_body:
                self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    return Requests


@pytest.fixture
def site() -> Iterator[Site]:
    made = Site()
    yield made
    made.close()


def captured(tmp_path: Path, site: Site, *names: str, **settings: Any) -> CapturedFiles:
    """A capture that began when the site had only an empty file, and has polled what it has now."""
    urls = {f"files.{name.partition('.')[0]}": [f"{site.url}/{name}"] for name in ("first.csv", *names)}
    now, site.files = site.files, {}
    site.publish("/first.csv", "n\n")
    files = CapturedFiles(tmp_path / "state", urls=urls, **settings)
    site.files |= now
    files.poll()
    return files


def test_file_at_a_url_is_read_once_and_again_when_it_changes(tmp_path: Path, site: Site) -> None:
    """A poll requests its tag only. Its changes are those of its rows."""
    site.publish("/orders.csv", "id,n\n1,10\n2,20\n")
    files = captured(tmp_path, site, "orders.csv", keys={"files.orders": ["id"]})
    before = site.gets("/orders.csv")
    files.poll()
    assert site.gets("/orders.csv") == before
    site.publish("/orders.csv", "id,n\n1,10\n3,30\n")
    files.poll()
    assert files.changes() == [
        ("c orders", {"id": 1, "n": 10}),
        ("c orders", {"id": 2, "n": 20}),
        ("d orders", {"id": 2, "n": 20}),
        ("c orders", {"id": 3, "n": 30}),
    ]


def test_server_without_tags_is_compared_by_content(tmp_path: Path, site: Site) -> None:
    """Also one that refuses HEAD: each change is seen, and only once."""
    site.without_head = True
    site.publish("/a.jsonl", '{"n": 1}\n', Server="plain")
    files = captured(tmp_path, site, "a.jsonl")
    files.poll()
    site.publish("/a.jsonl", '{"n": 1}\n{"n": 2}\n', Server="plain")
    files.poll()
    assert [row["n"] for _, row in files.changes()] == [1, 2]


def test_file_that_was_changed_in_this_second_is_read_later(tmp_path: Path, site: Site) -> None:
    """Last-Modified has whole seconds: another change in the same second would have the same headers."""
    for age, expected in ((0, []), (1, []), (10, [7])):
        times = {"Last-Modified": formatdate(YEAR_2026, usegmt=True), "Date": formatdate(YEAR_2026 + age, usegmt=True)}
        site.publish("/a.csv", "n\n7\n", **times)
        files = captured(tmp_path / str(age), site, "a.csv")
        files.poll()
        assert [row["n"] for _, row in files.changes()] == expected


def test_list_names_files_that_appear(tmp_path: Path, site: Site) -> None:
    """Relative URLs begin at the list; comments and other files are ignored; order is that of the list."""
    site.publish("/day/list.txt", "# all days\n2.csv\n\n/1.csv\nREADME.md\n")
    for path, n in (("/day/2.csv", 2), ("/1.csv", 1), ("/day/3.csv.gz", 3)):
        site.publish(path, f"n\n{n}\n")
    files = captured(tmp_path, site, lists={"files.days": f"{site.url}/day/list.txt"})
    site.publish("/day/list.txt", "2.csv\n/1.csv\n3.csv\n2.csv\n")
    site.publish("/day/3.csv", "n\n3\n")
    files.poll()
    assert [(op, row["n"]) for op, row in files.changes()] == [("c days", 2), ("c days", 1), ("c days", 3)]


@pytest.mark.parametrize("line", ["file:///etc/passwd.csv", "https://me:pw@h/a.csv", "http://h/a.csv?api_key=x"])
def test_list_with_what_must_not_be_read_stops_its_table(tmp_path: Path, site: Site, line: str) -> None:
    """A list is data of another: it reads no local file and sends no secret."""
    site.publish("/list.txt", f"{line}\n")
    site.publish("/a.csv", "n\n1\n")
    files = captured(tmp_path, site, "a.csv", lists={"files.days": f"{site.url}/list.txt"})
    assert "files.days" in files.stopped()
    assert "line 1 of the list is not the URL of a file, or has a secret in it" in files.stopped()
    assert line not in files.stopped()
    site.publish("/list.txt", "b.csv\n")
    site.publish("/b.csv", "n\n2\n")
    files.poll()
    assert files.stopped() == ""
    assert {op for op, _ in files.changes()} == {"c a", "c days"}


def test_url_that_does_not_answer_stops_its_table_until_it_does(tmp_path: Path, site: Site) -> None:
    """And no other table. `doctor` names the URL."""
    site.publish("/a.csv", "n\n1\n")
    site.publish("/b.csv", "n\n1\n")
    files = captured(tmp_path, site, "a.csv", "b.csv")
    site.codes["/b.csv"] = 503
    site.publish("/a.csv", "n\n1\n2\n")
    files.poll()
    assert files.stopped() == f"files.b: {site.url}/b.csv: it answered 503"
    assert [f.subject for f in files.source.doctor() if f.level == "error"] == [f"{site.url}/b.csv"]
    del site.codes["/b.csv"]
    site.publish("/b.csv", "n\n1\n3\n")
    files.poll()
    assert files.stopped() == ""
    assert [(op, row["n"]) for op, row in files.changes()] == [("c a", 1), ("c b", 1), ("c a", 2), ("c b", 3)]


def test_no_answer_at_all_is_an_outage(tmp_path: Path, site: Site) -> None:
    """The capture waits and tries again, as for a database."""
    site.publish("/a.csv", "n\n1\n")
    files = captured(tmp_path, site, "a.csv")
    site.close()
    with pytest.raises(SourceUnavailable, match=r"no answer: Connection refused"):
        files.source.poll_now()


def test_answer_that_ends_early_is_not_read(tmp_path: Path, site: Site) -> None:
    """Half of a CSV file is a CSV file."""
    site.publish("/b.csv", "n\n1\n")
    site.publish("/a.csv", "n\n1\n2\n", ETag='"x"', **{"Content-Length": "100"})
    files = captured(tmp_path, site, "a.csv", "b.csv")
    assert f"files.a: {site.url}/a.csv: no whole answer" in files.stopped()
    assert [op for op, _ in files.changes()] == ["c b"]


def test_file_that_changes_while_it_is_read_is_read_at_a_later_poll(tmp_path: Path, site: Site) -> None:
    """What was seen by HEAD is what is stored."""
    site.publish("/a.csv", "n\n1\n")
    files = captured(tmp_path, site, "a.csv")
    site.publish("/a.csv", "n\n1\n2\n")
    (item,) = [one for one in WebFiles(files.settings).items() if one.name.endswith("/a.csv")]
    site.publish("/a.csv", "n\n1\n2\n3\n")
    with pytest.raises(Changing):
        item.read({})
    files.poll()
    assert [row["n"] for _, row in files.changes()] == [1, 2, 3]


def test_secret_headers_go_to_hosts_of_the_settings_only(
    tmp_path: Path, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list, or a server that redirects, must not be able to collect them."""
    monkeypatch.setenv("TOKEN", CANARY)
    other = Site()
    other.publish("/c.csv", "n\n3\n")
    other.publish("/moved.csv", "n\n2\n")
    site.publish("/list.txt", f"{other.url}/c.csv\n/b.csv\n")
    site.publish("/b.csv", "", Location=f"{other.url}/moved.csv")
    site.codes["/b.csv"] = 302
    files = captured(
        tmp_path, site, lists={"files.a": f"{site.url}/list.txt"}, headers={"Authorization": "${env:TOKEN}"}
    )
    other.close()
    assert [row["n"] for _, row in files.changes()] == [3, 2]
    assert {secret for _, secret in site.got} == {CANARY}
    assert {secret for _, secret in other.got} == {None}
    assert CANARY not in files.stopped() + repr(files.settings)
