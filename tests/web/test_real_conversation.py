"""One whole conversation on the real model, in a real browser."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from halo_weave.app import Options, build_weave
from tests.real_model.weights import chat_model
from tests.web.house import House
from tests.web.talk import grounds, heat, keys, panel, say, shown, toast

pytestmark = [pytest.mark.browser, pytest.mark.model]

TALK = [
    "My cat is called Mochi and she sleeps on the windowsill.",
    "Tell me something about lighthouses.",
    "How is bread baked?",
    "Why is the sea salty?",
]


WATCH_DRAFT = """() => {
  window.grew = new Set();
  const look = () => grew.add(document.querySelectorAll(".chunk.draft .text span").length);
  new MutationObserver(look).observe(document.querySelector("#context"), { subtree: true, childList: true });
}"""

PEAKS = "() => Object.fromEntries(app.store.live.chunks.map((one) => [one.key, one.peak]))"


def assert_the_light_is_that_of_the_newest_reply(page, house, window):
    """Only what the newest reply used stands on light; if that is nothing worth a word, nothing does."""
    page.wait_for_function("() => app.store.attributions.get(app.store.newestReply)")
    newest = page.evaluate("app.store.newestReply")
    used = house.ask("GET", f"/windows/{window}/turns/{newest}/sources")["attribution"]["chunks"]
    lit = {key for key, steps in grounds(page).items() if any(steps)}
    assert lit <= {one["key"] for one in used}
    strongest = max(used, key=lambda one: one["share"], default={"key": "", "share": 0})
    if strongest["share"] < 0.05:
        assert not lit
    elif strongest["key"] in keys(page):
        assert strongest["key"] in lit


def test_speaking_forgetting_and_waking_on_the_real_model(tmp_path, tabs):
    model = chat_model()
    options = Options(tmp_path, model=model, embedder="off", threads=2)
    house = House(tmp_path, assemble=lambda progress: build_weave(options, progress)).start()
    try:
        window = house.window(
            "Everyday",
            max_context_tokens=160,
            max_new_tokens=40,
            min_chunk_tokens=16,
            resurrection_budget=0,
            temperature=0,
            memory_tree_in_prompt=False,
            timestamps=False,
        )
        page = tabs.open(f"{house.address}/#/w/{window}")
        page.set_default_timeout(120_000)  # the model may share the machine with others
        page.wait_for_function(
            "() => window.app?.store.live && app.store.connection.state === 'online'", timeout=60_000
        )
        box = page.get_by_label("Your message")

        page.evaluate(WATCH_DRAFT)
        say(page, TALK[0])
        assert len(page.evaluate("[...window.grew]")) > 3, "the reply came token by token"
        assert shown(page) == house.text(window)
        born = page.evaluate(PEAKS)

        for text in TALK[1:]:
            say(page, text)
            assert shown(page) == house.text(window)
        seen, context = heat(page), house.context(window)
        assert context["brightness"]["high"] > context["brightness"]["low"], (
            "the model looked at some tokens more than at others"
        )
        for one in (one for turn in context["turns"] for one in turn["chunks"]):
            assert seen[one["key"]]["heat"] == pytest.approx(one["rank"] / 100), "the bar tells the rank"
        assert_the_light_is_that_of_the_newest_reply(page, house, window)
        now = page.evaluate(PEAKS)
        still = [key for key in born if key in now]
        assert not still or [born[key] for key in still] != [now[key] for key in still]

        asleep = house.context(window)["stats"]["pruned_chunks"]
        assert asleep > 0, "the budget was reached"
        expect(page.locator(".gap-line").first).to_be_visible()
        expect(page.locator("#budget")).to_contain_text(f"Asleep{asleep}")

        drawer = panel(page, "Graveyard")
        row = drawer.get_by_role("button", name="Wake up here, pinned").first
        sleeping = house.ask("GET", f"/windows/{window}/graveyard")["items"][0]
        row.click()
        toast(page, "Awake at its place, and pinned.")
        expect(page.locator(f"article[data-key='{sleeping['key']}'] .pin-badge")).to_be_visible()
        starts = [int(one["start"]) for turn in house.context(window)["turns"] for one in turn["chunks"]]
        assert starts == sorted(starts)
        assert sleeping["text"] in house.text(window)
        assert shown(page) == house.text(window)

        before = keys(page), shown(page)
        page.reload()
        page.wait_for_selector(".chunk")
        assert (keys(page), shown(page)) == before

        house.ask(
            "PATCH",
            f"/windows/{window}",
            json={"settings": {"resurrection_budget": 120, "max_context_tokens": 400}},
        )
        say(page, "What is my cat called?")
        assert shown(page) == house.text(window)
        assert "Mochi" in shown(page)
        assert_the_light_is_that_of_the_newest_reply(page, house, window)
        expect(box).to_have_value("")
    finally:
        house.stop()
