"""The ways between the parts of the page: where the focus, the typed text and the view go after an act."""

from __future__ import annotations

import re
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import expect

from tests.web.talk import act, frame, keys, panel, settled, toast

pytestmark = pytest.mark.browser


def test_the_skip_link_leads_into_the_input_box_of_the_same_window(house, show):
    here = house.window("Here")
    house.window("Newer")
    page = show(here)
    expect(page.get_by_label("Your message")).to_be_focused()  # from the beginning
    page.get_by_role("button", name="Search memory").focus()  # the first control after the link
    page.keyboard.press("Shift+Tab")
    expect(page.get_by_role("link", name="To the input box")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_label("Your message")).to_be_focused()
    assert page.evaluate("app.store.current") == here
    assert page.evaluate("location.hash") == f"#/w/{here}"


def test_notes_written_meanwhile_are_not_overwritten_without_a_word(house, show):
    house.ask("PUT", "/notes", json={"content": {"bell": "gold"}})
    page = show(house.window())
    drawer = panel(page, "Notes")
    field = drawer.get_by_label("notes.json")
    save = drawer.get_by_role("button", name="Save", exact=True)
    expect(field).to_have_value(re.compile("gold"))
    field.fill('{"bell": "mine"}')
    house.ask("PUT", "/notes", json={"content": {"bell": "theirs"}})
    save.click()
    expect(drawer.get_by_role("alert").filter(has_text="changed meanwhile")).to_be_visible()
    expect(field).to_have_value('{"bell": "mine"}')
    assert house.ask("GET", "/notes")["content"]["bell"] == "theirs"
    drawer.get_by_role("button", name="Load theirs").click()
    expect(field).to_have_value(re.compile("theirs"))
    toast(page, "Theirs are loaded.").get_by_role("button", name="Bring mine back").click()
    expect(field).to_have_value('{"bell": "mine"}')
    house.ask("PUT", "/notes", json={"content": {"bell": "theirs again"}})
    save.click()
    drawer.get_by_role("button", name="Save mine").click()
    toast(page, "Notes saved.")
    assert house.ask("GET", "/notes")["content"]["bell"] == "mine"
    expect(drawer.get_by_role("button", name="Save mine")).to_be_hidden()
    field.fill('{"bell": "mine, later"}')
    save.click()
    expect(save).to_be_disabled()
    page.wait_for_function("() => !document.querySelector('#drawer textarea').value.startsWith('{\"bell')")
    assert house.ask("GET", "/notes")["content"]["bell"] == "mine, later"


def test_saving_an_entry_leaves_the_next_one_alone_and_saves_once(house, show):
    page = show(house.window())
    drawer = panel(page, "Memory")
    held = []
    page.route("**/api/memory/entry", lambda route: held.append(route))
    drawer.get_by_role("button", name="New entry").click()
    drawer.get_by_label("Path").fill("A")
    save = drawer.get_by_role("button", name="Save")
    save.dblclick()
    expect(save).to_be_disabled()
    drawer.get_by_role("button", name="New entry").click()
    drawer.get_by_label("Path").fill("B")
    drawer.get_by_label("Content").fill('"not yet saved"')
    for route in held:
        route.continue_()
    page.unroute("**/api/memory/entry")
    toast(page, "Saved A.")
    expect(drawer.get_by_role("treeitem", name="A")).to_be_visible()
    frame(page)
    expect(drawer.get_by_label("Path")).to_have_value("B")
    expect(drawer.get_by_label("Content")).to_have_value('"not yet saved"')
    drawer.get_by_role("button", name="Save").click()
    expect(drawer.locator(".path")).to_have_text("B")
    expect(drawer.locator(".json")).to_contain_text("not yet saved")
    for path in ("A", "B"):
        assert house.ask("GET", "/memory/entry", params={"path": path})["version"] == 1


def test_an_entry_that_was_not_saved_can_be_brought_back_over_the_next_one(house, show):
    page = show(house.window())
    drawer = panel(page, "Memory")
    held = []
    page.route("**/api/memory/entry", lambda route: held.append(route))
    drawer.get_by_role("button", name="New entry").click()
    drawer.get_by_label("Path").fill("A")
    drawer.get_by_label("Content").fill('"kept"')
    with page.expect_request("**/api/memory/entry"):
        drawer.get_by_role("button", name="Save").click()
    drawer.get_by_role("button", name="New entry").click()
    drawer.get_by_label("Path").fill("B")
    held[0].fulfill(status=500, json={"error": {"code": "internal", "message": "The disk is full."}})
    page.unroute("**/api/memory/entry")
    toast(page, "A was not saved.").get_by_role("button", name="Bring it back").click()
    page.get_by_role("dialog").get_by_role("button", name="Leave it").click()
    expect(drawer.get_by_label("Path")).to_have_value("A")
    drawer.get_by_role("button", name="Save").click()
    expect(drawer.locator(".json")).to_contain_text("kept")
    assert house.ask("GET", "/memory/entry", params={"path": "A"})["content"] == "kept"


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


@pytest.mark.parametrize("width", [768, 1024])
def test_a_panel_over_the_conversation_leaves_the_foot_free_and_closes_with_escape(house, show, width):
    page = show(house.window(), viewport={"width": width, "height": 800})
    drawer, notes = panel(page, "Notes"), page.locator("#dock").get_by_role("button", name="Notes")
    page.get_by_label("Your message").fill("Hello there.")
    page.get_by_role("button", name="Send").click()
    settled(page, "Hello there.")
    expect(drawer).to_be_visible()
    page.keyboard.press("Escape")
    expect(drawer).to_be_hidden()
    panel(page, "Notes").get_by_label("notes.json").focus()
    page.keyboard.press("Escape")
    expect(drawer).to_be_hidden()
    expect(notes).to_be_focused()


def test_the_origin_of_a_chunk_leads_nowhere_when_its_window_is_gone(house, show):
    cats, window = house.window("Cats", max_context_tokens=0), house.window("Chess", timestamps=False)
    house.window("Newest")
    house.say(cats, "My cat is called Mochi.", "Noted.")
    house.say(window, "What is my cat Mochi called?", "Mochi.")
    page = show(window)
    expect(page.get_by_role("button", name="from “Cats”").first).to_be_visible()
    house.ask("DELETE", f"/windows/{cats}")
    page.evaluate("app.refresh()")
    expect(page.get_by_role("button", name="from “Cats”")).to_have_count(0)
    expect(page.locator(".origin").first).to_have_text("from “Cats”")
    page.reload()
    expect(page.locator(".origin").first).to_have_text("from “Cats”")
    expect(page.get_by_role("button", name="from “Cats”")).to_have_count(0)


def test_an_address_that_names_no_window_is_told(house, show, tabs):
    here, newer = house.window("Here"), house.window("Newer")
    page = show(here)
    page.evaluate("location.hash = '#/w/00000000'")
    toast(page, "There is no window at this address any more.")
    expect(page).to_have_url(f"{house.address}/#/w/{here}")
    assert page.evaluate("app.store.current") == here
    made = house.window("Made meanwhile")
    page.evaluate("id => { location.hash = `#/w/${id}`; }", made)
    expect(page.locator(".window-title")).to_have_text("Made meanwhile")
    page = tabs.open(f"{house.address}/#/w/00000000")
    toast(page, "There is no window at this address any more.")
    expect(page.locator(".window-title")).to_have_text("Made meanwhile")
    page.evaluate("id => { app.open(id); }", newer)
    expect(page.locator(".window-title")).to_have_text("Newer")
    house.ask("DELETE", f"/windows/{newer}")
    toast(page, "That window does not exist any more.")


def test_the_counts_of_the_windows_follow_each_act(house, show):
    window = house.window(min_chunk_tokens=4, max_context_tokens=0)
    house.say(window, "Tell me.", "First paragraph of the tale.\n\nSecond paragraph of it.\n\nThird of it.")
    page = show(window)
    page.evaluate("app.refresh()")
    counts = page.locator("#rail li.current .window-counts")
    every = keys(page)
    expect(counts).to_contain_text("4 live · 0 asleep")
    # Only an act or an event can make a page look again that believes itself hidden.
    page.evaluate("Object.defineProperty(document, 'hidden', {get: () => true})")
    act(page, every[3], "Put to sleep")
    expect(counts).to_contain_text("3 live · 1 asleep")
    toast(page, "Asleep").get_by_role("button", name="Wake it again").click()
    expect(counts).to_contain_text("4 live · 0 asleep")
    act(page, every[2], "Merge into previous")
    expect(counts).to_contain_text("3 live · 0 asleep")
    house.ask("POST", f"/windows/{window}/chunks/{every[0]}/prune")
    expect(counts).to_contain_text("2 live · 1 asleep")
    act(page, every[3], "Delete…")
    page.get_by_role("dialog").get_by_role("button", name="Delete", exact=True).click()
    toast(page, "Deleted")
    expect(counts).not_to_contain_text("2 live")


def test_what_is_typed_without_a_window_moves_into_the_new_one(house, show):
    page = show()
    box = page.get_by_label("Your message")
    expect(page.locator(".empty")).to_contain_text("One conversation")
    box.fill("Half a thought")
    page.locator(".empty").get_by_role("button", name="New window").click()
    expect(page.locator(".empty")).to_contain_text("Say something.")
    expect(box).to_have_value("Half a thought")
    page.reload()
    expect(box).to_have_value("Half a thought")
    page.locator("#rail").get_by_role("button", name="New window", exact=True).first.click()
    expect(page.locator(".window-title")).to_have_text("New window 2")
    expect(box).to_have_value("")


def test_the_focus_stays_in_the_settings(house, show):
    page = show(house.window(temperature=1.2))
    drawer = panel(page, "Settings")
    window, every = (drawer.get_by_role("radio", name=name) for name in ("This window", "All windows"))
    window.focus()
    page.keyboard.press("ArrowRight")
    expect(every).to_be_focused()
    expect(every).to_be_checked()
    page.keyboard.press("ArrowLeft")
    expect(window).to_be_focused()
    drawer.get_by_role("button", name="Reset Temperature").focus()
    page.keyboard.press("Enter")
    temperature = drawer.get_by_role("spinbutton", name="Temperature")
    expect(temperature).to_be_focused()
    expect(temperature).to_have_value("0.7")


def test_a_new_window_waits_for_words(house, show):
    page = show(house.window())
    box = page.get_by_label("Your message")
    page.locator("#context").focus()
    page.evaluate("app.preferences.set('keys', 'single')")
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("n")
    expect(page.locator(".window-title")).to_have_text("New window")
    expect(box).to_be_focused()
    expect(box).to_have_value("")
    page.locator("#rail").get_by_role("button", name="New window", exact=True).first.click()
    expect(page.locator(".window-title")).to_have_text("New window 2")
    expect(box).to_be_focused()


@pytest.mark.parametrize("cleared", [True, False], ids=["cleared", "deleted"])
def test_without_a_window_the_budget_is_empty_and_the_settings_are_the_servers(house, show, cleared):
    house.ask("PATCH", "/settings", json={"temperature": 1.2})
    window = house.window(max_context_tokens=0)
    house.say(window, "The keeper rang the bell.", "He rang it.")
    page = show(window)
    bar = page.locator("#budget .part:visible")
    expect(bar).not_to_have_count(0)
    drawer = panel(page, "Settings")
    temperature = drawer.get_by_role("spinbutton", name="Temperature")
    expect(temperature).to_have_value("1.2")
    dialog = page.get_by_role("dialog")
    if cleared:
        drawer.get_by_role("button", name="Clear…").click()
        dialog.get_by_label("Confirm").fill("delete everything")
        dialog.get_by_role("button", name="Clear everything").click()
    else:
        page.evaluate("() => { app.deleteWindow(app.store.window); }")
        dialog.get_by_role("button", name="Delete window").click()
    expect(page.locator(".empty")).to_contain_text("One conversation")
    expect(bar).to_have_count(0)
    expect(page.locator("#budget .bar")).to_have_attribute("aria-label", "Budget: no window is open")
    expect(temperature).to_have_value("1.2")  # settings stay


def test_a_deleted_window_is_named(house, show):
    house.window("First")
    page = show(house.window("Second"))
    page.evaluate("() => { app.deleteWindow(app.store.window); }")
    page.get_by_role("dialog").get_by_role("button", name="Delete window").click()
    toast(page, "Deleted the window “Second”.")
    expect(page.locator(".window-title")).to_have_text("First")
    expect(page.locator(".toast")).to_have_count(1)


def test_an_old_list_of_windows_does_not_lead_away_from_a_new_one(house, show):
    page = show(house.window("First"))
    old, held = house.ask("GET", "/windows"), []

    def late(route):
        if route.request.method == "GET" and not held:
            held.append(route)
        else:
            route.continue_()

    page.route("**/api/windows", late)
    with page.expect_request("**/api/windows"):
        page.evaluate("() => { app.refresh(); }")
    page.locator("#context").focus()
    page.evaluate("app.preferences.set('keys', 'single')")
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("n")
    expect(page.locator(".window-title")).to_have_text("New window")
    held[0].fulfill(json=old)
    page.evaluate("app.refresh()")
    expect(page.locator(".window-title")).to_have_text("New window")
    expect(page.locator(".toast")).to_have_count(0)


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
