"""The page in a real browser: what it shows, and what users can do, with a mouse, a keyboard, a phone."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver.common.keys import Keys
from tests.page.browser import Browser, started
from tests.page.shop import NASTY, Shop

from cdcflow.config import AccessToken

pytestmark = pytest.mark.page
TOKEN = secrets.token_hex(24)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with started() as made:
        yield made


@pytest.fixture
def shop(tmp_path: Path, browser: Browser) -> Iterator[Shop]:
    """A capture that any user of this machine may view."""
    yield from running(Shop(tmp_path), browser)


@pytest.fixture
def operated(tmp_path: Path, browser: Browser, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    """A capture whose page is open and signed in with a token that may operate."""
    monkeypatch.setenv("PAGE_TOKEN", TOKEN)
    shop = Shop(tmp_path, [AccessToken(name="ops", role="operate", token="${env:PAGE_TOKEN}")])  # noqa: S106
    for made in running(shop, browser):
        browser.open(made.url, shown=False)
        browser.sign_in(TOKEN)
        browser.until(lambda: row(browser, "public.flights", "button"), "the rows")
        yield made


def running(shop: Shop, browser: Browser) -> Iterator[Shop]:
    browser.size(1280, 900)
    browser.scheme("light")
    browser.forget()
    shop.server.start()
    yield shop
    browser.driver.get("about:blank")
    shop.server.close()


def row(browser: Browser, table: str, selector: str) -> list[Any]:
    script = """
        const th = [...document.querySelectorAll('#tables tbody th')].find((one) => one.textContent === arguments[0]);
        return th ? [...th.parentElement.querySelectorAll(arguments[1])] : []"""
    return list(browser.run(script, table, selector))


def named(browser: Browser, label: str) -> Any:
    return browser.one(f'#tables button[aria-label="{label}"]')


def answer_dialog(browser: Browser, selector: str) -> None:
    browser.until(lambda: browser.one(selector).is_displayed(), "the dialog")
    browser.one(selector).click()


# ── what it shows ──────────────────────────────────────────────────────────────────────────────────────────


def test_page_shows_how_the_capture_is(browser: Browser, shop: Shop) -> None:
    """State, findings with remedies, figures, plots, tables, window, merges: all that is required, on one page."""
    shop.remember(1)
    browser.open(shop.url)
    assert browser.text("#state") == "capturing"
    assert "Error: Reading public.weather failed: SELECT is not granted. Fix the cause" in browser.text("#findings")
    assert browser.text("#figure-kept") == "The source keeps2.1 GBof at most 4.3 GB"
    assert "61.0 GB" in browser.text("#figure-disk")
    assert str(browser.one("#plots svg").get_attribute("aria-label")).startswith("Behind the source, bytes: now 1.8 MB")
    assert all(str(path.get_attribute("d")).count("L") > 50 for path in browser.all("#plots .line"))
    names = [one.text for one in browser.all("#tables tbody th")]
    assert names[:3] == ["public.weather", "public.planes", "public.flights"]  # those that need an operator come first
    assert row(browser, "public.flights", "progress")[0].get_attribute("aria-valuetext") == "65 %"
    assert "public.flights" in browser.text("#window")
    assert len(browser.all("#merges tbody tr")) == 4
    consumers = [one.text.split() for one in browser.all("#consumers tbody tr")]  # the one that lags most comes first
    assert [one[0] for one in consumers] == ["report", "billing", "search"]
    assert consumers[0][-2:] == ["31,000,000", "337,042"]
    assert browser.complaints() == []


def test_nothing_is_fetched_from_elsewhere(browser: Browser, shop: Shop) -> None:
    """A page in a closed network must work, and no other host may learn that it was viewed."""
    browser.open(shop.url)
    fetched = browser.run("return performance.getEntriesByType('resource').map((one) => one.name)")
    assert len(fetched) >= 6
    assert [url for url in fetched if not url.startswith(shop.url)] == []


def test_change_of_a_state_is_shown_in_place(browser: Browser, operated: Shop) -> None:
    """A focused button must keep its focus when a number in another row changes."""
    button = named(browser, "Pause: public.flights")
    browser.run("arguments[0].focus()", button)
    operated.status["tables"]["public.airports"]["rows"] = 4711
    browser.until(lambda: row(browser, "public.airports", "td")[1].text == "4,711", "the new number")
    assert browser.focused() == "Pause: public.flights"
    operated.status["tables"]["public.flights"]["state"] = "done"
    browser.until(lambda: row(browser, "public.flights", ".tag")[0].text == "done", "the new state")
    assert [one.text for one in row(browser, "public.flights", "button")] == ["Read again"]


def test_daemon_that_does_not_answer_is_shown_with_the_time_of_its_last_answer(
    browser: Browser, operated: Shop
) -> None:
    """Stale numbers that appear current are worse than none; and a daemon that is unavailable takes no commands."""
    operated.server.close()
    browser.until(lambda: browser.one("#lost").is_displayed(), "the message that it does not answer")
    assert "The daemon has not answered since " in browser.text("#lost")
    assert browser.one("#lost").get_attribute("role") == "alert"
    assert not named(browser, "Pause: public.flights").is_enabled()


def test_halted_capture_is_not_shown_as_one_that_waits(browser: Browser, shop: Shop) -> None:
    """What needs a person must not look like what passes by itself."""
    shop.status |= {"state": "halted", "reason": "the slot is gone\n  run `cdcflow run --accept-history-loss`"}
    browser.open(shop.url)
    assert browser.one("#state").get_attribute("class") == "pill bad"
    assert (
        "has ended and will not try again: the slot is gone. run `cdcflow run --accept-history-loss`"
        in browser.text("#findings")
    )


def test_problem_of_the_night_is_listed_in_the_morning(browser: Browser, shop: Shop) -> None:
    """A resolved problem is no longer a finding, but still answers "what was that?"."""
    browser.open(shop.url)
    assert not browser.one("#recent").is_displayed()
    for _ in range(3):
        shop.recent("capture interrupted", {"reason": "asking db: refused", "remedy": "start the server"})
    browser.until(lambda: browser.one("#recent").is_displayed(), "what went wrong")
    browser.one("#recent summary").click()
    assert "3 times Capture interrupted: asking db: refused. start the server" in browser.text("#recent li")


def test_thousand_tables_are_narrowed_down(browser: Browser, shop: Shop) -> None:
    """A list of a thousand rows every two seconds would be useless."""
    shop.status["tables"] = {f"public.t{n}": {"state": "done", "rows": n} for n in range(1000)}
    browser.open(shop.url)
    assert len(browser.all("#tables tbody tr")) == 200
    assert "800 more" in browser.text("#tables-more")
    browser.one("#filter").send_keys("t99")
    browser.until(lambda: len(browser.all("#tables tbody tr")) == 11, "the rows with t99")


# ── what can be done ────────────────────────────────────────────────────────────────────────────────────────


def test_operation_is_ordered_once_it_is_confirmed(browser: Browser, operated: Shop) -> None:
    """Where the row is; and its effect is shown before."""
    named(browser, "Cancel: public.flights").click()
    assert "Cancel reading existing rows of public.flights?" in browser.text("#confirm-text")
    answer_dialog(browser, "#confirm [data-close]")
    named(browser, "Pause: public.flights").click()
    answer_dialog(browser, "#confirm-yes")
    browser.until(lambda: any(one["op"] == "pause" for one in operated.asked), "the order")
    assert operated.asked == [{"op": "pause", "tables": ["public.flights"]}]
    browser.until(lambda: "ordered" in browser.text("#said"), "the word that it was")


def test_throttle_sends_only_the_given_rate_and_priority(browser: Browser, operated: Shop) -> None:
    """Only fields that were filled in are changed; and an existing throttle is shown."""
    operated.status["tables"]["public.planes"] |= {"rate_limit": 2000, "rate_limit_from": "settings", "priority": 3}
    seen = "at most 2,000 rows/s by settings, priority 3"
    browser.until(lambda: row(browser, "public.planes", "small")[0].text == seen, "the throttle")
    named(browser, "Throttle: public.flights").click()
    browser.one("#field-rows_per_second_max").send_keys("5000", Keys.ENTER)
    browser.until(lambda: operated.asked, "the order")
    assert operated.asked == [{"op": "adjust", "tables": ["public.flights"], "rows_per_second_max": 5000}]


def test_refusal_is_shown_with_its_remedy(browser: Browser, operated: Shop) -> None:
    """A command that the daemon refuses reports what to do, not a number."""
    named(browser, "Read again: public.weather").click()
    answer_dialog(browser, "#confirm-yes")
    browser.until(lambda: "GRANT SELECT ON public.weather" in browser.text("#said"), "the remedy")


def test_finding_has_the_operation_that_repairs_it(browser: Browser, operated: Shop) -> None:
    """Act on what you see."""
    browser.one('#findings button[aria-label="Resume: public.planes"]').click()
    answer_dialog(browser, "#confirm-yes")
    browser.until(lambda: operated.asked, "the order")
    assert operated.asked == [{"op": "resume", "tables": ["public.planes"]}]
    browser.until(lambda: browser.text("#said") == "public.planes: resumed", "the word that it was")


def test_everything_works_with_the_keyboard(browser: Browser, operated: Shop) -> None:
    """From a button by Enter into the dialog, whose safe answer has the focus, and back by Escape to where one was."""
    browser.run("arguments[0].focus()", named(browser, "Cancel: public.flights"))
    browser.press(Keys.ENTER)
    browser.until(lambda: browser.focused() == "Back", "the safe answer to have the focus")
    browser.press(Keys.ESCAPE)
    browser.until(lambda: browser.focused() == "Cancel: public.flights", "the focus to return")
    browser.press(Keys.ENTER)
    browser.until(lambda: browser.focused() == "Back", "the dialog")
    browser.press(Keys.TAB)
    assert browser.focused() == "Cancel"
    browser.press(Keys.ENTER)
    browser.until(lambda: operated.asked, "the order")


def test_page_without_tokens_has_no_buttons_and_explains_why(browser: Browser, shop: Shop) -> None:
    """A button that is always refused is worse than none."""
    browser.open(shop.url)
    assert browser.all("#tables button, #capture button, #findings button") == []
    assert "service.tokens" in browser.one("#readonly").text


# ── signing in ──────────────────────────────────────────────────────────────────────────────────────────────


def test_page_shows_nothing_before_and_after_a_session(browser: Browser, operated: Shop) -> None:
    """The token itself stays nowhere: neither in the page, nor where a script could read it."""
    assert browser.run("return document.cookie") == ""
    assert browser.run("return localStorage.length + sessionStorage.length") == 0
    assert browser.run("return document.querySelector('#token').value") == ""
    (cookie,) = browser.driver.get_cookies()
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    assert TOKEN not in cookie["value"]
    browser.one("#sign").click()
    browser.until(lambda: not browser.one("#main").is_displayed(), "the page to be empty")
    assert browser.driver.get_cookies() == []


def test_wrong_token_is_reported_in_the_dialog(browser: Browser, operated: Shop) -> None:
    """A typing mistake is not the end of it."""
    browser.one("#sign").click()
    browser.until(lambda: browser.text("#sign") == "Sign in", "the end of the session")
    browser.one("#sign").click()
    browser.one("#token").send_keys("wrong", Keys.ENTER)
    browser.until(lambda: "this token is not known" in browser.text("#signin-said"), "the refusal")
    browser.one("#token").send_keys(TOKEN, Keys.ENTER)
    browser.until(lambda: browser.one("#main").is_displayed(), "the page")


# ── the change explorer ─────────────────────────────────────────────────────────────────────────────────────


def search(browser: Browser, table: str, key: str = "", *, values: bool = False) -> list[str]:
    browser.open(browser.driver.current_url)
    browser.until(lambda: len(browser.all("#search-table option")) > 1, "the tables")
    browser.run("document.querySelector('#search-table').value = arguments[0]", table)
    browser.one("#search-key").send_keys(key)
    if values:
        browser.one("#search-values").click()
    browser.one("#search button").click()
    browser.until(lambda: "Looking" not in browser.text("#search-said") and browser.text("#search-said"), "an answer")
    return [one.text for one in browser.all("#changes tbody tr")]


def test_history_of_a_key_and_its_transaction_are_found(browser: Browser, shop: Shop) -> None:
    """What happened to this row, and what else happened with it."""
    browser.open(shop.url)
    found = search(browser, "shop.orders", "4", values=True)
    assert ["delete" in found[0], "insert" in found[1], len(found)] == [True, True, 2]
    browser.one('#changes button[aria-label="Show transaction 4 whole"]').click()
    browser.until(lambda: "transaction 804 of the source, 2 rows" in browser.text("#search-said"), "the transaction")
    assert len(browser.all("#changes tbody tr")) == 2


def test_values_are_shown_only_on_request_and_as_text(browser: Browser, shop: Shop) -> None:
    """S03, and a row that holds a script is a text like any other."""
    browser.open(shop.url)
    assert "back door" not in "".join(search(browser, "shop.orders"))
    fetched = browser.run("return performance.getEntriesByType('resource').map((one) => one.name)")
    assert [url for url in fetched if "values" in url] == []
    found = search(browser, "shop.orders", values=True)
    assert any(NASTY in line for line in found)
    assert any("note unchanged" in line for line in found)
    assert browser.all("#changes img") == []
    assert browser.driver.title == "cdcflow"


def test_malformed_query_is_answered_with_the_remedy(browser: Browser, shop: Shop) -> None:
    """The page shows what the API says, with the remedy."""
    browser.open(shop.url)
    search(browser, "shop.orders", "1, 2")
    assert browser.text("#search-said") == "a key of shop.orders has 1 columns, not 2. give id"


# ── accessibility ───────────────────────────────────────────────────────────────────────────────────────────


def test_page_fits_a_phone(browser: Browser, operated: Shop) -> None:
    """Nothing is wider than the screen, tables neither, and buttons are large enough for a thumb."""
    browser.size(360, 740, phone=True)
    browser.until(lambda: browser.run("return innerWidth") == 360, "the small screen")
    assert browser.run("return document.scrollingElement.scrollWidth") == 360
    wider = "return [...document.querySelectorAll('.scroll')].filter((one) => one.scrollWidth > one.clientWidth).length"
    assert browser.run(wider) == 0
    heights = [one.size["height"] for one in browser.all("#tables button")]
    assert min(heights) >= 36


def test_dark_is_dark(browser: Browser, shop: Shop) -> None:
    """A user whose machine is set to dark gets a dark page."""
    seen = set()
    for scheme in ("light", "dark"):
        browser.scheme(scheme)
        browser.open(shop.url)
        script = "const s = getComputedStyle(document.body); return s.backgroundColor + ' ' + s.color"
        seen.add(browser.run(script))
    assert seen == {"rgb(246, 247, 249) rgb(27, 35, 48)", "rgb(16, 20, 26) rgb(228, 233, 240)"}


def test_screen_reader_finds_a_name_for_everything(browser: Browser, operated: Shop) -> None:
    """Buttons, fields, pictures, regions and tables, as Chromium hands them to a screen reader."""
    browser.run("document.querySelector('#search').requestSubmit()")
    browser.until(lambda: browser.all("#changes tbody tr"), "the changes")
    nodes = browser.driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    seen: dict[str, list[str]] = {}
    for node in nodes:
        if not node["ignored"]:
            seen.setdefault(node["role"]["value"], []).append(node.get("name", {}).get("value", ""))
    for role in ("button", "textbox", "combobox", "checkbox", "image", "meter", "progressbar", "region", "rowheader"):
        if role != "textbox":
            assert seen.get(role), role
        assert all(seen.get(role, [])), f"{role}: {seen.get(role)}"
    assert {"banner", "main", "contentinfo"} <= set(seen)
    buttons = [name for name in seen["button"] if name.startswith("Read again")]
    assert len(set(buttons)) == len(buttons) - 1  # one of them is in a finding as well
