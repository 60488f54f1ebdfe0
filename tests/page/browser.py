"""Headless Chromium, controlled by its own driver; it connects to no host but the page's server."""

from __future__ import annotations

import base64
import io
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from PIL import Image
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait

WAIT_S = 60
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
MISSING = "the page's tests need Chromium and its driver (Debian: apt install chromium chromium-driver)"
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--force-color-profile=srgb",
    "--hide-scrollbars",
)
_T = TypeVar("_T")


def programs() -> tuple[str, str] | None:
    """The browser and its driver; `None` if one is missing."""
    browser = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    driver = shutil.which("chromedriver")
    return None if browser is None or driver is None else (browser, driver)


class Browser:
    """One browser. Its pages are opened one after another."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def size(self, width: int, height: int, scale: float = 1, *, phone: bool = False) -> None:
        given = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": phone}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", given)

    def scheme(self, name: str) -> None:
        """light or dark."""
        media = [{"name": "prefers-color-scheme", "value": name}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": media})

    def open(self, url: str, *, shown: bool = True) -> None:
        """Open the page; `shown`: wait until the daemon has answered."""
        self.driver.get(url)
        if shown:
            self.until(lambda: self.text("#findings") and "Asking" not in self.text("#findings"), "the first answer")
            self.until(lambda: self.all("#plots svg") or not self.one("#main").is_displayed(), "the plots")

    def sign_in(self, token: str) -> None:
        """Type a token into the dialog that the page opens for a user who is not signed in."""
        self.until(lambda: self.one("#token").is_displayed(), "the dialog")
        self.one("#token").send_keys(token, Keys.ENTER)
        self.until(lambda: "Asking" not in self.text("#findings"), "the first answer")
        self.until(lambda: self.all("#plots svg"), "the plots")  # the tables below them keep their place from now on

    def one(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def text(self, selector: str) -> str:
        """Its text, whether it is scrolled to or not."""
        return str(self.run(f"return document.querySelector({selector!r})?.textContent ?? ''")).strip()

    def run(self, script: str, *given: object) -> Any:
        return self.driver.execute_script(script, *given)

    def refresh(self) -> None:
        """Have the page ask the daemon now."""
        self.run("document.dispatchEvent(new Event('visibilitychange'))")

    def until(self, wished: Callable[[], _T], what: str) -> _T:
        return WebDriverWait(self.driver, WAIT_S, 0.05).until(lambda _: wished(), f"waited for {what}")

    def press(self, keys: str) -> None:
        self.driver.switch_to.active_element.send_keys(keys)

    def focused(self) -> str:
        """The name that a screen reader announces for the focused element."""
        return str(self.run("const a = document.activeElement; return a.ariaLabel || a.textContent.trim()"))

    def forget(self) -> None:
        """Begin as a first-time visitor."""
        self.driver.execute_cdp_cmd("Network.clearBrowserCookies", {})
        self.complaints()

    def complaints(self) -> list[str]:
        """Errors that the browser itself found: scripts that fail, missing files, violations of the policy."""
        found: list[dict[str, Any]] = self.driver.get_log("browser")  # type: ignore[no-untyped-call]  # it has no types
        return [entry["message"] for entry in found]

    def picture(self, path: Path, *, whole: bool = True) -> None:
        """A picture of the page, from its top to its end."""
        found = self.driver.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": whole})
        with Image.open(io.BytesIO(base64.b64decode(found["data"]))) as image:
            image.convert("RGB").quantize(255, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(
                path, optimize=True
            )


@contextmanager
def started() -> Iterator[Browser]:
    """A browser with a temporary profile."""
    found = programs()
    if found is None:
        raise RuntimeError(MISSING)
    with tempfile.TemporaryDirectory(prefix="cdcflow-page-") as profile:
        options = Options()
        options.binary_location = found[0]
        for flag in (*_FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        driver = webdriver.Chrome(options=options, service=Service(found[1]))
        try:
            yield Browser(driver)
        finally:
            driver.quit()


if __name__ == "__main__":
    raise SystemExit(None if programs() else MISSING)
