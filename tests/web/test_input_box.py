"""The input box: what is typed, counted, sent, kept and given back."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.web.talk import act, keys, say, toast

pytestmark = pytest.mark.browser


def test_a_message_sent_during_a_reply_waits_for_its_end(house, show):
    window = house.window()
    page = show(window)
    house.pace = 0.02
    house.replies += ["word " * 20, "Then the ship sailed."]
    house.held.set()
    say(page, "Go on.", wait=False)
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    box, queued = page.get_by_label("Your message"), page.locator(".queued")
    box.fill("And then?")
    box.press("Enter")
    expect(queued).to_contain_text("Your message will be sent when the reply is finished.")
    queued.get_by_role("button", name="Take back").click()
    expect(queued).to_be_hidden()
    box.press("Enter")
    expect(queued).to_be_visible()
    house.pace = 0.0
    house.held.clear()
    expect(page.locator("#context")).to_contain_text("Then the ship sailed.")
    expect(queued).to_be_hidden()
    expect(box).to_have_value("")


def test_the_draft_says_how_many_tokens_it_takes(house, show):
    window = house.window(max_context_tokens=1200)
    page = show(window)
    page.get_by_label("Your message").fill("one two three four")
    count = len(house.engine.tokenize("one two three four"))
    expect(page.locator(".draft-count")).to_have_text(f"{count} tokens")
    page.get_by_label("Your message").fill("word " * 1100)
    expect(page.locator(".status")).to_contain_text("A long text:")


def test_words_that_were_not_sent_go_back_into_their_own_window(house, show):
    one, other = house.window("One"), house.window("Other")
    page = show(one)
    box, held = page.get_by_label("Your message"), []
    page.route(f"**/api/windows/{one}/messages", lambda route: held.append(route))
    box.fill("Said in one.")
    box.press("Enter")
    expect(page.locator(".status")).to_have_text("Sending…")
    house.held.set()
    house.ask("POST", f"/windows/{other}/messages", json={"text": "Is the lamp lit?"})
    page.locator("#rail").get_by_role("button", name="Other").first.click()
    stop = page.get_by_role("button", name="Stop")
    expect(stop).to_be_visible()
    box.fill("Typed in the other.")
    refusal = {"error": {"code": "window_busy", "message": "A reply is being written."}}
    held[0].fulfill(status=409, json=refusal)
    toast(page, "A reply is being written.")
    expect(box).to_have_value("Typed in the other.")
    expect(stop).to_be_visible()
    house.held.clear()
    page.locator("#rail").get_by_role("button", name="One").first.click()
    expect(box).to_have_value("Said in one.")
    page.locator("#rail").get_by_role("button", name="Other").first.click()
    expect(box).to_have_value("Typed in the other.")


def test_words_of_a_slow_deletion_go_back_into_their_own_window(house, show):
    one, other = house.window("One", memory_scope="window"), house.window("Other")
    house.say(one, "Said in one.", "Yes.")
    page = show(one)
    box, held = page.get_by_label("Your message"), []
    page.route(
        f"**/api/windows/{one}/chunks/*",
        lambda route: held.append(route) if route.request.method == "DELETE" else route.continue_(),
    )
    act(page, keys(page)[0], "Delete…")
    with page.expect_request(lambda asked: asked.method == "DELETE"):
        page.get_by_role("dialog").get_by_role("button", name="Delete", exact=True).click()
    page.evaluate("id => { app.open(id); }", other)
    expect(page.locator(".window-title")).to_have_text("Other")
    held[0].continue_()
    toast(page, "Deleted")
    expect(box).to_have_value("")
    page.evaluate("id => { app.open(id); }", one)
    expect(box).to_have_value("Said in one.")


def test_what_is_typed_without_a_window_moves_into_the_new_one(house, show):
    page = show()
    box = page.get_by_label("Your message")
    expect(page.locator(".empty")).to_contain_text("One endless conversation")
    box.fill("Half a thought")
    page.locator(".empty").get_by_role("button", name="New window").click()
    expect(page.locator(".empty")).to_contain_text("Everything you say is kept")
    expect(box).to_have_value("Half a thought")
    page.reload()
    expect(box).to_have_value("Half a thought")
    page.locator("#rail").get_by_role("button", name="New window", exact=True).first.click()
    expect(page.locator(".window-title")).to_have_text("New window 2")
    expect(box).to_have_value("")
