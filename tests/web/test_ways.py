"""The ways between the parts of the page: where the focus, the typed text and the view go after an act."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

pytestmark = pytest.mark.browser


def test_the_skip_link_leads_into_the_input_box_of_the_same_window(house, show):
    here = house.window("Here")
    house.window("Newer")
    page = show(here)
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="To the input box")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_label("Your message")).to_be_focused()
    assert page.evaluate("app.store.current") == here
    assert page.evaluate("location.hash") == f"#/w/{here}"
