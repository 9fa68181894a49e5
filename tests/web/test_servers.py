"""Several servers on one memory, as the pages of one of them show what another writes."""

from __future__ import annotations

import itertools
import time

import pytest
from playwright.sync_api import expect

from tests.contract import conftest as contract
from tests.web.house import House
from tests.web.talk import say

pytestmark = pytest.mark.browser
server, address = contract.server, contract.address  # fixtures


@pytest.fixture
def houses(address, tmp_path):
    """Two servers on one PostgreSQL memory."""
    pair = [House(tmp_path / name, store=address).start() for name in ("writing", "reading")]
    yield pair
    for house in pair:
        house.stop()


def test_a_page_shows_what_another_server_writes_while_it_is_written(houses, tabs):
    writing, reading = houses
    window = writing.window()
    writing.replies.append("The lighthouse stands on a rock. " * 8)
    spoken, allowed = itertools.count(), [10]

    def pause() -> None:
        number = next(spoken)
        while number >= allowed[0]:
            time.sleep(0.01)

    writing.engine.pause = pause
    page = tabs.open(f"{reading.address}/#/w/{window}")
    page.wait_for_function("() => app.store.live && app.store.connection.state === 'online'")
    writing.ask("POST", f"/windows/{window}/messages", json={"text": "Where does it stand?"})
    page.wait_for_function("() => app.store.live?.draft?.pieces.length > 5")
    expect(page.get_by_text("The lighthouse stands").first).to_be_visible()
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    allowed[0] = 20
    page.wait_for_function("() => app.store.live?.draft?.pieces.length > 15")
    allowed[0] = 1_000
    page.wait_for_function("() => app.store.live && !app.store.live.draft && !app.store.busy")
    told = page.evaluate("() => app.store.live.chunks.flatMap((one) => one.pieces).join('')")
    assert writing.text(window) == told
    say(page, "And who lives there?")  # the window is free for this server
    assert "And who lives there?" in writing.text(window)


def test_a_reply_is_stopped_on_the_page_of_another_server(houses, tabs):
    writing, reading = houses
    window = writing.window()
    writing.replies.append("word " * 300)
    writing.pace = 0.02
    page = tabs.open(f"{reading.address}/#/w/{window}")
    page.wait_for_function("() => app.store.live && app.store.connection.state === 'online'")
    writing.ask("POST", f"/windows/{window}/messages", json={"text": "Go on for ever."})
    page.wait_for_function("() => app.store.live?.draft?.pieces.length > 5")
    page.get_by_role("button", name="Stop").click()
    page.wait_for_function("() => app.store.live && !app.store.live.draft && !app.store.busy")
    assert len(writing.text(window)) < 5 * 300
