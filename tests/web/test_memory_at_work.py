"""Falling asleep and waking up, as the page shows it; search and preview."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.web.talk import act, keys, panel, say, shown, toast

pytestmark = pytest.mark.browser

TOPICS = [
    "the harbour at dawn",
    "a recipe for rye bread",
    "how bees find flowers",
    "the rules of chess",
    "snow on the pass",
]


def full_window(house, **settings):
    """A window over its budget: the first exchange sleeps."""
    window = house.window(
        max_context_tokens=120,
        min_chunk_tokens=8,
        resurrection_budget=0,
        timestamps=False,
        memory_tree_in_prompt=False,
        strategy="magnitude_voting",  # the oldest sleep first
        **settings,
    )
    house.ask("PATCH", f"/windows/{window}", json={"system_prompt": ""})
    house.say(window, "My cat is called Mochi.", "Mochi is a lovely name for a cat.")
    for topic in TOPICS:
        house.say(window, f"Tell me about {topic}.", f"There is much to say about {topic}, and little time.")
    assert house.context(window)["stats"]["pruned_chunks"] > 0
    return window


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


def test_waking_from_the_graveyard_pins_a_chunk_at_its_place_and_a_reload_shows_the_same(house, show):
    window = full_window(house)
    page = show(window)
    drawer = panel(page, "Graveyard")
    total = house.ask("GET", f"/windows/{window}/graveyard")["total"]
    expect(drawer.get_by_role("status")).to_contain_text(f"{total} chunks, ")
    row = drawer.locator(".row", has_text="My cat is called Mochi.")
    expect(row).to_contain_text("peak")
    row.get_by_role("button", name="Wake up here, pinned").click()
    toast(page, "Awake at its place, and pinned.")
    first = page.locator("article.chunk").first
    expect(first).to_contain_text("My cat is called Mochi.")
    expect(first.locator(".pin-badge")).to_be_visible()
    expect(row).to_have_count(0)
    expect(drawer.locator(".row", has_text="Mochi is a lovely name")).to_have_count(
        0
    )  # its answer came along
    left = house.ask("GET", f"/windows/{window}/graveyard")["total"]
    expect(drawer.get_by_role("status")).to_contain_text(f"{left} chunks, ")
    answer = house.context(window)["turns"][1]["chunks"][0]
    assert ("".join(answer["text_pieces"]), answer["pinned"]) == ("Mochi is a lovely name for a cat.", False)
    woken = next(one for turn in house.context(window)["turns"] for one in turn["chunks"])
    assert woken["pinned"]
    assert woken["peak"] == 10_000
    before = keys(page)
    page.reload()
    page.wait_for_selector(".chunk")
    assert keys(page) == before
    assert shown(page) == house.text(window)
    expect(page.locator("article.chunk").first.locator(".pin-badge")).to_be_visible()


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


def test_the_graveyard_is_sorted_and_filtered(house, show):
    window = full_window(house)
    page = show(window)
    drawer = panel(page, "Graveyard")
    expect(drawer.locator(".grave").first).to_be_visible()
    drawer.get_by_label("Sort by").select_option("position")
    drawer.get_by_label("Order").select_option("asc")
    expect(drawer.locator(".grave").first).to_contain_text("My cat is called Mochi.")
    drawer.get_by_label("Who said it").select_option("assistant")
    expect(drawer.locator(".grave.user")).to_have_count(0)
    drawer.get_by_label("Who said it").select_option("")
    drawer.get_by_label("Filter by text").fill("lovely name")
    expect(drawer.get_by_role("status")).to_have_text("1 chunk found")
    expect(drawer.locator(".grave")).to_have_count(1)
    drawer.get_by_label("Filter by text").fill("no such words")
    expect(drawer).to_contain_text("Nothing that sleeps fits this filter.")


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


def test_the_budget_bar_adds_up(house, show):
    window = full_window(house)
    page = show(window)
    budget = house.context(window)["budget"]
    label = page.locator("#budget [role=img]").get_attribute("aria-label") or ""
    assert f"System prompt {budget['system']}" in label
    assert f"Pinned {budget['pinned']}" in label
    used = budget["system"] + budget["pinned"] + budget["live"] + budget["frames"]
    expect(page.locator("#budget")).to_contain_text(f"{used} of {budget['max_context_tokens']}")


def test_a_long_graveyard_keeps_only_the_rows_near_the_view(house, show):
    window = house.window(
        max_context_tokens=60,
        max_new_tokens=2000,
        min_chunk_tokens=4,
        resurrection_budget=0,
        timestamps=False,
        memory_tree_in_prompt=False,
        strategy="magnitude_voting",  # the oldest sleep first
    )
    house.ask("PATCH", f"/windows/{window}", json={"system_prompt": ""})
    for i in range(3):
        house.say(window, f"Round {i}.", "\n\n".join(f"Paragraph {i}-{k} of a long tale." for k in range(60)))
    total = house.ask("GET", f"/windows/{window}/graveyard")["total"]
    assert total > 100
    page = show(window)
    drawer = panel(page, "Graveyard")
    expect(drawer.locator(".grave").first).to_be_visible()
    assert drawer.locator(".row").count() < 40
    drawer.get_by_label("Sort by").select_option("position")
    drawer.get_by_label("Order").select_option("asc")
    drawer.locator(".rows").evaluate("one => one.scrollTo(0, one.scrollHeight)")
    expect(drawer.locator(f"[aria-posinset='{total}'] .grave")).to_be_visible()
    assert drawer.locator(".row").count() < 40
    page.evaluate("() => document.querySelector('.rows').scrollTo(0, 0)")
    drawer.locator("[aria-posinset='1'] .row-open").focus()
    for _ in range(12):
        page.keyboard.press("ArrowDown")
    expect(drawer.locator("[aria-posinset='13'] .row-open")).to_be_focused()
    page.keyboard.press("End")
    last = drawer.locator(f"[aria-posinset='{total}'] .row-open")
    expect(last).to_be_focused()
    drawer.locator(".rows").evaluate("one => one.scrollTo(0, 0)")
    expect(drawer.locator("[aria-posinset='1'] .row-open")).to_be_visible()
    expect(last).to_be_focused()
    drawer.locator("[aria-posinset='1'] .row-open").focus()
    house.say(window, "One more.", "And its answer.")
    expect(drawer.locator(f"[aria-setsize='{total}']")).to_have_count(0)
    expect(drawer.locator("[aria-posinset='1'] .row-open")).to_be_focused()
