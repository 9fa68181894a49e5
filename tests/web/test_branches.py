"""Answers given again, edited messages, continued replies and branches on the page."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.web.talk import frame, say, settled

pytestmark = pytest.mark.browser


TEXTS = (
    "() => [...document.querySelectorAll('#conversation .chunk .text')].map((one) => one.textContent.trim())"
)


CONVERSATION = {"view": "conversation", "form": "rendered"}


def texts(page: Page) -> list[str]:
    frame(page)
    return list(page.evaluate(TEXTS))


def loaded(page: Page) -> None:
    page.wait_for_selector("#conversation .chunk")
    frame(page)


def answered(page: Page, text: str) -> None:
    """The one answer that stands there. For a moment it may stand below the one it takes the place of."""
    expect(page.locator("#conversation .turn.assistant .text").last).to_contain_text(text)
    expect(page.locator("#conversation .turn.assistant")).to_have_count(1)
    expect(page.locator("#conversation .turn.user")).to_have_count(1)


def tool(page: Page, turn: int, name: str) -> None:
    one = page.locator("#conversation .turn").nth(turn)
    one.hover()
    one.get_by_role("button", name=name, exact=True).click()


def test_an_answer_is_given_again_and_its_versions_can_be_leafed_through(house, show):
    window = house.window(max_context_tokens=0, timestamps=False)
    house.say(window, "Name a colour.", "Red.")
    page = show(window, **CONVERSATION)
    loaded(page)
    house.replies.append("Blue.")
    tool(page, 1, "Answer again")
    answered(page, "Blue.")
    expect(page.locator(".versions-line")).to_contain_text("2 of 2")
    page.get_by_role("button", name="Previous version").click()
    answered(page, "Red.")
    expect(page.locator(".versions-line")).to_contain_text("1 of 2")
    assert house.text(window).endswith("Red.")
    page.get_by_role("button", name="Next version").click()
    answered(page, "Blue.")


def test_a_message_is_edited_and_what_it_said_stays_as_a_version(house, show):
    window = house.window(max_context_tokens=0, timestamps=False)
    house.say(window, "Name a colur.", "What?")
    page = show(window, **CONVERSATION)
    loaded(page)
    house.replies.append("Green.")
    tool(page, 0, "Edit")
    dialog = page.get_by_role("dialog", name="Edit")
    dialog.get_by_label("Text").fill("Name a colour.")
    dialog.get_by_role("button", name="Save").click()
    answered(page, "Green.")
    assert texts(page) == ["Name a colour.", "Green."]
    page.get_by_role("button", name="Previous version").click()
    answered(page, "What?")


def test_a_reply_goes_on_and_a_message_without_a_reply_is_answered(house, show):
    window = house.window(max_context_tokens=0, timestamps=False, max_new_tokens=4)
    house.say(window, "Count.", "one two three four")
    page = show(window, **CONVERSATION)
    loaded(page)
    house.ask("PATCH", f"/windows/{window}", json={"settings": {"max_new_tokens": 64}})
    house.replies.append(" and on")
    tool(page, 1, "Continue")
    answered(page, "and on")
    house.ask("POST", f"/windows/{window}/rewind", json={"turn_id": "1"})
    expect(page.locator("#conversation .turn.assistant")).to_have_count(0)
    house.replies.append("Once more.")
    tool(page, 0, "Answer this")
    answered(page, "Once more.")


def test_continue_on_a_reply_that_ended_by_itself_changes_nothing_and_says_so(house, show):
    window = house.window("Tales", max_context_tokens=0, timestamps=False)
    house.say(window, "First.", "One.")
    house.say(window, "Second.", "Two.")
    page = show(window, **CONVERSATION)
    loaded(page)
    for _ in range(2):
        house.replies.append("")
        tool(page, 3, "Continue")
        expect(page.get_by_text("The model had nothing to add.")).to_be_visible()
        settled(page)
        assert texts(page) == ["First.", "One.", "Second.", "Two."]
    assert house.context(window)["turns"][-1]["versions"] == 1


def test_a_branch_is_a_window_of_its_own(house, show):
    window = house.window("Tales", max_context_tokens=0, timestamps=False)
    house.say(window, "First.", "One.")
    house.say(window, "Second.", "Two.")
    page = show(window, **CONVERSATION)
    loaded(page)
    tool(page, 1, "Branch off: a new window from here")
    page.wait_for_function("id => app.store.current && app.store.current !== id", arg=window)
    expect(page.locator("#conversation .turn")).to_have_count(2)
    assert texts(page) == ["First.", "One."]
    house.replies.append("Three.")
    say(page, "Third.")
    settled(page)
    assert "Three." not in house.text(window)


@pytest.mark.parametrize("view", ["conversation", "context"])
def test_a_reply_that_ended_because_of_its_length_offers_to_be_continued(house, show, view):
    window = house.window(max_context_tokens=0, timestamps=False)
    house.say(window, "Hello.", "Hello to you.")
    page = show(window, view=view, form="rendered")
    further = page.locator(f"#{view} .unfinished:visible")
    expect(page.locator(f"#{view} .turn.assistant")).to_have_count(1)
    expect(further).to_have_count(0)
    house.ask("PATCH", f"/windows/{window}", json={"settings": {"max_new_tokens": 4}})
    house.replies.append("one two three four")
    say(page, "Count.")
    settled(page)
    expect(further).to_contain_text("The reply was cut off at its longest length.")
    page.reload()
    expect(further).to_be_visible()
    house.ask("PATCH", f"/windows/{window}", json={"settings": {"max_new_tokens": 64}})
    house.replies.append(" and on")
    further.get_by_role("button", name="Continue").click()
    expect(page.locator(f"#{view} .turn.assistant").last).to_contain_text("and on")
    settled(page)
    expect(further).to_have_count(0)
