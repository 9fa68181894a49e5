"""Whatever is said, noted or named stays text."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.web.talk import panel, say, shown

pytestmark = pytest.mark.browser

EVIL = [
    "<img src=x onerror=\"window.hurt='img'\">",
    "<script>window.hurt='script'</script>",
    "<svg onload=\"window.hurt='svg'\"></svg>",
    "<style>body{display:none}</style><iframe srcdoc=\"<script>parent.hurt='frame'</script>\"></iframe>",
    "<a href=\"javascript:window.hurt='link'\">click</a>",
    "${window.hurt='template'} {{window.hurt='mustache'}}",
]
ALL = " ".join(EVIL)


def unhurt(page) -> None:
    page.wait_for_timeout(150)
    assert page.evaluate("window.hurt") is None
    strange = "() => [...document.querySelectorAll('img, iframe, a[href^=javascript], script:not([src]), style, [onerror], [onload], [style*=\"display:none\"]')].map((one) => one.outerHTML)"
    assert page.evaluate(strange) == []
    expect(page.locator("body")).to_be_visible()


def test_in_what_user_and_model_say(house, show):
    window = house.window(max_context_tokens=0)
    page = show(window)
    house.replies.append(ALL)
    say(page, ALL)
    unhurt(page)
    assert shown(page) == house.text(window)
    assert shown(page).count(EVIL[0]) == 2
    page.reload()
    page.wait_for_selector(".chunk")
    unhurt(page)
    page.keyboard.press("Control+k")
    page.get_by_label("Search the whole memory").fill("onerror window hurt img")
    expect(page.locator(".hit").first).to_contain_text("onerror")
    unhurt(page)


def test_in_the_names_of_windows_and_speakers(house, show):
    window = house.window(EVIL[0])
    house.window(EVIL[1])
    house.ask(
        "PATCH", f"/windows/{window}", json={"user_name": EVIL[2], "ai_name": EVIL[4], "system_prompt": ALL}
    )
    house.say(window, "Hello.", "Hello.")
    page = show(window)
    expect(page.locator(".window-title")).to_have_text(EVIL[0])
    expect(page.locator("#rail")).to_contain_text(EVIL[1])
    expect(page.locator(".turn.user .speaker")).to_have_text(EVIL[2])
    panel(page, "Settings")
    expect(page.get_by_role("textbox", name="System prompt")).to_have_value(ALL)
    unhurt(page)
    page.locator("#rail li.current").hover()
    page.locator("#rail li.current").get_by_role("button", name="Delete").click()
    expect(page.get_by_role("dialog")).to_contain_text(EVIL[0])
    unhurt(page)


def test_in_notes_and_structured_memory(house, show):
    path = "People/<img src=x onerror=window.hurt=1>"
    house.ask("PUT", "/memory/entry", json={"path": path, "content": {EVIL[0]: EVIL}})
    house.ask("PUT", "/notes", json={"content": {EVIL[1]: EVIL}})
    page = show(house.window())
    drawer = panel(page, "Memory")
    drawer.locator(".branch", has_text="onerror").click()
    expect(drawer.locator(".path")).to_have_text(path)
    unhurt(page)
    drawer.get_by_role("button", name="History").click()
    unhurt(page)
    page.keyboard.press("Escape")
    drawer.get_by_role("button", name="Delete…").click()
    expect(page.get_by_role("dialog")).to_contain_text("onerror")
    unhurt(page)
    page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    drawer = panel(page, "Notes")
    page.wait_for_function("() => document.querySelector('.drawer-body textarea').value.includes('onerror')")
    unhurt(page)


def test_in_the_graveyard_and_in_gaps(house, show):
    window = house.window(
        max_context_tokens=60,
        min_chunk_tokens=8,
        resurrection_budget=0,
        timestamps=False,
        memory_tree_in_prompt=False,
    )
    house.ask("PATCH", f"/windows/{window}", json={"system_prompt": ""})
    house.say(window, EVIL[0], EVIL[1])
    for i in range(4):
        house.say(window, f"Something else, number {i}, of no importance.", "Indeed, it is of none at all.")
    page = show(window)
    drawer = panel(page, "Graveyard")
    expect(drawer.locator(".grave", has_text="onerror").first).to_be_visible()
    unhurt(page)
    page.locator(".gap-line").first.click()
    expect(page.locator(".sleeper").first).to_be_visible()
    unhurt(page)


def test_the_page_is_served_under_a_policy_that_would_stop_it_anyway(house, show, tabs):
    tabs.allowed += ["Content Security Policy", "CSP: script-src"]
    page = show(house.window())
    page.evaluate(
        "() => { const evil = document.createElement('script'); evil.textContent = 'window.hurt = 1'; document.head.append(evil); }"
    )
    assert page.evaluate("window.hurt") is None
