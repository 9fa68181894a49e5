"""Engines on other machines, on the page: added, chosen for a window, and where its words go."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.engines.faulty import KEY, WORDS, faulty_server
from tests.web.house import House
from tests.web.talk import say, shown

pytestmark = pytest.mark.browser


@pytest.fixture
def cellar(tmp_path):
    house = House(tmp_path / "cellar").start()
    yield house
    house.stop()


def engines(page):
    page.locator("#rail").get_by_role("button", name="scripted").click()
    return page.locator("#drawer .engines")


def test_a_window_is_answered_by_another_machine_and_says_so(house, cellar, tabs):
    window = house.window(timestamps=False, max_new_tokens=60)
    page = tabs.open(f"{house.address}/#/w/{window}")
    part = engines(page)
    expect(part).to_contain_text("text stays on this machine")
    part.get_by_label("Name").fill("cellar")
    part.get_by_label("Kind").select_option("kobold")
    part.get_by_label("Address").fill(cellar.address)
    part.get_by_role("button", name="Add").click()
    part.get_by_role("button", name="Use in this window: cellar").click()
    expect(part.locator("[data-name=cellar]")).to_contain_text("answers here")
    cellar.replies.append("Here is the cellar.")
    say(page, "Who is there?")
    assert shown(page).endswith("Here is the cellar.")
    part.get_by_role("button", name="Use in this window: The model of all windows").click()
    house.replies.append("Here is the house.")
    say(page, "And now?")
    assert shown(page).endswith("Here is the house.")


def test_words_that_would_leave_this_machine_are_announced_above_the_conversation(house, tabs):
    window = house.window()
    page = tabs.open(f"{house.address}/#/w/{window}")
    badge = page.locator(".where-badge")
    expect(badge).to_be_hidden()
    part = engines(page)
    part.get_by_label("Name").fill("hosted")
    part.get_by_label("Address").fill("https://far.example/v1")
    part.get_by_label("Key").fill("s3cret")
    part.get_by_role("button", name="Add").click()
    expect(part.locator("[data-name=hosted]")).to_contain_text("with a key")
    assert "s3cret" not in page.content()
    part.get_by_role("button", name="Use in this window: hosted").click()
    expect(part).to_contain_text("text is sent to far.example")
    expect(part).to_contain_text("only what was said in this window")
    expect(badge).to_have_text("→ far.example")


def test_a_window_goes_there_and_back_with_its_memory_and_says_where_its_words_go(house, cellar, tabs):
    window = house.window(timestamps=False, max_new_tokens=60)
    page = tabs.open(f"{house.address}/#/w/{window}")
    part = engines(page)
    say(page, "My parrot is called Kiwi.")
    part.get_by_label("Name").fill("cellar")
    part.get_by_label("Kind").select_option("kobold")
    part.get_by_label("Address").fill(cellar.address)
    part.get_by_role("button", name="Add").click()
    part.get_by_role("button", name="Use in this window: cellar").click()
    expect(part.locator(".engine-where")).to_contain_text("cellar answers here; text stays on this machine")
    read = heard(cellar)
    say(page, "What about the parrot?")
    assert "My parrot is called Kiwi." in read[-1]
    part.get_by_role("button", name="Use in this window: The model of all windows").click()
    expect(part.locator(".engine-where")).to_contain_text("The model of all windows answers here")
    here = heard(house)
    say(page, "And now?")
    assert "My parrot is called Kiwi." in here[-1]
    assert "What about the parrot?" in here[-1]
    assert len(read) == 1


def heard(house):
    """What the model of a house reads, from now on."""
    read, before = [], house.engine.generate

    def generate(window, prompt, *rest, **how):
        read.append("".join(house.engine.pieces(segment.ids).text for segment in prompt.segments))
        return before(window, prompt, *rest, **how)

    house.engine.generate = generate
    return read


def test_the_rules_of_what_leaves_are_chosen_where_it_is_said_where_words_go(house, tabs):
    window = house.window()
    page = tabs.open(f"{house.address}/#/w/{window}")
    part, badge = engines(page), page.locator(".where-badge")
    where = part.locator(".engine-where")
    expect(where).to_contain_text("It may read everything it remembers.")
    part.get_by_label("Name").fill("hosted")
    part.get_by_label("Address").fill("https://far.example/v1")
    part.get_by_label("Shadow model").fill("off")
    part.get_by_role("button", name="Add").click()
    expect(part.locator("[data-name=hosted]")).to_contain_text("shadow model off")
    part.get_by_role("button", name="Use in this window: hosted").click()
    expect(where).to_contain_text("It may read only what was said in this window.")
    for rule, words in (
        ("not_private", "everything but what was said in private windows"),
        ("all", "everything it remembers"),
        ("window", "only what was said in this window"),
        ("", "only what was said in this window"),
    ):
        part.get_by_label("What it may read").select_option(rule)
        expect(where).to_contain_text(f"It may read {words}.")
        assert house.ask("GET", f"/windows/{window}")["effective"]["remote_scope"] == (rule or None)
    part.get_by_label("Private").check()
    expect(where).to_contain_text("nothing is sent to far.example")
    expect(badge).to_have_text("private")
    box = page.get_by_label("Your message")
    box.fill("Nobody may know.")
    box.press("Enter")
    expect(page.locator(".toast", has_text="is private")).to_be_visible()
    expect(box).to_have_value("Nobody may know.")
    part.get_by_label("Private").uncheck()
    expect(badge).to_have_text("→ far.example")
    part.locator("[data-name=hosted]").get_by_role("button", name="Change").click()
    expect(part.get_by_label("Shadow model")).to_have_value("off")
    part.get_by_label("Address").fill("https://further.example/v1")
    part.get_by_role("button", name="Add").click()
    expect(badge).to_have_text("→ further.example")
    part.locator("[data-name=hosted]").get_by_role("button", name="Remove").click()
    expect(where).to_contain_text("There is no engine named hosted any more.")
    expect(badge).to_have_text("no hosted")


def test_only_what_a_kind_of_engine_needs_is_asked_for(house, tabs):
    page = tabs.open(f"{house.address}/#/w/{house.window()}")
    part = engines(page)
    for kind, shown_fields in (
        ("openai", {"Address", "Model on the server", "Key", "Shadow model"}),
        ("kobold", {"Address", "Key"}),
        ("llama", {"Model on the server"}),
    ):
        part.get_by_label("Kind").select_option(kind)
        for name in ("Address", "Model on the server", "Key", "Shadow model"):
            field = part.get_by_label(name, exact=True)
            expect(field).to_be_visible() if name in shown_fields else expect(field).to_be_hidden()


def test_a_server_that_fails_is_told_on_the_page_and_the_next_turn_works(house, tabs):
    with faulty_server() as server:
        house.ask(
            "PUT",
            "/engines/shaky",
            json={"kind": "openai", "url": server.url, "key": KEY, "shadow_model": "off"},
        )
        window = house.window(timestamps=False, engine_name="shaky")
        page = tabs.open(f"{house.address}/#/w/{window}")
        server.fault = "dies"
        say(page, "What does the cat do?", wait=False)
        expect(page.get_by_text("was lost during the reply").first).to_be_visible()
        expect(page.locator(".chunk .text").last).to_have_text("The cat")
        server.fault = ""
        say(page, "And then?")
        assert shown(page).endswith("And then?" + "".join(WORDS))
        assert KEY not in page.content()


def test_another_tab_tells_the_new_address_when_an_engine_changes(house, tabs):
    window = house.window()
    far = {"kind": "openai", "model_name": "large"}
    house.ask("PUT", "/engines/hosted", json={**far, "url": "https://far.example/v1"})
    house.ask("PATCH", f"/windows/{window}", json={"settings": {"engine_name": "hosted"}})
    page = tabs.open(f"{house.address}/#/w/{window}")
    badge = page.locator(".where-badge")
    expect(badge).to_have_text("→ far.example")
    house.ask("PUT", "/engines/hosted", json={**far, "url": "https://farther.example/v1"})
    expect(badge).to_have_text("→ farther.example")
    house.ask("DELETE", "/engines/hosted")
    expect(badge).to_have_text("no hosted")
