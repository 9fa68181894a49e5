"""Keys and focus: what a key does, and where the focus goes after an action."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.web.talk import chunk, keys, panel

pytestmark = pytest.mark.browser


def test_letters_typed_before_the_box_has_the_focus_go_into_it(house, show):
    window = house.window()
    house.say(window, "Hello.", "Hello.")
    page = show(window)
    expect(page.get_by_label("Your message")).to_be_focused()
    page.evaluate("document.activeElement.blur()")
    page.keyboard.type("hNg?/ ok")
    expect(page.get_by_label("Your message")).to_have_value("hNg?/ ok")
    assert page.locator("html").get_attribute("data-heat") == "light"
    assert len(house.ask("GET", "/windows")["windows"]) == 1


def test_single_keys_work_everywhere_once_they_are_switched_on(house, show):
    window = house.window()
    page = show(window)
    panel(page, "Settings").get_by_label("Single-letter keys").select_option("single")
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("h")
    expect(page.locator("html")).to_have_attribute("data-heat", "off")


def test_the_focus_stays_near_what_went_away(house, show):
    window = house.window(min_chunk_tokens=4, max_context_tokens=0)
    house.say(
        window, "Tell me.", "First paragraph of the tale.\n\nSecond paragraph of it.\n\nThird and last."
    )
    page = show(window)
    every = keys(page)
    chunk(page, every[-1]).focus()
    page.keyboard.press("Shift+M")
    expect(chunk(page, every[-1])).to_have_count(0)
    expect(chunk(page, every[-2])).to_be_focused()
    page.keyboard.press("Shift+S")
    expect(chunk(page, every[-2])).to_have_count(0)
    expect(page.locator("article.chunk:focus")).to_have_count(1)


def test_the_focus_stays_in_the_list_of_windows(house, show):
    house.window("First")
    second = house.window("Second")
    page = show(second)
    rail = page.locator("#rail")
    rail.get_by_role("button", name="Rename First").focus()
    page.evaluate("app.refresh()")
    expect(rail.get_by_role("button", name="Rename First")).to_be_focused()
    rail.get_by_role("button", name="Delete Second").focus()
    page.keyboard.press("Enter")
    page.get_by_role("dialog").get_by_role("button", name="Delete window").click()
    expect(page.locator(".window-title")).to_have_text("First")
    expect(rail.locator("li.current .window-open")).to_be_focused()


def test_the_skip_link_leads_into_the_input_box_of_the_same_window(house, show):
    here = house.window("Here")
    house.window("Newer")
    page = show(here)
    expect(page.get_by_label("Your message")).to_be_focused()  # from the beginning
    page.get_by_role("button", name="Search memory").focus()  # the first control after the link
    page.keyboard.press("Shift+Tab")
    expect(page.get_by_role("link", name="To the input box")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_label("Your message")).to_be_focused()
    assert page.evaluate("app.store.current") == here
    assert page.evaluate("location.hash") == f"#/w/{here}"


def test_the_focus_stays_in_the_settings(house, show):
    page = show(house.window(temperature=1.2))
    drawer = panel(page, "Settings")
    window, every = (drawer.get_by_role("radio", name=name) for name in ("This window", "All windows"))
    window.focus()
    page.keyboard.press("ArrowRight")
    expect(every).to_be_focused()
    expect(every).to_be_checked()
    page.keyboard.press("ArrowLeft")
    expect(window).to_be_focused()
    drawer.get_by_role("button", name="Reset Temperature").focus()
    page.keyboard.press("Enter")
    temperature = drawer.get_by_role("spinbutton", name="Temperature")
    expect(temperature).to_be_focused()
    expect(temperature).to_have_value("0.7")


def test_hiding_brightness_comes_back_to_the_colours_that_were_chosen(house, show):
    page = show(house.window())
    page.evaluate("app.preferences.set('keys', 'single')")
    for colours in ("original", "light"):
        panel(page, "Settings").get_by_label("Light", exact=True).select_option(colours)
        page.locator("#context").focus()
        page.keyboard.press("h")
        expect(page.locator("html")).to_have_attribute("data-heat", "off")
        page.reload()
        page.wait_for_function("() => window.app?.store.live")
        page.locator("#context").focus()
        page.keyboard.press("h")
        expect(page.locator("html")).to_have_attribute("data-heat", colours)
