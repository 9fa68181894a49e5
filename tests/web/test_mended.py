"""What was once in the way, each mended."""

from __future__ import annotations

import re

import numpy as np
import pytest
from playwright.sync_api import expect

from halo_weave.core.retrieval_heads import PENDING, Calibration, RetrievalHead
from tests.web.talk import act, chunk, keys, panel, say, toast

pytestmark = pytest.mark.browser
ONE_HEAD = Calibration((RetrievalHead(0, 1, 0.9, 0.9, 1.0),), "")


def test_letters_typed_before_the_box_has_the_focus_go_into_it(house, show):
    window = house.window()
    house.say(window, "Hello.", "Hello.")
    page = show(window)
    expect(page.get_by_label("Your message")).to_be_focused()
    page.evaluate("document.activeElement.blur()")
    page.keyboard.type("hNg?/ ok")
    expect(page.get_by_label("Your message")).to_have_value("hNg?/ ok")
    assert page.locator("html").get_attribute("data-heat") == "light"
    assert len(house.ask("GET", "/windows")["windows"]) == 1


def test_single_keys_work_everywhere_once_they_are_switched_on(house, show):
    window = house.window()
    page = show(window)
    panel(page, "Settings").get_by_label("Single-letter keys").select_option("single")
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("h")
    expect(page.locator("html")).to_have_attribute("data-heat", "off")


def test_waking_again_leaves_a_chunk_as_it_was(house, show):
    window = house.window(max_context_tokens=0)
    house.say(window, "Hello.", "Hello to you.")
    page = show(window)
    act(page, keys(page)[0], "Put to sleep")
    toast(page, "Asleep.").get_by_role("button", name="Wake it again").click()
    expect(chunk(page, "1.0.user")).to_have_count(1)
    assert not house.context(window)["turns"][0]["chunks"][0]["pinned"]


def test_at_most_two_messages_lie_over_the_conversation_and_none_over_its_end(house, show):
    window = house.window(max_context_tokens=0)
    house.say(window, "Hello.", "Hello to you.")
    page = show(window)
    page.evaluate("['a', 'b', 'c', 'd'].forEach((one) => app.toasts.show(one))")
    expect(page.locator(".toast")).to_have_count(2)
    box, end = page.locator(".toast").last.bounding_box(), page.locator("#foot").bounding_box()
    assert box["y"] + box["height"] < end["y"] / 2


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


def test_enter_during_a_reply_says_why_nothing_is_sent(house, show):
    window = house.window()
    page = show(window)
    house.pace = 0.02
    house.replies.append("word " * 200)
    say(page, "Go on.", wait=False)
    expect(page.locator(".chunk.draft .text")).to_contain_text("word")
    house.held.set()
    page.get_by_label("Your message").fill("And then?")
    page.get_by_label("Your message").press("Enter")
    expect(page.locator(".status")).to_contain_text("Not sent yet: the reply is still being written.")
    expect(page.get_by_label("Your message")).to_have_value("And then?")
    house.pace = 0.0
    house.held.clear()


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
    question = page.get_by_role("dialog", name="Leave what you wrote?")
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


def test_the_draft_says_how_many_tokens_it_takes(house, show):
    window = house.window(max_context_tokens=1200)
    page = show(window)
    page.get_by_label("Your message").fill("one two three four")
    count = len(house.engine.tokenize("one two three four"))
    expect(page.locator(".draft-count")).to_have_text(f"{count} tokens")
    page.get_by_label("Your message").fill("word " * 1100)
    expect(page.locator(".status")).to_contain_text("A long text:")


FACT = "My cat is called Mochi, and she loves salmon."


def pruned_first_steps(page):
    """The prepared conversation, cut to half of its size; returns the line above the box."""
    page.get_by_role("button", name="Show me, in three steps").click()
    steps = page.locator(".steps")
    expect(steps).to_contain_text("1 of 3.")
    expect(page.locator("article", has_text=FACT)).to_be_visible()
    steps.get_by_role("button", name="Prune it").click()
    expect(steps).to_contain_text("2 of 3.")
    return steps


def live_in(house, page):
    return house.text(page.evaluate("app.store.current"))


@pytest.mark.parametrize("reply", ["Your cat is called Mochi.", "I am a lamp."])
def test_the_first_steps_tell_that_the_users_message_was_pruned_and_returned_when_it_was(house, show, reply):
    house.service.weave._system.use_calibration(house.engine, ONE_HEAD)
    page = show(view="conversation", form="rendered")
    steps = pruned_first_steps(page)
    expect(steps).to_contain_text("pruned, your message about the cat among them")
    assert FACT not in live_in(house, page)
    expect(page.locator("#conversation article", has_text=FACT)).to_have_class(re.compile("asleep"))
    used = reply.startswith("Your cat")

    def look(at):
        weights = np.full(len(at.ids), 0.001, np.float32)
        pieces = house.engine.pieces(at.ids).pieces()
        weights[[i == 0 if not used else piece in (b" Mo", b"chi") for i, piece in enumerate(pieces)]] = 10.0
        return weights

    house.engine.look = look
    house.replies.append(reply)
    steps.get_by_role("button", name="Write it for me").click()
    page.get_by_label("Your message").press("Enter")
    expect(steps).to_contain_text("3 of 3.")
    expect(steps).to_contain_text("Your message about the cat returned to its place")
    assert FACT in live_in(house, page)
    expect(page.locator("#conversation article", has_text=FACT)).not_to_have_class(re.compile("asleep"))
    expect(steps).to_contain_text("% of the answer came from it" if used else "took hardly anything from it")
    expect(steps).to_contain_text("Everything lies in")


def test_the_first_steps_do_not_claim_what_did_not_happen(house, show):
    house.service.weave._system.use_calibration(house.engine, PENDING)
    page = show()
    steps = pruned_first_steps(page)
    house.replies.append("It is blue.")
    say(page, "Which colour has the sky?")
    expect(steps).to_contain_text("did not return for these words")
    assert FACT not in live_in(house, page)
    house.replies.append("Mochi.")
    say(page, "What is my cat called, and what does she love?")
    expect(steps).to_contain_text("Your message about the cat returned to its place")
    expect(steps).to_contain_text("What the answer took from it is not known")
    assert "%" not in steps.inner_text()


def test_the_system_prompt_stands_above_the_context_as_the_model_reads_it(house, show):
    window = house.window()
    house.ask("PATCH", f"/windows/{window}", json={"system_prompt": "You are a keeper."})
    page = show(window)
    fold = page.locator(".system-fold")
    fold.locator("summary").click()
    expect(fold.locator("pre")).to_contain_text("You are a keeper.")
    page.locator(".budget-more summary").click()
    expect(page.locator(".budget-words")).to_contain_text("what the model is always told")
