"""The small things of the page: each was seen to be wrong once."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Route, expect

from tests.web.talk import frame, panel, say, settled, toast

pytestmark = pytest.mark.browser


def test_hiding_brightness_comes_back_to_the_colours_that_were_chosen(house, show):
    page = show(house.window())
    page.evaluate("app.preferences.set('keys', 'single')")
    for colours in ("original", "light"):
        panel(page, "Settings").get_by_label("Light", exact=True).select_option(colours)
        page.locator("#context").focus()
        page.keyboard.press("h")
        expect(page.locator("html")).to_have_attribute("data-heat", "off")
        page.reload()
        page.wait_for_function("() => window.app?.store.live")
        page.locator("#context").focus()
        page.keyboard.press("h")
        expect(page.locator("html")).to_have_attribute("data-heat", colours)


def test_the_first_words_of_the_search_say_what_it_does_and_the_keys_are_named_in_order(house, show):
    page = show(house.window())
    page.locator("#header").get_by_role("button", name="Keys").click()
    expect(page.get_by_role("dialog", name="Keys")).to_contain_text("↑ ↓ or K JPrevious, next chunk")
    page.keyboard.press("Escape")
    page.keyboard.press("Control+k")
    expect(page.get_by_role("dialog", name="Search memory")).to_contain_text("By meaning and by words")


def test_a_refused_setting_is_marked_and_says_what_to_use(house, show):
    page = show(house.window())
    drawer = panel(page, "Settings")
    seed, top = (drawer.get_by_role("spinbutton", name=name) for name in ("Seed", "Top-p"))
    untouched = top.evaluate("one => getComputedStyle(one).borderColor")
    for field, value, sentence in ((seed, "1.5", "Use a whole number."), (top, "7", "Use 0.01 to 1.")):
        field.fill(value)
        field.press("Tab")
        expect(field).to_have_attribute("aria-invalid", "true")
        expect(field).to_have_accessible_description(re.compile(re.escape(sentence)))
        assert field.evaluate("one => getComputedStyle(one).borderColor") != untouched
    top.fill("0.8")
    top.press("Tab")
    expect(top).not_to_have_attribute("aria-invalid", "true")
    # What only the server knows is said without the way to the field.
    page.route(
        "**/api/windows/*",
        lambda route: (
            route.fulfill(
                status=422,
                json={"error": {"code": "bad_input", "message": "settings.seed: use a whole number."}},
            )
            if route.request.method == "PATCH"
            else route.continue_()
        ),
    )
    seed.fill("3")
    seed.press("Tab")
    expect(drawer.locator("#setting-seed-problem")).to_have_text("Use a whole number.")
    expect(seed).to_have_attribute("aria-invalid", "true")
    expect(drawer.locator(".setting", has_text="Max context tokens")).to_contain_text(
        re.compile(r"\b6,656\b")
    )


LONG = "A name that goes on and on without an end in sight " * 3


@pytest.mark.parametrize("width", [1440, 390])
def test_a_long_origin_ends_in_an_ellipsis_and_leaves_the_speaker_whole(house, show, width):
    other = house.window(LONG.strip(), max_context_tokens=0)
    house.say(other, "My cat is called Mochi.", "Noted.")
    house.ask("PATCH", f"/windows/{other}", json={"user_name": "Ada Lovelace"})
    house.say(other, "My dog is called Rex.", "Noted.")
    window = house.window("Here")
    hit = house.ask("GET", "/search", params={"q": "dog Rex"})["hits"][0]["key"]
    house.ask("POST", f"/windows/{window}/chunks/{hit}/resurrect")
    page = show(window, viewport={"width": width, "height": 800})
    head = page.locator(".turn-head", has=page.locator(".origin")).first
    cut = "one => one.scrollWidth > one.clientWidth"
    assert not head.locator(".speaker").evaluate(cut)
    expect(head.locator(".speaker")).to_have_text("Ada Lovelace")
    page.keyboard.press("Control+k")
    page.get_by_label("Search the whole memory").fill("dog Rex")
    for badge in (head.locator(".origin"), page.locator(".hit .badge").first):
        expect(badge).to_be_visible()
        # An ellipsis is drawn in a block only, not in a flex container.
        assert badge.evaluate(
            "one => [getComputedStyle(one).textOverflow, getComputedStyle(one).display]"
        ) == ["ellipsis", "block"]
        assert badge.evaluate(cut)
        assert badge.evaluate("one => one.getBoundingClientRect().right <= innerWidth")


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
        re.compile(r"Woken by “mochi”, cost \d+ tokens\. (Weak|Good|Strong) fit: \d+\.\d \(words ")
    )
    expect(why).to_contain_text("Put to sleep by you")
    expect(why.locator("time").first).to_have_text(re.compile(r"\d\d:\d\d:\d\d"))


def test_all_parts_of_the_page_call_the_speakers_by_the_same_names(house, show):
    window = asleep(house)
    house.say(window, "Tell me of bells.", "They ring.")
    page = show(window)
    expect(page.locator(".speaker")).to_have_text(["Ada", "Halo"])
    page.locator(".gap-line").first.click()
    expect(page.locator(".sleeper-head > span")).to_have_text([re.compile("^Ada ·"), re.compile("^Halo ·")])
    drawer = panel(page, "Graveyard")
    expect(drawer.locator(".row-about", has_text="Ada ")).to_have_count(1)
    expect(drawer.get_by_label("Who said it").locator("option")).to_have_text(["All", "Ada", "Halo"])
    expect(panel(page, "Lab").locator(".dimmest")).to_contain_text("Halo, turn")
    page.keyboard.press("Control+k")
    page.get_by_label("Search the whole memory").fill("Mochi")
    hit = page.locator(".hit").first
    expect(hit.locator(".hit-head")).not_to_contain_text("similarity")
    hit.get_by_role("button", name="Why?").click()
    why = page.get_by_role("dialog", name="Why?")
    expect(why).to_contain_text("Ada · turn")
    expect(why).to_contain_text(re.compile(r"(Weak|Good|Strong) fit: \d+\.\d \(words \d"))


def test_a_reply_under_way_has_the_ais_name_in_a_second_tab(house, show):
    window = asleep(house)
    house.held.set()
    house.ask("POST", f"/windows/{window}/messages", json={"text": "Tell me of bells."})
    page = show(window)
    expect(page.locator(".turn.assistant .speaker").last).to_have_text("Halo")
    house.held.clear()
    house.until_quiet(window)


def test_the_very_first_reply_has_the_ais_name_while_it_comes(house, show):
    house.held.set()
    page = show()
    page.wait_for_function("() => window.app?.store.windowsKnown && app.reachable")
    say(page, "Tell me of bells.", wait=False)
    expect(page.locator(".chunk.draft")).to_have_count(1)
    name = house.ask("GET", "/windows")["windows"][0]["ai_name"]
    expect(page.locator(".turn.assistant .speaker")).to_have_text(name)
    assert page.locator(".chunk.draft").count() == 1
    house.held.clear()
    settled(page)


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


def test_questions_before_a_deletion_promise_what_is_true(house, show):
    empty, window = house.window("Empty"), house.window("Bells")
    house.say(window, "Tell me of bells.", "They ring.")
    page = show(window)
    dialog = page.get_by_role("dialog")
    page.evaluate("() => { app.delete(app.store.live.chunks.at(-1).key); }")
    expect(dialog).to_contain_text("Delete this?")
    expect(dialog).to_contain_text("It can be undone right after, and later from the graveyard.")
    page.keyboard.press("Escape")
    page.get_by_label("Your message").press("ArrowUp")
    expect(dialog).to_contain_text("What it said, and what followed it, stays as another version.")
    expect(dialog.get_by_role("button")).to_have_text(["", "Cancel", "Save"])
    page.keyboard.press("Escape")
    page.evaluate("id => { app.deleteWindow(app.store.windows.find((one) => one.id === id)); }", empty)
    expect(dialog).to_contain_text("Nothing was said in it. Its name")
    page.keyboard.press("Escape")
    house.ask("PUT", "/memory/entry", json={"path": "People", "content": 1})
    house.ask("PUT", "/memory/entry", json={"path": "People/Ada", "content": 1})
    drawer = panel(page, "Memory")
    drawer.get_by_role("treeitem", name="People").press("Delete")
    expect(dialog).to_contain_text("Deletes this entry and the entry below it.")


@pytest.mark.parametrize("theme", ["dark", "light"])
def test_the_parts_of_the_budget_can_be_told_apart(house, show, theme):
    page = show(house.window(), color_scheme=theme)
    nearest = page.evaluate(
        """() => {
          const shade = (text) => text.match(/[\\d.]+/g).slice(0, 3).map(Number);
          const names = ["system", "pinned", "live", "turn", "frames", "free"];
          const shades = names.map((name) => [name, shade(getComputedStyle(document.querySelector(`[data-part=${name}]`)).backgroundColor)]);
          const apart = ([one, a], [other, b]) => [Math.hypot(...a.map((value, i) => value - b[i])), one, other];
          return shades.flatMap((one, i) => shades.slice(i + 1).map((other) => apart(one, other))).sort((a, b) => a[0] - b[0])[0];
        }"""
    )
    assert nearest[0] > 50, nearest
    border, ground = page.evaluate(
        "() => [getComputedStyle(document.querySelector('.bar')).borderColor, getComputedStyle(document.body).backgroundColor]"
    )
    assert border != ground  # what is free has an edge


def test_nothing_is_squeezed_by_an_open_drawer_or_a_long_name(house, show):
    window = house.window("Hello! My name is Ada and I live in a lighthouse by the sea")
    house.say(window, "Tell me of bells.", "They ring.")
    page = show(window)
    drawer = panel(page, "Settings")
    assert page.locator(".window-title").evaluate("one => one.clientWidth") > 300
    tops = "one => new Set([...one.children].map((figure) => figure.offsetTop)).size"
    assert page.locator(".figures").evaluate(tops) == 1
    choice = drawer.locator(".setting.choice select").first
    assert choice.evaluate(
        "one => { const probe = document.createElement('span'); probe.style.cssText = 'position: fixed; white-space: nowrap'; probe.style.font = getComputedStyle(one).font;"
        " probe.textContent = one.selectedOptions[0].text; document.body.append(probe);"
        " const wide = probe.offsetWidth; probe.remove(); return wide + 34 <= one.clientWidth; }"
    )
    page.evaluate("app.store.setWindow({ ...app.store.window, generating: true })")
    row = page.locator("#rail li.current")
    assert row.locator(".pulse").evaluate("one => [one.offsetWidth, one.offsetHeight]") == [8, 8]
    row.hover()
    end, begin = (
        row.locator(one).evaluate(f"one => one.getBoundingClientRect().{edge}")
        for one, edge in ((".name-text", "right"), (".window-acts", "left"))
    )
    assert end <= begin
    page.set_viewport_size({"width": 1024, "height": 800})
    assert page.locator(".search-open span").evaluate("one => one.scrollWidth <= one.clientWidth")


def test_without_a_connection_nothing_seems_at_work(house, show):
    page = show(house.window())
    page.evaluate("app.store.setWindow({ ...app.store.window, generating: true })")
    expect(page.locator("#rail .pulse")).to_be_visible()
    green = page.locator(".dot").evaluate("one => getComputedStyle(one).backgroundColor")
    page.evaluate("app.store.setConnection('lost', Date.now() + 60_000)")
    expect(page.locator(".banner")).to_be_visible()
    expect(page.locator("#rail .pulse")).to_be_hidden()
    assert page.locator(".dot").evaluate("one => getComputedStyle(one).backgroundColor") != green


def test_a_search_that_is_full_says_that_it_shows_the_best(house, show):
    window = house.window("Bells", max_context_tokens=0, min_chunk_tokens=1)
    house.say(window, "\n\n".join(f"The bell number {n} rings." for n in range(40)), "They ring.")
    page = show(window)
    page.keyboard.press("Control+k")
    page.get_by_label("Search the whole memory").fill("bell")
    expect(page.get_by_role("dialog").get_by_role("status")).to_have_text("The best 30")


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
