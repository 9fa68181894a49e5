"""Notes and structured memory on the page: read, edited, restored, and what the user asks to be remembered."""

from __future__ import annotations

import json
import re

import pytest
from playwright.sync_api import expect

from tests.web.talk import frame, panel, say, toast

pytestmark = pytest.mark.browser


def test_notes_and_memories_take_plain_words_and_fields(house, show):
    window = house.window()
    page = show(window)
    drawer = panel(page, "Memory")
    drawer.get_by_role("button", name="New entry").click()
    drawer.get_by_label("Path").fill("People/Mochi")
    drawer.get_by_label("Content").fill("kind: cat\nage: 3")
    drawer.get_by_role("button", name="Save").click()
    toast(page, "Saved People/Mochi")
    assert house.ask("GET", "/memory/entry?path=People/Mochi")["content"] == {"kind": "cat", "age": 3}
    drawer.get_by_role("button", name="Edit").click()
    drawer.get_by_label("Content").fill("She loves salmon.")
    drawer.get_by_role("button", name="New entry").click()
    question = page.get_by_role("dialog", name="Discard your changes?")
    question.get_by_role("button", name="Cancel").click()
    drawer.get_by_role("button", name="Save").click()
    page.wait_for_function("() => document.querySelector('#drawer .json')?.textContent.includes('salmon')")
    assert house.ask("GET", "/memory/entry?path=People/Mochi")["content"] == "She loves salmon."


def test_deleted_memories_come_back_with_all_below_them(house, show):
    for path in ("People/Mochi", "People/Mochi/Food"):
        house.ask("PUT", "/memory/entry", json={"path": path, "content": {"of": path}})
    page = show(house.window())
    drawer = panel(page, "Memory")
    drawer.get_by_role("treeitem", name="Mochi").first.click()
    drawer.get_by_role("button", name="Delete…").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    toast(page, "Deleted 2 entries").get_by_role("button", name="Undo").click()
    page.wait_for_function("() => document.querySelectorAll('#drawer [role=treeitem]').length >= 3")
    assert house.ask("GET", "/memory/entry?path=People/Mochi/Food")["content"] == {"of": "People/Mochi/Food"}


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


ASKED = "Please remember that the code of the store room is 4321."


KEPT = "The code of the store room is 4321"


def contents(house) -> list[str]:
    def walk(branch) -> list[str]:
        own = [branch["content"]] if branch["version"] else []
        return own + [one for child in branch["children"] for one in walk(child)]

    return walk(house.ask("GET", "/memory?contents=true"))


@pytest.mark.parametrize("view", ["conversation", "context"])
def test_a_saved_memory_is_told_and_can_be_undone(house, show, view):
    window = house.window(tools="auto")
    house.replies += ["Saved.", "not a heading"]
    page = show(window)
    page.evaluate("view => app.preferences.set('view', view)", view)
    say(page, ASKED)
    line = page.locator(f"#{view} .kept")
    expect(line.get_by_text(f"Saved: {KEPT}")).to_be_visible()
    assert contents(house) == [f"{KEPT}."]
    line.get_by_role("button", name="Undo").click()
    expect(line.get_by_text(f"Not saved: {KEPT}")).to_be_visible()
    assert contents(house) == []


def test_undo_works_after_the_entry_was_filed_under_a_heading(house, show):
    window = house.window(tools="auto")
    house.service.weave.turns.entry_filer.pause = 0.0
    house.replies += ["Saved.", '{"heading": "Work", "title": "Store room code"}']
    page = show(window)
    page.evaluate("app.preferences.set('view', 'conversation')")
    say(page, ASKED)
    line = page.locator("#conversation .kept")
    expect(line.get_by_text("Saved: Store room code")).to_be_visible()
    line.get_by_role("button", name="Undo").click()
    expect(line.get_by_text("Not saved: Store room code")).to_be_visible()
    assert contents(house) == []


def test_a_forgotten_memory_is_told_and_can_be_kept(house, show):
    house.ask("PUT", "/memory/entry", json={"path": "Work/Code", "content": f"{KEPT}."})
    window = house.window(tools="auto")
    house.replies.append("Done.")
    page = show(window)
    page.evaluate("app.preferences.set('view', 'conversation')")
    say(page, "Forget the code of the store room.")
    line = page.locator("#conversation .kept")
    expect(line.get_by_text("Forgotten: Code")).to_be_visible()
    assert contents(house) == []
    line.get_by_role("button", name="Undo").click()
    expect(line.get_by_text("Kept: Code")).to_be_visible()
    assert contents(house) == [f"{KEPT}."]


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
    expect(drawer.get_by_role("alert")).to_contain_text("Notes need names")
    expect(save).to_be_disabled()
    field.fill("gold")
    expect(drawer.get_by_role("alert")).to_contain_text("Notes need names")
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
    expect(drawer).to_contain_text("Nothing is saved yet.")
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
