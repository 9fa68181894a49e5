"""The Lab panel: a window watched turn by turn, strategies on a capture, a digest."""

from __future__ import annotations

import re

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from tests.web.talk import chunk, panel, say

pytestmark = pytest.mark.browser


def slide(page: Page, turn: int) -> None:
    page.get_by_role("slider", name="Turn", exact=True).fill(str(turn))


def test_a_slider_shows_what_slept_and_woke_at_each_turn(house, show):
    window = house.window(max_context_tokens=0, timestamps=False, resurrect_pairs="off")
    house.say(window, "My cat is called **Mochi**.", "A lovely name.")
    house.ask("POST", f"/windows/{window}/chunks/1.0.user/prune")
    house.say(window, "The weather is fine.", "So it is.")
    house.say(window, "What is my cat called?", "Mochi.")
    page = show(window)
    drawer = panel(page, "Lab")
    head = drawer.locator(".replay-head")
    expect(head).to_contain_text("Turn 6 of 6")
    expect(head).to_contain_text("“Mochi.”")
    slide(page, 5)
    woke = drawer.locator(".replay-changes", has_text="Woke up: 1")
    expect(woke).to_contain_text("My cat is called Mochi.")
    slide(page, 4)
    expect(head).to_contain_text("3 chunks live")
    expect(head).to_contain_text("1 asleep")
    expect(drawer.locator(".replay-field")).to_have_attribute(
        "aria-label", re.compile("3 chunks live .* 1 asleep")
    )
    slide(page, 2)
    expect(drawer.locator(".replay-changes")).to_contain_text("Fell asleep: 1")
    drawer.locator(".replay-changes button").click()
    expect(chunk(page, "1.0.user")).to_be_focused()
    expect(drawer.locator(".replay")).to_contain_text("known only for captured turns")


def test_the_replay_plays_by_itself_and_stops_at_the_end(house, show):
    window = house.window(max_context_tokens=0, timestamps=False)
    house.say(window, "One.", "Two.")
    page = show(window)
    drawer = panel(page, "Lab")
    expect(drawer.locator(".replay-head")).to_contain_text("Turn 2 of 2")
    drawer.get_by_role("button", name="Play").click()
    expect(drawer.locator(".replay-head")).to_contain_text("Turn 1 of 2")
    expect(drawer.locator(".replay-head")).to_contain_text("Turn 2 of 2")
    expect(drawer.get_by_role("button", name="Play")).to_be_visible()


def test_a_window_is_captured_compared_and_watched(house, show):
    window = house.window(max_context_tokens=300, min_chunk_tokens=8, timestamps=False, resurrection_budget=0)
    page = show(window)
    drawer = panel(page, "Lab")
    expect(drawer).to_contain_text("Nothing of this window was captured yet.")
    drawer.get_by_label("Capture this window").select_option("mean")
    page.wait_for_function("() => app.store.window.effective.capture === 'mean'")
    for number in range(6):
        house.replies.append(f"Answer number {number} is about herons and boats. " * 2)
        say(page, f"Question number {number} about herons.")
    expect(drawer).to_contain_text("Captured: 6 turns")
    for name in ("Cumulative", "Surprise", "Symmetric voting", "Rolling mean voting", "Confident voting"):
        drawer.get_by_label(name, exact=True).uncheck()
    drawer.get_by_label("Budget in tokens").fill("200")
    drawer.get_by_role("button", name="Compare").click()
    row = drawer.locator(".outcomes tbody tr", has_text="First in first out")
    expect(row).to_be_visible()
    told = house.ask("GET", f"/windows/{window}/compare?strategies=first_in_first_out&budget=200")
    slept = told["strategies"]["first_in_first_out"]["pruned"]
    assert slept > 0
    expect(row.locator("td").first).to_have_text(str(slept))
    expect(drawer.locator(".outcomes tbody tr")).to_have_count(3)
    expect(drawer).to_contain_text("How far they agree")
    row.get_by_role("button", name="Watch First in first out").click()
    expect(drawer.locator(".replay")).to_contain_text("What first in first out would have done")
    expect(drawer.locator(".replay-head")).to_contain_text("Turn 6 of 6")
    assert page.evaluate("() => scrollY") == 0
    light = "() => [...app.views.drawer.panel.replay.source.at(5).light].filter(Boolean).length"
    assert page.evaluate(light) > 0
    drawer.get_by_role("button", name="As it happened").click()
    expect(drawer.locator(".replay-head")).to_contain_text("Turn 12 of 12")
    drawer.get_by_label("Capture this window").select_option("off")
    page.wait_for_function("() => app.store.window.effective.capture === 'off'")


def test_a_digest_quotes_what_was_used_most(house, show):
    def look(at):
        weights = np.full(len(at.ids), 0.001, np.float32)
        if at.text.rsplit("<|turn|>", 1)[-1].startswith("assistant"):
            weights[[piece in (b" Mo", b"chi") for piece in house.engine.pieces(at.ids).pieces()]] = 10.0
        return weights

    house.engine.look = look
    window = house.window(max_context_tokens=0, timestamps=False)
    house.say(window, "My cat is called Mochi.", "A lovely name.")
    house.say(window, "What is she called?", "She is Mochi.")
    page = show(window)
    drawer = panel(page, "Lab")
    drawer.get_by_role("button", name="Quote").click()
    quoted = drawer.locator(".excerpts li").first
    expect(quoted).to_contain_text("My cat is called Mochi.")
    expect(quoted).to_contain_text("used by 1 reply")
    quoted.get_by_role("button", name="Go there").click()
    expect(chunk(page, "1.0.user")).to_be_focused()


def test_the_lab_shows_how_brightness_is_spread(house, show):
    window = house.window(max_context_tokens=0)
    house.say(window, "The keeper rang the bell.", "He rang it.")
    house.say(window, "Again?", "Again the bell.")
    page = show(window)
    drawer = panel(page, "Lab")
    tokens = page.evaluate("app.store.live.tokens")
    assert (drawer.locator(".histogram").get_attribute("aria-label") or "").startswith(f"{tokens} tokens")
    expect(drawer.locator(".dimmest li").first).to_contain_text("peak")
    drawer.locator(".dimmest button").first.click()
    expect(page.locator("article.chunk:focus")).to_be_visible()
