"""The small things of the page: each was seen to be wrong once."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.web.talk import panel

pytestmark = pytest.mark.browser


def test_hiding_brightness_comes_back_to_the_colours_that_were_chosen(house, show):
    page = show(house.window())
    for colours in ("original", "readable"):
        panel(page, "Settings").get_by_label("Brightness", exact=True).select_option(colours)
        page.locator("#context").focus()
        page.keyboard.press("h")
        expect(page.locator("html")).to_have_attribute("data-heat", "off")
        page.reload()
        page.wait_for_function("() => window.app?.store.live")
        page.keyboard.press("h")
        expect(page.locator("html")).to_have_attribute("data-heat", colours)


def test_the_first_words_of_the_search_say_what_it_does_and_the_keys_are_named_in_order(house, show):
    page = show(house.window())
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_contain_text("↑ ↓ or K JPrevious, next chunk")
    page.keyboard.press("Escape")
    page.keyboard.press("Control+k")
    expect(page.get_by_role("dialog", name="Search memory")).to_contain_text("By meaning and by words")
