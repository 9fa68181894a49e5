"""The preview: what wakes up for a message can be chosen before it is sent."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.web.talk import full_window, say, settled

pytestmark = pytest.mark.browser


def asleep(house, *facts: str, **settings) -> str:
    """A window in which these facts sleep, and the answers to them do not."""
    window = house.window(max_context_tokens=0, timestamps=False, resurrect_pairs="off", **settings)
    for fact in facts:
        house.say(window, fact, "I see.")
    for turn in house.context(window)["turns"]:
        for one in turn["chunks"] if turn["role"] == "user" else []:
            house.ask("POST", f"/windows/{window}/chunks/{one['key']}/prune")
    return window


def typed(page: Page, text: str) -> None:
    page.get_by_label("Your message").fill(text)
    expect(page.locator(".preview")).to_be_visible()


def live(house, window: str) -> set[str]:
    return {one["key"] for turn in house.context(window)["turns"] for one in turn["chunks"]}


def test_what_is_unticked_does_not_wake_with_the_message(house, show):
    window = asleep(house, "My cat is called Mochi.", "My cat is afraid of thunder.")
    page = show(window)
    typed(page, "Tell me of my cat.")
    preview = page.locator(".preview")
    expect(preview).to_contain_text("Would wake 2 chunks")
    preview.locator("summary").click()
    box = preview.get_by_role("checkbox", name="My cat is called Mochi.")
    box.focus()
    page.keyboard.press("Space")
    expect(preview).to_contain_text("Would wake 1 chunk,")
    expect(preview.get_by_role("heading", name="Left out")).to_be_visible()
    expect(box).not_to_be_checked()
    expect(box).to_be_focused()
    house.replies.append("I see.")
    page.get_by_label("Your message").press("Enter")
    settled(page, "Tell me of my cat.")
    assert "3.0.user" in live(house, window)
    assert "1.0.user" not in live(house, window)
    # The next message begins without a choice.
    house.ask("POST", f"/windows/{window}/chunks/3.0.user/prune")
    typed(page, "Now tell me of my cat.")
    expect(preview).to_contain_text("Would wake 2 chunks")


def test_what_was_unticked_can_be_ticked_again(house, show):
    window = asleep(house, "My cat is called Mochi.")
    page = show(window)
    typed(page, "Tell me of my cat.")
    preview = page.locator(".preview")
    preview.locator("summary").click()
    box = preview.get_by_role("checkbox", name="My cat is called Mochi.")
    box.uncheck()
    expect(preview).to_contain_text("No sleeping passage matches this yet")
    box.check()
    expect(preview).to_contain_text("Would wake 1 chunk")
    page.get_by_label("Your message").press("Enter")
    settled(page, "Tell me of my cat.")
    assert "1.0.user" in live(house, window)


def test_room_is_given_for_one_message(house, show):
    window = asleep(house, "My cat is called Mochi.", "My cat is afraid of thunder.", resurrection_budget=0)
    page = show(window)
    typed(page, "Tell me of my cat.")
    preview = page.locator(".preview")
    expect(preview).to_contain_text("There is no room for sleeping passages")
    room = preview.get_by_role("button", name="Give it room")
    room.click()
    expect(room).to_have_attribute("aria-pressed", "true")
    expect(preview).to_contain_text("Would wake 2 chunks")
    page.get_by_label("Your message").press("Enter")
    settled(page, "Tell me of my cat.")
    assert {"1.0.user", "3.0.user"} <= live(house, window)
    typed(page, "And again.")
    expect(room).to_have_attribute("aria-pressed", "false")


def test_what_fits_without_room_is_ticked_instead_of_what_would_have_come(house, show):
    facts = [f"My cat number {i} has a long and winding name that goes on and on." for i in range(3)]
    window = asleep(house, *facts, resurrection_budget=40)
    page = show(window)
    typed(page, "My cat?")
    preview = page.locator(".preview")
    expect(preview).to_contain_text("Would wake 1 chunk")
    expect(preview).to_contain_text("2 more match without room")
    preview.locator("summary").click()
    over = preview.locator("section", has_text="there is no room").get_by_role("checkbox").first
    wanted = over.get_attribute("data-key")
    over.check()
    first = preview.locator("section").first.get_by_role("checkbox")
    expect(first).to_have_attribute("data-key", wanted or "")
    expect(preview.locator("section").first).to_contain_text("ticked by you")
    page.get_by_label("Your message").press("Enter")
    settled(page, "My cat?")
    assert wanted in live(house, window)


def test_a_near_miss_is_shown_and_wakes_when_it_is_ticked(house, show, monkeypatch):
    window = asleep(house, "My cat is called Mochi.")
    recall = house.service.weave.runtime.memory_search
    search = recall.search

    def far(*asked, **more):
        from dataclasses import replace

        return [replace(hit, similarity=-3.0) for hit in search(*asked, **more)]

    monkeypatch.setattr(recall, "search", far)
    page = show(window)
    typed(page, "Tell me of my cat.")
    preview = page.locator(".preview")
    expect(preview).to_contain_text("No sleeping passage matches this yet; 1 near miss")
    preview.locator("summary").click()
    preview.get_by_role("checkbox", name="My cat is called Mochi.").check()
    expect(preview).to_contain_text("Would wake 1 chunk")
    page.get_by_label("Your message").press("Enter")
    settled(page, "Tell me of my cat.")
    assert "1.0.user" in live(house, window)


def test_the_fit_is_a_word_and_its_number_is_told_when_it_is_asked_for(house, show):
    window = asleep(house, "My cat is called Mochi.")
    page = show(window)
    typed(page, "Tell me of my cat.")
    preview = page.locator(".preview")
    preview.locator("summary").click()
    fit = preview.locator(".fit")
    expect(fit).to_have_text("good fit")
    fit.click()
    expect(fit).to_contain_text("good fit: helps with a likelihood of ")
    expect(fit).to_have_attribute("aria-expanded", "true")
    page.keyboard.press("Control+k")
    page.get_by_label("Search the whole memory").fill("cat Mochi")
    expect(page.locator(".hit .fit").first).to_have_text("strong fit")


def test_what_is_typed_during_a_reply_is_looked_up_when_it_ends(house, show):
    page = show(house.window())
    house.held.set()
    say(page, "Hello there.", wait=False)
    page.wait_for_function("() => app.store.busy && app.store.turn.phase !== 'sending'")
    page.get_by_label("Your message").fill("and the bell")
    page.wait_for_timeout(500)
    expect(page.locator(".preview")).to_be_hidden()
    house.held.clear()
    expect(page.locator(".preview")).to_be_visible()


def test_the_preview_names_what_would_wake_up(house, show):
    window = full_window(house)
    house.ask(
        "PATCH",
        f"/windows/{window}",
        json={"settings": {"resurrection_budget": 60, "max_context_tokens": 200}},
    )
    page = show(window)
    page.get_by_label("Your message").press_sequentially("my cat Mochi")
    preview = page.locator(".preview")
    expect(preview).to_contain_text("Would wake")
    preview.locator("summary").click()
    expect(preview.locator("li").first).to_contain_text("Mochi")
    assert "My cat is called Mochi." not in house.text(window)
    page.get_by_label("Your message").fill("")
    expect(preview).to_be_hidden()
