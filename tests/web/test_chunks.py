"""What a user does with a chunk on the page: its controls, deleting, undoing, where it came from."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.web.talk import act, chunk, keys, panel, toast

pytestmark = pytest.mark.browser


def test_waking_again_leaves_a_chunk_as_it_was(house, show):
    window = house.window(max_context_tokens=0)
    house.say(window, "Hello.", "Hello to you.")
    page = show(window)
    act(page, keys(page)[0], "Put to sleep")
    toast(page, "Asleep.").get_by_role("button", name="Wake it again").click()
    expect(chunk(page, "1.0.user")).to_have_count(1)
    assert not house.context(window)["turns"][0]["chunks"][0]["pinned"]


@pytest.mark.parametrize("width", [1440, 900])
def test_the_controls_of_a_chunk_never_cover_its_text(house, show, width):
    window = house.window(max_context_tokens=0)
    house.say(window, "Hello there, " * 30, "Hello to you, " * 30)
    page = show(window, viewport={"width": width, "height": 800})
    one = chunk(page, keys(page)[-1])
    one.hover()
    bar = page.get_by_role("toolbar", name="Chunk")
    expect(bar).to_be_visible()
    covered = page.evaluate(
        """() => { const bar = document.querySelector('.tools').getBoundingClientRect();
          return [...document.querySelectorAll('#context .text span')].filter((one) => [...one.getClientRects()].some((box) =>
            box.left < bar.right && box.right > bar.left && box.top < bar.bottom - 1 && box.bottom > bar.top + 1)).length; }"""
    )
    assert covered == 0


def test_a_deletion_quotes_what_goes_and_it_can_be_undone_later(house, show):
    window = house.window(max_context_tokens=0)
    house.say(window, "My cat is called Mochi.", "A lovely name.")
    page = show(window)
    act(page, keys(page)[0], "Delete…")
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("“My cat is called Mochi.”")
    dialog.get_by_role("button", name="Delete").click()
    expect(page.locator("#context .chunk")).to_have_count(0)
    page.reload()
    drawer = panel(page, "Graveyard")
    drawer.get_by_label("Which chunks").select_option("deleted")
    expect(drawer.locator(".grave")).to_have_count(2)
    drawer.locator(".grave", has_text="Mochi").get_by_role("button", name="Undelete").click()
    expect(page.locator("#context .chunk")).to_contain_text("My cat is called Mochi.")
    expect(drawer.locator(".grave")).to_have_count(1)


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
