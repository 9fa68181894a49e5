"""The ribbon: the window's whole life beside the scroll bar; and the line that is read stays where it is."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from playwright.sync_api import Page, expect

from tests.web.talk import chunk, frame, say

pytestmark = pytest.mark.browser
CONVERSATION = {"view": "conversation", "form": "rendered"}

# The colour of a chunk on the ribbon, as the name of what it stands for; and whether a spark stands beside it.
SEEN = """(key) => {
  const { ribbon } = app.views, { timeline, canvas, node } = ribbon;
  ribbon.draw();
  let from = 0, whole = 0, size = 0;
  for (const one of timeline.chunks.filter((one) => !one.foreign)) {
    if (one.key === key) [from, size] = [whole, one.tokens];
    whole += one.tokens;
  }
  const ratio = canvas.height / node.clientHeight;
  const y = (from + size / 2) / whole * node.clientHeight;
  const ink = canvas.getContext('2d');
  const at = (x) => [...ink.getImageData(Math.floor(x * ratio), Math.floor(y * ratio), 1, 1).data].slice(0, 3).join();
  const probe = document.createElement('canvas').getContext('2d');
  const named = (name) => {
    probe.fillStyle = getComputedStyle(node).getPropertyValue(name).trim();
    probe.fillRect(0, 0, 1, 1);
    return [...probe.getImageData(0, 0, 1, 1).data].slice(0, 3).join();
  };
  const names = { '--ribbon-asleep': 'asleep', '--ribbon-live': 'live', '--part-pinned': 'pinned' };
  const found = Object.entries(names).find(([name]) => named(name) === at(4));
  return [found?.[1] ?? at(4), at(canvas.width / ratio - 2.7) === named('--ribbon-spark')];
}"""


def holding(*parts: str) -> re.Pattern[str]:
    return re.compile(".*".join(re.escape(part) for part in parts))


def ready(page: Page, turns: int) -> None:
    page.wait_for_function("count => app.views.ribbon.timeline?.turns.length === count", arg=turns)
    frame(page)


def told(house, turns: int) -> str:
    """A long conversation of which little is live."""
    window = house.window(max_context_tokens=300, min_chunk_tokens=8, timestamps=False, resurrection_budget=0)
    for number in range(turns // 2):
        house.say(window, f"Question number {number}.", f"Answer number {number}. " * 6)
    if house.context(window)["turns"][0]["turn_id"] == "1":
        house.ask("POST", f"/windows/{window}/chunks/1.0.user/prune")
    return window


@pytest.mark.parametrize("theme", ["dark", "light"])
def test_the_ribbon_tells_live_from_asleep_and_pinned_and_where_something_woke(house, show, theme):
    window = house.window(max_context_tokens=0, timestamps=False, resurrect_pairs="off")
    house.say(window, "My cat is called Mochi.", "A lovely name.")
    house.say(window, "The weather is fine.", "So it is.")
    for key in ("1.0.user", "4.0.assistant"):
        house.ask("POST", f"/windows/{window}/chunks/{key}/prune")
    house.ask("POST", f"/windows/{window}/chunks/2.0.assistant/pin")
    page = show(window, color_scheme=theme)
    ready(page, 4)
    assert page.evaluate(SEEN, "1.0.user") == ["asleep", False]
    assert page.evaluate(SEEN, "2.0.assistant") == ["pinned", False]
    assert page.evaluate(SEEN, "3.0.user") == ["live", False]
    assert page.evaluate(SEEN, "4.0.assistant") == ["asleep", False]
    asked: Counter[str] = Counter()
    page.on("request", lambda one: asked.update([one.url.rsplit("/", 1)[-1]]))
    house.replies.append("Mochi.")
    say(page, "What is my cat called?")
    ready(page, 6)
    assert page.evaluate(SEEN, "1.0.user") == ["live", True]
    assert page.evaluate(SEEN, "6.0.assistant") == ["live", False]
    assert asked["timeline"] == 0
    page.reload()
    ready(page, 6)
    assert page.evaluate(SEEN, "1.0.user") == ["live", True]


def place(page: Page, share: float) -> tuple[float, float]:
    box = page.locator("#ribbon").bounding_box()
    assert box is not None
    return box["x"] + box["width"] / 2, box["y"] + share * box["height"]


@pytest.mark.parametrize("view", ["conversation", "context"])
def test_a_click_goes_there_and_brushing_over_it_only_reads(house, show, view):
    window = told(house, 60)
    page = show(window, view=view, form="rendered")
    ready(page, 60)
    before = page.evaluate("app.views.centre.active.place.scrollTop")
    page.mouse.move(*place(page, 0.003))
    card = page.locator(".ribbon-card")
    expect(card).to_contain_text("Question number 0.")
    expect(card).to_contain_text("turn 1 of 60 · asleep")
    page.mouse.down()
    page.mouse.move(*place(page, 0.6), steps=8)
    expect(card).not_to_contain_text("Question number 0.")
    page.mouse.up()
    frame(page)
    assert page.evaluate("app.views.centre.active.place.scrollTop") == before
    page.mouse.click(*place(page, 0.003))
    if view == "conversation":
        expect(chunk(page, "1.0.user")).to_be_in_viewport()
        expect(chunk(page, "1.0.user")).to_be_focused()
    else:
        expect(page.locator(".sleeper[data-key='1.0.user']")).to_be_in_viewport()
    page.mouse.move(300, 300)
    expect(card).to_be_hidden()


def test_the_keyboard_steps_from_turn_to_turn_and_a_screen_reader_hears_each(house, show):
    window = told(house, 40)
    page = show(window, **CONVERSATION)
    ready(page, 40)
    ribbon = page.get_by_role("slider", name="Ribbon")
    ribbon.focus()
    page.keyboard.press("Home")
    expect(ribbon).to_have_attribute("aria-valuetext", holding("turn 1 of 40", "Question number 0."))
    page.keyboard.press("ArrowDown")
    expect(ribbon).to_have_attribute("aria-valuetext", holding("turn 2 of 40", "Answer number 0."))
    expect(ribbon).to_have_attribute("aria-valuenow", "2")
    page.keyboard.press("PageDown")
    expect(ribbon).to_have_attribute("aria-valuenow", "12")
    page.keyboard.press("Home")
    page.keyboard.press("Enter")
    expect(chunk(page, "1.0.user")).to_be_focused()
    expect(chunk(page, "1.0.user")).to_be_in_viewport()


def test_on_a_phone_a_tap_goes_there(house, show):
    window = told(house, 40)
    page = show(
        window, **CONVERSATION, viewport={"width": 390, "height": 800}, has_touch=True, is_mobile=True
    )
    ready(page, 40)
    page.touchscreen.tap(*place(page, 0.003))
    expect(chunk(page, "1.0.user")).to_be_in_viewport()
    x, y = place(page, 0.5)
    assert page.evaluate("([x, y]) => document.elementFromPoint(x - 30, y).id", [x, y]) == "ribbon"


READING = """() => {
  const { place, list } = app.views.centre.active, top = place.getBoundingClientRect().top;
  const one = [...list.querySelectorAll('.chunk')].find((one) => one.getBoundingClientRect().top > top + 60);
  return [one.dataset.key, one.getBoundingClientRect().top, one.getBoundingClientRect().left];
}"""
WHERE = "key => { const box = app.views.centre.active.list.querySelector(`[data-key='${key}']`).getBoundingClientRect(); return [key, box.top, box.left]; }"


@pytest.mark.parametrize("view", ["conversation", "context"])
def test_nothing_that_sleeps_wakes_or_arrives_moves_the_line_that_is_read(house, show, view):
    window = house.window(max_context_tokens=0, min_chunk_tokens=8, timestamps=False, resurrect_pairs="off")
    house.say(window, "My cat is called Mochi.", "A lovely name.")
    for number in range(16):
        house.say(window, f"Question number {number}.", f"Answer number {number}. " * 8)
    for key in ("1.0.user", "5.0.user", "6.0.assistant"):
        house.ask("POST", f"/windows/{window}/chunks/{key}/prune")
    page = show(window, view=view, form="rendered")
    ready(page, 34)
    page.evaluate("app.views.centre.active.place.scrollTop -= 900")
    page.wait_for_timeout(400)
    reading = page.evaluate(READING)

    def stays() -> None:
        frame(page)
        assert page.evaluate(WHERE, reading[0]) == pytest.approx(reading, abs=2)

    house.ask("PATCH", f"/windows/{window}", json={"settings": {"protect_recent_exchanges": 1}})
    house.say(window, "What is my cat called?", "She is called Mochi. " * 20)
    page.wait_for_function(
        "() => !app.store.busy && app.store.turn.reason && app.store.live.find('1.0.user')"
    )
    stays()
    for key, act in (
        ("3.0.user", "prune"),
        ("5.0.user", "resurrect"),
        ("7.0.user", "pin"),
        ("8.0.assistant", "prune"),
    ):
        house.ask("POST", f"/windows/{window}/chunks/{key}/{act}")
        page.wait_for_function(
            "([key, live]) => Boolean(app.store.live?.find(key)) === live", arg=[key, act != "prune"]
        )
        stays()
    page.get_by_label("Your message").fill("What is my cat Mochi called?")
    expect(page.locator(".preview")).to_be_visible()
    stays()
