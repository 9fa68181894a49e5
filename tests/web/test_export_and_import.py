"""Memory and windows out of and into files on the page."""

from __future__ import annotations

import json

import pytest
from playwright.sync_api import expect

from tests.fuzz import CORPUS
from tests.web.talk import chunk, keys, panel, toast

pytestmark = pytest.mark.browser


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


def test_memory_is_exported_cleared_and_imported_with_its_numbers(house, show, tmp_path):
    window = house.window()
    house.say(window, "My cat is called Mochi.", "Noted.")
    page = show(window)
    drawer = panel(page, "Settings")
    expect(drawer).to_contain_text("2 chunks,")
    with page.expect_download() as begun:
        drawer.get_by_role("button", name="Export").click()
    file = tmp_path / "memory.export"
    begun.value.save_as(file)
    assert "Mochi" in file.read_text()
    drawer.get_by_role("button", name="Clear…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("2 chunks,")
    clear = dialog.get_by_role("button", name="Clear everything")
    expect(clear).to_be_disabled()
    dialog.get_by_label("Confirm").fill("delete everything")
    clear.click()
    expect(page.locator(".empty")).to_contain_text("One endless conversation")
    assert house.ask("GET", "/status")["memory"]["chunks"] == 0
    drawer.get_by_label("File to import").set_input_files(file)
    toast(page, "Imported 2 turns, 2 chunks")
    expect(page.locator("#rail .windows")).to_contain_text("Lighthouse")
    assert house.ask("GET", "/search", params={"q": "Mochi"})["hits"]


def test_a_file_of_another_program_is_imported_with_a_report(house, show):
    page = show(house.window())
    drawer = panel(page, "Settings")
    drawer.get_by_label("File to import").set_input_files(CORPUS / "imports" / "chatgpt.json")
    toast(page, "2 windows from ChatGPT. Not taken: conversations without messages: 1")
    expect(page.locator("#rail .windows")).to_contain_text("A lighthouse")


def test_a_file_that_is_no_export_is_refused_in_words(house, show, tmp_path):
    page = show(house.window())
    drawer = panel(page, "Settings")
    wrong = tmp_path / "wrong.json"
    wrong.write_text("this is not a memory")
    drawer.get_by_label("File to import").set_input_files(wrong)
    expect(page.locator(".toast.bad")).to_be_visible()
