"""The first steps show a message pruned and resurrected, and claim only what happened."""

from __future__ import annotations

import re

import numpy as np
import pytest
from playwright.sync_api import expect

from halo_weave.core.retrieval_heads import PENDING, Calibration, RetrievalHead
from tests.web.talk import say

pytestmark = pytest.mark.browser


ONE_HEAD = Calibration((RetrievalHead(0, 1, 0.9, 0.9, 1.0),), "")


FACT = "My cat is called Mochi, and she loves salmon."


def pruned_first_steps(page):
    """The prepared conversation, cut to half of its size; returns the line above the box."""
    page.get_by_role("button", name="Try the one-minute demo").click()
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
    house.service.weave.runtime.use_calibration(house.engine, ONE_HEAD)
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
    house.service.weave.runtime.use_calibration(house.engine, PENDING)
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
