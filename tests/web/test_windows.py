"""The list of windows: made, named, ordered, deleted, and what an address opens."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.web.talk import act, keys, panel, say, shown, toast

pytestmark = pytest.mark.browser


ONLINE = "() => window.app?.store.connection.state === 'online' && app.store.live"


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


def test_a_malformed_address_opens_the_newest_window(house, tabs):
    window = house.window()
    page = tabs.open(f"{house.address}/#/w/%")
    page.wait_for_function(ONLINE)
    assert page.evaluate("app.store.current") == window


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
    expect(page.locator(".empty")).to_contain_text("One endless conversation")
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


def test_windows_are_pinned_tagged_filtered_and_archived(house, show):
    ids = {name: house.window(name) for name in ("Garden", "Thesis", "Letters")}
    page = show(ids["Letters"])
    rail = page.locator("#rail")

    def more(name: str, act: str) -> None:
        row = rail.locator("li", has_text=name)
        row.hover()
        row.get_by_role("button", name=f"More about {name}").click()
        page.get_by_role("dialog").get_by_role("button", name=act).click()

    more("Garden", "Pin to the top")
    expect(rail.locator("li .name-text").first).to_have_text("Garden")
    more("Thesis", "Tags…")
    page.get_by_role("textbox", name="Tags").fill("work, sea , work")
    page.get_by_role("dialog").get_by_role("button", name="Save").click()
    expect(rail.locator(".window-tag")).to_have_text(["work", "sea"])
    rail.get_by_role("button", name="work", exact=True).click()
    expect(rail.locator("li .name-text")).to_have_text(["Thesis"])
    rail.get_by_role("button", name="work", exact=True).click()
    more("Letters", "Archive")
    expect(toast(page, "Archived “Letters”")).to_be_visible()
    expect(rail.locator("li .name-text")).to_have_text(["Garden", "Thesis"])
    assert page.evaluate("() => app.store.current") == ids["Letters"]
    rail.get_by_role("button", name="Archived (1)").click()
    expect(rail.locator("li .name-text")).to_have_text(["Letters"])
    page.reload()
    expect(rail.locator("li .name-text")).to_have_text(["Letters"])
    more("Letters", "Back from the archive")
    expect(rail.locator("li .name-text")).to_have_text(["Garden", "Letters", "Thesis"])
    told = house.ask("GET", f"/windows/{ids['Thesis']}")
    assert told["tags"] == ["work", "sea"]


def test_windows_are_made_renamed_and_deleted(house, show):
    house.window("First")
    page = show()
    rail = page.locator("#rail")
    rail.get_by_role("button", name="New window").click()
    expect(page.locator(".window-title")).to_have_text("New window")
    item = rail.locator("li.current")
    item.hover()
    item.get_by_role("button", name="Rename New window").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("Ship's log")
    dialog.get_by_role("button", name="Rename").click()
    expect(page.locator(".window-title")).to_have_text("Ship's log")
    assert {one["name"] for one in house.ask("GET", "/windows")["windows"]} == {"First", "Ship's log"}
    house.replies.append("Aye.")
    say(page, "The fog came early.")
    expect(item).to_contain_text("2 live")
    item.hover()
    item.get_by_role("button", name="Delete Ship's log").click()
    expect(page.get_by_role("dialog")).to_contain_text("2 live chunks")
    page.get_by_role("dialog").get_by_role("button", name="Delete window").click()
    expect(page.locator(".window-title")).to_have_text("First")
    assert [one["name"] for one in house.ask("GET", "/windows")["windows"]] == ["First"]
    assert house.ask("GET", "/search", params={"q": "fog"})["hits"], "what was said stays in memory"


def test_a_new_window_is_called_after_the_first_words_said_in_it(house, show):
    house.window("First")
    page = show()
    page.locator("#rail").get_by_role("button", name="New window").click()
    expect(page.locator(".window-title")).to_have_text("New window")
    say(page, "How do bees\n<b>find</b> their way home after a long day in the meadow?")
    expect(page.locator(".window-title")).to_have_text("How do bees <b>find</b> their way home after a…")
    say(page, "And wasps?")
    expect(page.locator(".window-title")).to_have_text("How do bees <b>find</b> their way home after a…")


def test_each_window_keeps_its_own_text(house, show):
    one, other = house.window("One", memory_scope="window"), house.window("Other", memory_scope="window")
    house.say(one, "Said in one.", "Yes.")
    house.say(other, "Said in the other.", "Yes.")
    page = show(one)
    page.locator("#rail").get_by_role("button", name="Other").first.click()
    expect(page.locator("#context .turns")).to_contain_text("Said in the other.")
    assert "Said in one." not in shown(page)
    page.go_back()
    expect(page.locator("#context .turns")).to_contain_text("Said in one.")
