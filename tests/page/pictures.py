"""Pictures of the page for review: python -m tests.page.pictures FOLDER

Also prints the page's size and how long it takes until something is visible.
"""

from __future__ import annotations

import os
import secrets
import sys
import tempfile
from pathlib import Path

from tests.page.browser import Browser, started
from tests.page.shop import Shop
from tests.support.fleet.simulated import FleetServer, fleet, publish

from cdcflow.config import AccessToken

SIZES = {"light": (1180, 900, "light"), "dark": (1180, 900, "dark"), "phone": (390, 844, "light")}
_PAINT = "return performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
_BYTES = """
const all = [...performance.getEntriesByType('navigation'), ...performance.getEntriesByType('resource')];
const files = all.filter((one) => !one.name.includes('/api/'));
return [files.length, files.reduce((sum, one) => sum + one.encodedBodySize, 0),
        files.reduce((sum, one) => sum + one.decodedBodySize, 0)]
"""


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as room, started() as browser:
        os.environ["PAGE_TOKEN"] = secrets.token_hex(24)
        shop = Shop(Path(room), [AccessToken(name="ops", role="operate", token="${env:PAGE_TOKEN}")], "a gift")  # noqa: S106
        shop.remember()
        shop.recent("capture interrupted", {"reason": "asking db:5432: refused", "remedy": "Start the server."})
        shop.server.start()
        browser.open(shop.url, shown=False)
        browser.sign_in(os.environ["PAGE_TOKEN"])
        for name, (width, height, scheme) in SIZES.items():
            browser.size(width, height, phone=width < 500)
            browser.scheme(scheme)
            browser.open(shop.url)
            if name == "light":
                measure(browser, shop)
            look(browser)
            browser.picture(folder / f"page-{name}.png")
        shop.server.close()
        fleet_pictures(browser, Path(room), folder)


def fleet_pictures(browser: Browser, room: Path, folder: Path) -> None:
    """A fleet of 200; the pictures end where the first screen does."""
    publish(room / "register", *fleet(200))
    server = FleetServer(room / "register")
    server.start()
    for name, (width, height, scheme) in SIZES.items():
        browser.size(width, height, phone=width < 500)
        browser.scheme(scheme)
        browser.driver.get(server.url)
        browser.until(lambda: "pipelines" in browser.text("#source"), "the first answer")
        browser.picture(folder / f"fleet-{name}.png", whole=False)
    files, packed, plain = browser.run(_BYTES.replace("/api/", "/no such path/"))
    print(f"fleet of 200: {files} files with its data, {packed} bytes sent, {plain} bytes unpacked")
    server.close()


def look(browser: Browser) -> None:
    """Ask for some changes with their values, so that the picture shows what an answer looks like."""
    browser.run("document.querySelector('#search-values').checked = true")
    browser.run("document.querySelector('#search').requestSubmit()")
    browser.until(lambda: "changes" in browser.text("#search-said"), "the changes")


def measure(browser: Browser, shop: Shop) -> None:
    paints = []
    for _ in range(5):
        browser.open(shop.url)
        paints.append(round(browser.until(lambda: browser.run(_PAINT), "the first paint")))
    files, packed, plain = browser.run(_BYTES)
    print(f"{files} files, {packed} bytes sent, {plain} bytes unpacked; first contentful paint {sorted(paints)} ms")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
