"""Presets and character cards on the page."""

from __future__ import annotations

import json

import pytest
from playwright.sync_api import expect

from tests.web.talk import file, panel, toast

pytestmark = pytest.mark.browser


def test_a_preset_is_saved_applied_renamed_deleted_and_brought_back(house, show):
    one, other = house.window("One", temperature=0.2), house.window("Other")
    page = show(one)
    drawer = panel(page, "Settings")
    presets = drawer.get_by_role("list", name="Presets")
    drawer.get_by_role("button", name="Save as a preset…").click()
    page.get_by_role("dialog").get_by_label("Name").fill("Calm / quiet?")
    page.get_by_role("dialog").get_by_role("button", name="Save").click()
    expect(presets.get_by_role("listitem")).to_contain_text("Calm / quiet?")
    expect(presets).to_contain_text("Temperature")
    page.evaluate("id => app.open(id)", other)
    page.wait_for_function("id => app.store.current === id && app.store.live", arg=other)
    presets.get_by_role("button", name="Apply Calm / quiet?").click()
    expect(toast(page, "holds in this window now")).to_be_visible()
    assert house.ask("GET", f"/windows/{other}")["settings"] == {"temperature": 0.2}
    presets.get_by_role("button", name="Rename Calm / quiet?").click()
    page.get_by_role("dialog").get_by_label("Name").fill("Calm")
    page.get_by_role("dialog").get_by_role("button", name="Rename").click()
    expect(presets.get_by_role("button", name="Apply Calm", exact=True)).to_be_visible()
    presets.get_by_role("button", name="Delete Calm").click()
    expect(presets).to_contain_text("None yet")
    toast(page, "Deleted the preset").get_by_role("button", name="Undo").click()
    expect(presets.get_by_role("button", name="Apply Calm", exact=True)).to_be_visible()
    assert house.ask("GET", "/presets")["presets"][0]["settings"] == {"temperature": 0.2}


def test_a_character_card_becomes_a_new_window(house, show):
    page = show(house.window())
    card = {
        "spec": "chara_card_v2",
        "spec_version": "2.0",
        "data": {"name": "Ingrid", "description": "She keeps the lamp.", "first_mes": "The lamp is lit."},
    }
    page.get_by_role("button", name="Begin with a card or a preset").click()
    page.get_by_label("Character card").set_input_files(file("ingrid.json", json.dumps(card)))
    expect(page.locator("#header .window-title")).to_have_text("Ingrid")
    expect(page.locator(".chunk .text").first).to_have_text("The lamp is lit.")
    expect(toast(page, "is a new window")).to_be_visible()


def test_a_new_window_can_begin_with_a_preset(house, show):
    house.ask(
        "PUT",
        "/presets",
        json={"name": "Calm", "settings": {"temperature": 0.2}, "persona": {"ai_name": "Ada"}},
    )
    page = show(house.window())
    page.get_by_role("button", name="Begin with a card or a preset").click()
    page.get_by_role("button", name="Begin with Calm").click()
    page.wait_for_function(
        "() => app.store.window?.settings.temperature === 0.2 && app.store.window.ai_name === 'Ada'"
    )
