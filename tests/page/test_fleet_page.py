"""The page of a fleet in a real browser: 200 pipelines, filters, hostile texts, a phone."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium.webdriver.common.by import By
from tests.page.browser import Browser, started
from tests.support.fleet.simulated import FleetServer, finding, fleet, publish, report

from cdcflow.config import AccessToken
from cdcflow.http.access import Access

pytestmark = pytest.mark.page
NASTY = "<img src=x onerror=\"document.title='owned'\">"
TOKEN = secrets.token_hex(24)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with started() as made:
        yield made


def show_page(browser: Browser, server: FleetServer) -> None:
    browser.driver.get("about:blank")
    browser.driver.get(server.url)
    browser.until(lambda: browser.text("#state") not in ("connecting", "signed out"), "the first answer")


@pytest.fixture
def server(tmp_path: Path, browser: Browser) -> Iterator[FleetServer]:
    """A fleet of 200."""
    browser.size(1280, 900)
    browser.scheme("light")
    browser.forget()
    publish(tmp_path / "register", *fleet(200))
    made = FleetServer(tmp_path / "register")
    made.start()
    yield made
    browser.driver.get("about:blank")
    made.close()


def names(browser: Browser) -> list[str]:
    script = "return [...document.querySelectorAll('#pipelines tr.row th span')].map((one) => one.textContent)"
    return list(browser.run(script))


def test_fleet_of_200_shows_what_needs_an_operator_first(browser: Browser, server: FleetServer) -> None:
    """State, lag, the source's log, freshness, merges, comparisons: on one page, the worst at the top."""
    show_page(browser, server)
    assert len(names(browser)) == 200
    assert browser.text("#state") == "5 with errors"
    assert browser.text("#source") == "200 pipelines, 195 of them capturing"
    first = browser.all("#pipelines tr.row")[0].text
    assert "silent" in first
    assert "since" in first
    assert "has been silent since" in browser.all("#pipelines tr.why")[0].text
    lines = [one.text for one in browser.all("#pipelines tr.row")[:6]]
    assert "96 % used" in " ".join(lines)
    assert "24 tables" not in lines[0]
    assert browser.complaints() == []


def test_filters_are_in_the_address(browser: Browser, server: FleetServer) -> None:
    """An operator sends a colleague what is on the screen."""
    show_page(browser, server)
    browser.one('#states [data-state="needs attention"]').click()
    assert len(names(browser)) == 8
    browser.one("#name").send_keys("search-eu")
    assert all("search-eu" in name for name in names(browser))
    few = names(browser)
    address = browser.driver.current_url
    assert "state=needs+attention" in address
    browser.driver.get("about:blank")
    browser.driver.get(address)
    browser.until(lambda: browser.text("#state") != "connecting", "the first answer")
    assert names(browser) == few
    browser.one('#states [data-state=""]').click()
    browser.one("#name").clear()
    browser.one("#name").send_keys("no such pipeline")
    assert browser.text("#none") == "No pipeline fits these filters."


def test_texts_of_members_are_text(browser: Browser, tmp_path: Path, server: FleetServer) -> None:
    """A member publishes what its source reports, and a source's texts are anyone's."""
    bad = [finding("error", NASTY, NASTY), finding("warning", NASTY)]
    publish(tmp_path / "register", report("nasty", place=NASTY, state=NASTY, findings=bad, texts={"source": NASTY}))
    server.watch.refresh()
    show_page(browser, server)
    browser.one("#name").send_keys("nasty")
    assert names(browser) == ["nasty"]
    browser.one("#pipelines tr.why button").click()
    browser.until(lambda: browser.text("#pipelines tr.why li"), "the other findings")
    assert NASTY in browser.text("#pipelines tr.why p")
    assert browser.driver.title == "cdcflow fleet"
    assert browser.all("#pipelines img") == []
    assert browser.complaints() == []


def test_row_leads_to_the_members_own_page(browser: Browser, server: FleetServer) -> None:
    """What to do is done there."""
    show_page(browser, server)
    link = browser.all("#pipelines tr.row th")[3].find_element(By.TAG_NAME, "a")
    assert str(link.get_attribute("href")).endswith(".cdc.example.com/")


def test_change_of_a_state_is_shown_in_place(browser: Browser, tmp_path: Path, server: FleetServer) -> None:
    """A focused filter keeps its focus; the row that needs an operator moves up."""
    show_page(browser, server)
    name = names(browser)[150]
    browser.run("document.querySelector('#states [data-state=capturing]').focus()")
    lost = [finding("error", "The slot is gone.")]
    (one,) = [given for given in fleet(200) if given.name == name]
    publish(tmp_path / "register", report(name, place=one.place, findings=lost))
    server.watch.refresh()
    browser.refresh()
    browser.until(lambda: browser.text("#state") == "6 with errors", "the new error")
    assert name in names(browser)[:6]
    assert "capturing" in browser.focused()


def test_unreadable_register_is_shown_at_the_top(browser: Browser, tmp_path: Path, server: FleetServer) -> None:
    """What is shown is from before, and must not be taken for current."""
    (tmp_path / "register").rename(tmp_path / "elsewhere")
    server.watch.refresh()
    show_page(browser, server)
    assert "No such file or directory" in browser.text("#outages")
    assert browser.one("#state").get_attribute("class") == "pill bad"


def test_server_that_does_not_answer_is_shown_with_the_time_of_its_last_answer(
    browser: Browser, server: FleetServer
) -> None:
    """Stale numbers that appear current are worse than none."""
    show_page(browser, server)
    server.close()
    browser.refresh()
    browser.until(lambda: browser.one("#lost").is_displayed(), "the message that it does not answer")
    assert "has not answered since" in browser.text("#lost")


def test_signing_in_shows_the_fleet(browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With tokens nothing is shown without one."""
    monkeypatch.setenv("FLEET_TOKEN", TOKEN)
    access = Access([AccessToken(name="ops", role="read", token="${env:FLEET_TOKEN}")], setting="tokens")  # noqa: S106
    publish(tmp_path / "register", report("shop"))
    made = FleetServer(tmp_path / "register", access)
    made.start()
    browser.size(1280, 900)
    browser.forget()
    browser.driver.get(made.url)
    browser.until(lambda: browser.one("#token").is_displayed(), "the dialog")
    assert names(browser) == []
    browser.one("#token").send_keys(TOKEN)
    browser.one("#signin button.strong").click()
    browser.until(lambda: names(browser) == ["shop"], "the pipeline")
    assert browser.text("#state") == "all is well"
    browser.one("#sign").click()
    browser.until(lambda: browser.text("#state") == "signed out", "the end of the session")
    browser.driver.get("about:blank")
    made.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_phone_shows_every_row_without_scrolling_sideways(browser: Browser, server: FleetServer, scheme: str) -> None:
    """An operator is called at night."""
    browser.size(390, 844, phone=True)
    browser.scheme(scheme)
    show_page(browser, server)
    assert len(names(browser)) == 200
    assert browser.run("return document.documentElement.scrollWidth") <= 390


def test_page_of_200_is_drawn_within_its_budget(browser: Browser, server: FleetServer) -> None:
    """The weight that is really sent: the page, its files and its data."""
    show_page(browser, server)
    script = """
        const all = [...performance.getEntriesByType('navigation'), ...performance.getEntriesByType('resource')];
        return all.reduce((sum, one) => sum + one.decodedBodySize, 0)"""
    assert 50_000 < browser.run(script) <= 300_000
