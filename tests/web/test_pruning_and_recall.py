"""Pruning and resurrection, as the page shows them."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.web.talk import TOPICS, act, full_window, keys, say, shown, toast

pytestmark = pytest.mark.browser


def test_what_falls_asleep_leaves_a_line_that_opens_in_place(house, show):
    window = full_window(house)
    page = show(window)
    wire = house.context(window)
    assert "Mochi" not in shown(page)
    line = page.locator(".gap-line").first
    gap = next(
        one["pruned_before"] for turn in wire["turns"] for one in turn["chunks"] if one["pruned_before"]
    )
    expect(line).to_contain_text(f"{gap['chunks']} chunk")
    expect(line).to_contain_text(f"{gap['tokens']} tokens asleep")
    line.click()
    expect(line).to_have_attribute("aria-expanded", "true")
    expect(page.locator(".sleeper").first).to_contain_text("My cat is called Mochi.")
    page.locator(".sleeper").first.get_by_role("button", name="Wake up").click()
    toast(page, "Awake at its place")
    expect(page.locator(".turns .chunk .text").first).to_contain_text("Mochi")
    assert shown(page) == house.text(window)


def test_a_chunk_falls_asleep_before_the_users_eyes_when_the_budget_is_reached(house, show):
    window = house.window(
        max_context_tokens=110,
        min_chunk_tokens=8,
        resurrection_budget=0,
        timestamps=False,
        memory_tree_in_prompt=False,
        strategy="magnitude_voting",  # the oldest sleep first
    )
    house.ask("PATCH", f"/windows/{window}", json={"system_prompt": ""})
    page = show(window)
    for topic in TOPICS:
        house.replies.append(f"There is much to say about {topic}, and little time.")
        say(page, f"Tell me about {topic}.")
    expect(page.locator(".gap-line").first).to_be_visible()
    assert shown(page) == house.text(window)
    assert TOPICS[0] not in shown(page)
    asleep = house.context(window)["stats"]["pruned_chunks"]
    expect(page.locator("#budget")).to_contain_text(f"Asleep{asleep}")


def test_a_gap_with_more_than_a_page_says_so_and_shows_the_rest(house, show):
    window = house.window(min_chunk_tokens=1, max_context_tokens=0, resurrection_budget=0)
    house.say(window, "\n\n".join(f"Paragraph {i}." for i in range(220)), "I see.")
    house.ask("PATCH", f"/windows/{window}", json={"settings": {"max_context_tokens": 40}})
    house.say(window, "Enough.", "Good.")
    (gap,) = [
        one["pruned_before"]
        for turn in house.context(window)["turns"]
        for one in turn["chunks"]
        if one["pruned_before"]
    ]
    page = show(window)
    page.locator(".gap-line").click()
    expect(page.locator(".sleeper")).to_have_count(200)
    more = page.locator(".gap-list").get_by_text("more")
    expect(more).to_have_text(f"… and {gap['chunks'] - 200} more")
    page.locator(".gap-list").get_by_role("button", name="Show them").click()
    expect(page.locator(".sleeper")).to_have_count(gap["chunks"])
    expect(page.locator(".sleeper").nth(200)).to_be_focused()
    expect(more).to_be_hidden()
    last = house.ask("GET", f"/windows/{window}/pruned", params={"offset": gap["chunks"] - 1})["items"][0]
    page.reload()
    expect(page.locator(".gap-line")).to_be_visible()
    assert page.evaluate("key => [...app.views.context.gaps.values()][0].reveal(key)", last["key"])
    expect(page.locator(".sleeper:focus")).to_contain_text(last["text"].strip())


def test_what_is_spoken_of_wakes_up_with_the_words_that_woke_it(house, show):
    window = full_window(house)
    house.ask(
        "PATCH",
        f"/windows/{window}",
        json={"settings": {"resurrection_budget": 60, "max_context_tokens": 200}},
    )
    page = show(window)
    house.replies.append("Your cat is called Mochi.")
    say(page, "What is my cat Mochi called?")
    badge = page.locator(".wake-badge", has_text="Mochi").first
    expect(badge).to_be_visible()
    assert "My cat is called Mochi." in shown(page)
    assert shown(page) == house.text(window)
    woken = page.locator("article.chunk", has=page.locator(".wake-badge")).first
    page.evaluate("key => app.explain(key)", woken.get_attribute("data-key"))
    dialog = page.get_by_role("dialog", name="Why?")
    expect(dialog).to_contain_text("Woken by “")
    expect(dialog).to_contain_text("Fell asleep")
    expect(dialog).to_contain_text("Said")


def test_a_chunk_woken_from_another_window_names_its_origin(house, show):
    other = house.window("Cats", max_context_tokens=0)
    house.say(other, "My cat is called Mochi.", "Noted.")
    window = house.window("Chess", timestamps=False)
    page = show(window)
    say(page, "What is my cat Mochi called?")
    origin = page.get_by_role("button", name="from “Cats”").first
    expect(origin).to_be_visible()
    origin.click()
    expect(page.locator(".window-title")).to_have_text("Cats")
    expect(page).to_have_url(f"{house.address}/#/w/{other}")


def test_why_tells_what_is_known_of_a_chunk(house, show):
    window = house.window(max_context_tokens=0)
    house.say(window, "My cat is called Mochi.", "Noted.")
    page = show(window)
    key = keys(page)[0]
    act(page, key, "Why?")
    why = house.ask("GET", f"/windows/{window}/chunks/{key}/explanation")
    dialog = page.get_by_role("dialog", name="Why?")
    expect(dialog).to_contain_text(f"{why['tokens']} tokens")
    expect(dialog).to_contain_text("My cat is called Mochi.")
    expect(dialog).to_contain_text(f"Peak {round(why['peak']):,}")
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)


def asleep(house) -> str:
    """A window with names of its own whose first exchange sleeps."""
    window = house.window("Kitchen", max_context_tokens=0, timestamps=False)
    house.ask("PATCH", f"/windows/{window}", json={"user_name": "Ada", "ai_name": "Halo"})
    house.say(window, "My cat is called Mochi.", "Fish soup with dill and potatoes is on.")
    for turn in house.context(window)["turns"]:
        for one in turn["chunks"]:
            house.ask("POST", f"/windows/{window}/chunks/{one['key']}/prune")
    return window


def test_what_comes_with_its_pair_does_not_claim_its_words(house, show):
    window = asleep(house)
    house.say(window, "What is Mochi?", "A cat.")
    page = show(window)
    hit = page.locator("article.chunk", has_text="My cat is called Mochi.")
    expect(hit.locator(".wake-badge")).to_contain_text("woken by “mochi”")
    pair = page.locator("article.chunk", has_text="Fish soup with dill and potatoes is on.").locator(
        ".wake-badge"
    )
    expect(pair).to_have_text(re.compile("^woken (with its pair|by what stands near it)"))
    expect(pair).not_to_contain_text("mochi")
    page.evaluate("key => app.explain(key)", hit.get_attribute("data-key"))
    why = page.get_by_role("dialog", name="Why?")
    expect(why).to_contain_text(
        re.compile(
            r"Woken by “mochi”, cost \d+ tokens\. (Weak|Good|Strong) fit: helps with a likelihood of \d+ % \(words "
        )
    )
    expect(why).to_contain_text("Put to sleep by you")
    expect(why.locator("time").first).to_have_text(re.compile(r"\d\d:\d\d:\d\d"))
