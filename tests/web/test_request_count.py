"""A turn costs the page few requests: its events tell what it did."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from playwright.sync_api import expect

from tests.web.talk import keys, panel, say, shown
from tests.web.test_pruning_and_recall import full_window

pytestmark = pytest.mark.browser

# What is on the page and could differ from what the server holds.
KNOWN = """() => {
  const { live, budget, stats, window } = app.store;
  const { live_chunks, live_tokens, pruned_chunks, generating } = window;
  return {
    chunks: live.chunks.map(({ key, prunedBefore, pinned, peak, mean, turn }) => (
      { key, prunedBefore, pinned, peak: Math.round(peak), mean: Math.round(mean), speaker: turn.speaker })),
    tail: live.prunedAfter, budget, pruned: stats.pruned_chunks, tokens: stats.pruned_tokens,
    window: { live_chunks, live_tokens, pruned_chunks, generating },
  };
}"""


class Requests:
    """The API's requests of a page from now on. What it asks for at intervals is left out."""

    def __init__(self, page):
        page.evaluate("() => { for (let id = 1; id < 1e4; id++) clearInterval(id); }")
        self.seen = Counter()
        page.on("request", self._note)

    def _note(self, asked):
        found = re.search(r"/api/(.*)", asked.url)
        if found:
            path = re.sub(r"windows/[^/?]+", "windows/W", found[1]).partition("?")[0]
            self.seen[f"{asked.method} {path}"] += 1


def turn(page, house, text, reply):
    """The requests that one turn makes, besides the stream of events, which is open."""
    house.replies.append(reply)
    requests = Requests(page)
    say(page, text)
    page.wait_for_timeout(300)
    return requests.seen


def held(page, house, window):
    """What the page knows after it has loaded everything anew."""
    page.reload()
    page.wait_for_function("id => window.app?.store.current === id && app.store.live", arg=window)
    return page.evaluate(KNOWN)


def test_a_turn_asks_for_nothing_but_the_status(house, show):
    window = house.window()
    page = show(window)
    say(page, "The first words name a window.")
    seen = turn(page, house, "What burns in the tower?", "A gold lamp burns there.")
    assert seen == {"POST windows/W/messages": 1, "GET status": 1}
    assert shown(page) == house.text(window)


def test_a_turn_that_wakes_and_puts_to_sleep_is_told_by_its_events_alone(house, show):
    window = full_window(house)
    house.ask("PATCH", f"/windows/{window}", json={"settings": {"resurrection_budget": 60}})
    page = show(window)
    before = keys(page)
    seen = turn(page, house, "What is my cat called?", "Your cat is called Mochi, as you told me long ago.")
    assert seen == {"POST windows/W/messages": 1, "GET status": 1}
    stats = page.evaluate("app.store.turn.stats")
    assert stats["resurrected"]
    assert stats["pruned"]
    assert shown(page) == house.text(window)
    assert keys(page) != before
    known = page.evaluate(KNOWN)
    assert known == held(page, house, window)


def test_the_open_panels_are_loaded_anew_only_when_the_turn_changed_what_they_show(house, show):
    window = house.window(tools="tags")
    page = show(window)
    expect(panel(page, "Notes").locator("textarea")).not_to_have_value("")
    plain = turn(page, house, "Say something.", "Something.")
    assert not plain["GET notes"]
    house.replies.append("<tool>jq '.topics.bell = \"gold\"' notes.json > output</tool>")
    noted = turn(page, house, "Write it down.", "It is written down.")
    assert noted["GET notes"] == 1
    panel(page, "Graveyard")
    quiet = turn(page, house, "And now?", "Nothing sleeps.")
    assert not quiet["GET windows/W/graveyard"]


def test_what_another_client_changes_is_loaded(house, show):
    window = house.window()
    house.say(window, "The first words.", "The first reply.")
    page = show(window)
    requests = Requests(page)
    house.ask("POST", f"/windows/{window}/chunks/{keys(page)[0]}/pin")
    page.wait_for_function("() => app.store.live.chunks[0].pinned")
    assert requests.seen["GET windows/W/context"] == 1
