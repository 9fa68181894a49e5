"""A real Chromium on the page of a real server. Any error in its console, and any request elsewhere, fails the test."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from tests.web.house import House, missing

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-sync"]
expect.set_options(timeout=45_000)  # the machine may be busy
AXE = "4.14.0"
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    chromium = os.environ.get("HALO_WEAVE_CHROMIUM") or shutil.which("chromium")
    if not chromium:
        missing("Chromium was not found. Install it, or name it with HALO_WEAVE_CHROMIUM.")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def open_house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """One server for all tests, since the API of each is described anew."""
    house = House(tmp_path_factory.mktemp("house"))
    yield house
    house.stop()


@pytest.fixture
def house(open_house: House, tmp_path: Path) -> Iterator[House]:
    """A house with an empty memory, which ends with the test."""
    yield open_house.receive(tmp_path)
    open_house.held.clear()
    open_house.service.close()


def chosen_before(view: str = "context", form: str = "raw") -> str:
    return json.dumps({"view": view, "form": form, "level": "all"})


class UsualProfile:
    """The profile of most tests. A page that stays in it keeps the browser warm: the next one opens in half the time."""

    def __init__(self) -> None:
        self.context: BrowserContext | None = None
        self.address = ""
        self.tests = 0

    def begin(self, tabs: Tabs, address: str, chosen: str) -> tuple[BrowserContext, str]:
        """For one test, with nothing in it of the tests before: that is what the script sees to, in the page."""
        if self.address != address:
            self.close()
            self.context, self.address = tabs.profile(), address
            tabs.contexts.remove(self.context)
            self.context.new_page().goto(f"{address}/static/icon.svg")
        assert self.context is not None
        self.tests += 1
        return self.context, (
            f"if (localStorage['test'] !== '{self.tests}') {{ localStorage.clear();"
            f" localStorage['test'] = '{self.tests}'; localStorage['halo-weave'] = {json.dumps(chosen)}; }}"
        )

    def end(self) -> None:
        if self.context:
            for page in self.context.pages[1:]:
                page.unroute_all(behavior="ignoreErrors")
                page.close()
            self.context.clear_cookies()

    def close(self) -> None:
        if self.context:
            self.context.close()
        self.context, self.address = None, ""


class Tabs:
    """Tabs of one browser profile, watched for errors."""

    def __init__(self, browser: Browser) -> None:
        self.browser = browser
        self.contexts: list[BrowserContext] = []
        self.errors: list[str] = []
        self.elsewhere: list[str] = []
        self.allowed: list[str] = [
            "net::ERR_",
            "Failed to load resource",
        ]  # a test that cuts the line makes these

    def profile(self, *, view: str = "context", form: str = "raw", **more: Any) -> BrowserContext:
        """`view` and `form` as if they had been chosen before: by default what can be compared with the server's text."""
        more = {"viewport": {"width": 1440, "height": 900}, "color_scheme": "dark", **more}
        context = self.browser.new_context(**more)
        context.set_default_timeout(60_000)
        context.add_init_script(
            "addEventListener('securitypolicyviolation', (e) => console.error('CSP: ' + e.violatedDirective))"
        )
        context.add_init_script(f"localStorage['halo-weave'] ??= {json.dumps(chosen_before(view, form))}")
        self.contexts.append(context)
        return context

    def open(
        self, address: str, *, profile: BrowserContext | None = None, script: str = "", **more: Any
    ) -> Page:
        """`script`: runs before those of the page."""
        page = (profile or self.profile(**more)).new_page()
        if script:
            page.add_init_script(script)
        origin = "/".join(address.split("/")[:3])
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", lambda line: self._line(line.type, line.text))
        page.on(
            "request",
            lambda asked: (
                asked.url.startswith((origin, "data:", "blob:")) or self.elsewhere.append(asked.url)
            ),
        )
        page.goto(address)
        return page

    def _line(self, kind: str, text: str) -> None:
        if kind == "error" and not any(known in text for known in self.allowed):
            self.errors.append(text)

    def close(self) -> None:
        for context in self.contexts:
            context.close()


@pytest.fixture
def tabs(browser: Browser) -> Iterator[Tabs]:
    tabs = Tabs(browser)
    yield tabs
    tabs.close()
    assert not tabs.errors, tabs.errors
    assert not tabs.elsewhere, tabs.elsewhere


@pytest.fixture(scope="session")
def kept_profile(browser: Browser) -> Iterator[UsualProfile]:
    profile = UsualProfile()
    yield profile
    profile.close()


@pytest.fixture
def usual_profile(kept_profile: UsualProfile, tabs: Tabs) -> Iterator[UsualProfile]:
    yield kept_profile
    kept_profile.end()


@pytest.fixture
def show(tabs: Tabs, house: House, usual_profile: UsualProfile) -> Callable[..., Page]:
    """Open a window of the house in a tab and wait until it is loaded."""
    opened = 0

    def show(window: str = "", **more: Any) -> Page:
        nonlocal opened
        opened += 1
        if opened == 1 and more.keys() <= {"view", "form"}:
            more["profile"], more["script"] = usual_profile.begin(tabs, house.address, chosen_before(**more))
        page = tabs.open(f"{house.address}/{f'#/w/{window}' if window else ''}", **more)
        if window:
            page.wait_for_function(
                "id => window.app?.store.current === id && app.store.live && app.store.connection.state === 'online'",
                arg=window,
            )
        return page

    return show


@pytest.fixture(scope="session")
def axe() -> Path:
    """The accessibility checker, from the package registry, once."""
    place = ROOT / ".venv" / "node" / f"axe-core-{AXE}"
    script = place / "node_modules" / "axe-core" / "axe.min.js"
    if not script.exists():
        npm = shutil.which("npm")
        if not npm:
            missing("npm was not found, so axe cannot be fetched.")
        place.mkdir(parents=True, exist_ok=True)
        command = [
            npm,
            "install",
            "--no-save",
            "--no-package-lock",
            "--silent",
            "--prefix",
            str(place),
            f"axe-core@{AXE}",
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        if done.returncode:
            missing(f"axe could not be fetched: {done.stderr.strip()[-300:]}")
    return script
