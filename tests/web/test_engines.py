"""Engines on other machines, on the page: added, chosen for a window, and where its words go."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.web.house import House
from tests.web.talk import say, shown

pytestmark = pytest.mark.browser


@pytest.fixture
def cellar(tmp_path):
    house = House(tmp_path / "cellar").start()
    yield house
    house.stop()


def engines(page):
    page.locator("#rail").get_by_role("button", name="scripted").click()
    return page.locator("#drawer .engines")


def test_a_window_is_answered_by_another_machine_and_says_so(house, cellar, tabs):
    window = house.window(timestamps=False, max_new_tokens=60)
    page = tabs.open(f"{house.address}/#/w/{window}")
    part = engines(page)
    expect(part).to_contain_text("words stay on this machine")
    part.get_by_label("Name").fill("cellar")
    part.get_by_label("Kind").select_option("kobold")
    part.get_by_label("Address").fill(cellar.address)
    part.get_by_role("button", name="Add").click()
    part.get_by_role("button", name="Use in this window: cellar").click()
    expect(part.locator("[data-name=cellar]")).to_contain_text("answers here")
    cellar.replies.append("Here is the cellar.")
    say(page, "Who is there?")
    assert shown(page).endswith("Here is the cellar.")
    part.get_by_role("button", name="Use in this window: The model of all windows").click()
    house.replies.append("Here is the house.")
    say(page, "And now?")
    assert shown(page).endswith("Here is the house.")


def test_words_that_would_leave_this_machine_are_announced_above_the_conversation(house, tabs):
    window = house.window()
    page = tabs.open(f"{house.address}/#/w/{window}")
    badge = page.locator(".where-badge")
    expect(badge).to_be_hidden()
    part = engines(page)
    part.get_by_label("Name").fill("hosted")
    part.get_by_label("Address").fill("https://far.example/v1")
    part.get_by_label("Key").fill("s3cret")
    part.get_by_role("button", name="Add").click()
    expect(part.locator("[data-name=hosted]")).to_contain_text("with a key")
    assert "s3cret" not in page.content()
    part.get_by_role("button", name="Use in this window: hosted").click()
    expect(part).to_contain_text("words are sent to far.example")
    expect(part).to_contain_text("only what was said in this window")
    expect(badge).to_have_text("→ far.example")
