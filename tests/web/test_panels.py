"""Windows, structured memory, notes, settings, export and import, the lab."""

from __future__ import annotations

import json
import re

import pytest
from playwright.sync_api import expect

from halo_weave import app as assembling
from halo_weave.search.hashing_embedder import HashingEmbedder
from tests.fuzz import CORPUS
from tests.web.house import House
from tests.web.talk import panel, say, shown, toast

pytestmark = pytest.mark.browser


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


def test_the_drawer_remembers_which_panel_was_open(house, show):
    page = show(house.window())
    panel(page, "Notes")
    page.reload()
    expect(page.locator("#drawer")).to_contain_text("notes.json")
    page.locator("#dock").get_by_role("button", name="Notes").click()
    expect(page.locator("#drawer")).to_be_hidden()
    page.reload()
    page.wait_for_function("() => window.app?.store.live")
    expect(page.locator("#drawer")).to_be_hidden()


def test_notes_are_checked_and_saved(house, show):
    house.ask(
        "PUT", "/notes", json={"content": house.ask("GET", "/notes")["content"]}
    )  # else they are new each second
    page = show(house.window())
    drawer = panel(page, "Notes")
    field = drawer.get_by_label("notes.json")
    expect(field).to_have_value(
        json.dumps(house.ask("GET", "/notes")["content"], indent=2, ensure_ascii=False)
    )
    save = drawer.get_by_role("button", name="Save")
    expect(save).to_be_disabled()
    field.fill('{\n  "topics": {"bell": "gold",}\n}')
    expect(drawer.get_by_role("alert")).to_contain_text("line 2")
    expect(save).to_be_disabled()
    field.fill("[1, 2]")
    expect(drawer.get_by_role("alert")).to_contain_text("Notes have names")
    expect(save).to_be_disabled()
    field.fill("gold")
    expect(drawer.get_by_role("alert")).to_contain_text("Notes have names")
    expect(save).to_be_disabled()
    field.fill("bell: silver\nlamps: 3")
    save.click()
    toast(page, "Notes saved.")
    expect(field).to_have_value(re.compile('"bell": "silver"'))
    content = house.ask("GET", "/notes")["content"]
    assert (content["bell"], content["lamps"]) == ("silver", 3)
    field.fill('{"topics": {"bell": "gold"}}')
    with page.expect_response(lambda response: response.request.method == "PUT"):
        save.click()
    assert house.ask("GET", "/notes")["content"]["topics"] == {"bell": "gold"}
    expect(field).to_have_value(
        json.dumps(house.ask("GET", "/notes")["content"], indent=2, ensure_ascii=False)
    )


def test_structured_memory_is_read_edited_restored_and_deleted(house, show):
    house.ask("PUT", "/memory/entry", json={"path": "People/Mochi", "content": {"kind": "cat"}})
    house.ask("PUT", "/memory/entry", json={"path": "People", "content": "those we know"})
    page = show(house.window())
    drawer = panel(page, "Memory")
    drawer.get_by_role("treeitem", name="Mochi").click()
    expect(drawer.locator(".json")).to_contain_text('"kind": "cat"')
    drawer.get_by_role("button", name="Edit").click()
    drawer.get_by_label("Content").fill('{"kind": "tom cat"}')
    drawer.get_by_role("button", name="Save").click()
    expect(drawer.locator(".json")).to_contain_text("tom cat")
    assert house.ask("GET", "/memory/entry", params={"path": "People/Mochi"})["version"] == 2
    drawer.get_by_role("button", name="History").click()
    page.get_by_role("button", name="Make this the current version").click()
    expect(drawer.locator(".json")).to_contain_text('"kind": "cat"')
    assert house.ask("GET", "/memory/entry", params={"path": "People/Mochi"})["content"] == {"kind": "cat"}
    drawer.get_by_role("treeitem", name="People").click()
    drawer.get_by_role("button", name="Delete…").click()
    expect(page.get_by_role("dialog")).to_contain_text("this entry and the entry below it")
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(drawer).to_contain_text("Nothing is kept yet.")
    assert house.ask("GET", "/memory")["children"] == []


def test_a_new_entry_is_kept_and_found_and_its_deletion_undone(house, show):
    page = show(house.window())
    drawer = panel(page, "Memory")
    drawer.get_by_role("button", name="New entry").click()
    drawer.get_by_label("Path").fill("Places/Lighthouse")
    drawer.get_by_label("Content").fill('"on the northern cape"')
    drawer.get_by_role("button", name="Save").click()
    expect(drawer.get_by_role("treeitem", name="Lighthouse")).to_be_visible()
    drawer.get_by_label("Ask this memory").fill("northern cape")
    drawer.get_by_label("Ask this memory").press("Enter")
    expect(drawer.locator(".match").first).to_contain_text("Places/Lighthouse")
    drawer.locator(".match").first.click()
    drawer.get_by_role("button", name="Delete…").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    toast(page, "Deleted 1 entry.").get_by_role("button", name="Undo").click()
    expect(drawer.get_by_role("treeitem", name="Lighthouse")).to_be_visible()
    assert (
        house.ask("GET", "/memory/entry", params={"path": "Places/Lighthouse"})["content"]
        == "on the northern cape"
    )


def test_every_setting_is_shown_with_default_range_and_meaning(house, show):
    page = show(house.window())
    drawer = panel(page, "Settings")
    for one in house.ask("GET", "/settings")["described"]:
        setting = drawer.locator(".setting", has=page.locator(f"#setting-{one['name']}"))
        expect(setting).to_contain_text(one["meaning"])
        if one["low"] is not None:
            expect(setting).to_contain_text(f"{one['low']:g} to {one['high']:,.10g}")


def test_a_setting_of_one_window_leaves_the_others_alone_and_goes_back(house, show):
    window, other = house.window("One"), house.window("Other")
    page = show(window)
    drawer = panel(page, "Settings")
    field = drawer.get_by_role("spinbutton", name="Temperature")
    field.fill("1.2")
    field.press("Tab")
    expect(drawer.locator(".setting.changed")).to_contain_text("Temperature")
    page.wait_for_function("() => app.store.window.settings.temperature === 1.2")
    assert house.ask("GET", f"/windows/{window}")["effective"]["temperature"] == 1.2
    assert house.ask("GET", f"/windows/{other}")["effective"]["temperature"] == 0.7
    drawer.get_by_role("button", name="Reset Temperature").click()
    expect(drawer.locator(".setting.changed")).to_have_count(0)
    assert house.ask("GET", f"/windows/{window}")["settings"] == {}


def test_a_setting_for_all_windows_holds_in_each(house, show):
    window = house.window()
    page = show(window)
    drawer = panel(page, "Settings")
    drawer.get_by_role("radio", name="All windows").check()
    drawer.get_by_role("switch", name="Score current turn").check()
    drawer.get_by_role("spinbutton", name="Seed").fill("42")
    drawer.get_by_role("spinbutton", name="Seed").press("Tab")
    drawer.get_by_role("combobox", name="Sink").select_option("first")
    page.wait_for_function("() => app.store.settings.values.sink === 'first'")
    effective = house.ask("GET", f"/windows/{window}")["effective"]
    assert (effective["score_current_turn"], effective["seed"], effective["sink"]) == (True, 42, "first")
    drawer.get_by_role("spinbutton", name="Seed").fill("")
    drawer.get_by_role("spinbutton", name="Seed").press("Tab")
    page.wait_for_function("() => app.store.settings.values.seed === null")


def test_a_value_out_of_range_is_refused_in_words(house, show):
    window = house.window()
    page = show(window)
    drawer = panel(page, "Settings")
    field = drawer.get_by_role("spinbutton", name="Top-p")
    field.fill("7")
    field.press("Tab")
    expect(drawer.locator(".setting", has_text="Top-p").get_by_role("alert")).to_have_text("Use 0.01 to 1.")
    expect(field).to_have_value("7")
    assert house.ask("GET", f"/windows/{window}")["settings"] == {}


def test_system_prompt_and_names_of_a_window(house, show):
    window = house.window()
    page = show(window)
    drawer = panel(page, "Settings")
    drawer.get_by_label("System prompt").fill("You keep a lighthouse.")
    drawer.get_by_label("Your name").fill("Ada")
    drawer.get_by_label("The model's name").fill("Weaver")
    drawer.get_by_label("The model's name").press("Tab")
    page.wait_for_function("() => app.store.window.ai_name === 'Weaver'")
    known = house.ask("GET", f"/windows/{window}")
    assert (known["system_prompt"], known["user_name"], known["ai_name"]) == (
        "You keep a lighthouse.",
        "Ada",
        "Weaver",
    )
    say(page, "Hello.")
    expect(page.locator(".turn.assistant .speaker")).to_have_text("Weaver")


def test_memory_is_exported_cleared_and_imported_with_its_numbers(house, show, tmp_path):
    window = house.window()
    house.say(window, "My cat is called Mochi.", "Noted.")
    page = show(window)
    drawer = panel(page, "Settings")
    expect(drawer).to_contain_text("2 chunks,")
    with page.expect_download() as begun:
        drawer.get_by_role("button", name="Export").click()
    file = tmp_path / "memory.export"
    begun.value.save_as(file)
    assert "Mochi" in file.read_text()
    drawer.get_by_role("button", name="Clear…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("2 chunks,")
    clear = dialog.get_by_role("button", name="Clear everything")
    expect(clear).to_be_disabled()
    dialog.get_by_label("Confirm").fill("delete everything")
    clear.click()
    expect(page.locator(".empty")).to_contain_text("One conversation without an end")
    assert house.ask("GET", "/status")["memory"]["chunks"] == 0
    drawer.get_by_label("File to import").set_input_files(file)
    toast(page, "Imported 2 turns, 2 chunks")
    expect(page.locator("#rail .windows")).to_contain_text("Lighthouse")
    assert house.ask("GET", "/search", params={"q": "Mochi"})["hits"]


def test_a_file_of_another_program_is_imported_with_a_report(house, show):
    page = show(house.window())
    drawer = panel(page, "Settings")
    drawer.get_by_label("File to import").set_input_files(CORPUS / "imports" / "chatgpt.json")
    toast(page, "2 windows from ChatGPT. Not taken: conversations without messages: 1")
    expect(page.locator("#rail .windows")).to_contain_text("A lighthouse")


def test_a_file_that_is_no_export_is_refused_in_words(house, show, tmp_path):
    page = show(house.window())
    drawer = panel(page, "Settings")
    wrong = tmp_path / "wrong.json"
    wrong.write_text("this is not a memory")
    drawer.get_by_label("File to import").set_input_files(wrong)
    expect(page.locator(".toast.bad")).to_be_visible()


def test_everything_is_embedded_anew_with_its_progress(tmp_path, tabs):
    house = House(tmp_path, embedder=None).start()
    try:
        window = house.window()
        house.say(window, "My cat is called Mochi.", "Noted.")
        page = tabs.open(f"{house.address}/#/w/{window}")
        drawer = panel(page, "Settings")
        drawer.get_by_role("button", name="Embed everything anew").click()
        toast(page, "Everything is embedded anew.")
        assert house.ask("GET", "/reindex")["state"] == "idle"
    finally:
        house.stop()


def test_a_long_embedding_shows_how_far_it_is(house, show):
    page = show(house.window())
    steps = iter([0, 250, 500])

    def answer(route):
        done = next(steps, 1000)
        state = "running" if done < 1000 else "idle"
        route.fulfill(json={"state": state, "model": "mini", "done": done, "total": 1000, "message": ""})

    page.route("**/api/reindex", answer)
    drawer = panel(page, "Settings")
    expect(drawer).to_contain_text("Embedding with mini: 250 of 1,000 chunks")
    expect(drawer.get_by_role("progressbar", name="Embedding")).to_have_attribute("max", "1000")
    toast(page, "Everything is embedded anew.")


def test_another_embedder_is_chosen_and_the_page_shows_how_far_it_is(tmp_path, tabs, monkeypatch):
    def opened(path):
        made = HashingEmbedder(32, name="other 0123")
        made.file = str(path)
        return made

    monkeypatch.setenv("HALO_WEAVE_MODELS", str(tmp_path / "models"))
    monkeypatch.setattr(assembling, "open_embedder", opened)
    monkeypatch.setattr(assembling, "resolve", lambda name, progress: tmp_path / "other.gguf")
    house = House(tmp_path, embedder=None).start()
    try:
        window = house.window()
        house.say(window, "My cat is called Mochi.", "Noted.")
        page = tabs.open(f"{house.address}/#/w/{window}")
        drawer = panel(page, "Settings")
        choice = drawer.get_by_label("Embedding model")
        choice.select_option(label="nomic-embed-text v1.5")
        expect(drawer).to_contain_text("twelve times the work")
        drawer.get_by_role("button", name="Embed everything anew").click()
        toast(page, "Everything is embedded anew.")
        expect(drawer).to_contain_text("other 0123. Everything is embedded.")
        assert house.ask("GET", "/status")["embedder"]["model"] == "other 0123"
    finally:
        house.stop()


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


def test_the_console_can_reach_the_state(house, show):
    window = house.window()
    house.say(window, "Hello.", "Hello.")
    page = show(window)
    assert (
        page.evaluate("app.store.live.chunks.map((one) => one.pieces.join('')).join('|')") == "Hello.|Hello."
    )
    assert page.evaluate("app.api.context(app.store.current).then((wire) => wire.turns.length)") == 2


def test_the_theme_is_kept(house, show):
    page = show(house.window())
    ground = "() => getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(ground)
    page.get_by_role("button", name="Change the theme").click()
    light = page.evaluate(ground)
    assert light != dark
    page.reload()
    assert page.evaluate(ground) == light


def test_the_budget_that_follows_the_model_is_shown_with_its_number(house, show):
    window = house.window()
    page = show(window)
    drawer = panel(page, "Settings")
    field = drawer.get_by_role("spinbutton", name="Max context tokens")
    expect(field).to_have_value("")
    expect(field).to_have_attribute("placeholder", "auto: 6,656")
    setting = drawer.locator(".setting", has=page.locator("#setting-max_context_tokens"))
    expect(setting).to_contain_text("all windows: auto: 6,656")
    house.ask("PATCH", f"/windows/{window}", json={"settings": {"max_new_tokens": 100}})
    page.evaluate("() => app.refresh()")
    expect(field).to_have_attribute("placeholder", "auto: 7,580")
    field.fill("700")
    field.press("Tab")
    page.wait_for_function("() => app.store.budget.max_context_tokens === 700")
    drawer.get_by_role("button", name="Reset Max context tokens").click()
    page.wait_for_function("() => app.store.budget.max_context_tokens === 7580")


def test_a_setting_without_effect_under_the_strategy_says_so(house, show):
    window = house.window()
    page = show(window)
    drawer = panel(page, "Settings")
    note = drawer.locator(".setting", has=page.locator("#setting-score_current_turn")).locator(".no-effect")
    expect(note).to_contain_text("No effect with the strategy use and surprise: ")
    decay = drawer.locator(".setting", has=page.locator("#setting-decay")).locator(".no-effect")
    expect(decay).to_contain_text("only magnitude_voting uses it.")
    drawer.get_by_label("Strategy", exact=True).select_option("magnitude_voting")
    expect(note).to_be_hidden()
    expect(decay).to_be_hidden()
