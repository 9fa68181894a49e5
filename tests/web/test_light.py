"""The light: what a reply looks at, where its words came from, and what it was reminded of."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from halo_weave.core.retrieval_heads import PENDING, Calibration, RetrievalHead
from tests.web.talk import act, chunk, frame, grounds, keys, looking_at, say, toast

pytestmark = pytest.mark.browser
ONE_HEAD = Calibration((RetrievalHead(0, 1, 0.9, 0.9, 1.0),), "")


def told(house, **settings) -> str:
    """A cat's name far above a question about it."""
    looking_at(house)
    window = house.window(max_context_tokens=0, min_chunk_tokens=8, timestamps=False, **settings)
    house.say(window, "My cat is called Mochi.", "A lovely name.")
    for topic in ("bread", "chess", "snow", "rain"):
        house.say(window, f"Tell me about {topic}.", f"There is much to say about {topic}. " * 8)
    looking_at(house, b" Mo", b"chi")
    return window


def last_word(page: Page):
    return page.locator(".turn.assistant").last.locator(".text span", has_text="chi").last


def test_the_ground_of_a_token_tells_what_the_newest_reply_took_from_it(house, show):
    window = told(house)
    house.say(window, "What is she called?", "She is Mochi.")
    page = show(window)
    page.wait_for_function("() => app.store.attributions.get(app.store.newestReply)")
    lit = grounds(page)
    first = house.context(window)["turns"][0]["chunks"][0]
    assert [bool(one) for one in lit[first["key"]]] == [
        piece in (" Mo", "chi") for piece in first["text_pieces"]
    ]
    others = [key for key in lit if key != first["key"] and any(lit[key])]
    assert not others


def test_light_moves_while_the_reply_is_written_and_is_the_same_after_a_reload(house, show):
    window = told(house)
    page = show(window)
    house.pace = 0.02
    house.replies.append("She is called Mochi and nothing else at all. " * 4)
    say(page, "What is she called?", wait=False)
    page.wait_for_function("() => app.store.turn.tokens > 20")
    house.held.set()
    first = keys(page)[0]
    page.wait_for_function(
        "key => document.querySelector(`article[data-key='${key}'] [class*=hot]`)", arg=first
    )
    assert page.evaluate("app.store.busy")
    house.pace = 0.0
    house.held.clear()
    page.wait_for_function("() => !app.store.busy && app.store.turn.reason")
    after = grounds(page)
    assert any(after[first])
    page.reload()
    page.wait_for_function("() => app.store?.attributions.get(app.store.newestReply)")
    assert grounds(page) == after


def test_text_is_neutral_ink_and_the_bar_tells_the_standing(house, show):
    window = told(house)
    house.say(window, "What is she called?", "She is Mochi.")
    page = show(window)
    frame(page)
    inks = page.evaluate(
        "() => new Set([...document.querySelectorAll('.chunk')].map((one) => getComputedStyle(one).color)).size"
    )
    assert inks == 1
    ranks = {one["key"]: one["rank"] for turn in house.context(window)["turns"] for one in turn["chunks"]}
    assert min(ranks.values()) == 0
    assert max(ranks.values()) == 100
    bars = page.evaluate(
        "() => Object.fromEntries([...document.querySelectorAll('#context .chunk')].map((one) => [one.dataset.key, Number(one.style.getPropertyValue('--heat'))]))"
    )
    assert bars == {key: pytest.approx(rank / 100) for key, rank in ranks.items()}


def test_a_word_under_the_pointer_lights_its_sources_and_names_those_out_of_sight(house, show):
    window = told(house)
    house.say(window, "What is she called?", "She is Mochi.")
    page = show(window)
    first = keys(page)[0]
    last_word(page).hover()
    chip = page.locator(".chip")
    expect(chip).to_contain_text("My cat is called Mochi.")
    lit = page.locator(f"article[data-key='{first}'] [data-lit]")
    assert lit.all_text_contents() == [" Mo", "chi"]
    expect(page.locator(".threads path")).to_have_count(0)  # it is out of sight
    chip.click()
    expect(chunk(page, first)).to_be_in_viewport()
    expect(chunk(page, first)).to_be_focused()
    expect(page.locator("[data-lit]")).to_have_count(0)


def test_a_thread_leads_to_a_source_in_sight(house, show):
    looking_at(house)
    window = house.window(max_context_tokens=0, timestamps=False)
    house.say(window, "My cat is called Mochi.", "A lovely name.")
    looking_at(house, b" Mo", b"chi")
    house.say(window, "What is she called?", "She is Mochi.")
    page = show(window)
    last_word(page).hover()
    expect(page.locator(".threads path")).to_have_count(1)
    expect(page.locator(".chips")).to_be_hidden()
    page.mouse.move(5, 5)
    expect(page.locator(".threads path")).to_have_count(0)


def test_the_arrows_step_through_the_words_of_an_answer_and_say_where_they_come_from(house, show):
    window = told(house)
    house.say(window, "What is she called?", "She is Mochi.")
    page = show(window)
    answer = keys(page)[-1]
    chunk(page, answer).focus()
    page.keyboard.press("ArrowRight")
    said = page.locator("#centre > [role='status']")
    expect(said).to_contain_text("“She”")
    page.keyboard.press("ArrowRight")
    expect(said).to_contain_text("“is”: ")
    expect(said).to_contain_text("My cat is called Mochi.")
    page.keyboard.press("ArrowLeft")
    expect(said).to_contain_text("“She”")
    page.keyboard.press("Escape")
    expect(page.locator("[data-lit]")).to_have_count(0)
    expect(chunk(page, answer)).to_be_focused()


def test_a_tap_does_on_a_phone_what_hover_does_elsewhere(house, show):
    window = told(house)
    house.say(window, "What is she called?", "She is Mochi.")
    page = show(window, viewport={"width": 390, "height": 800}, has_touch=True, is_mobile=True)
    last_word(page).tap()
    expect(page.locator(".chip")).to_contain_text("My cat is called Mochi.")
    page.locator(".turn.user .text").last.tap()
    expect(page.locator(".chip")).to_have_count(0)


def test_nothing_is_said_under_an_answer_that_used_no_memory(house, show):
    looking_at(house)
    window = house.window(max_context_tokens=0, timestamps=False)
    house.say(window, "My cat is called Mochi.", "A lovely name.")
    page = show(window)
    expect(page.locator(".turn.assistant .text")).to_contain_text("A lovely name.")
    expect(page.locator(".turn.assistant .remembered")).to_have_text("")
    page.locator(".turn.assistant .text span").first.hover()
    expect(page.locator(".chips")).to_contain_text("no particular source")


def test_what_was_pasted_in_the_same_message_is_a_source_of_the_answers_words(house, show):
    house.service.weave.runtime.use_calibration(house.engine, ONE_HEAD)
    looking_at(house, b" la", b"nte", b"rn")
    window = house.window(max_context_tokens=0, timestamps=False)
    house.say(window, "What does this do?\n\ndef lamp(): return 'a lantern'", "It names a lantern.")
    page = show(window)
    page.locator(".turn.assistant .text span", has_text="nte").last.hover()
    expect(page.locator(".turn.user article[data-lit]")).to_contain_text("def lamp()")
    assert page.locator(".turn.user [data-lit]", has_text="nte").count()
    expect(page.locator(".chips p")).to_have_count(0)  # it does not say that the word came from nothing
    expect(page.locator(".turn.assistant .remembered")).to_have_text("")  # the message itself is no memory


def test_what_an_answer_was_reminded_of_stands_at_it_and_is_there_after_a_reload(house, show):
    window = told(house)
    page = show(window)
    first = keys(page)[0]
    act(page, first, "Put to sleep")
    house.replies.append("She is Mochi.")
    say(page, "What is my cat called?")
    for _ in range(2):
        line = page.locator(".turn.assistant").last.locator(".remembered")
        expect(line.locator("summary")).to_contain_text("Remembered “My cat is called Mochi.”")
        line.locator("summary").click()
        item = line.locator("li").first
        expect(item).to_contain_text("used,")
        expect(item).to_contain_text("woken by “cat, called”")
        expect(item).to_contain_text("User, ")
        page.reload()
        page.wait_for_selector(".remembered summary")


def test_a_memory_from_another_window_says_where_it_was_said_and_can_be_opened_there(house, show):
    looking_at(house)
    kitchen = house.window("Kitchen", max_context_tokens=0, timestamps=False)
    house.say(kitchen, "My cat is called Mochi.", "A lovely name.")
    looking_at(house, b" Mo", b"chi")
    garden = house.window("Garden", max_context_tokens=0, timestamps=False)
    house.say(garden, "What is my cat called?", "She is Mochi.")
    page = show(garden)
    line = page.locator(".turn.assistant .remembered").last
    line.locator("summary").click()
    item = line.locator("li", has_text="My cat is called Mochi.")
    expect(item).to_contain_text("in “Kitchen”")
    item.get_by_role("button", name="Pin").click()
    toast(page, "Pinned")
    assert any(one["pinned"] for turn in house.context(garden)["turns"] for one in turn["chunks"])
    house.ask("POST", f"/windows/{garden}/chunks/1.0.user/prune")
    expect(page.locator("article[data-key='1.0.user']")).to_have_count(0)
    item.get_by_role("button", name="Open").click()
    page.wait_for_function("id => app.store.current === id", arg=kitchen)
    expect(chunk(page, "1.0.user")).to_be_focused()


def test_a_wrong_memory_sleeps_and_does_not_wake_for_such_a_question_again(house, show):
    window = told(house)
    house.ask("POST", f"/windows/{window}/chunks/1.0.user/prune")
    house.say(window, "What is my cat called?", "I do not know.")
    page = show(window)
    line = page.locator(".turn.assistant .remembered").last
    line.locator("summary").click()
    line.get_by_role("button", name="Wrong memory").click()
    toast(page, "will not wake up for similar questions")
    expect(chunk(page, "1.0.user")).to_have_count(0)
    house.say(window, "What is my cat called?", "I still do not know.")
    assert "1.0.user" not in [one["key"] for turn in house.context(window)["turns"] for one in turn["chunks"]]
    page.locator(".toast").get_by_role("button", name="Undo").click()
    expect(chunk(page, "1.0.user")).to_have_count(1)


def test_nothing_is_said_of_memories_that_the_answer_did_not_use(house, show):
    window = told(house)
    looking_at(house)
    house.ask("POST", f"/windows/{window}/chunks/1.0.user/prune")
    house.say(window, "What is my cat called?", "I do not know.")
    page = show(window)
    assert any(one["key"] == "1.0.user" for turn in house.context(window)["turns"] for one in turn["chunks"])
    expect(page.locator(".turn.assistant").last).to_contain_text("I do not know.")
    expect(page.locator(".turn.assistant .remembered").last).to_be_empty()


def test_before_the_model_is_calibrated_an_answer_does_not_claim_that_it_used_nothing(house, show):
    window = told(house)
    house.service.weave.runtime.use_calibration(house.engine, PENDING)
    page = show(window)
    house.replies.append("She is Mochi.")
    say(page, "How do you do?")
    line = page.locator(".turn.assistant .remembered").last
    expect(line).to_have_text("Still learning this model. Sources appear under later replies.")
    house.ask("POST", f"/windows/{window}/chunks/1.0.user/prune")
    house.replies.append("She is Mochi.")
    say(page, "What is my cat called?")
    line = page.locator(".turn.assistant .remembered").last
    expect(line.locator("summary")).to_have_text("Woke 1 memory; which of them it used is not known")
    line.locator("summary").click()
    expect(line.locator("li")).to_contain_text("not known whether it was used")
