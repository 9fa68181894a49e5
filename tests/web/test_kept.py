"""What the user asks to be remembered shows as a line with a way back."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.web.talk import say

pytestmark = pytest.mark.browser

ASKED = "Please remember that the code of the store room is 4321."
KEPT = "The code of the store room is 4321"


def contents(house) -> list[str]:
    def walk(branch) -> list[str]:
        own = [branch["content"]] if branch["version"] else []
        return own + [one for child in branch["children"] for one in walk(child)]

    return walk(house.ask("GET", "/memory?contents=true"))


@pytest.mark.parametrize("view", ["conversation", "context"])
def test_a_saved_memory_is_told_and_can_be_undone(house, show, view):
    window = house.window(tools="auto")
    house.replies += ["Saved.", "not a heading"]
    page = show(window)
    page.evaluate("view => app.preferences.set('view', view)", view)
    say(page, ASKED)
    line = page.locator(f"#{view} .kept")
    expect(line.get_by_text(f"Saved: {KEPT}")).to_be_visible()
    assert contents(house) == [f"{KEPT}."]
    line.get_by_role("button", name="Undo").click()
    expect(line.get_by_text(f"Not saved: {KEPT}")).to_be_visible()
    assert contents(house) == []


def test_a_forgotten_memory_is_told_and_can_be_kept(house, show):
    house.ask("PUT", "/memory/entry", json={"path": "Work/Code", "content": f"{KEPT}."})
    window = house.window(tools="auto")
    house.replies.append("Done.")
    page = show(window)
    page.evaluate("app.preferences.set('view', 'conversation')")
    say(page, "Forget the code of the store room.")
    line = page.locator("#conversation .kept")
    expect(line.get_by_text("Forgotten: Code")).to_be_visible()
    assert contents(house) == []
    line.get_by_role("button", name="Undo").click()
    expect(line.get_by_text("Kept: Code")).to_be_visible()
    assert contents(house) == [f"{KEPT}."]
