"""What must not go wrong when things come at the wrong time: a lost server, another window, a hasty key."""

from __future__ import annotations

import re
import time

import pytest
from playwright.sync_api import expect

from tests.web.house import House
from tests.web.talk import chunk, frame, keys, panel, say, toast

pytestmark = pytest.mark.browser

ONLINE = "() => window.app?.store.connection.state === 'online' && app.store.live"


def test_notes_that_did_not_come_cannot_be_overwritten(house, show):
    window = house.window()
    house.ask("PUT", "/notes", json={"content": {"topics": {"bell": "gold"}}})
    page = show(window)
    page.route("**/api/notes", lambda route: route.abort())
    drawer = panel(page, "Notes")
    field, save = drawer.get_by_label("notes.json"), drawer.get_by_role("button", name="Save")
    toast(page, "cannot be reached")
    expect(field).to_have_js_property("readOnly", True)
    expect(field).to_have_value("")
    expect(save).to_be_disabled()
    drawer.get_by_role("button", name="Tidy").click()
    expect(save).to_be_disabled()
    page.unroute("**/api/notes")
    page.evaluate("app.refresh()")
    expect(field).to_have_js_property("readOnly", False)
    expect(field).to_have_value(re.compile('"bell": "gold"'))
    assert house.ask("GET", "/notes")["content"]["topics"] == {"bell": "gold"}


@pytest.mark.parametrize(("name", "sign"), [("Notes", "bell"), ("Memory", "Mochi")])
def test_a_panel_opened_without_a_server_fills_when_it_is_back(house, show, name, sign):
    house.ask("PUT", "/notes", json={"content": {"bell": "gold"}})
    house.ask("PUT", "/memory/entry", json={"path": "Mochi", "content": "a cat"})
    page = show(house.window())
    house.stop()
    page.wait_for_function("() => app.store.connection.state === 'lost'")
    drawer = panel(page, name)
    toast(page, "cannot be reached")
    house.start()
    if name == "Notes":
        page.wait_for_function("() => document.querySelector('#drawer textarea').value.includes('bell')")
    else:
        expect(drawer.get_by_role("treeitem", name=sign)).to_be_visible()


def test_an_act_is_undone_in_the_window_where_it_was_done(house, show):
    one, other = house.window("One"), house.window("Other")
    house.say(one, "The keeper rang the bell.", "He rang it.")
    page = show(one)
    key = keys(page)[0]

    def state() -> tuple[bool, bool]:
        live = [one for turn in house.context(one)["turns"] for one in turn["chunks"] if one["key"] == key]
        return bool(live), bool(live and live[0]["pinned"])

    chunk(page, key).focus()
    page.keyboard.press("p")
    undo = toast(page, "Pinned").get_by_role("button", name="Undo")
    page.locator("#rail").get_by_role("button", name="Other").first.click()
    expect(page.locator(".window-title")).to_have_text("Other")
    assert state() == (True, True)
    undo.click()
    toast(page, "Unpinned.")
    assert state() == (True, False)
    assert page.evaluate("app.store.current") == other


def test_the_settings_follow_the_window(house, show):
    one, other = house.window("One", temperature=1.2), house.window("Other")
    page = show(one)
    drawer = panel(page, "Settings")
    temperature, top = (drawer.get_by_role("spinbutton", name=name) for name in ("Temperature", "Top-p"))
    expect(temperature).to_have_value("1.2")
    top.fill("7")
    top.press("Tab")
    expect(drawer.locator(".setting .problem:not(:empty)")).to_have_count(1)
    drawer.get_by_label("Your name").fill("Ada")
    page.evaluate("id => { app.open(id); }", other)
    expect(drawer.get_by_label("Name", exact=True)).to_have_value("Other")
    expect(drawer.get_by_label("Your name")).not_to_have_value("Ada")
    expect(temperature).to_have_value("0.7")
    expect(top).not_to_have_value("7")
    expect(drawer.locator(".setting .problem:not(:empty)")).to_have_count(0)
    assert house.ask("GET", f"/windows/{other}")["settings"] == {}
    assert house.ask("GET", f"/windows/{other}")["user_name"] != "Ada"


def test_a_window_always_has_a_name_of_bearable_length(house, show):
    window = house.window("Lighthouse")
    page = show(window)
    name = panel(page, "Settings").get_by_label("Name", exact=True)
    name.fill("   ")
    name.press("Tab")
    expect(name).to_have_value("Lighthouse")
    page.evaluate("() => { app.renameWindow(app.store.window); }")
    expect(page.get_by_role("dialog").get_by_label("Name")).to_have_attribute("maxlength", "200")
    assert house.ask("GET", f"/windows/{window}")["name"] == "Lighthouse"


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


def test_a_delete_names_the_entries_it_takes_along(house, show):
    for path in ("People", "People/Cats/Mochi", "People/Cats/Miso", "People/Ada"):
        house.ask("PUT", "/memory/entry", json={"path": path, "content": f"about {path}"})
    page = show(house.window())
    drawer = panel(page, "Memory")
    dialog = page.get_by_role("dialog")
    drawer.get_by_role("treeitem", name="People").click()
    drawer.get_by_role("button", name="Delete…").click()
    expect(dialog).to_contain_text("the 3 entries below it")
    dialog.get_by_role("button", name="Cancel").click()
    drawer.get_by_role("treeitem", name="People").press("Delete")
    expect(dialog).to_contain_text("the 3 entries below it")
    dialog.get_by_role("button", name="Cancel").click()
    drawer.get_by_label("Ask this memory").fill("about People")
    drawer.get_by_label("Ask this memory").press("Enter")
    drawer.locator(".match", has=page.get_by_text("People", exact=True)).click()
    expect(drawer.locator(".path")).to_have_text("People")
    drawer.get_by_role("button", name="Delete…").click()
    expect(dialog).to_contain_text("the 3 entries below it")
    dialog.get_by_role("button", name="Delete").click()
    toast(page, "Deleted 4 entries.")
    assert house.ask("GET", "/memory")["children"] == []


def test_a_closed_heading_stays_closed_and_a_restored_entry_has_the_focus(house, show):
    house.ask("PUT", "/memory/entry", json={"path": "People/Mochi", "content": "a cat"})
    house.ask("PUT", "/memory/entry", json={"path": "Places", "content": "first"})
    house.ask("PUT", "/memory/entry", json={"path": "Places", "content": "second"})
    page = show(house.window())
    drawer = panel(page, "Memory")
    people = drawer.get_by_role("treeitem", name="People")
    people.click()
    expect(people).to_have_attribute("aria-expanded", "false")
    drawer.get_by_role("treeitem", name="Places").click()
    drawer.get_by_role("button", name="History").click()
    page.get_by_role("button", name="Make this the current version").click()
    expect(drawer.locator(".json")).to_contain_text("first")
    expect(drawer.get_by_role("treeitem", name="Places")).to_be_focused()
    expect(people).to_have_attribute("aria-expanded", "false")


def test_the_focus_stays_near_what_went_away(house, show):
    window = house.window(min_chunk_tokens=4, max_context_tokens=0)
    house.say(
        window, "Tell me.", "First paragraph of the tale.\n\nSecond paragraph of it.\n\nThird and last."
    )
    page = show(window)
    every = keys(page)
    chunk(page, every[-1]).focus()
    page.keyboard.press("Shift+M")
    expect(chunk(page, every[-1])).to_have_count(0)
    expect(chunk(page, every[-2])).to_be_focused()
    page.keyboard.press("Shift+S")
    expect(chunk(page, every[-2])).to_have_count(0)
    expect(page.locator("article.chunk:focus")).to_have_count(1)


def test_the_focus_stays_in_the_list_of_windows(house, show):
    house.window("First")
    second = house.window("Second")
    page = show(second)
    rail = page.locator("#rail")
    rail.get_by_role("button", name="Rename First").focus()
    page.evaluate("app.refresh()")
    expect(rail.get_by_role("button", name="Rename First")).to_be_focused()
    rail.get_by_role("button", name="Delete Second").focus()
    page.keyboard.press("Enter")
    page.get_by_role("dialog").get_by_role("button", name="Delete window").click()
    expect(page.locator(".window-title")).to_have_text("First")
    expect(rail.locator("li.current .window-open")).to_be_focused()


def test_the_controls_of_a_chunk_move_nothing(house, show):
    window = house.window(max_context_tokens=0)
    house.say(window, "The keeper rang the bell.", "He rang it.")
    page = show(window)
    tops = "() => { const all = [...document.querySelectorAll('.chunk .text')]; return all.flatMap((one) => { const box = one.getBoundingClientRect(); return [box.top, box.height, box.width]; }); }"
    before = page.evaluate(tops)
    for key in keys(page):
        chunk(page, key).focus()
        bar = page.get_by_role("toolbar", name="Chunk")
        expect(bar).to_be_visible()
        assert page.evaluate(tops) == before
        # Nothing of it is cut off or covered.
        assert page.evaluate(
            "() => [...document.querySelectorAll('.tools button')].every((one) => { const box = one.getBoundingClientRect(); return [box.top + 3, box.bottom - 3].every((y) => one.contains(document.elementFromPoint(box.left + box.width / 2, y))); })"
        )


@pytest.mark.parametrize("width", [390, 1440])
def test_messages_stand_above_a_tall_foot(house, show, width):
    page = show(house.window(), viewport={"width": width, "height": 800})
    page.get_by_label("Your message").fill("line\n" * 30)
    page.evaluate("app.toasts.show('Look here.'); app.toasts.show('Look here.')")
    expect(page.locator(".toast")).to_have_count(1)
    frame(page)
    page.wait_for_function(
        "() => document.querySelector('.toast').getBoundingClientRect().bottom <= document.querySelector('#foot').getBoundingClientRect().top"
    )


@pytest.mark.parametrize("width", [390, 1440])
def test_long_names_stay_in_their_places(house, show, width):
    long = "Wort" * 48
    window = house.window(long)
    house.ask("PATCH", f"/windows/{window}", json={"user_name": long, "ai_name": long})
    house.say(window, f"{long} keeper", "Yes.")
    page = show(window, viewport={"width": width, "height": 800})
    over = "one => document.querySelector(one).scrollWidth - document.querySelector(one).clientWidth"
    assert page.evaluate(over, "#rail .windows") <= 0
    assert page.evaluate(over, "#context") <= 0
    assert page.evaluate(over, ".turn-head") <= 0
    assert page.evaluate(over, ".figures") <= 0
    page.keyboard.press("Control+k")
    page.get_by_label("Search the whole memory").fill("keeper")
    expect(page.locator(".hit").first).to_be_visible()
    assert page.evaluate(over, "dialog") <= 0
    assert page.evaluate(over, ".hit") <= 0


def test_a_wrong_key_is_called_wrong(tmp_path, tabs):
    house = House(tmp_path, key="a-key-of-the-house-1").start()
    try:
        page = tabs.open(house.address)
        dialog = page.get_by_role("dialog", name="This server is locked")
        expect(dialog).not_to_contain_text("not right")
        dialog.get_by_label("Key").fill("another-key-altogether")
        dialog.get_by_role("button", name="Unlock").click()
        expect(dialog).to_contain_text("That key was not right")
        dialog.get_by_label("Key").fill(house.key)
        dialog.get_by_role("button", name="Unlock").click()
        expect(page.locator(".empty")).to_contain_text("One conversation without an end")
    finally:
        house.stop()


def test_a_malformed_address_opens_the_newest_window(house, tabs):
    window = house.window()
    page = tabs.open(f"{house.address}/#/w/%")
    page.wait_for_function(ONLINE)
    assert page.evaluate("app.store.current") == window


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
