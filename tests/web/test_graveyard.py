"""The graveyard panel: sorted, filtered, read, woken from."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Route, expect

from tests.web.talk import frame, full_window, keys, panel, shown, toast

pytestmark = pytest.mark.browser


def test_a_click_in_the_graveyard_reads_and_a_button_wakes_with_the_question(house, show):
    window = house.window(max_context_tokens=0)
    house.say(window, "What is **bold**?", "Bold is **this**.")
    for key in ("1.0.user", "2.0.assistant"):
        house.ask("POST", f"/windows/{window}/chunks/{key}/prune")
    page = show(window, form="rendered")
    drawer = panel(page, "Graveyard")
    expect(drawer.locator("[role='status']")).to_contain_text("tokens asleep")
    drawer.locator(".grave", has_text="Bold is").locator(".row-open").click()
    sheet = page.get_by_role("dialog", name="Asleep")
    expect(sheet.locator("strong")).to_have_text("this")
    assert house.context(window)["turns"] == []
    sheet.get_by_role("button", name="Wake up here, pinned").click()
    expect(page.locator("#context .chunk")).to_have_count(2)
    live = {one["key"]: one["pinned"] for turn in house.context(window)["turns"] for one in turn["chunks"]}
    assert live == {"1.0.user": False, "2.0.assistant": True}


def test_rows_that_come_before_the_first_are_not_lost(house, show):
    window = house.window()
    items = [
        {
            "key": f"{n}.0.user",
            "role": "user",
            "turn_id": str(n),
            "start": str(n),
            "tokens": 1,
            "peak": 1.0,
            "pruned": "2026-01-31T12:00:00Z",
            "reason": {},
            "said": "2026-01-31T12:00:00Z",
            "window": window,
            "window_name": "",
            "speaker": "",
            "text": f"Row {n}",
        }
        for n in range(250)
    ]
    page, held = show(window), []

    def graveyard(route):
        query = parse_qs(urlsplit(route.request.url).query)
        start = int(query["offset"][0])
        if query["order"] == ["asc"] and not start:
            held.append(route)
        else:
            route.fulfill(json={"total": 250, "items": items[start : start + 100]})

    page.route("**/graveyard?**", graveyard)
    drawer = panel(page, "Graveyard")
    expect(drawer.locator(".grave").first).to_be_visible()
    drawer.get_by_label("Order").select_option("asc")
    with page.expect_response(lambda answer: "offset=200" in answer.url):
        drawer.locator(".rows").evaluate("one => one.scrollTo(0, one.scrollHeight)")
    expect(drawer.locator("[aria-posinset='250'] .grave")).to_be_visible()
    with page.expect_response(lambda answer: "offset=0" in answer.url):
        held[0].fulfill(json={"total": 250, "items": items[:100]})
    frame(page)
    expect(drawer.locator("[aria-posinset='250'] .grave")).to_contain_text("Row 249")


def asleep(house) -> str:
    """A window with names of its own whose first exchange sleeps."""
    window = house.window("Kitchen", max_context_tokens=0, timestamps=False)
    house.ask("PATCH", f"/windows/{window}", json={"user_name": "Ada", "ai_name": "Halo"})
    house.say(window, "My cat is called Mochi.", "Fish soup with dill and potatoes is on.")
    for turn in house.context(window)["turns"]:
        for one in turn["chunks"]:
            house.ask("POST", f"/windows/{window}/chunks/{one['key']}/prune")
    return window


def test_the_graveyard_shows_the_time_it_is_sorted_by(house, show):
    window = asleep(house)
    page = show(window)
    drawer = panel(page, "Graveyard")
    order, time = drawer.get_by_label("Order").locator("option"), drawer.locator(".grave time").first
    slept = house.ask("GET", f"/windows/{window}/graveyard")["items"][0]["pruned"]
    expect(time).to_have_attribute("datetime", slept)
    expect(time).to_contain_text("asleep")
    expect(order).to_have_text(["Newest first", "Oldest first"])
    drawer.get_by_label("Sort by").select_option("tokens")
    expect(order).to_have_text(["High to low", "Low to high"])
    expect(time).not_to_contain_text("asleep")
    drawer.get_by_label("Sort by").select_option("position")
    expect(order).to_have_text(["Newest first", "Oldest first"])


def test_a_page_of_the_graveyard_that_overtakes_the_new_list_is_fetched_again(house, show):
    window = house.window(max_context_tokens=0, min_chunk_tokens=1)
    house.say(window, "\n\n".join(f"The bell number {n} rings." for n in range(130)), "They ring.")
    for one in [one["key"] for turn in house.context(window)["turns"] for one in turn["chunks"]]:
        house.ask("POST", f"/windows/{window}/chunks/{one}/prune")
    total = house.ask("GET", f"/windows/{window}/graveyard")["total"]
    assert total > 110
    page = show(window)
    drawer = panel(page, "Graveyard")
    expect(drawer.locator(".grave").first).to_be_visible()
    held: list[Route] = []
    page.route("**/graveyard?offset=0*", lambda route: held.append(route))
    with page.expect_request("**/graveyard?offset=0*"):
        drawer.get_by_label("Order").select_option("asc")
    drawer.locator(".rows").evaluate("one => one.scrollTo(0, one.scrollHeight)")
    last = drawer.locator(f"[aria-posinset='{total}'] .grave")
    expect(last).to_be_visible()
    with page.expect_response("**/graveyard?offset=0*"):
        held[0].continue_()
    expect(drawer.locator("[aria-setsize]").first).to_be_visible()
    frame(page)
    expect(last).to_be_visible()
    expect(drawer.locator(".bone")).to_have_count(0)


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
    expect(drawer).to_contain_text("No sleeping passage matches this filter.")


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
