"""A conversation on the page: speaking, streaming, stopping, brightness."""

from __future__ import annotations

import re
import time

import pytest
from playwright.sync_api import expect

from tests.web.talk import act, chunk, heat, keys, panel, say, settled, shown, toast

pytestmark = pytest.mark.browser


def test_enter_sends_and_the_reply_appears(house, show):
    window = house.window()
    page = show(window)
    house.replies.append("A gold lamp burns in the tower.")
    say(page, "What burns in the tower?")
    assert shown(page) == house.text(window)
    assert "A gold lamp burns in the tower." in shown(page)
    expect(page.get_by_label("Your message")).to_have_value("")
    expect(page.locator(".turn.user .speaker")).to_have_text("User")


def test_shift_enter_breaks_the_line(house, show):
    window = house.window()
    page = show(window)
    box = page.get_by_label("Your message")
    box.press_sequentially("one")
    box.press("Shift+Enter")
    box.press_sequentially("two")
    box.press("Enter")
    settled(page)
    assert "one\ntwo" in house.text(window)
    assert house.text(window) == shown(page)


def test_nothing_is_sent_when_there_is_nothing_to_say(house, show):
    window = house.window()
    page = show(window)
    page.get_by_label("Your message").fill("   ")
    page.get_by_label("Your message").press("Enter")
    page.wait_for_timeout(200)
    assert house.context(window)["turns"] == []


def test_tokens_appear_while_the_model_writes_and_the_status_says_so(house, show):
    window = house.window()
    page = show(window)
    house.pace = 0.03
    house.replies.append("one two three four five six seven eight nine ten " * 3)
    say(page, "Count.", wait=False)
    draft = page.locator(".chunk.draft .text")
    expect(draft).to_contain_text("one two")
    house.held.set()
    expect(page.locator(".status")).to_contain_text("Writing…")
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    assert len(draft.text_content() or "") < len("one two three four five six seven eight nine ten " * 3)
    house.pace = 0.0
    house.held.clear()
    settled(page)
    expect(page.locator(".chunk.draft")).to_have_count(0)
    assert shown(page) == house.text(window)


def test_escape_stops_the_reply_and_keeps_what_was_said(house, show):
    window = house.window()
    page = show(window)
    house.pace = 0.02
    house.replies.append("word " * 400)
    say(page, "Go on for ever.", wait=False)
    expect(page.locator(".chunk.draft .text")).to_contain_text("word word")
    house.held.set()
    with page.expect_response("**/stop"):
        page.keyboard.press("Escape")
    house.held.clear()
    settled(page)
    expect(page.locator(".status")).to_contain_text("Stopped.")
    assert shown(page) == house.text(window)
    assert 2 <= house.text(window).count("word") < 400


def test_the_original_colours_are_the_brightness_that_the_server_holds(house, show):
    window = house.window(max_context_tokens=0)
    house.say(window, "The keeper rang the bell in the fog.", "He rang the bell until the fog was gone.")
    house.say(window, "Who built the tower?", "Nobody remembers who built the tower.")
    house.say(window, "Tell me of the bell again.", "The bell was rang in the fog.")
    page = show(window)
    page.evaluate("app.preferences.set('heat', 'original')")
    wire = [one for turn in house.context(window)["turns"] for one in turn["chunks"]]
    every = [value for one in wire for value in one["brightness"]]
    low, high = min(every), max(every)
    assert high > low
    on_page = heat(page)
    for one in wire:
        place = (max(one["brightness"]) - low) / (high - low)
        assert on_page[one["key"]]["heat"] == pytest.approx(place, abs=0.02), one["key"]
        for value, ground in zip(one["brightness"], on_page[one["key"]]["grounds"], strict=True):
            top = (value - low) / (high - low)
            newest = one is wire[-1]
            assert (ground > 0) == (top > 0.8 and not newest), (one["key"], top, ground)


def test_brightness_changes_on_the_page_while_the_model_writes(house, show):
    window = house.window(max_context_tokens=0)
    house.say(window, "The keeper rang the bell in the fog.", "He rang the bell.")
    page = show(window)
    page.evaluate("app.preferences.set('heat', 'original')")
    before = heat(page)
    house.pace = 0.02
    house.replies.append("bell bell bell bell fog fog " * 20)
    say(page, "And then?", wait=False)
    page.wait_for_function("() => app.store.turn.tokens > 40")
    house.held.set()
    page.wait_for_function("before => app.store.live.chunks[0].mean < before", arg=10_000)
    during = heat(page)
    assert page.evaluate("app.store.busy")
    assert any(before[key] != during[key] for key in before)
    house.pace = 0.0
    house.held.clear()
    settled(page)


def test_plain_reading_switches_the_light_off(house, show):
    window = house.window(max_context_tokens=0)
    house.say(window, "The keeper rang the bell.", "He rang it.")
    house.say(window, "Again?", "Again the bell.")
    page = show(window)
    page.evaluate("app.preferences.set('heat', 'original')")
    colours = "() => new Set([...document.querySelectorAll('.chunk .text span')].map((one) => getComputedStyle(one).color)).size"
    assert page.evaluate(colours) > 1
    page.get_by_role("button", name="Show brightness").click()
    assert page.evaluate(colours) == 1
    page.reload()
    page.wait_for_selector("#context .chunk")
    assert page.evaluate(colours) == 1


def test_tool_results_are_cyan(house, show):
    window = house.window(max_context_tokens=0, tools="tags")
    page = show(window)
    house.replies += ["<tool>jq '.topics.bell = \"gold\"' notes.json > output</tool>", "It is written down."]
    say(page, "Write down that the bell is gold.")
    tool = page.locator(".text .tool")
    expect(tool.first).to_be_attached()
    marked = "".join(tool.all_text_contents())
    assert marked.lstrip().startswith("⚙️【")
    assert "It is written down" not in marked
    assert tool.first.evaluate("one => getComputedStyle(one).color") == "rgb(78, 205, 196)"
    page.reload()
    expect(page.locator(".text .tool").first).to_be_attached()
    assert "".join(page.locator(".text .tool").all_text_contents()).strip() == marked.strip()


def test_deleting_the_newest_answer_gives_the_text_back_and_can_be_undone(house, show):
    window = house.window()
    house.say(window, "First question.", "First answer.")
    house.say(window, "Second question.", "Second answer.")
    page = show(window)
    newest = keys(page)[-1]
    act(page, newest, "Delete…")
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("2 turns, 2 chunks")
    dialog.get_by_role("button", name="Delete").click()
    expect(page.get_by_label("Your message")).to_have_value("Second question.")
    assert shown(page) == house.text(window)
    assert "Second" not in shown(page)
    toast(page, "Deleted 2 turns").get_by_role("button", name="Undo").click()
    toast(page, "Deletion undone.")
    expect(page.locator("#context .turns")).to_contain_text("Second answer.")
    expect(page.get_by_label("Your message")).to_have_value("")
    assert shown(page) == house.text(window)


def test_a_cancelled_deletion_deletes_nothing(house, show):
    window = house.window()
    house.say(window, "First question.", "First answer.")
    page = show(window)
    act(page, keys(page)[-1], "Delete…")
    page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    assert "First answer." in house.text(window)
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_up_in_an_empty_box_edits_the_last_message(house, show):
    window = house.window()
    house.say(window, "Frist question.", "First answer.")
    page = show(window)
    page.get_by_label("Your message").press("ArrowUp")
    dialog = page.get_by_role("dialog", name="Edit")
    expect(dialog.get_by_label("Text")).to_have_value("Frist question.")
    house.replies.append("Better.")
    dialog.get_by_label("Text").fill("First question.")
    dialog.get_by_role("button", name="Save").click()
    expect(page.locator("#context .turn.assistant .text")).to_have_text("Better.")
    assert house.text(window) == "First question.Better."


def test_pinning_merging_and_putting_to_sleep_by_hand(house, show):
    window = house.window(min_chunk_tokens=4, max_context_tokens=0)
    house.say(
        window, "Tell me.", "First paragraph of the tale.\n\nSecond paragraph of it.\n\nThird and last."
    )
    page = show(window)
    first, second, third = [key for key in keys(page) if key.endswith("assistant")]
    act(page, second, "Pin")
    toast(page, "Pinned")
    expect(chunk(page, second).locator(".pin-badge")).to_be_visible()
    act(page, second, "Unpin")
    expect(chunk(page, second).locator(".pin-badge")).to_have_count(0)
    act(page, third, "Merge into previous")
    expect(chunk(page, third)).to_have_count(0)
    assert "Third and last." in (chunk(page, second).locator(".text").text_content() or "")
    act(page, second, "Put to sleep")
    expect(chunk(page, second)).to_have_count(0)
    expect(page.locator(".gap-line")).to_contain_text("1 chunk,")
    assert keys(page) == [keys(page)[0], first]


def test_a_failure_of_the_model_is_told_and_the_words_are_not_lost(house, show):
    window = house.window()
    page = show(window)

    def broken() -> None:
        raise RuntimeError("the model fell over")

    house.engine.pause = broken
    say(page, "Are you there?", wait=False)
    expect(page.locator(".toast.bad")).to_be_visible()
    expect(page.get_by_role("button", name="Send")).to_be_visible()
    expect(page.locator("#context .turns")).to_contain_text("Are you there?")
    assert "Are you there?" in house.text(window)


def test_what_was_typed_survives_a_reload(house, show):
    window = house.window()
    page = show(window)
    page.get_by_label("Your message").fill("Half a thought")
    page.reload()
    expect(page.get_by_label("Your message")).to_have_value("Half a thought")


def test_two_tabs_see_the_same(house, show, tabs):
    window = house.window()
    profile = tabs.profile()
    one, other = show(window, profile=profile), show(window, profile=profile)
    house.pace = 0.05
    house.replies.append("Both of you can read this as it is written. " * 3)
    say(one, "Hello, both.", wait=False)
    expect(other.locator(".turn.user .text")).to_contain_text("Hello, both.")
    expect(other.locator(".chunk.draft .text")).to_contain_text("Both of you")
    house.held.set()
    expect(other.get_by_role("button", name="Stop")).to_be_visible()
    house.pace = 0.0
    house.held.clear()
    for page in (one, other):
        settled(page)
        assert shown(page) == house.text(window)
    act(other, keys(other)[0], "Pin")
    expect(one.locator(".pin-badge")).to_be_visible()


def test_a_tab_opened_in_the_middle_of_a_reply_goes_on_with_it(house, show):
    window = house.window()
    one = show(window)
    house.pace = 0.02
    house.replies.append("It goes on and on and on. " * 12)
    say(one, "Begin.", wait=False)
    expect(one.locator(".chunk.draft .text")).to_contain_text("on and on")
    house.held.set()
    late = show(window)
    expect(late.locator(".chunk.draft .text")).to_contain_text("It goes on")
    house.held.clear()
    settled(late)
    assert shown(late) == house.text(window) == shown(one)


def test_the_time_of_a_turn_and_its_speaker_are_shown(house, show):
    window = house.window()
    house.ask("PATCH", f"/windows/{window}", json={"user_name": "Ada", "ai_name": "Weaver"})
    house.say(window, "Hello.", "Hello, Ada.")
    page = show(window)
    expect(page.locator(".turn.user .speaker")).to_have_text("Ada")
    expect(page.locator(".turn.assistant .speaker")).to_have_text("Weaver")
    said = page.locator(".turn.user time").get_attribute("datetime") or ""
    assert said.startswith(time.strftime("%Y-"))


def asleep(house) -> str:
    """A window with names of its own whose first exchange sleeps."""
    window = house.window("Kitchen", max_context_tokens=0, timestamps=False)
    house.ask("PATCH", f"/windows/{window}", json={"user_name": "Ada", "ai_name": "Halo"})
    house.say(window, "My cat is called Mochi.", "Fish soup with dill and potatoes is on.")
    for turn in house.context(window)["turns"]:
        for one in turn["chunks"]:
            house.ask("POST", f"/windows/{window}/chunks/{one['key']}/prune")
    return window


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
    expect(why).to_contain_text(
        re.compile(r"(Weak|Good|Strong) fit: helps with a likelihood of \d+ % \(words \d")
    )


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


def test_the_console_can_reach_the_state(house, show):
    window = house.window()
    house.say(window, "Hello.", "Hello.")
    page = show(window)
    assert (
        page.evaluate("app.store.live.chunks.map((one) => one.pieces.join('')).join('|')") == "Hello.|Hello."
    )
    assert page.evaluate("app.api.context(app.store.current).then((wire) => wire.turns.length)") == 2
