"""Attached files: counted, sent, removed, refused."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.web.talk import LOG, attach, file, keys, say, toast

pytestmark = pytest.mark.browser


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
