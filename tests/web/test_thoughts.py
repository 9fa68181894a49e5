"""Thoughts on the page: folded above the answer, live while they are written, with their length."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.chat.test_thoughts import ANSWER, WAYS
from tests.web.talk import frame, say, settled, shown

HOSTILE = "<img src=x onerror=alert(1)> & more of the keeper's thoughts"


@pytest.mark.parametrize("way", WAYS)
def test_a_thought_is_folded_above_its_answer(house, show, way):
    template, reply = WAYS[way]
    house.engine.use_template(template)
    window = house.window(timestamps=False)
    page = show(window)
    house.pace = 0.03
    house.replies.append(reply.replace("The user greets.", HOSTILE))
    say(page, "Hello.", wait=False)
    live = page.locator(".chunk.draft details.thought")
    expect(live.locator("summary")).to_contain_text("Thinking…")
    assert not live.evaluate("(node) => node.open")
    live.locator("summary").click()
    expect(live).to_contain_text(HOSTILE)  # as text, while it is written
    house.pace = 0
    settled(page, "Hello.")
    gap = page.locator(".gap-line", has_text="Thought, ")
    expect(gap).to_have_count(1)
    assert shown(page).endswith(ANSWER)
    gap.click()
    expect(page.locator(".sleeper-text")).to_contain_text(HOSTILE)
    whole = page.locator("body").inner_text()
    assert "think>" not in whole
    assert "<|" not in whole
    page.reload()
    expect(page.locator(".gap-line", has_text="Thought, ")).to_have_count(1)
    frame(page)


def test_a_reply_without_an_answer_says_so(house, show):
    template, reply = WAYS["marks"]
    house.engine.use_template(template)
    page = show(house.window(max_new_tokens=8))
    house.replies.append(reply)
    say(page, "Hello.")
    expect(page.locator("body")).to_contain_text("The model only thought and wrote no answer")
