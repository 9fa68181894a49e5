"""Messages over the conversation, the title of a hidden tab, notifications."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.web.talk import frame, panel, say, toast

pytestmark = pytest.mark.browser


def test_at_most_two_messages_lie_over_the_conversation_and_none_over_its_end(house, show):
    window = house.window(max_context_tokens=0)
    house.say(window, "Hello.", "Hello to you.")
    page = show(window)
    page.evaluate("['a', 'b', 'c', 'd'].forEach((one) => app.toasts.show(one))")
    expect(page.locator(".toast")).to_have_count(2)
    box, end = page.locator(".toast").last.bounding_box(), page.locator("#foot").bounding_box()
    assert box["y"] + box["height"] < end["y"] / 2


@pytest.mark.parametrize("width", [390, 1440])
def test_messages_stand_above_a_tall_foot(house, show, width):
    page = show(house.window(), viewport={"width": width, "height": 800})
    page.get_by_label("Your message").fill("line\n" * 30)
    page.evaluate("app.toasts.show('Look here.'); app.toasts.show('Look here.')")
    expect(page.locator(".toast")).to_have_count(1)
    frame(page)
    page.wait_for_function(
        "() => document.querySelector('.toast').getBoundingClientRect().bottom <= document.querySelector('#foot').getBoundingClientRect().top"
    )


@pytest.mark.parametrize("width", [1440, 1024, 390])
def test_messages_stand_over_the_conversation_and_never_over_the_way_to_its_end(house, show, width):
    window = house.window(max_context_tokens=0)
    for topic in ("bells", "boats", "birds"):
        house.say(window, f"Tell me about {topic}.", "One line.\n\n" * 12)
    page = show(window, viewport={"width": width, "height": 800})
    box = "one => { const { left, right, top, bottom } = one.getBoundingClientRect(); return [left, right, top, bottom]; }"
    page.locator("#context").evaluate("one => { one.scrollTop = 0; }")
    jump = page.get_by_role("button", name="Newest")
    expect(jump).to_be_visible()
    page.evaluate(
        "app.toasts.show('A message that is long enough to be as wide as it may be, or nearly so.')"
    )
    toast(page, "A message")
    frame(page)
    message = page.locator(".toast").evaluate(box)
    assert message[3] <= jump.evaluate(box)[2]
    middle = page.locator("#context .turns").evaluate(box)
    assert abs(sum(message[:2]) - sum(middle[:2])) <= 20  # the scroll bar's width, halved
    panel(page, "Graveyard")
    frame(page)
    left, right, _, bottom = page.locator(".toast").evaluate(box)
    edge, far = page.locator("#drawer").evaluate(box)[:2]
    assert right <= edge or (edge <= left and right <= far)
    assert bottom <= 800


def test_a_hidden_tab_tells_in_its_title_that_the_reply_is_done(house, show):
    window = house.window("Harbour")
    page = show(window)
    page.evaluate("() => Object.defineProperty(document, 'hidden', { value: true, configurable: true })")
    say(page, "Hello there.")
    expect(page).to_have_title(re.compile("^● Harbour"))
    page.evaluate(
        """() => {
          Object.defineProperty(document, 'hidden', { value: false, configurable: true });
          document.dispatchEvent(new Event('visibilitychange'));
        }"""
    )
    expect(page).to_have_title("Harbour · Halo Weave")


def test_a_notification_is_shown_once_it_was_allowed(house, tabs):
    window = house.window("Harbour")
    profile = tabs.profile(permissions=["notifications"])
    profile.add_init_script(
        """window.told = [];
        window.Notification = class { constructor(title, more) { told.push([title, more.body]); }
          static permission = "granted"; static async requestPermission() { return "granted"; } };"""
    )
    page = tabs.open(f"{house.address}/#/w/{window}", profile=profile)
    page.wait_for_selector("#dock button")
    drawer = panel(page, "Settings")
    drawer.get_by_label("When a reply is done and this tab is hidden").select_option("on")
    house.replies.append("At six.")
    say(page, "When was it lit?")
    assert page.evaluate("() => told") == []
    page.evaluate("() => Object.defineProperty(document, 'hidden', { value: true, configurable: true })")
    house.replies.append("At seven.")
    say(page, "And today?")
    page.wait_for_function("() => told.length === 1")
    assert page.evaluate("() => told") == [["Harbour", "At seven."]]
