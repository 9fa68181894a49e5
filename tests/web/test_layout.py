"""Nothing is cut off, covered or squeezed at any width."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.web.talk import full_window, panel, settled

pytestmark = pytest.mark.browser


@pytest.mark.parametrize("width", [390, 1440])
def test_long_names_stay_in_their_places(house, show, width):
    long = "Wort" * 48
    window = house.window(long)
    house.ask("PATCH", f"/windows/{window}", json={"user_name": long, "ai_name": long})
    house.say(window, f"{long} keeper", "Yes.")
    page = show(window, viewport={"width": width, "height": 800})
    over = "one => document.querySelector(one).scrollWidth - document.querySelector(one).clientWidth"
    assert page.evaluate(over, "#rail .windows") <= 0
    assert page.evaluate(over, "#context") <= 0
    assert page.evaluate(over, ".turn-head") <= 0
    assert page.evaluate(over, ".figures") <= 0
    page.keyboard.press("Control+k")
    page.get_by_label("Search the whole memory").fill("keeper")
    expect(page.locator(".hit").first).to_be_visible()
    assert page.evaluate(over, "dialog") <= 0
    assert page.evaluate(over, ".hit") <= 0


@pytest.mark.parametrize("width", [768, 1024])
def test_a_panel_over_the_conversation_leaves_the_foot_free_and_closes_with_escape(house, show, width):
    page = show(house.window(), viewport={"width": width, "height": 800})
    drawer, notes = panel(page, "Notes"), page.locator("#dock").get_by_role("button", name="Notes")
    page.get_by_label("Your message").fill("Hello there.")
    page.get_by_role("button", name="Send").click()
    settled(page, "Hello there.")
    expect(drawer).to_be_visible()
    page.keyboard.press("Escape")
    expect(drawer).to_be_hidden()
    panel(page, "Notes").get_by_label("notes.json").focus()
    page.keyboard.press("Escape")
    expect(drawer).to_be_hidden()
    expect(notes).to_be_focused()


LONG = "A name that goes on and on without an end in sight " * 3


@pytest.mark.parametrize("width", [1440, 390])
def test_a_long_origin_ends_in_an_ellipsis_and_leaves_the_speaker_whole(house, show, width):
    other = house.window(LONG.strip(), max_context_tokens=0)
    house.say(other, "My cat is called Mochi.", "Noted.")
    house.ask("PATCH", f"/windows/{other}", json={"user_name": "Ada Lovelace"})
    house.say(other, "My dog is called Rex.", "Noted.")
    window = house.window("Here")
    hit = house.ask("GET", "/search", params={"q": "dog Rex"})["hits"][0]["key"]
    house.ask("POST", f"/windows/{window}/chunks/{hit}/resurrect")
    page = show(window, viewport={"width": width, "height": 800})
    head = page.locator(".turn-head", has=page.locator(".origin")).first
    cut = "one => one.scrollWidth > one.clientWidth"
    assert not head.locator(".speaker").evaluate(cut)
    expect(head.locator(".speaker")).to_have_text("Ada Lovelace")
    page.keyboard.press("Control+k")
    page.get_by_label("Search the whole memory").fill("dog Rex")
    for badge in (head.locator(".origin"), page.locator(".hit .badge").first):
        expect(badge).to_be_visible()
        # An ellipsis is drawn in a block only, not in a flex container.
        assert badge.evaluate(
            "one => [getComputedStyle(one).textOverflow, getComputedStyle(one).display]"
        ) == ["ellipsis", "block"]
        assert badge.evaluate(cut)
        assert badge.evaluate("one => one.getBoundingClientRect().right <= innerWidth")


@pytest.mark.parametrize("theme", ["dark", "light"])
def test_the_parts_of_the_budget_can_be_told_apart(house, show, theme):
    page = show(house.window(), color_scheme=theme)
    nearest = page.evaluate(
        """() => {
          const shade = (text) => text.match(/[\\d.]+/g).slice(0, 3).map(Number);
          const names = ["system", "pinned", "live", "turn", "frames", "free"];
          const shades = names.map((name) => [name, shade(getComputedStyle(document.querySelector(`[data-part=${name}]`)).backgroundColor)]);
          const apart = ([one, a], [other, b]) => [Math.hypot(...a.map((value, i) => value - b[i])), one, other];
          return shades.flatMap((one, i) => shades.slice(i + 1).map((other) => apart(one, other))).sort((a, b) => a[0] - b[0])[0];
        }"""
    )
    assert nearest[0] > 50, nearest
    border, ground = page.evaluate(
        "() => [getComputedStyle(document.querySelector('.bar')).borderColor, getComputedStyle(document.body).backgroundColor]"
    )
    assert border != ground  # what is free has an edge


def test_nothing_is_squeezed_by_an_open_drawer_or_a_long_name(house, show):
    window = house.window("Hello! My name is Ada and I live in a lighthouse by the sea")
    house.say(window, "Tell me of bells.", "They ring.")
    page = show(window)
    drawer = panel(page, "Settings")
    assert page.locator(".window-title").evaluate("one => one.clientWidth") > 300
    tops = "one => new Set([...one.children].map((figure) => figure.offsetTop)).size"
    assert page.locator(".figures").evaluate(tops) == 1
    choice = drawer.locator(".setting.choice select").first
    assert choice.evaluate(
        "one => { const probe = document.createElement('span'); probe.style.cssText = 'position: fixed; white-space: nowrap'; probe.style.font = getComputedStyle(one).font;"
        " probe.textContent = one.selectedOptions[0].text; document.body.append(probe);"
        " const wide = probe.offsetWidth; probe.remove(); return wide + 34 <= one.clientWidth; }"
    )
    page.evaluate("app.store.setWindow({ ...app.store.window, generating: true })")
    row = page.locator("#rail li.current")
    assert row.locator(".pulse").evaluate("one => [one.offsetWidth, one.offsetHeight]") == [8, 8]
    row.hover()
    end, begin = (
        row.locator(one).evaluate(f"one => one.getBoundingClientRect().{edge}")
        for one, edge in ((".name-text", "right"), (".window-acts", "left"))
    )
    assert end <= begin
    page.set_viewport_size({"width": 1024, "height": 800})
    assert page.locator(".search-open span").evaluate("one => one.scrollWidth <= one.clientWidth")


def test_the_drawer_remembers_which_panel_was_open(house, show):
    page = show(house.window())
    panel(page, "Notes")
    page.reload()
    expect(page.locator("#drawer")).to_contain_text("notes.json")
    page.locator("#dock").get_by_role("button", name="Notes").click()
    expect(page.locator("#drawer")).to_be_hidden()
    page.reload()
    page.wait_for_function("() => window.app?.store.live")
    expect(page.locator("#drawer")).to_be_hidden()


def test_the_budget_bar_adds_up(house, show):
    window = full_window(house)
    page = show(window)
    budget = house.context(window)["budget"]
    label = page.locator("#budget [role=img]").get_attribute("aria-label") or ""
    assert f"System prompt {budget['system']}" in label
    assert f"Pinned {budget['pinned']}" in label
    used = budget["system"] + budget["pinned"] + budget["live"] + budget["frames"]
    expect(page.locator("#budget")).to_contain_text(f"{used} of {budget['max_context_tokens']}")
