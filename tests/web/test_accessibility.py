"""Keyboard, screen reader, contrast, small screens."""

from __future__ import annotations

import json

import pytest
from playwright.sync_api import expect

from tests.web.talk import LOG, attach, chunk, file, frame, keys, looking_at, panel, say

pytestmark = pytest.mark.browser


def told(house) -> str:
    """A window with everything in it: bright and dim, pinned, asleep, woken, a tool's answer."""
    window = house.window(
        "Lighthouse",
        max_context_tokens=150,
        min_chunk_tokens=8,
        resurrection_budget=40,
        timestamps=False,
        tools="tags",
    )
    house.ask("PATCH", f"/windows/{window}", json={"system_prompt": ""})
    house.say(window, "My cat is called Mochi.", "Mochi is a lovely name.")
    house.say(window, "Who rings the bell?", "The keeper rings the bell in the fog.")
    house.replies += ["<tool>jq '.topics.bell = \"gold\"' notes.json > output</tool>", " Done."]
    house.say(window, "Write that down.")
    for topic in ("bread", "chess", "snow"):
        house.say(window, f"Tell me about {topic}.", f"There is much to say about {topic}.")
    house.ask("PATCH", f"/windows/{window}", json={"settings": {"capture": "mean"}})
    looking_at(house, b" Mo", b"chi")
    house.say(window, "What is my cat Mochi called?", "Mochi.")
    live = [one["key"] for turn in house.context(window)["turns"] for one in turn["chunks"]]
    house.ask("POST", f"/windows/{window}/chunks/{live[0]}/pin")
    house.ask("PUT", "/memory/entry", json={"path": "People/Mochi", "content": {"kind": "cat"}})
    return window


@pytest.mark.parametrize("theme", ["dark", "light"])
def test_axe_finds_nothing_serious(house, tabs, axe, theme):
    window = told(house)
    profile = tabs.profile(color_scheme=theme, bypass_csp=True, reduced_motion="reduce")
    page = tabs.open(f"{house.address}/#/w/{window}", profile=profile)
    page.wait_for_selector(".chunk")
    page.add_script_tag(path=axe)

    def check(where: str) -> None:
        frame(page)
        found = page.evaluate("() => axe.run(document, {resultTypes: ['violations']})")
        serious = [one for one in found["violations"] if one["impact"] in ("serious", "critical")]
        told = [
            (
                one["id"],
                [node["html"][:160] + " " + node["failureSummary"][:300] for node in one["nodes"][:3]],
            )
            for one in serious
        ]
        assert not serious, f"{where}: {json.dumps(told, indent=1)}"

    check("context")
    page.evaluate("app.preferences.set('view', 'conversation')")
    page.wait_for_selector("#conversation .chunk")
    page.evaluate("app.preferences.set('form', 'rendered')")
    page.locator("#conversation .remembered summary").first.click()
    check("conversation")
    page.locator("#conversation article.chunk").last.focus()
    page.keyboard.press("ArrowUp")
    expect(page.get_by_role("toolbar", name="Chunk")).to_be_visible()
    check("a chunk of the conversation with its controls")
    page.locator("#conversation .turn.assistant .text span").last.hover()
    expect(page.locator("[data-lit='word']").first).to_be_visible()
    check("a word of an answer")
    page.evaluate(
        "() => { app.views.light.clear(); app.preferences.set('form', 'raw'); app.preferences.set('view', 'context'); }"
    )
    page.wait_for_selector("#context .chunk")
    page.locator("#context article.chunk").last.focus()
    page.keyboard.press("ArrowUp")
    expect(page.get_by_role("toolbar", name="Chunk")).to_be_visible()
    check("a chunk with its controls")
    page.locator(".gap-line").first.click()
    expect(page.locator(".sleeper").first).to_be_visible()
    check("an open gap")
    page.get_by_label("Your message").fill("my cat Mochi")
    expect(page.locator(".preview")).to_be_visible()
    page.locator(".preview summary").click()
    check("preview")
    page.get_by_role("slider", name="Ribbon").focus()
    page.keyboard.press("Home")
    expect(page.locator(".ribbon-card")).to_be_visible()
    check("ribbon")
    for name in ("Graveyard", "Memory", "Notes", "Models", "Settings", "Lab"):
        drawer = panel(page, name)
        page.wait_for_timeout(300)
        if name == "Memory":
            drawer.get_by_role("treeitem", name="Mochi").click()
            expect(drawer.locator(".json")).to_be_visible()
        if name == "Lab":
            drawer.get_by_role("button", name="Quote").click()
            drawer.get_by_role("button", name="Compare").click()
            expect(drawer.locator(".outcomes")).to_be_visible()
        check(name)
    page.keyboard.press("Control+k")
    page.get_by_label("Search the whole memory").fill("Mochi")
    expect(page.locator(".hit").first).to_be_visible()
    check("search")
    page.keyboard.press("Escape")
    page.evaluate("key => app.explain(key)", keys(page)[0])
    expect(page.get_by_role("dialog", name="Why?")).to_be_visible()
    check("why")
    page.keyboard.press("Escape")
    page.locator("#header").get_by_role("button", name="Keys").click()
    check("keys")


@pytest.mark.parametrize("theme", ["dark", "light"])
def test_every_step_of_the_scale_meets_wcag_aa(house, show, theme):
    window = house.window(max_context_tokens=0)
    house.say(window, "The keeper rang the bell.", "He rang it.")
    page = show(window, color_scheme=theme)
    worst = page.evaluate(
        """() => {
          const shade = (text) => { const [r, g, b, a = 1] = text.match(/[\\d.]+/g).map(Number); return text.startsWith('color(') ? [r * 255, g * 255, b * 255, a] : [r, g, b, a]; };
          const over = (top, under) => top.slice(0, 3).map((value, i) => value * top[3] + under[i] * (1 - top[3]));
          const light = (rgb) => rgb.map((v) => v / 255).map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)).reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
          const ratio = (a, b) => { const [x, y] = [light(a), light(b)].sort((p, q) => q - p); return (x + 0.05) / (y + 0.05); };
          const found = [];
          for (const article of document.querySelectorAll('.chunk')) {
            const grounds = ['--ground', '--surface'].map((name) => { const probe = document.createElement('i'); probe.style.color = `var(${name})`; document.body.append(probe); const value = shade(getComputedStyle(probe).color); probe.remove(); return value.slice(0, 3); });
            const span = article.querySelector('.text span');
            for (const ground of grounds) {
              for (let step = 0; step <= 31; step++) { article.style.setProperty('--heat', step / 31); span.className = ''; found.push([ratio(shade(getComputedStyle(span).color).slice(0, 3), ground), 'heat ' + step]); }
              for (let step = 1; step <= 8; step++) { span.className = 'hot' + step; const style = getComputedStyle(span); found.push([ratio(shade(style.color).slice(0, 3), over(shade(style.backgroundColor), ground)), 'hot ' + step]); }
              span.className = 'tool'; found.push([ratio(shade(getComputedStyle(span).color).slice(0, 3), over(shade(getComputedStyle(span).backgroundColor), ground)), 'tool']);
            }
          }
          return found.sort((a, b) => a[0] - b[0])[0];
        }"""
    )
    assert worst[0] >= 4.5, worst


def test_the_original_colours_are_there_for_those_who_want_them(house, show):
    window = house.window(max_context_tokens=0)
    house.say(window, "The keeper rang the bell.", "He rang it.")
    page = show(window)
    panel(page, "Settings").get_by_label("Light", exact=True).select_option("original")
    frame(page)
    colours = page.evaluate(
        "() => { const one = document.querySelector('#context .chunk'), plain = one.querySelector('.text span:not([class*=hot])');"
        " return [0, 0.5, 1].map((heat) => { one.style.setProperty('--heat', heat); return getComputedStyle(plain).color.match(/[\\d.]+/g).map((value) => Math.round(value * 255)); }); }"
    )
    assert colours == [[100, 90, 40], [200, 180, 80], [255, 220, 100]]
    # Tokens in the top fifth of the range, and no others, have a ground.
    hot, above = page.evaluate(
        """() => {
          const { low, high } = app.store.live, view = [...app.views.context.chunks.values()][0];
          const at = view.chunk.pieces.map((_, i) => i);
          return [at.filter((i) => view.partsAt(i)[0].step > 0), at.filter((i) => view.chunk.brightness[i] > low + 0.8 * (high - low))];
        }"""
    )
    assert hot
    assert hot == above


def test_everything_of_a_chunk_can_be_done_with_the_keyboard(house, show):
    window = house.window(min_chunk_tokens=4, max_context_tokens=0)
    house.say(
        window, "Tell me.", "First paragraph of the tale.\n\nSecond paragraph of it.\n\nThird and last."
    )
    page = show(window)
    every = keys(page)
    chunk(page, every[-1]).focus()
    page.keyboard.press("ArrowUp")
    expect(chunk(page, every[-2])).to_be_focused()
    page.keyboard.press("Home")
    expect(chunk(page, every[0])).to_be_focused()
    page.keyboard.press("j")
    page.keyboard.press("p")
    expect(chunk(page, every[1]).locator(".pin-badge")).to_be_visible()
    expect(chunk(page, every[1])).to_be_focused()
    page.keyboard.press("w")
    expect(page.get_by_role("dialog", name="Why?")).to_be_visible()
    page.keyboard.press("Escape")
    expect(chunk(page, every[1])).to_be_focused()
    page.keyboard.press("Tab")
    expect(page.get_by_role("toolbar", name="Chunk").get_by_role("button", name="Unpin")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator(".pin-badge")).to_have_count(0)
    chunk(page, every[-1]).focus()
    page.keyboard.press("m")
    expect(chunk(page, every[-1])).to_have_count(0)
    chunk(page, every[-2]).focus()
    page.keyboard.press("s")
    expect(chunk(page, every[-2])).to_have_count(0)
    chunk(page, every[1]).focus()
    page.keyboard.press("Delete")
    expect(page.get_by_role("dialog")).to_contain_text("Deletes")
    page.keyboard.press("Escape")


def test_a_closed_dialog_does_not_fetch_the_focus_back(house, show):
    window = house.window()
    house.say(window, "Tell me.", "A tale.")
    page = show(window)
    last = chunk(page, keys(page)[-1])
    last.focus()
    page.keyboard.press("w")
    expect(page.get_by_role("dialog", name="Why?")).to_be_visible()
    # The next key may come before the browser says that the dialog is closed.
    page.evaluate(
        """() => new Promise((after) => {
          const dialog = document.querySelector("dialog");
          dialog.addEventListener("close", after);
          dialog.close();
          document.querySelector("#composer textarea").focus();
        })"""
    )
    expect(page.get_by_label("Your message")).to_be_focused()


def test_the_keys_are_named_and_work_everywhere_once_they_are_switched_on(house, show):
    page = show(house.window())
    dialog = page.get_by_role("dialog", name="Keys")
    page.locator("#header").get_by_role("button", name="Keys").click()
    for key in ("Enter", "Shift Enter", "Esc", "Ctrl K", "single keys on in the settings"):
        expect(dialog).to_contain_text(key)
    page.keyboard.press("Escape")
    panel(page, "Settings").get_by_label("Single-letter keys").select_option("single")
    page.locator("#context").focus()
    page.keyboard.press("?")
    expect(dialog).to_be_visible()
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    page.locator("#context").focus()
    page.keyboard.press("g")
    expect(page.locator("#drawer")).to_contain_text("Graveyard")
    page.locator("#context").focus()
    page.keyboard.press("/")
    expect(page.get_by_label("Your message")).to_be_focused()
    page.keyboard.type("?")
    expect(page.get_by_label("Your message")).to_have_value("?")


def test_a_reply_is_read_out_once_and_whole(house, show):
    window = house.window()
    page = show(window)
    house.replies.append("The lamp is lit.")
    say(page, "Is the lamp lit?")
    expect(page.locator("#spoken")).to_have_text("The lamp is lit.")
    expect(page.locator("#spoken")).to_have_attribute("aria-live", "polite")


@pytest.mark.parametrize("width", [390, 768, 1024])
def test_nothing_sticks_out_at_small_widths(house, show, width):
    window = told(house)
    page = show(window, viewport={"width": width, "height": 800})
    wide = "() => [document.documentElement.scrollWidth, innerWidth, document.querySelector('#context').scrollWidth - document.querySelector('#context').clientWidth]"
    for name in ("", "Graveyard", "Memory", "Notes", "Models", "Settings", "Lab"):
        if name:
            panel(page, name)
            page.wait_for_timeout(200)
        scroll, inner, over = page.evaluate(wide)
        assert scroll <= inner, name
        assert over <= 0, name
        if name:
            page.get_by_role("button", name="Close the panel").click()


def test_a_phone_can_talk_switch_windows_and_wake(house, show):
    other = house.window("Other")
    window = told(house)
    page = show(window, viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    house.replies.append("Yes.")
    say(page, "Does it work on a phone?")
    expect(page.locator("#rail")).not_to_be_in_viewport()
    page.get_by_role("button", name="Windows", exact=True).tap()
    expect(page.locator("#rail")).to_be_in_viewport()
    page.locator("#rail").get_by_role("button", name="Other").first.tap()
    expect(page.locator(".window-title")).to_have_text("Other")
    expect(page.locator("#rail")).not_to_be_in_viewport()
    page.goto(f"{house.address}/#/w/{window}")
    expect(page.locator(".window-title")).to_have_text("Lighthouse")
    page.wait_for_selector(".chunk")
    chunk(page, keys(page)[-1]).tap()
    expect(page.get_by_role("toolbar", name="Chunk")).to_be_visible()
    house.ask("PATCH", f"/windows/{window}", json={"settings": {"max_context_tokens": 600}})
    panel(page, "Graveyard").get_by_role("button", name="Wake up here, pinned").first.tap()
    expect(page.locator(".toast")).to_contain_text("Awake")
    assert other


@pytest.mark.parametrize("theme", ["dark", "light"])
def test_axe_finds_nothing_serious_on_the_desk(house, tabs, axe, theme):
    window = house.window("Harbour", min_chunk_tokens=8)
    archived = house.window("Old")
    house.ask("PATCH", f"/windows/{window}", json={"tags": ["sea", "work"], "pinned": True})
    house.ask("PATCH", f"/windows/{archived}", json={"archived": True})
    house.ask("PUT", "/presets", json={"name": "Calm", "settings": {"temperature": 0.2}})
    house.ask("PATCH", f"/windows/{window}", json={"ai_name": "Ada"})
    profile = tabs.profile(color_scheme=theme, bypass_csp=True, reduced_motion="reduce", view="conversation")
    page = tabs.open(f"{house.address}/#/w/{window}", profile=profile)
    page.wait_for_selector("#rail .tag")
    page.add_script_tag(path=axe)

    def check(where: str) -> None:
        frame(page)
        found = page.evaluate("() => axe.run(document, {resultTypes: ['violations']})")
        serious = [one for one in found["violations"] if one["impact"] in ("serious", "critical")]
        told = [(one["id"], [node["html"][:200] for node in one["nodes"][:3]]) for one in serious]
        assert not serious, f"{where}: {json.dumps(told, indent=1)}"

    attach(page, file("log.txt", LOG * 5))
    check("an attached file")
    say(page, "When was the lamp lit?")
    page.locator("section.turn.document").hover()
    check("a document")
    row = page.locator("#rail li", has_text="Harbour")
    row.hover()
    row.get_by_role("button", name="More about Harbour").click()
    check("a window's sheet")
    page.get_by_role("dialog").get_by_role("button", name="Export or copy…").click()
    check("export")
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Begin with a card or a preset").click()
    expect(page.get_by_role("button", name="Begin with Calm")).to_be_visible()
    check("new window")
    page.keyboard.press("Escape")
    drawer = panel(page, "Settings")
    expect(drawer.get_by_role("button", name="Apply Calm")).to_be_visible()
    check("settings of a window")
    drawer.get_by_role("radio", name="All windows").check(force=True)
    check("settings of all windows")


def test_on_a_phone_what_is_touched_is_large_enough(house, tabs):
    window = house.window("Harbour")
    house.ask("PATCH", f"/windows/{window}", json={"tags": ["sea"]})
    house.ask("PUT", "/presets", json={"name": "Calm", "settings": {"temperature": 0.2}})
    profile = tabs.profile(
        viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True, view="conversation"
    )
    page = tabs.open(f"{house.address}/#/w/{window}", profile=profile)
    page.wait_for_selector("#rail .tag", state="attached")

    def small(within: str) -> list[str]:
        frame(page)
        return page.evaluate(
            """(within) => [...document.querySelectorAll(`${within} :is(button, select, input:not(.sr), summary)`)]
              .filter((one) => one.checkVisibility())
              .map((one) => [one.getAttribute("aria-label") || one.textContent, one.getBoundingClientRect()])
              .filter(([, box]) => box.width > 0 && (box.width < 43.9 || box.height < 43.9))
              .map(([name, box]) => `${name} ${Math.round(box.width)}x${Math.round(box.height)}`)""",
            within,
        )

    attach(page, file("log.txt", LOG))
    assert small("#composer") == []
    say(page, "When?")
    page.locator("section.turn.document .turn-name").tap()
    assert small("section.turn.document") == []
    page.get_by_role("button", name="Windows", exact=True).tap()
    expect(page.locator("#rail .tag")).to_be_visible()
    assert small("#rail .rail-new, #rail .tags, #rail .windows") == []
    page.get_by_role("button", name="More about Harbour").tap()
    assert small("dialog") == []
    page.get_by_role("button", name="Export or copy…").tap()
    assert small("dialog") == []
    page.keyboard.press("Escape")
    assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")
