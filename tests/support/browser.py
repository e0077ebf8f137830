"""A headless Chromium of the system, driven by Selenium; a test without one skips with a reason.

Everything that its console says is kept, and requests that leave this host are none: the browser
resolves no name.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.support.ui import WebDriverWait

__all__ = ["SHOTS", "Browser", "browsing"]

LIMIT_S = 30.0
SHOTS = Path(__file__).resolve().parents[2] / "build" / "page"


class Browser:
    """One tab.

    Args:
        driver: Of the tab.
    """

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def run(self, script: str, *arguments: Any) -> Any:
        """What a script returns."""
        return self.driver.execute_script(script, *arguments)

    def text(self, selector: str = "body") -> str:
        """What an element says; "" if there is none."""
        found = self.run("return document.querySelector(arguments[0])?.innerText ?? ''", selector)
        return str(found)

    def click(self, selector: str) -> None:
        """Click what is there at this moment; a live view may put another in its place."""
        self.until(
            f"{selector} is there",
            "const one = document.querySelector(arguments[0]); one?.click(); return !!one",
            selector,
        )

    def write(self, selector: str, text: str) -> None:
        """Have a field contain a text, as if somebody had typed it."""
        self.run(
            "const one = document.querySelector(arguments[0]); one.value = arguments[1];"
            "one.dispatchEvent(new Event('input', {bubbles: true}))",
            selector,
            text,
        )

    def until(self, what: str, script: str, *arguments: Any) -> None:
        """Wait until a script returns something that is true."""
        WebDriverWait(self.driver, LIMIT_S, 0.05).until(
            lambda _: self.run(script, *arguments), f"not so: {what}"
        )

    def says(self, text: str, selector: str = "body") -> None:
        """Wait until an element says something."""
        self.until(
            f"{selector} says {text!r}",
            "return document.querySelector(arguments[0])?.innerText.includes(arguments[1])",
            selector,
            text,
        )

    def size(self, width: int, height: int) -> None:
        """Of what is shown, also below the least width of a window."""
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600},
        )

    def dark(self, dark: bool) -> None:
        """What the system prefers."""
        feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})

    def shot(self, name: str) -> None:
        """Keep what is shown, for people."""
        SHOTS.mkdir(parents=True, exist_ok=True)
        assert self.driver.save_screenshot(str(SHOTS / f"{name}.png"))

    def leave(self) -> None:
        """An empty page, and a console that has said nothing."""
        self.driver.get("about:blank")
        self.wrong()

    def wrong(self) -> list[str]:
        """What the console has said since the last call, but for talk."""
        return [
            json.dumps(one)
            for one in self.driver.get_log("browser")  # type: ignore[no-untyped-call]
            if one["level"] in ("SEVERE", "WARNING")
        ]


@contextmanager
def browsing(folder: Path) -> Iterator[Browser]:
    """A browser whose profile lies in a folder of the test."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    driver = shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("no chromium and chromedriver here; `make setup` as root installs them")
    options = Options()
    options.binary_location = chromium
    flags = ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu")
    own = (f"--user-data-dir={folder}", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1")
    for flag in (*flags, *own, "--force-color-profile=srgb"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = Service(executable_path=driver, env={**os.environ, "HOME": str(folder)})
    running = webdriver.Chrome(options=options, service=service)
    try:
        running.set_page_load_timeout(LIMIT_S)
        yield Browser(running)
    finally:
        running.quit()
