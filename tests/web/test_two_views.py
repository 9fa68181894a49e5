"""The conversation as it was said, and the context as the model sees it."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from playwright.sync_api import Page, Route, expect

from tests.web.talk import frame, say, settled

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


def answered(page: Page, text: str) -> None:
    """The one answer that stands there. For a moment it may stand below the one it takes the place of."""
    expect(page.locator("#conversation .turn.assistant .text").last).to_contain_text(text)
    expect(page.locator("#conversation .turn.assistant")).to_have_count(1)
    expect(page.locator("#conversation .turn.user")).to_have_count(1)


def tool(page: Page, turn: int, name: str) -> None:
    one = page.locator("#conversation .turn").nth(turn)
    one.hover()
    one.get_by_role("button", name=name, exact=True).click()


def test_an_answer_is_given_again_and_its_versions_can_be_leafed_through(house, show):
    window = house.window(max_context_tokens=0, timestamps=False)
    house.say(window, "Name a colour.", "Red.")
    page = show(window, **CONVERSATION)
    loaded(page)
    house.replies.append("Blue.")
    tool(page, 1, "Answer again")
    answered(page, "Blue.")
    expect(page.locator(".versions-line")).to_contain_text("2 of 2")
    page.get_by_role("button", name="Previous version").click()
    answered(page, "Red.")
    expect(page.locator(".versions-line")).to_contain_text("1 of 2")
    assert house.text(window).endswith("Red.")
    page.get_by_role("button", name="Next version").click()
    answered(page, "Blue.")


def test_a_message_is_edited_and_what_it_said_stays_as_a_version(house, show):
    window = house.window(max_context_tokens=0, timestamps=False)
    house.say(window, "Name a colur.", "What?")
    page = show(window, **CONVERSATION)
    loaded(page)
    house.replies.append("Green.")
    tool(page, 0, "Edit")
    dialog = page.get_by_role("dialog", name="Edit")
    dialog.get_by_label("Text").fill("Name a colour.")
    dialog.get_by_role("button", name="Save").click()
    answered(page, "Green.")
    assert texts(page) == ["Name a colour.", "Green."]
    page.get_by_role("button", name="Previous version").click()
    answered(page, "What?")


def test_a_reply_goes_on_and_a_message_without_a_reply_is_answered(house, show):
    window = house.window(max_context_tokens=0, timestamps=False, max_new_tokens=4)
    house.say(window, "Count.", "one two three four")
    page = show(window, **CONVERSATION)
    loaded(page)
    house.ask("PATCH", f"/windows/{window}", json={"settings": {"max_new_tokens": 64}})
    house.replies.append(" and on")
    tool(page, 1, "Continue")
    answered(page, "and on")
    house.ask("POST", f"/windows/{window}/rewind", json={"turn_id": "1"})
    expect(page.locator("#conversation .turn.assistant")).to_have_count(0)
    house.replies.append("Once more.")
    tool(page, 0, "Answer this")
    answered(page, "Once more.")


def test_continue_on_a_reply_that_ended_by_itself_changes_nothing_and_says_so(house, show):
    window = house.window("Tales", max_context_tokens=0, timestamps=False)
    house.say(window, "First.", "One.")
    house.say(window, "Second.", "Two.")
    page = show(window, **CONVERSATION)
    loaded(page)
    for _ in range(2):
        house.replies.append("")
        tool(page, 3, "Continue")
        expect(page.get_by_text("The model had nothing to add.")).to_be_visible()
        settled(page)
        assert texts(page) == ["First.", "One.", "Second.", "Two."]
    assert house.context(window)["turns"][-1]["versions"] == 1


def test_a_branch_is_a_window_of_its_own(house, show):
    window = house.window("Tales", max_context_tokens=0, timestamps=False)
    house.say(window, "First.", "One.")
    house.say(window, "Second.", "Two.")
    page = show(window, **CONVERSATION)
    loaded(page)
    tool(page, 1, "Branch off: a new window from here")
    page.wait_for_function("id => app.store.current && app.store.current !== id", arg=window)
    expect(page.locator("#conversation .turn")).to_have_count(2)
    assert texts(page) == ["First.", "One."]
    house.replies.append("Three.")
    say(page, "Third.")
    settled(page)
    assert "Three." not in house.text(window)


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
    system = house.service.weave._system
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


@pytest.mark.parametrize("view", ["conversation", "context"])
def test_a_reply_that_ended_because_of_its_length_offers_to_be_continued(house, show, view):
    window = house.window(max_context_tokens=0, timestamps=False)
    house.say(window, "Hello.", "Hello to you.")
    page = show(window, view=view, form="rendered")
    further = page.locator(f"#{view} .unfinished:visible")
    expect(page.locator(f"#{view} .turn.assistant")).to_have_count(1)
    expect(further).to_have_count(0)
    house.ask("PATCH", f"/windows/{window}", json={"settings": {"max_new_tokens": 4}})
    house.replies.append("one two three four")
    say(page, "Count.")
    settled(page)
    expect(further).to_contain_text("The reply reached its longest length.")
    page.reload()
    expect(further).to_be_visible()
    house.ask("PATCH", f"/windows/{window}", json={"settings": {"max_new_tokens": 64}})
    house.replies.append(" and on")
    further.get_by_role("button", name="Continue").click()
    expect(page.locator(f"#{view} .turn.assistant").last).to_contain_text("and on")
    settled(page)
    expect(further).to_have_count(0)
