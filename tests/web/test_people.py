"""Several people on the page: keys, sharing, whose a memory is; and tags of chunks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.web.conftest import Tabs
from tests.web.house import House
from tests.web.talk import act, chunk, frame, looking_at, panel, say, toast

pytestmark = pytest.mark.browser

KEY = "the-key-of-the-owner-1"
FACT = "My cat Mochi is a Siamese."


@pytest.fixture(scope="module")
def kept_house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    house = House(tmp_path_factory.mktemp("keyed"), key=KEY)
    yield house
    house.stop()


@pytest.fixture
def house(kept_house: House, tmp_path: Path) -> Iterator[House]:
    """A server with a key, and an empty memory."""
    yield kept_house.receive(tmp_path)
    kept_house.service.close()


Enter = Callable[..., Page]


@pytest.fixture
def enter(house: House, tabs: Tabs) -> Enter:
    """The page in a profile of its own, opened with a key."""

    def enter(key: str = KEY, window: str = "", **more) -> Page:
        held = json.dumps(json.dumps({"key": key}))
        script = f"sessionStorage['halo-weave-key'] ??= {held}"
        page = tabs.open(f"{house.address}/{window and f'#/w/{window}'}", script=script, **more)
        page.wait_for_function(
            "() => window.app?.store.windowsKnown && (!app.store.current || app.store.live)"
        )
        return page

    return enter


def add(house: House, name: str) -> str:
    return str(house.ask("POST", "/people", json={"name": name})["key"])


def as_person(house: House, key: str, method: str, path: str, **more) -> httpx.Response:
    headers = {"authorization": f"Bearer {key}"}
    return httpx.request(method, f"{house.address}/api{path}", headers=headers, timeout=60, **more)


def talked(house: House, key: str, name: str = "Cats") -> str:
    """A window of someone's in which they told something."""
    window = str(as_person(house, key, "POST", "/windows", json={"name": name}).json()["id"])
    house.replies.append("A fine cat.")
    as_person(house, key, "POST", f"/windows/{window}/messages", json={"text": FACT})
    while as_person(house, key, "GET", f"/windows/{window}").json()["generating"]:
        pass
    return window


def look(page: Page) -> None:
    """What the page does by itself every few seconds."""
    page.evaluate("() => app.refresh()")


def test_the_owner_adds_people_with_a_key_that_is_shown_once_and_revokes_it(house, enter):
    page = enter()
    drawer = panel(page, "People")
    expect(drawer).to_contain_text("this server is yours")
    drawer.get_by_role("textbox", name="Name", exact=True).fill("Ann")
    drawer.get_by_role("button", name="Add", exact=True).click()
    key = page.locator(".new-key").text_content() or ""
    assert as_person(house, key, "GET", "/me").json()["name"] == "Ann"
    page.get_by_role("button", name="Close", exact=True).click()
    expect(page.locator(".new-key")).to_have_count(0)
    drawer.get_by_role("button", name="Revoke the key of Ann").click()
    page.get_by_role("button", name="Revoke", exact=True).click()
    expect(drawer).to_contain_text("has no key since")
    assert as_person(house, key, "GET", "/me").status_code == 401
    drawer.get_by_role("button", name="A new key for Ann").click()
    assert as_person(house, page.locator(".new-key").text_content() or "", "GET", "/me").status_code == 200


def test_a_window_is_shared_to_read_then_to_write_and_leaves_when_it_is_taken_back(house, enter):
    ann_key, bob_key = add(house, "Ann"), add(house, "Bob")
    window = talked(house, ann_key)
    ann = enter(ann_key, window)
    ann.locator(".windows li").hover()
    ann.get_by_role("button", name="More about Cats").click()
    ann.get_by_role("button", name="Share…").click()
    sheet = ann.locator("dialog")
    sheet.get_by_label("With whom").fill("Bob")
    sheet.get_by_role("button", name="Share", exact=True).click()
    expect(sheet.get_by_role("listitem").locator("p")).to_have_text("may read")
    ann.keyboard.press("Escape")

    bob = enter(bob_key, window)
    expect(bob.locator(".windows li")).to_contain_text("Shared with you by Ann, to read")
    expect(bob.locator("#composer")).to_contain_text("Ann shares this window with you to read.")
    expect(bob.get_by_label("Your message")).to_be_hidden()
    chunk(bob, "1.0.user").hover()
    tools = bob.get_by_role("toolbar", name="Chunk").get_by_role("button")
    assert [one.get_attribute("aria-label") for one in tools.all() if one.is_visible()] == [
        "Tags…",
        "Copy",
        "Why?",
    ]

    drawer = panel(ann, "People")
    drawer.get_by_label("What", exact=True).select_option("Cats")
    drawer.get_by_label("With whom").fill("Bob")
    drawer.get_by_label("What they may do").select_option("to read and write")
    drawer.get_by_role("button", name="Share", exact=True).click()
    expect(drawer).to_contain_text("Bob may read and write")
    look(bob)
    say(bob, "And mine is a tabby.")
    expect(ann.locator("#context")).to_contain_text("And mine is a tabby.")

    drawer.get_by_role("button", name="Take back").click()
    expect(bob.locator("#context")).not_to_contain_text("Siamese")
    expect(bob.locator(".windows")).to_contain_text("No windows yet.")


def test_someone_who_may_only_read_is_shown_nothing_that_the_server_refuses(house, enter):
    ann_key, bob_key = add(house, "Ann"), add(house, "Bob")
    window = talked(house, ann_key)
    as_person(house, ann_key, "POST", f"/windows/{window}/chunks/1.0.user/prune")
    looking_at(house, b" Mo", b"chi")
    house.replies.append("Mochi is a Siamese.")
    as_person(house, ann_key, "POST", f"/windows/{window}/messages", json={"text": "Which cat is a Siamese?"})
    while as_person(house, ann_key, "GET", f"/windows/{window}").json()["generating"]:
        pass
    as_person(house, ann_key, "POST", f"/windows/{window}/chunks/2.0.assistant/prune")
    as_person(house, ann_key, "PUT", "/shares", json={"window": window, "person": "Bob"})
    as_person(
        house, bob_key, "PUT", "/memory/entry", json={"path": "Cats/Mochi", "content": {"kind": "tabby"}}
    )
    bob = enter(bob_key, window)
    refused: list[str] = []
    bob.on("response", lambda answer: answer.status == 403 and refused.append(answer.url))

    drawer = panel(bob, "Graveyard")
    expect(drawer.locator(".grave")).to_have_count(1)
    expect(drawer.get_by_role("button", name="Wake up here, pinned")).to_have_count(0)
    drawer.locator(".row-open").click()
    expect(bob.locator("dialog").get_by_role("button", name="Why?")).to_be_visible()
    expect(bob.locator("dialog").get_by_role("button", name="Wake up here, pinned")).to_have_count(0)
    bob.keyboard.press("Escape")

    bob.locator(".remembered summary").first.click()
    expect(bob.locator(".remembered").get_by_role("button", name="Open").first).to_be_visible()
    for name in ("Pin", "Wrong memory"):
        expect(bob.locator(".remembered").get_by_role("button", name=name, exact=True)).to_have_count(0)

    chunk(bob, "3.0.user").focus()
    for key in ("p", "m", "s", "Delete", "Escape"):
        bob.keyboard.press(key)
    expect(bob.locator("dialog[open]")).to_have_count(0)

    drawer = panel(bob, "Lab")
    expect(drawer.get_by_label("Capture this window")).to_be_hidden()
    drawer = panel(bob, "Settings")
    expect(drawer.get_by_role("radio", name="This window")).to_be_disabled()
    expect(drawer.get_by_role("button", name="Export")).to_be_visible()
    for name in ("Import…", "Clear…", "Embed everything again"):
        expect(drawer.get_by_role("button", name=name)).to_have_count(0)
    drawer = panel(bob, "Models")
    expect(drawer).to_contain_text("In use")
    expect(drawer.get_by_role("button", name="Use")).to_have_count(0)
    expect(drawer.get_by_role("button", name="Add", exact=True)).to_have_count(0)
    assert not refused
    assert (
        as_person(house, bob_key, "POST", f"/windows/{window}/chunks/1.0.user/resurrect").status_code == 403
    )


def test_a_memory_of_somebody_else_tells_whose_it_is(house, enter):
    ann_key, bob_key = add(house, "Ann"), add(house, "Bob")
    window = talked(house, ann_key)
    shared = {"window": window, "person": "Bob"}
    assert as_person(house, ann_key, "PUT", "/shares", json=shared).status_code == 200
    own = as_person(house, bob_key, "POST", "/windows", json={"name": "Own"}).json()["id"]
    bob = enter(bob_key, own)
    say(bob, "Which cat is a Siamese?")
    expect(bob.locator(".origin").first).to_have_text("from “Cats, of Ann”")
    act(bob, "1.0.user", "Why?")
    expect(bob.locator("dialog")).to_contain_text("in “Cats, of Ann”")


def test_the_panel_of_people_fits_a_phone_and_axe_finds_nothing_serious(house, enter, axe):
    ann_key, _ = add(house, "Ann"), add(house, "Bob")
    talked(house, ann_key)
    as_person(house, ann_key, "PUT", "/shares", json={"window": "", "person": "owner"})
    phone = {"viewport": {"width": 390, "height": 844}, "bypass_csp": True, "reduced_motion": "reduce"}
    page = enter(**phone)
    expect(page.locator(".closed")).to_be_visible()
    page.add_script_tag(path=axe)
    for where in ("a window to read", "people"):
        if where == "people":
            expect(panel(page, "People")).to_contain_text("All windows of Ann")
        frame(page)
        assert page.evaluate("() => document.documentElement.scrollWidth") <= 390
        found = page.evaluate("() => axe.run(document, {resultTypes: ['violations']})")
        serious = [one for one in found["violations"] if one["impact"] in ("serious", "critical")]
        assert not serious, (where, json.dumps(serious)[:2000])


def test_a_chunk_is_tagged_and_found_by_its_tag(house, enter):
    window = house.window("Cats")
    house.say(window, FACT, "A fine cat.")
    page = enter(KEY, window)
    act(page, "1.0.user", "Tags…")
    page.locator("dialog").get_by_label("Tags", exact=True).fill("pets, Mochi")
    page.keyboard.press("Enter")
    toast(page, "Tagged Mochi, pets.")
    assert house.ask("GET", f"/windows/{window}/chunks/1.0.user/explanation")["tags"] == ["Mochi", "pets"]
    page.keyboard.press("Control+k")
    page.get_by_text("Narrow down").click()
    page.get_by_label("Tag", exact=True).select_option("pets")
    page.get_by_label("Search the whole memory").fill("cat")
    expect(page.locator(".hit")).to_have_count(1)
    expect(page.locator(".hit")).to_contain_text("pets")


def test_recall_is_limited_in_the_settings_of_a_window(house, enter):
    window = house.window("Cats")
    page = enter(KEY, window)
    drawer = panel(page, "Settings")
    drawer.get_by_label("Recall since", exact=True).fill("2026-05-04")
    drawer.get_by_label("Recall role", exact=True).select_option("user")
    drawer.get_by_label("Recall tags", exact=True).fill("pets")
    drawer.get_by_label("Recall tags", exact=True).blur()
    limits = {"recall_since": "2026-05-04", "recall_role": "user", "recall_tags": "pets"}
    page.wait_for_function(
        "limits => Object.entries(limits).every(([name, value]) => app.store.window.settings[name] === value)",
        arg=limits,
    )
    assert limits.items() <= house.ask("GET", f"/windows/{window}")["settings"].items()
