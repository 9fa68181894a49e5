"""The small things of the page: each was seen to be wrong once."""

from __future__ import annotations

import re

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


def test_a_refused_setting_is_marked_and_says_what_to_use(house, show):
    page = show(house.window())
    drawer = panel(page, "Settings")
    seed, top = (drawer.get_by_role("spinbutton", name=name) for name in ("Seed", "Top-p"))
    untouched = top.evaluate("one => getComputedStyle(one).borderColor")
    for field, value, sentence in ((seed, "1.5", "Use a whole number."), (top, "7", "Use 0.01 to 1.")):
        field.fill(value)
        field.press("Tab")
        expect(field).to_have_attribute("aria-invalid", "true")
        expect(field).to_have_accessible_description(re.compile(re.escape(sentence)))
        assert field.evaluate("one => getComputedStyle(one).borderColor") != untouched
    top.fill("0.8")
    top.press("Tab")
    expect(top).not_to_have_attribute("aria-invalid", "true")
    # What only the server knows is said without the way to the field.
    page.route(
        "**/api/windows/*",
        lambda route: (
            route.fulfill(
                status=422,
                json={"error": {"code": "bad_input", "sentence": "settings.seed: use a whole number."}},
            )
            if route.request.method == "PATCH"
            else route.continue_()
        ),
    )
    seed.fill("3")
    seed.press("Tab")
    expect(drawer.locator("#setting-seed-problem")).to_have_text("Use a whole number.")
    expect(seed).to_have_attribute("aria-invalid", "true")
    expect(drawer.locator(".setting", has_text="Max context tokens")).to_contain_text(re.compile(r"\b2,000\b"))
