"""Models on the page: what there is, what is on its way, what failed; and all that works before one is there."""

from __future__ import annotations

import threading
from collections import deque
from contextlib import contextmanager
from dataclasses import replace

import pytest
from playwright.sync_api import expect

from halo_weave import app as assembling
from halo_weave.app import Options, build_weave_without_model
from halo_weave.models import hub
from tests.engines.reciting import write_reciting
from tests.engines.thinkers import ANSWER, thinker
from tests.models.test_hub import PATIENCE
from tests.server.test_models import REFERENCE, models, options, speaker, tower  # noqa: F401
from tests.web.house import House
from tests.web.talk import panel, say, settled, shown, toast

pytestmark = pytest.mark.browser
CALM = {"temperature": 0.0, "timestamps": False, "max_new_tokens": 60}


@contextmanager
def running(options: Options, folder, *, wait: bool = True):  # noqa: F811
    house = House(folder, assemble=lambda _: build_weave_without_model(options)).start(wait=wait)
    try:
        yield house
    finally:
        house.stop()


def item(drawer, name: str):
    return drawer.locator(f".model-item[data-name='{name}']")


def test_another_model_is_chosen_and_every_tab_is_told(options, tmp_path, tabs):  # noqa: F811
    with running(options, tmp_path) as house:
        window, other = house.window(**CALM), house.window("Second", **CALM)
        page = tabs.open(f"{house.address}/#/w/{window}")
        second = tabs.open(f"{house.address}/#/w/{other}")
        say(page, "Who is there?")
        page.locator("#rail").get_by_role("button", name="Anna 1B").click()
        drawer = page.locator("#drawer")
        expect(drawer.locator(".model-used")).to_contain_text("Anna 1B")
        expect(item(drawer, "Anna-1B-Q8_0")).to_contain_text("in use")
        expect(item(drawer, "smollm2-135m")).to_contain_text("often wrong")
        expect(item(drawer, "qwen2.5-coder-1.5b")).to_contain_text("1.1 GB to download")
        of_hub = [one for one in house.ask("GET", "/models")["models"] if one["source"] == "hub"]
        assert of_hub
        for one in of_hub:
            line = item(drawer, one["name"])
            expect(line).to_contain_text(one["title"])
            expect(line).to_contain_text("fits this machine" if one["fits"] else "too large for this machine")
            expect(line.get_by_role("button", name=f"Pull and use: {one['title']}")).to_be_visible()
        item(drawer, "Boris-2B-Q8_0").get_by_role("button", name="Use").click()
        toast(page, "Boris 2B is ready.")
        toast(second, "Boris 2B is ready.")
        expect(item(drawer, "Boris-2B-Q8_0")).to_contain_text("in use")
        expect(second.locator("#rail")).to_contain_text("Boris 2B")
        say(page, "And now?")
        assert shown(page) == "Who is there?Anna speaks.And now?Hier ist Boris."


def test_a_failure_is_said_and_the_old_model_stays(options, models, tmp_path, tabs):  # noqa: F811
    (tmp_path / "text.gguf").write_bytes(b"once upon a time" * 100)
    with running(options, tmp_path) as house:
        page = tabs.open(f"{house.address}/#/w/{house.window(**CALM)}")
        drawer = panel(page, "Models")
        box = drawer.get_by_label("Another model", exact=True)
        box.fill(str(tmp_path / "text.gguf"))
        box.press("Enter")
        expect(drawer.locator(".model-change")).to_contain_text("is not a GGUF file")
        expect(drawer.locator(".model-change")).to_contain_text("Anna 1B stays.")
        box.fill("<img src=x onerror=alert(1)>")
        box.press("Enter")
        toast(page, "No model is named")
        say(page, "Still there?")
        assert shown(page).endswith("Anna speaks.")


def test_a_download_shows_how_far_it_is_and_can_be_left(options, tower, tmp_path, tabs, monkeypatch):  # noqa: F811
    # A download that pauses is not begun anew meanwhile.
    monkeypatch.setattr(hub, "RetryPolicy", lambda: replace(PATIENCE, read=120))
    half, go_on = threading.Event(), threading.Event()

    def slowly(handler) -> bool:
        (content,) = handler.hub.files.values()
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content[: len(content) // 2])
        handler.wfile.flush()
        half.set()
        go_on.wait(120)
        handler.close_connection = True
        return True

    tower.cdn_faults = deque([slowly])
    with running(options, tmp_path) as house:
        page = tabs.open(f"{house.address}/#/w/{house.window(**CALM)}")
        drawer = panel(page, "Models")
        box = drawer.get_by_label("Another model", exact=True)
        box.fill(REFERENCE)
        box.press("Enter")
        assert half.wait(60)
        change = drawer.locator(".model-change")
        expect(change).to_contain_text("Downloading Carla-1B-Q4_K_M.gguf")
        page.wait_for_function(
            "() => { const bar = document.querySelector('.model-change progress'); return bar && bar.value > 0.3 && bar.value < 0.7; }"
        )
        say(page, "Meanwhile?")
        assert shown(page).endswith("Anna speaks.")
        with page.expect_response("**/api/model/stop"):
            change.get_by_role("button", name="Stop").click()
        go_on.set()
        expect(change).to_contain_text("That was stopped. Anna 1B stays.")
        box.fill(REFERENCE)
        box.press("Enter")
        toast(page, "Carla 1B is ready.")
        say(page, "And you?")
        assert shown(page).endswith("Ciao da Carla.")


def test_until_the_model_is_there_all_but_speaking_works(options, tmp_path, tabs, monkeypatch):  # noqa: F811
    with running(options, tmp_path) as house:
        window = house.window("Old", **CALM)
        house.say(window, "My cat is called Mochi.")
    opened, go_on = assembling.open_engine, threading.Event()

    def slow(*given, **more):
        given[1]("Downloading Anna", 1, 4)
        assert go_on.wait(300)
        return opened(*given, **more)

    monkeypatch.setattr(assembling, "open_engine", slow)
    with running(options, tmp_path, wait=False) as house:
        page = tabs.open(f"{house.address}/#/w/{window}")
        expect(page.locator("#context")).to_contain_text("My cat is called Mochi.")
        expect(page.locator(".status")).to_contain_text("Downloading Anna…")
        expect(page.get_by_role("button", name="Send", exact=True)).to_be_enabled()
        expect(panel(page, "Models").locator(".model-used")).to_contain_text("25 %")
        page.keyboard.press("Control+k")
        page.get_by_label("Search the whole memory").fill("Mochi")
        expect(page.locator(".hit-text").first).to_contain_text("Mochi")
        page.keyboard.press("Escape")
        page.locator("#rail").get_by_role("button", name="New window").click()
        expect(page.locator(".status")).to_contain_text("Downloading Anna…")
        go_on.set()
        expect(page.locator("#rail")).to_contain_text("Anna 1B")
        say(page, "Hello?")
        assert shown(page) == "Hello?Anna speaks."


def test_a_page_without_a_model_leads_to_one(options, tmp_path, tabs):  # noqa: F811
    gone = Options(options.data, model=str(tmp_path / "gone.gguf"), embedder="off", threads=1)
    with running(gone, tmp_path) as house:
        page = tabs.open(house.address)
        expect(page.locator(".empty")).to_contain_text("gone.gguf")
        page.locator(".empty").get_by_role("button", name="Choose a model").click()
        item(page.locator("#drawer"), "Boris-2B-Q8_0").get_by_role("button", name="Use").click()
        expect(page.locator("#rail")).to_contain_text("Boris 2B")
        say(page, "Hello?")
        assert shown(page) == "Hello?Hier ist Boris."


def test_a_template_that_cannot_be_used_is_said_with_what_is_taken(options, models, tmp_path, tabs):  # noqa: F811
    path = models / "Loops-1B.gguf"
    endless = "{% for a in range(9999999) %}{% for b in range(9999999) %}{% endfor %}{% endfor %}"
    write_reciting(path, endless, ["Well", "."], after="assistant\n", controls=["<|im_start|>", "<|im_end|>"])
    looping = Options(options.data, model=str(path), embedder="off", threads=1)
    with running(looping, tmp_path) as house:
        page = tabs.open(f"{house.address}/#/w/{house.window(**CALM)}")
        used = panel(page, "Models").locator(".model-used")
        expect(used).to_contain_text("The model's chat template cannot be used, so ChatML is.")
        expect(page.locator("#rail")).to_contain_text("so ChatML is.")
        say(page, "Hello?")
        assert shown(page) == "Hello?Well."


@pytest.mark.parametrize("way", ["marks", "channels"])
def test_a_real_reasoning_model_thinks_folded_above_its_answer(options, tmp_path, tabs, way):  # noqa: F811
    path, _ = thinker(tmp_path, way)
    thinking = Options(options.data, model=str(path), embedder="off", threads=1)
    with running(thinking, tmp_path) as house:
        page = tabs.open(f"{house.address}/#/w/{house.window(**CALM)}")
        expect(panel(page, "Models").locator(".model-used")).to_contain_text("thinks before it answers")
        say(page, "Hello?", wait=False)
        settled(page, "Hello?")
        gap = page.locator(".gap-line", has_text="Thought, ")
        expect(gap).to_have_count(1)
        assert shown(page).endswith("".join(ANSWER))
        gap.click()
        expect(page.locator(".sleeper-text")).to_contain_text("The keeper polishes his lantern.")
