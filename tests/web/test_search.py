"""Searching the memory on the page, and going to what was found."""

from __future__ import annotations

import time

import pytest
from playwright.sync_api import expect

from tests.web.talk import panel, shown, toast

pytestmark = pytest.mark.browser


def test_the_arrows_go_from_hit_to_hit(house, show):
    window = house.window(max_context_tokens=0)
    for name in ("Mochi", "Momo", "Max"):
        house.say(window, f"My cat is called {name}.", "Nice.")
    page = show(window)
    page.keyboard.press("Control+k")
    page.get_by_label("Search the whole memory").fill("cat called")
    expect(page.locator(".hit").nth(1)).to_be_visible()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    expect(page.locator(".hit").nth(1).locator(".go")).to_be_focused()
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowUp")
    expect(page.get_by_label("Search the whole memory")).to_be_focused()


def test_enter_opens_what_was_typed_not_what_was_found_before(house, show):
    bell, cat = house.window("Bell"), house.window("Cat")
    house.say(bell, "The keeper rang the bell.", "Ding.")
    house.say(cat, "My cat is called Mochi.", "Purr.")
    page = show(house.window("Here", memory_scope="window"))
    page.keyboard.press("Control+k")
    field = page.get_by_label("Search the whole memory")
    field.fill("keeper bell")
    expect(page.locator(".hit").first).to_contain_text("bell")

    def slowly(route) -> None:
        time.sleep(0.3)
        route.continue_()

    page.route("**/api/search?**", slowly)
    field.fill("cat Mochi")
    field.press("Enter")
    expect(page.locator(".window-title")).to_have_text("Cat")
    assert page.evaluate("app.store.current") == cat


def looked_up(page, text):
    """What the search finds first."""
    page.keyboard.press("Control+k")
    page.get_by_label("Search the whole memory").fill(text)
    hit = page.locator(".hit").first
    expect(hit).to_contain_text(text)
    return hit


def asleep(house, window, text):
    """Put what was said to sleep."""
    for turn in house.context(window)["turns"]:
        for one in turn["chunks"]:
            if text in "".join(one["text_pieces"]):
                house.ask("POST", f"/windows/{window}/chunks/{one['key']}/prune")


def told(house, name="Lighthouse"):
    """A window in which something sleeps between what is live."""
    window = house.window(name, max_context_tokens=0, memory_scope="window")
    house.say(window, "Who are you?", "The keeper.")
    house.say(window, "My cat is called Mochi.", "A fine cat.")
    house.say(window, "What is the light for?", "For the ships.")
    asleep(house, window, "Mochi")
    asleep(house, window, "fine cat")
    return window


def test_waking_from_why_in_the_search_closes_both_and_shows_the_chunk(house, show):
    page = show(told(house))
    looked_up(page, "Mochi").get_by_role("button", name="Why?").click()
    page.get_by_role("button", name="Wake up here, pinned").click()
    toast(page, "Awake at its place")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.locator("article.chunk:focus")).to_contain_text("Mochi")
    expect(page.locator("article.chunk:focus")).to_be_in_viewport()


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_sleeping_result_opens_at_its_place_in_the_conversation(house, show, elsewhere):
    window = told(house)
    page = show(house.window("Other", memory_scope="window") if elsewhere else window)
    looked_up(page, "Mochi").get_by_role("button", name="Open").click()
    expect(page.locator(".window-title")).to_have_text("Lighthouse")
    expect(page.locator(".sleeper:focus")).to_contain_text("Mochi")
    expect(page.locator(".sleeper:focus")).to_be_in_viewport()
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_on_a_phone_nothing_covers_the_chunk_that_is_gone_to(house, show):
    window = told(house)
    asleep(house, window, "For the ships")
    page = show(window, viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    rail, drawer, focused = (
        page.locator("#rail"),
        page.locator("#drawer"),
        page.locator("article.chunk:focus"),
    )
    for text, name in (("keeper", "Go there"), ("Mochi", "Wake up here")):
        page.get_by_role("button", name="Windows", exact=True).tap()
        expect(rail).to_be_in_viewport()
        looked_up(page, text).get_by_role("button", name=name).tap()
        expect(focused).to_contain_text(text)
        expect(rail).not_to_be_in_viewport()
    panel(page, "Lab").locator(".dimmest button").first.tap()
    expect(drawer).to_be_hidden()
    expect(focused).to_be_in_viewport()
    panel(page, "Graveyard").get_by_role("button", name="Wake up here, pinned").first.tap()
    expect(drawer).to_be_hidden()
    expect(focused).to_contain_text("For the ships")


def test_the_first_words_of_the_search_say_what_it_does_and_the_keys_are_named_in_order(house, show):
    page = show(house.window())
    page.locator("#header").get_by_role("button", name="Keys").click()
    expect(page.get_by_role("dialog", name="Keys")).to_contain_text("↑ ↓ or K JPrevious, next chunk")
    page.keyboard.press("Escape")
    page.keyboard.press("Control+k")
    expect(page.get_by_role("dialog", name="Search memory")).to_contain_text("By meaning and by words")


def test_a_search_that_is_full_says_that_it_shows_the_best(house, show):
    window = house.window("Bells", max_context_tokens=0, min_chunk_tokens=1)
    house.say(window, "\n\n".join(f"The bell number {n} rings." for n in range(40)), "They ring.")
    page = show(window)
    page.keyboard.press("Control+k")
    page.get_by_label("Search the whole memory").fill("bell")
    expect(page.get_by_role("dialog").get_by_role("status")).to_have_text("The best 30")


def test_search_finds_words_of_all_windows_and_wakes_them_up_here(house, show):
    other = house.window("Cats", max_context_tokens=0)
    house.say(other, "My cat is called Mochi.", "Noted.")
    window = house.window("Chess")
    house.say(window, "Tell me the rules.", "White begins.")
    page = show(window)
    page.keyboard.press("Control+k")
    dialog = page.get_by_role("dialog", name="Search memory")
    dialog.get_by_label("Search the whole memory").fill("Mochi")
    hit = dialog.locator(".hit").first
    expect(hit).to_contain_text("My cat is called Mochi.")
    expect(hit.locator("mark")).to_have_text(["Mochi"])
    expect(hit).to_contain_text("Cats")
    hit.get_by_role("button", name="Wake up here").click()
    toast(page, "Awake at its place")
    expect(page.locator("article.chunk").first).to_contain_text("Mochi")
    assert shown(page) == house.text(window)
    page.keyboard.press("Control+k")
    dialog.get_by_label("Search the whole memory").fill("White begins")
    dialog.locator(".hit", has_text="White begins").get_by_role("button", name="Go there").click()
    expect(page.locator("article.chunk:focus")).to_contain_text("White begins.")


def test_a_search_is_narrowed_by_who_said_it_when_and_the_tag_of_the_window(house, show):
    cats = house.window("Cats", max_context_tokens=0)
    house.ask("PATCH", f"/windows/{cats}", json={"tags": ["pets"]})
    house.say(cats, "My cat is called Mochi.", "Mochi is a fine name.")
    other = house.window("Food", max_context_tokens=0)
    house.say(other, "Mochi is also made of rice.", "And it is sweet.")
    page = show(other)
    page.keyboard.press("Control+k")
    dialog = page.get_by_role("dialog", name="Search memory")
    dialog.get_by_label("Search the whole memory").fill("Mochi")
    hits = dialog.locator(".hit", has_text="Mochi")
    expect(hits).to_have_count(3)
    dialog.get_by_text("Narrow down").click()
    dialog.get_by_label("Tag").select_option("pets")
    expect(hits).to_have_count(2)
    dialog.get_by_label("Role").select_option("The model")
    expect(hits).to_have_count(1)
    expect(hits).to_contain_text("a fine name")
    dialog.get_by_label("Before this day").fill("2020-01-31")
    expect(dialog.get_by_role("status")).to_have_text("Nothing found.")
    dialog.get_by_label("Before this day").fill("")
    dialog.get_by_label("Speaker").fill("Nobody")
    dialog.get_by_label("Speaker").press("Tab")
    expect(dialog.get_by_role("status")).to_have_text("Nothing found.")


def test_a_result_opens_in_the_window_where_it_is_live(house, show):
    other = house.window("Cats", max_context_tokens=0)
    house.say(other, "My cat is called Mochi.", "Noted.")
    window = house.window("Chess")
    page = show(window)
    page.keyboard.press("Control+k")
    dialog = page.get_by_role("dialog", name="Search memory")
    dialog.get_by_label("Search the whole memory").fill("Mochi")
    dialog.locator(".hit").first.get_by_role("button", name="Open").click()
    expect(page.locator(".window-title")).to_have_text("Cats")
    expect(page.locator("article.chunk:focus")).to_contain_text("Mochi")
