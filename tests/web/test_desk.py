"""The desk: attached files, presets and shared words, windows in order, exports and notices."""

from __future__ import annotations

import json
import re

import pytest
from playwright.sync_api import expect

from tests.web.talk import chunk, frame, keys, panel, say, toast

pytestmark = pytest.mark.browser

LOG = "\n\n".join(
    f"Day {day}: the keeper noted {word}, and the *boats* stayed in."
    for day, word in enumerate("thunder hail fog".split())
)


def file(name: str, text: str | bytes) -> dict[str, object]:
    data = text.encode() if isinstance(text, str) else text
    return {"name": name, "mimeType": "application/octet-stream", "buffer": data}


def attach(page, *files):
    page.get_by_label("Files to attach").set_input_files(list(files))
    page.wait_for_function("() => !document.querySelector('.attachment.reading')")


def drop(page, name: str, text: str) -> None:
    page.evaluate(
        """([name, text]) => {
          const carried = new DataTransfer();
          carried.items.add(new File([text], name));
          const fire = (kind) => document.body.dispatchEvent(
            new DragEvent(kind, { dataTransfer: carried, bubbles: true, cancelable: true }));
          fire("dragenter");
          window.dropShown = document.body.classList.contains("dropping");
          fire("dragover");
          fire("drop");
        }""",
        [name, text],
    )


# Files


def test_a_file_is_counted_before_it_is_sent_and_then_stands_before_the_message(house, show):
    window = house.window(min_chunk_tokens=8)
    page = show(window, view="conversation", form="rendered")
    attach(page, file("log.txt", LOG), file("letter.md", "# Dear Ada\n\nthe *lamp* is lit"))
    tokens = [
        house.ask("POST", "/documents", params={"name": "x"}, content=text.encode())["tokens"]
        for text in (LOG, "# Dear Ada\n\nthe *lamp* is lit")
    ]
    expect(page.locator(".attachment")).to_have_count(2)
    expect(page.locator(".attachment").first).to_contain_text(f"log.txt{tokens[0]} tokens")
    expect(page.locator(".attachments-total")).to_contain_text(f"2 files, {sum(tokens)} tokens will be read")
    house.replies.append("At six.")
    say(page, "When was the lamp lit?")
    expect(page.locator(".attachment")).to_have_count(0)
    turns = page.locator("#conversation section.turn")
    expect(turns).to_have_count(4)
    expect(turns.nth(0).locator(".speaker")).to_have_text("log.txt")
    expect(turns.nth(0).locator(".text").last).to_contain_text("the *boats* stayed in")
    expect(turns.nth(1).locator(".text em")).to_have_text("lamp")
    page.evaluate("app.preferences.set('view', 'context')")
    expect(page.locator("#context section.turn.document .speaker")).to_have_text(["log.txt", "letter.md"])
    page.reload()
    expect(page.locator("#context section.turn.document")).to_have_count(2)
    page.evaluate("key => app.explain(key)", keys(page)[0])
    expect(page.get_by_role("dialog", name="Why?")).to_contain_text("log.txt")


def test_a_file_dropped_anywhere_is_attached_and_can_be_removed(house, show):
    page = show(house.window())
    drop(page, "log.txt", LOG)
    assert page.evaluate("() => window.dropShown") is True
    expect(page.locator(".attachment")).to_contain_text("log.txt")
    assert page.evaluate("() => document.body.classList.contains('dropping')") is False
    page.get_by_role("button", name="Remove log.txt").click()
    expect(page.locator(".attachment")).to_have_count(0)
    expect(page.locator(".attachments-total")).to_be_hidden()
    expect(page.get_by_label("Your message")).to_be_focused()


def test_a_file_that_cannot_be_read_says_why_and_is_not_attached(house, show):
    page = show(house.window())
    attach(page, file("photo.png", bytes(range(256)) * 20))
    expect(toast(page, "photo.png is not a text, a PDF or a DOCX")).to_be_visible()
    expect(page.locator(".attachment")).to_have_count(0)


def test_the_name_of_a_file_stays_text(house, show):
    window = house.window()
    page = show(window, view="conversation", form="rendered")
    attach(page, file("<img src=x onerror=alert(1)>.md", "<b>bold</b> and [x](javascript:alert(1))"))
    say(page, "Read it.")
    expect(page.locator("section.turn.document .speaker")).to_have_text("<img src=x onerror=alert(1)>.md")
    assert page.locator("section.turn.document :is(img, b, a[href^=javascript])").count() == 0


def test_files_belong_to_their_window_and_come_back_when_they_were_not_sent(house, show):
    one, other = house.window("One", document_tokens=100), house.window("Other")
    page = show(one)
    attach(page, file("log.txt", LOG))
    page.evaluate("id => app.open(id)", other)
    expect(page.locator(".attachment")).to_have_count(0)
    page.evaluate("id => app.open(id)", one)
    expect(page.locator(".attachment")).to_have_count(1)
    house.ask(
        "PATCH", f"/windows/{one}", json={"settings": {"document_megabytes": 1, "document_tokens": 100}}
    )
    house.ask("PATCH", f"/windows/{one}", json={"system_prompt": "word " * 8_000})
    box = page.get_by_label("Your message")
    box.fill("Read this.")
    box.press("Enter")
    expect(toast(page, "There is no room")).to_be_visible()
    expect(box).to_have_value("Read this.")
    expect(page.locator(".attachment")).to_contain_text("log.txt")


def test_what_a_document_is_too_long_for_is_said_before(house, show):
    page = show(house.window(max_context_tokens=100))
    attach(page, file("log.txt", LOG * 3))
    expect(page.locator(".attachments-total")).to_contain_text("falls asleep right after it")
    attach(page, file("long.txt", "word " * 9_000))
    expect(page.locator(".attachments-total")).to_contain_text("more than the model has room for")


def test_a_document_can_be_copied_but_not_edited_or_answered(house, show):
    window = house.window()
    page = show(window, view="conversation")
    attach(page, file("log.txt", LOG))
    say(page, "Keep it.")
    turn = page.locator("section.turn.document")
    turn.hover()
    bar = turn.get_by_role("toolbar", name="Turn")
    expect(bar.get_by_role("button", name="Copy this turn")).to_be_visible()
    expect(bar.get_by_role("button", name="Edit")).to_be_hidden()
    expect(bar.get_by_role("button", name="Answer this")).to_be_hidden()


# Windows


def test_windows_are_pinned_tagged_filtered_and_archived(house, show):
    ids = {name: house.window(name) for name in ("Garden", "Thesis", "Letters")}
    page = show(ids["Letters"])
    rail = page.locator("#rail")

    def more(name: str, act: str) -> None:
        row = rail.locator("li", has_text=name)
        row.hover()
        row.get_by_role("button", name=f"More about {name}").click()
        page.get_by_role("dialog").get_by_role("button", name=act).click()

    more("Garden", "Pin to the top")
    expect(rail.locator("li .name-text").first).to_have_text("Garden")
    more("Thesis", "Tags…")
    page.get_by_role("textbox", name="Tags").fill("work, sea , work")
    page.get_by_role("dialog").get_by_role("button", name="Save").click()
    expect(rail.locator(".window-tag")).to_have_text(["work", "sea"])
    rail.get_by_role("button", name="work", exact=True).click()
    expect(rail.locator("li .name-text")).to_have_text(["Thesis"])
    rail.get_by_role("button", name="work", exact=True).click()
    more("Letters", "Archive")
    expect(toast(page, "Archived “Letters”")).to_be_visible()
    expect(rail.locator("li .name-text")).to_have_text(["Garden", "Thesis"])
    assert page.evaluate("() => app.store.current") == ids["Letters"]
    rail.get_by_role("button", name="Archived (1)").click()
    expect(rail.locator("li .name-text")).to_have_text(["Letters"])
    page.reload()
    expect(rail.locator("li .name-text")).to_have_text(["Letters"])
    more("Letters", "Back from the archive")
    expect(rail.locator("li .name-text")).to_have_text(["Garden", "Letters", "Thesis"])
    told = house.ask("GET", f"/windows/{ids['Thesis']}")
    assert told["tags"] == ["work", "sea"]


def test_a_hidden_tab_tells_in_its_title_that_the_reply_is_done(house, show):
    window = house.window("Harbour")
    page = show(window)
    page.evaluate("() => Object.defineProperty(document, 'hidden', { value: true, configurable: true })")
    say(page, "Hello there.")
    expect(page).to_have_title(re.compile("^● Harbour"))
    page.evaluate(
        """() => {
          Object.defineProperty(document, 'hidden', { value: false, configurable: true });
          document.dispatchEvent(new Event('visibilitychange'));
        }"""
    )
    expect(page).to_have_title("Harbour · Halo Weave")


def test_a_notification_is_shown_once_it_was_allowed(house, tabs):
    window = house.window("Harbour")
    profile = tabs.profile(permissions=["notifications"])
    profile.add_init_script(
        """window.told = [];
        window.Notification = class { constructor(title, more) { told.push([title, more.body]); }
          static permission = "granted"; static async requestPermission() { return "granted"; } };"""
    )
    page = tabs.open(f"{house.address}/#/w/{window}", profile=profile)
    page.wait_for_selector("#dock button")
    drawer = panel(page, "Settings")
    drawer.get_by_label("When a reply is done and this tab is hidden").select_option("on")
    house.replies.append("At six.")
    say(page, "When was it lit?")
    assert page.evaluate("() => told") == []
    page.evaluate("() => Object.defineProperty(document, 'hidden', { value: true, configurable: true })")
    house.replies.append("At seven.")
    say(page, "And today?")
    page.wait_for_function("() => told.length === 1")
    assert page.evaluate("() => told") == [["Harbour", "At seven."]]


# Words and presets


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


# Out of the program


def test_a_window_is_exported_in_three_forms_and_copied(house, tabs):
    window = house.window("Harbour")
    house.say(window, "When was it lit?", "At six.")
    profile = tabs.profile(permissions=["clipboard-read", "clipboard-write"])
    page = tabs.open(f"{house.address}/#/w/{window}", profile=profile)
    page.wait_for_selector(".chunk")

    def sheet():
        row = page.locator("#rail li", has_text="Harbour")
        row.hover()
        row.get_by_role("button", name="More about Harbour").click()
        page.get_by_role("dialog").get_by_role("button", name="Export or copy…").click()
        return page.get_by_role("dialog", name="Export “Harbour”")

    saved = {}
    for name in ("Markdown", "ChatGPT's shape", "Halo Weave's own"):
        with page.expect_download() as download:
            sheet().get_by_role("button", name=f"Save as {name}").click()
        saved[name] = (download.value.suggested_filename, download.value.path().read_text())
    assert saved["Markdown"][0].endswith(".md")
    assert "# Harbour" in saved["Markdown"][1]
    assert "At six." in saved["Markdown"][1]
    assert json.loads(saved["ChatGPT's shape"][1])[0]["title"] == "Harbour"
    assert json.loads(saved["Halo Weave's own"][1])["format"] == "halo-weave memory"
    sheet().get_by_role("button", name="Copy as Markdown").click()
    expect(toast(page, "Copied.")).to_be_visible()
    assert page.evaluate("() => navigator.clipboard.readText()") == saved["Markdown"][1]
    one = keys(page)[-1]
    chunk(page, one).hover()
    page.get_by_role("button", name="Copy this turn").click()
    page.wait_for_function("async () => (await navigator.clipboard.readText()) === 'At six.'")


# For everyone


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
