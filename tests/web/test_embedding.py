"""Embedding on the page: its progress, and another embedder."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from halo_weave import app as assembling
from tests.fakes.hashing_embedder import HashingEmbedder
from tests.web.house import House
from tests.web.talk import panel, toast

pytestmark = pytest.mark.browser


def test_everything_is_embedded_anew_with_its_progress(tmp_path, tabs):
    house = House(tmp_path, embedder=None).start()
    try:
        window = house.window()
        house.say(window, "My cat is called Mochi.", "Noted.")
        page = tabs.open(f"{house.address}/#/w/{window}")
        drawer = panel(page, "Settings")
        drawer.get_by_role("button", name="Embed everything again").click()
        toast(page, "Everything was embedded again.")
        assert house.ask("GET", "/reindex")["state"] == "idle"
    finally:
        house.stop()


def test_a_long_embedding_shows_how_far_it_is(house, show):
    page = show(house.window())
    steps = iter([0, 250, 500])

    def answer(route):
        done = next(steps, 1000)
        state = "running" if done < 1000 else "idle"
        route.fulfill(json={"state": state, "model": "mini", "done": done, "total": 1000, "message": ""})

    page.route("**/api/reindex", answer)
    drawer = panel(page, "Settings")
    expect(drawer).to_contain_text("Embedding with mini: 250 of 1,000 chunks")
    expect(drawer.get_by_role("progressbar", name="Embedding")).to_have_attribute("max", "1000")
    toast(page, "Everything was embedded again.")


def test_another_embedder_is_chosen_and_the_page_shows_how_far_it_is(tmp_path, tabs, monkeypatch):
    def opened(path):
        made = HashingEmbedder(32, name="other 0123")
        made.file = str(path)
        return made

    monkeypatch.setenv("HALO_WEAVE_MODELS", str(tmp_path / "models"))
    monkeypatch.setattr(assembling, "open_embedder", opened)
    monkeypatch.setattr(assembling, "resolve", lambda name, progress: tmp_path / "other.gguf")
    house = House(tmp_path, embedder=None).start()
    try:
        window = house.window()
        house.say(window, "My cat is called Mochi.", "Noted.")
        page = tabs.open(f"{house.address}/#/w/{window}")
        drawer = panel(page, "Settings")
        choice = drawer.get_by_label("Embedding model")
        choice.select_option(label="nomic-embed-text v1.5")
        expect(drawer).to_contain_text("twelve times the work")
        drawer.get_by_role("button", name="Embed everything again").click()
        toast(page, "Everything was embedded again.")
        expect(drawer).to_contain_text("other 0123. Everything is embedded.")
        assert house.ask("GET", "/status")["embedder"]["model"] == "other 0123"
    finally:
        house.stop()
