"""Settings on the page: of a window, of all windows, refused values, appearance."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.web.talk import panel, say

pytestmark = pytest.mark.browser


def test_the_settings_follow_the_window(house, show):
    one, other = house.window("One", temperature=1.2), house.window("Other")
    page = show(one)
    drawer = panel(page, "Settings")
    temperature, top = (drawer.get_by_role("spinbutton", name=name) for name in ("Temperature", "Top-p"))
    expect(temperature).to_have_value("1.2")
    top.fill("7")
    top.press("Tab")
    expect(drawer.locator(".setting .problem:not(:empty)")).to_have_count(1)
    drawer.get_by_label("Your name").fill("Ada")
    page.evaluate("id => { app.open(id); }", other)
    expect(drawer.get_by_label("Name", exact=True)).to_have_value("Other")
    expect(drawer.get_by_label("Your name")).not_to_have_value("Ada")
    expect(temperature).to_have_value("0.7")
    expect(top).not_to_have_value("7")
    expect(drawer.locator(".setting .problem:not(:empty)")).to_have_count(0)
    assert house.ask("GET", f"/windows/{other}")["settings"] == {}
    assert house.ask("GET", f"/windows/{other}")["user_name"] != "Ada"


def test_a_refused_setting_is_marked_and_says_what_to_use(house, show):
    page = show(house.window())
    drawer = panel(page, "Settings")
    seed, top = (drawer.get_by_role("spinbutton", name=name) for name in ("Seed", "Top-p"))
    untouched = top.evaluate("one => getComputedStyle(one).borderColor")
    for field, value, sentence in ((seed, "1.5", "Use a whole number."), (top, "7", "Use 0.01 to 1.")):
        field.fill(value)
        field.press("Tab")
        expect(field).to_have_attribute("aria-invalid", "true")
        expect(field).to_have_accessible_description(re.compile(re.escape(sentence)))
        assert field.evaluate("one => getComputedStyle(one).borderColor") != untouched
    top.fill("0.8")
    top.press("Tab")
    expect(top).not_to_have_attribute("aria-invalid", "true")
    # What only the server knows is said without the way to the field.
    page.route(
        "**/api/windows/*",
        lambda route: (
            route.fulfill(
                status=422,
                json={"error": {"code": "bad_input", "message": "settings.seed: use a whole number."}},
            )
            if route.request.method == "PATCH"
            else route.continue_()
        ),
    )
    seed.fill("3")
    seed.press("Tab")
    expect(drawer.locator("#setting-seed-problem")).to_have_text("Use a whole number.")
    expect(seed).to_have_attribute("aria-invalid", "true")
    expect(drawer.locator(".setting", has_text="Max context tokens")).to_contain_text(
        re.compile(r"\b6,656\b")
    )


def test_words_are_shared_until_a_window_has_its_own(house, show):
    one, other = house.window("One"), house.window("Other")
    page = show(one)
    drawer = panel(page, "Settings")
    drawer.get_by_role("radio", name="All windows").check(force=True)
    prompt = drawer.get_by_role("textbox", name="System prompt")
    prompt.fill("Speak like a keeper.")
    prompt.blur()
    page.wait_for_function(
        "id => app.store.windows.find((one) => one.id === id).system_prompt === 'Speak like a keeper.'",
        arg=other,
    )
    drawer.get_by_role("radio", name="This window").check(force=True)
    expect(drawer.get_by_role("textbox", name="System prompt")).to_have_value("Speak like a keeper.")
    drawer.get_by_role("textbox", name="The model's name").fill("Ada")
    drawer.get_by_role("textbox", name="The model's name").blur()
    expect(drawer.get_by_role("button", name="Reset The model's name")).to_be_visible()
    assert house.ask("GET", f"/windows/{one}")["inherits"] == ["system_prompt", "user_name"]
    drawer.get_by_role("button", name="Reset The model's name").click()
    expect(drawer.get_by_role("textbox", name="The model's name")).to_have_value("AI")
    assert len(house.ask("GET", f"/windows/{one}")["inherits"]) == 3


def test_settings_are_shown_in_two_levels(house, tabs):
    window = house.window()
    profile = tabs.profile()
    profile.add_init_script("localStorage.removeItem('halo-weave')")
    page = tabs.open(f"{house.address}/#/w/{window}", profile=profile)
    page.wait_for_selector("#dock button")
    drawer = panel(page, "Settings")
    expect(drawer.locator(".setting")).to_have_count(10)
    expect(drawer.get_by_role("textbox", name="Stop strings")).to_be_visible()
    drawer.get_by_role("radio", name="All settings").check(force=True)
    described = house.ask("GET", "/settings")["described"]
    expect(drawer.locator(".setting")).to_have_count(len(described))
    drawer.get_by_role("textbox", name="Stop strings").fill("\\nUser:\nThe end")
    drawer.get_by_role("textbox", name="Stop strings").blur()
    page.wait_for_function("() => app.store.window.settings.stop === '\\\\nUser:\\nThe end'")


def test_every_setting_is_shown_with_default_range_and_meaning(house, show):
    page = show(house.window())
    drawer = panel(page, "Settings")
    for one in house.ask("GET", "/settings")["described"]:
        setting = drawer.locator(".setting", has=page.locator(f"#setting-{one['name']}"))
        expect(setting).to_contain_text(one["meaning"])
        if one["low"] is not None:
            expect(setting).to_contain_text(f"{one['low']:g} to {one['high']:,.10g}")


def test_a_setting_of_one_window_leaves_the_others_alone_and_goes_back(house, show):
    window, other = house.window("One"), house.window("Other")
    page = show(window)
    drawer = panel(page, "Settings")
    field = drawer.get_by_role("spinbutton", name="Temperature")
    field.fill("1.2")
    field.press("Tab")
    expect(drawer.locator(".setting.changed")).to_contain_text("Temperature")
    page.wait_for_function("() => app.store.window.settings.temperature === 1.2")
    assert house.ask("GET", f"/windows/{window}")["effective"]["temperature"] == 1.2
    assert house.ask("GET", f"/windows/{other}")["effective"]["temperature"] == 0.7
    drawer.get_by_role("button", name="Reset Temperature").click()
    expect(drawer.locator(".setting.changed")).to_have_count(0)
    assert house.ask("GET", f"/windows/{window}")["settings"] == {}


def test_a_setting_for_all_windows_holds_in_each(house, show):
    window = house.window()
    page = show(window)
    drawer = panel(page, "Settings")
    drawer.get_by_role("radio", name="All windows").check()
    drawer.get_by_role("switch", name="Score current turn").check()
    drawer.get_by_role("spinbutton", name="Seed").fill("42")
    drawer.get_by_role("spinbutton", name="Seed").press("Tab")
    drawer.get_by_role("combobox", name="Sink").select_option("first")
    page.wait_for_function("() => app.store.settings.values.sink === 'first'")
    effective = house.ask("GET", f"/windows/{window}")["effective"]
    assert (effective["score_current_turn"], effective["seed"], effective["sink"]) == (True, 42, "first")
    drawer.get_by_role("spinbutton", name="Seed").fill("")
    drawer.get_by_role("spinbutton", name="Seed").press("Tab")
    page.wait_for_function("() => app.store.settings.values.seed === null")


def test_a_value_out_of_range_is_refused_in_words(house, show):
    window = house.window()
    page = show(window)
    drawer = panel(page, "Settings")
    field = drawer.get_by_role("spinbutton", name="Top-p")
    field.fill("7")
    field.press("Tab")
    expect(drawer.locator(".setting", has_text="Top-p").get_by_role("alert")).to_have_text("Use 0.01 to 1.")
    expect(field).to_have_value("7")
    assert house.ask("GET", f"/windows/{window}")["settings"] == {}


def test_system_prompt_and_names_of_a_window(house, show):
    window = house.window()
    page = show(window)
    drawer = panel(page, "Settings")
    drawer.get_by_label("System prompt").fill("You keep a lighthouse.")
    drawer.get_by_label("Your name").fill("Ada")
    drawer.get_by_label("The model's name").fill("Weaver")
    drawer.get_by_label("The model's name").press("Tab")
    page.wait_for_function("() => app.store.window.ai_name === 'Weaver'")
    known = house.ask("GET", f"/windows/{window}")
    assert (known["system_prompt"], known["user_name"], known["ai_name"]) == (
        "You keep a lighthouse.",
        "Ada",
        "Weaver",
    )
    say(page, "Hello.")
    expect(page.locator(".turn.assistant .speaker")).to_have_text("Weaver")


def test_the_theme_is_kept(house, show):
    page = show(house.window())
    ground = "() => getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(ground)
    page.get_by_role("button", name="Change the theme").click()
    light = page.evaluate(ground)
    assert light != dark
    page.reload()
    assert page.evaluate(ground) == light


def test_the_budget_that_follows_the_model_is_shown_with_its_number(house, show):
    window = house.window()
    page = show(window)
    drawer = panel(page, "Settings")
    field = drawer.get_by_role("spinbutton", name="Max context tokens")
    expect(field).to_have_value("")
    expect(field).to_have_attribute("placeholder", "auto: 6,656")
    setting = drawer.locator(".setting", has=page.locator("#setting-max_context_tokens"))
    expect(setting).to_contain_text("all windows: auto: 6,656")
    house.ask("PATCH", f"/windows/{window}", json={"settings": {"max_new_tokens": 100}})
    page.evaluate("() => app.refresh()")
    expect(field).to_have_attribute("placeholder", "auto: 7,580")
    field.fill("700")
    field.press("Tab")
    page.wait_for_function("() => app.store.budget.max_context_tokens === 700")
    drawer.get_by_role("button", name="Reset Max context tokens").click()
    page.wait_for_function("() => app.store.budget.max_context_tokens === 7580")


def test_a_setting_without_effect_under_the_strategy_says_so(house, show):
    window = house.window()
    page = show(window)
    drawer = panel(page, "Settings")
    note = drawer.locator(".setting", has=page.locator("#setting-score_current_turn")).locator(".no-effect")
    expect(note).to_contain_text("No effect with the strategy use and surprise: ")
    decay = drawer.locator(".setting", has=page.locator("#setting-decay")).locator(".no-effect")
    expect(decay).to_contain_text("only magnitude_voting uses it.")
    drawer.get_by_label("Strategy", exact=True).select_option("magnitude_voting")
    expect(note).to_be_hidden()
    expect(decay).to_be_hidden()
