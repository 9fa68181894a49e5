"""Lost connections, a server that ends or is locked, and a page that waits for the model."""

from __future__ import annotations

import threading
import time

import pytest
from playwright.sync_api import expect

from halo_weave.errors import ModelNotFound
from tests.web.house import Cable, House
from tests.web.talk import panel, say, settled, shown, toast

pytestmark = pytest.mark.browser


@pytest.fixture
def cable(house):
    house.stop()
    cable = Cable(0)
    house.also = [f"127.0.0.1:{cable.port}"]
    house.start()
    cable.target = house.port
    yield cable
    cable.close()


def test_a_lost_connection_shows_and_resumes_without_losing_or_doubling_text(house, tabs, cable):
    window = house.window()
    page = tabs.open(f"http://127.0.0.1:{cable.port}/#/w/{window}")
    page.wait_for_function("() => window.app?.store.live && app.store.connection.state === 'online'")
    house.pace = 0.02
    house.replies.append("".join(f"number {i}, " for i in range(80)))
    say(page, "Count to eighty.", wait=False)
    expect(page.locator(".chunk.draft .text")).to_contain_text("number 3,")
    house.held.set()
    cable.cut()
    expect(page.locator(".banner")).to_contain_text("connection to the server is lost")
    expect(page.locator(".status")).to_contain_text("Connection lost")
    house.held.clear()
    time.sleep(0.2)  # some of the reply is written while nobody can hear it
    cable.mend()
    page.evaluate(
        "() => [...document.querySelectorAll('button')].find((one) => one.textContent === 'Try now')?.click()"
    )
    expect(page.locator(".banner")).to_be_hidden()
    house.pace = 0.0
    settled(page)
    assert shown(page) == house.text(window)
    assert shown(page).count("number 41,") == 1


def test_a_reply_that_ended_while_the_line_was_cut_is_there_afterwards(house, tabs, cable):
    window = house.window()
    page = tabs.open(f"http://127.0.0.1:{cable.port}/#/w/{window}")
    page.wait_for_function("() => window.app?.store.live && app.store.connection.state === 'online'")
    house.held.set()
    house.replies.append("All of it, in the dark.")
    say(page, "Speak.", wait=False)
    expect(page.locator(".turn.user")).to_contain_text("Speak.")
    cable.cut()
    expect(page.locator(".banner")).to_be_visible()
    house.held.clear()
    house.until_quiet(window)
    cable.mend()
    expect(page.locator(".turn.assistant")).to_contain_text("All of it, in the dark.")
    settled(page)
    assert shown(page) == house.text(window)


def test_a_server_restarted_in_the_middle_of_a_reply_shows_what_was_stored(house, show):
    window = house.window()
    page = show(window)
    house.pace = 0.02
    house.replies.append("tick tock " * 300)
    say(page, "Go.", wait=False)
    expect(page.locator(".chunk.draft .text")).to_contain_text("tick tock tick")
    house.stop()
    expect(page.locator(".banner")).to_be_visible()
    house.pace = 0.0
    house.start()
    expect(page.locator(".banner")).to_be_hidden(timeout=60_000)
    page.wait_for_function("() => !app.store.busy && !app.store.live.draft")
    stored = house.text(window)
    assert "tick tock" in stored
    page.wait_for_function(
        "text => app.store.live.chunks.map((one) => one.pieces.join('')).join('') === text", arg=stored
    )
    assert shown(page) == stored
    house.replies.clear()
    house.replies.append("Here again.")
    say(page, "Are you back?")
    assert "Here again." in shown(page)
    assert shown(page) == house.text(window)


def test_without_windows_the_page_offers_to_open_one(house, show):
    page = show()
    expect(page.locator(".empty")).to_contain_text("One endless conversation")
    page.locator(".empty").get_by_role("button", name="New window").click()
    expect(page.locator(".empty")).to_contain_text("Everything you say is kept")
    assert len(house.ask("GET", "/windows")["windows"]) == 1


def test_speaking_without_a_window_opens_one(house, show):
    page = show()
    expect(page.locator(".empty")).to_be_visible()
    say(page, "Hello there.")
    assert "Hello there." in shown(page)
    assert len(house.ask("GET", "/windows")["windows"]) == 1


def test_a_missing_model_is_said_with_what_to_do(tmp_path, tabs):
    def missing(progress):
        raise ModelNotFound("There is no model at /nowhere.gguf. Try: halo-weave pull")

    house = House(tmp_path, assemble=missing).start()
    try:
        page = tabs.open(house.address)
        expect(page.locator(".empty")).to_contain_text("There is no model yet")
        expect(page.locator(".empty")).to_contain_text("halo-weave pull")
        expect(page.get_by_role("button", name="Send")).to_be_disabled()
        house.service._assemble = house.scripted
        page.get_by_role("button", name="Try again").click()
        expect(page.locator(".empty")).to_contain_text("One endless conversation")
    finally:
        house.stop()


def test_a_model_that_is_being_loaded_is_waited_for(tmp_path, tabs):
    ready = threading.Event()
    house = House(tmp_path)

    def slow(progress):
        progress("Downloading the model", 30, 100)
        ready.wait(30)
        return house.scripted(progress)

    house.assemble = slow
    house.start(wait=False)
    try:
        page = tabs.open(house.address)
        expect(page.locator(".empty")).to_contain_text("The model is being loaded")
        expect(page.locator(".empty")).to_contain_text("30 %")
        ready.set()
        expect(page.locator(".empty")).to_contain_text("One endless conversation")
    finally:
        ready.set()
        house.stop()


def test_a_page_that_finds_no_server_waits_for_it(house, tabs):
    page = tabs.open(house.address)
    expect(page.locator(".empty")).to_be_visible()
    page.route("**/api/**", lambda route: route.abort())
    page.reload()
    expect(page.locator(".empty")).to_contain_text("The server cannot be reached")
    page.unroute("**/api/**")
    expect(page.locator(".empty")).to_contain_text("One endless conversation")


def test_a_locked_server_asks_for_its_key_once(tmp_path, tabs):
    house = House(tmp_path, key="a-key-of-the-house-1").start()
    try:
        window = house.window()
        page = tabs.open(f"{house.address}/#/w/{window}")
        dialog = page.get_by_role("dialog", name="This server is locked")
        dialog.get_by_label("Key").fill("not-the-right-key-at-all")
        dialog.get_by_role("button", name="Unlock").click()
        expect(dialog.get_by_label("Key")).to_have_value("")
        dialog.get_by_label("Key").fill("a-key-of-the-house-1")
        dialog.get_by_role("button", name="Unlock").click()
        expect(dialog).to_have_count(0)
        page.wait_for_function("() => app.store.connection.state === 'online' && app.store.live")
        say(page, "Let me in.")
        assert shown(page) == house.text(window)
        page.reload()
        expect(page.locator("#context .turns")).to_contain_text("Let me in.")
    finally:
        house.stop()


def test_a_window_deleted_elsewhere_is_left(house, show):
    window, other = house.window("Going"), house.window("Staying")
    page = show(window)
    house.ask("DELETE", f"/windows/{window}")
    expect(page.locator(".window-title")).to_have_text("Staying")
    expect(page).to_have_url(f"{house.address}/#/w/{other}")


@pytest.fixture
def loading(tmp_path):
    """A house with a window, whose model is loaded when the test says so."""
    ready = threading.Event()
    house = House(tmp_path).start()
    window = house.window("Talk", timestamps=False)
    house.stop()

    def slow(progress):
        progress("Downloading the model", 30, 100)
        ready.wait(60)
        return house.scripted(progress)

    house.assemble = slow
    house.start(wait=False)
    yield house, window, ready
    ready.set()
    house.stop()


WAITS = "Your message will be sent when the model is ready."


def test_a_message_that_is_sent_while_the_model_is_loaded_goes_out_when_it_is_ready(loading, tabs):
    house, window, ready = loading
    house.replies.append("Good morning.")
    page = tabs.open(f"{house.address}/#/w/{window}")
    box = page.get_by_label("Your message")
    expect(page.locator(".status")).to_contain_text("Downloading")
    box.fill("Hello.")
    box.press("Enter")
    expect(page.locator(".queued")).to_contain_text(WAITS)
    expect(box).to_have_value("Hello.")
    box.press("Enter")
    ready.set()
    expect(page.locator("#context .turn.assistant")).to_contain_text("Good morning.")
    settled(page)
    assert house.text(window) == "Hello.Good morning."
    expect(page.locator(".queued")).to_be_hidden()
    expect(box).to_have_value("")
    expect(box).to_be_editable()


def test_a_message_that_waits_for_the_model_can_be_taken_back_and_outlives_a_reload_as_a_draft(loading, tabs):
    house, window, ready = loading
    page = tabs.open(f"{house.address}/#/w/{window}")
    box = page.get_by_label("Your message")
    expect(page.locator(".status")).to_contain_text("Downloading")
    box.fill("Hello.")
    box.press("Enter")
    page.get_by_role("button", name="Take back").click()
    expect(page.locator(".queued")).to_be_hidden()
    box.press_sequentially(" It is me.")
    box.press("Enter")
    expect(page.locator(".queued")).to_be_visible()
    page.reload()
    expect(box).to_have_value("Hello. It is me.")
    expect(page.locator(".queued")).to_be_hidden()
    ready.set()
    page.wait_for_function("() => app.store.status?.model.state === 'ready' && app.store.live")
    expect(box).to_have_value("Hello. It is me.")
    assert house.text(window) == ""


def test_a_message_that_is_sent_before_its_window_is_loaded_goes_there_and_not_to_a_new_one(house, tabs):
    window = house.window(timestamps=False)
    profile = tabs.profile()
    held = []
    profile.route("**/api/windows", lambda route: held.append(route))
    page = tabs.open(f"{house.address}/#/w/{window}", profile=profile)
    page.wait_for_function("() => app.store.status?.model.state === 'ready'")
    page.wait_for_function("() => app.store.connection.state === 'online'")
    box = page.get_by_label("Your message")
    box.fill("Hello.")
    box.press("Enter")
    expect(page.locator(".queued")).to_contain_text("when the conversation is loaded.")
    for route in held:
        route.continue_()
    profile.unroute("**/api/windows")
    settled(page, "Hello.")
    assert len(house.ask("GET", "/windows")["windows"]) == 1
    assert house.text(window).startswith("Hello.")


def test_a_message_that_is_sent_before_the_page_knows_the_server_waits_for_it(house, tabs):
    window = house.window(timestamps=False)
    profile = tabs.profile()
    held = []
    profile.route("**/api/status", lambda route: held.append(route))
    page = tabs.open(f"{house.address}/#/w/{window}", profile=profile)
    box = page.get_by_label("Your message")
    box.fill("Hello.")
    box.press("Enter")
    expect(page.locator(".queued")).to_be_visible()
    for route in held:
        route.continue_()
    profile.unroute("**/api/status")
    settled(page, "Hello.")
    assert house.text(window).startswith("Hello.")


@pytest.mark.parametrize(("name", "sign"), [("Notes", "bell"), ("Memory", "Mochi")])
def test_a_panel_opened_without_a_server_fills_when_it_is_back(house, show, name, sign):
    house.ask("PUT", "/notes", json={"content": {"bell": "gold"}})
    house.ask("PUT", "/memory/entry", json={"path": "Mochi", "content": "a cat"})
    page = show(house.window())
    house.stop()
    page.wait_for_function("() => app.store.connection.state === 'lost'")
    drawer = panel(page, name)
    toast(page, "cannot be reached")
    house.start()
    if name == "Notes":
        page.wait_for_function("() => document.querySelector('#drawer textarea').value.includes('bell')")
    else:
        expect(drawer.get_by_role("treeitem", name=sign)).to_be_visible()


def test_a_wrong_key_is_called_wrong(tmp_path, tabs):
    house = House(tmp_path, key="a-key-of-the-house-1").start()
    try:
        page = tabs.open(house.address)
        dialog = page.get_by_role("dialog", name="This server is locked")
        expect(dialog).not_to_contain_text("not right")
        dialog.get_by_label("Key").fill("another-key-altogether")
        dialog.get_by_role("button", name="Unlock").click()
        expect(dialog).to_contain_text("That key is wrong")
        dialog.get_by_label("Key").fill(house.key)
        dialog.get_by_role("button", name="Unlock").click()
        expect(page.locator(".empty")).to_contain_text("One endless conversation")
    finally:
        house.stop()


def test_without_a_connection_nothing_seems_at_work(house, show):
    page = show(house.window())
    page.evaluate("app.store.setWindow({ ...app.store.window, generating: true })")
    expect(page.locator("#rail .pulse")).to_be_visible()
    green = page.locator(".dot").evaluate("one => getComputedStyle(one).backgroundColor")
    page.evaluate("app.store.setConnection('lost', Date.now() + 60_000)")
    expect(page.locator(".banner")).to_be_visible()
    expect(page.locator("#rail .pulse")).to_be_hidden()
    expect(page.locator(".dot")).not_to_have_css("background-color", green)
