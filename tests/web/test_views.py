"""The conversation as it was said, and the context as the model sees it."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from playwright.sync_api import Page, Route, expect

from tests.web.talk import frame, looking_at, say, settled

pytestmark = pytest.mark.browser


TEXTS = (
    "() => [...document.querySelectorAll('#conversation .chunk .text')].map((one) => one.textContent.trim())"
)


CONVERSATION = {"view": "conversation", "form": "rendered"}


def texts(page: Page) -> list[str]:
    frame(page)
    return list(page.evaluate(TEXTS))


def loaded(page: Page) -> None:
    page.wait_for_selector("#conversation .chunk")
    frame(page)


def test_a_new_visitor_sees_the_conversation_and_can_change_to_the_context(house, show):
    window = house.window(max_context_tokens=0, timestamps=False)
    house.say(window, "My cat is called Mochi.", "A lovely name.")
    house.ask("POST", f"/windows/{window}/chunks/1.0.user/prune")
    page = show(window, **CONVERSATION)
    loaded(page)
    assert texts(page) == ["My cat is called Mochi.", "A lovely name."]
    asleep = page.locator("#conversation article.asleep")
    expect(asleep).to_have_count(1)
    expect(asleep).to_have_attribute(
        "title", "Asleep: the model does not see this now. It wakes up when you speak of it."
    )
    page.get_by_role("button", name="Context", exact=True).click()
    expect(page.locator("#context .gap-line")).to_contain_text("1 chunk")
    expect(page.locator("#conversation")).to_be_hidden()
    page.reload()
    expect(page.locator("#context .gap-line")).to_contain_text("1 chunk")


def test_what_another_window_lent_is_told_at_the_answer_and_not_shown_as_a_turn(house, show):
    kitchen = house.window("Kitchen", max_context_tokens=0, timestamps=False)
    house.say(kitchen, "My cat is called Mochi.", "A lovely name.")
    garden = house.window("Garden", max_context_tokens=0, timestamps=False)
    looking_at(house, b" Mo", b"chi")
    house.say(garden, "What is my cat called?", "Mochi.")
    page = show(garden, **CONVERSATION)
    loaded(page)
    assert texts(page) == ["What is my cat called?", "Mochi."]
    line = page.locator("#conversation .remembered summary")
    line.click()
    expect(page.locator("#conversation .remembered li").first).to_contain_text("in “Kitchen”")


def test_the_reply_is_written_into_the_conversation_and_rendered(house, show):
    window = house.window(timestamps=False)
    page = show(window, **CONVERSATION)
    house.replies.append("A **bold** word.\n\n- one\n- two\n\n```python\nx = 1\n```")
    say(page, "Tell me.")
    turn = page.locator("#conversation .turn.assistant")
    expect(turn.locator("strong")).to_have_text("bold")
    expect(turn.locator("li")).to_have_count(2)
    expect(turn.locator(".code-bar > span")).to_have_text("python")
    expect(turn.locator("pre .code-value")).to_have_text("1")
    assert page.evaluate("document.querySelectorAll('#conversation .draft').length") == 0


def test_the_text_is_shown_raw_when_that_is_wanted(house, show):
    window = house.window(timestamps=False)
    house.say(window, "Tell me.", "A **bold** word.")
    page = show(window, view="conversation", form="raw")
    loaded(page)
    assert texts(page)[-1] == "A **bold** word."


def told(house, turns: int) -> str:
    """A long conversation of which little is live."""
    window = house.window(max_context_tokens=300, min_chunk_tokens=8, timestamps=False, resurrection_budget=0)
    for number in range(turns // 2):
        house.say(window, f"Question number {number}.", f"Answer number {number}. " * 6)
    return window


def test_a_long_conversation_is_read_from_its_end_to_its_beginning(house, show):
    window = told(house, 100)
    page = show(window, **CONVERSATION)
    loaded(page)
    assert texts(page)[-1].startswith("Answer number 49.")
    assert len(texts(page)) < 60
    for _ in range(40):
        page.evaluate("document.querySelector('#conversation').scrollTop -= 1500")
        page.wait_for_timeout(60)
        if page.evaluate("document.querySelector('#conversation').scrollTop") == 0:
            break
    expect(page.locator("#conversation .text").first).to_contain_text("Question number 0.")
    shown = page.evaluate(TEXTS)
    assert len(shown) <= 90
    numbers = [text for text in shown if text.startswith("Question")]
    assert numbers == [f"Question number {number}." for number in range(len(numbers))]
    page.get_by_role("button", name="Newest").click()
    expect(page.locator("#conversation .text").last).to_contain_text("Answer number 49.")


def test_turns_that_arrive_before_the_context_load_no_more_than_fits(house, show):
    window = told(house, 100)
    page = show(told(house, 2), **CONVERSATION)
    loaded(page)
    asked = []
    page.on("request", lambda request: f"{window}/turns?" in request.url and asked.append(request.url))

    def late(route: Route) -> None:
        page.wait_for_timeout(500)
        route.continue_()

    page.route(f"**/windows/{window}/context", late)
    page.evaluate("id => app.open(id)", window)
    page.wait_for_function("id => app.store.current === id && app.store.live", arg=window)
    loaded(page)
    assert len(texts(page)) < 60
    assert len(asked) == 2


def test_nothing_that_arrives_moves_the_line_that_is_read(house, show):
    window = told(house, 60)
    page = show(window, **CONVERSATION)
    loaded(page)
    page.evaluate("document.querySelector('#conversation').scrollTop -= 1200")
    page.wait_for_timeout(300)
    reading = page.evaluate(
        """() => { const place = document.querySelector('#conversation'), top = place.getBoundingClientRect().top;
          const one = [...place.querySelectorAll('.chunk')].find((one) => one.getBoundingClientRect().top > top);
          return [one.dataset.key, one.getBoundingClientRect().top]; }"""
    )
    house.say(window, "Something new.", "Something else is said now. " * 20)
    page.wait_for_function("() => !app.store.busy && app.store.turn.reason")
    frame(page)
    now = page.evaluate(
        "key => document.querySelector(`#conversation [data-key='${key}']`).getBoundingClientRect().top",
        reading[0],
    )
    assert now == pytest.approx(reading[1], abs=2)


def test_a_search_leads_to_the_place_where_it_was_said(house, show):
    window = told(house, 80)
    page = show(window, **CONVERSATION)
    loaded(page)
    page.evaluate("id => app.open(id, '1.0.user')", window)
    found = page.locator("#conversation article[data-key='1.0.user']")
    expect(found).to_be_in_viewport()
    expect(found).to_be_focused()


def test_what_was_said_on_this_page_is_dimmed_when_it_is_pruned_and_not_when_it_returns(house, show):
    """Without a reload and without a look at the context."""
    window = house.window(
        max_context_tokens=110,
        min_chunk_tokens=8,
        timestamps=False,
        memory_tree_in_prompt=False,
        resurrection_budget=0,
        strategy="magnitude_voting",
    )
    house.ask("PATCH", f"/windows/{window}", json={"system_prompt": ""})
    page = show(window, **CONVERSATION)
    first = page.locator("#conversation article", has_text="My cat is called Mochi.")
    house.replies.append("A lovely name.")
    say(page, "My cat is called Mochi.")
    for topic in ("the harbour at dawn", "how bees find flowers", "old maps of the coast"):
        house.replies.append(f"There is much to say about {topic}, and little time.")
        say(page, f"Tell me about {topic}.", wait=False)
        page.wait_for_function("topic => !app.store.busy && app.store.turn.stats.tokens", arg=topic)
        settled(page)
    live = {one["key"] for turn in house.context(window)["turns"] for one in turn["chunks"]}
    shown = page.locator("#conversation article").evaluate_all(
        "all => all.map((one) => [one.dataset.key, one.classList.contains('asleep')])"
    )
    assert len(shown) == 8
    assert {key for key, asleep in shown if not asleep} == live
    expect(first).to_have_class(re.compile("asleep"))
    settings = {"resurrection_budget": 60, "max_context_tokens": 200}
    house.ask("PATCH", f"/windows/{window}", json={"settings": settings})
    house.replies.append("Mochi.")
    say(page, "What is my cat called?")
    expect(first).not_to_have_class(re.compile("asleep"))


def test_the_context_shows_text_of_other_windows_where_its_dates_say(house, show):
    """Also if it arrived later than what was said here, as imported text does."""
    system = house.service.weave.runtime
    now, clock = system.now, {"shift": timedelta()}
    system.now = lambda: now() + clock["shift"]
    here = house.window("Here", max_context_tokens=0)
    house.say(here, "Good morning, it rains.", "It does.")
    clock["shift"] = timedelta(days=-100)
    old = house.window("Old", max_context_tokens=0)
    house.say(old, "The zinnia bed was red.", "A fine bed.")
    clock["shift"] = timedelta()
    page = show(here, view="context")
    house.replies.append("Red.")
    say(page, "What of the zinnia bed?")

    def shown():
        frame(page)
        return page.evaluate(
            "() => [...document.querySelectorAll('#context .turn.user .chunk .text')].map((one) => one.textContent)"
        )

    wanted = ["The zinnia bed was red.", "Good morning, it rains.", "What of the zinnia bed?"]
    assert shown() == wanted
    page.reload()
    page.wait_for_selector("#context .chunk")
    assert shown() == wanted


def test_the_system_prompt_stands_above_the_context_as_the_model_reads_it(house, show):
    window = house.window()
    house.ask("PATCH", f"/windows/{window}", json={"system_prompt": "You are a keeper."})
    page = show(window)
    fold = page.locator(".system-fold")
    fold.locator("summary").click()
    expect(fold.locator("pre")).to_contain_text("You are a keeper.")
    page.locator(".budget-more summary").click()
    expect(page.locator(".budget-words")).to_contain_text("what the model always reads")
