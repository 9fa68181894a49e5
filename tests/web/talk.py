"""What a user does on the page, in words."""

from __future__ import annotations

from typing import Any

import numpy as np
from playwright.sync_api import Locator, Page, expect

LOG = "\n\n".join(
    f"Day {day}: the keeper noted {word}, and the *boats* stayed in."
    for day, word in enumerate("thunder hail fog".split())
)


def say(page: Page, text: str, *, wait: bool = True) -> None:
    box = page.get_by_label("Your message")
    box.fill(text)
    box.press("Enter")
    if wait:
        settled(page, text)


def settled(page: Page, text: str = "") -> None:
    """Until the turn is over and the page shows what the server holds."""
    page.wait_for_function(
        "text => !app.store.busy && app.store.turn.reason && (!text || app.store.live.chunks.some((one) => one.pieces.join('').includes(text)))",
        arg=text.strip().split("\n")[0],
    )
    frame(page)


def frame(page: Page) -> None:
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def shown(page: Page) -> str:
    """The text of all chunks on the page, in order."""
    frame(page)
    return str(
        page.evaluate(
            "() => [...document.querySelectorAll('.chunk .text')].map((one) => one.textContent).join('')"
        )
    )


def keys(page: Page) -> list[str]:
    frame(page)
    return list(page.evaluate("() => [...document.querySelectorAll('.chunk')].map((one) => one.dataset.key)"))


def chunk(page: Page, key: str) -> Locator:
    return page.locator(f"article.chunk[data-key='{key}']")


def act(page: Page, key: str, name: str) -> None:
    """Use a control of a chunk."""
    one = chunk(page, key)
    one.scroll_into_view_if_needed()
    one.hover()
    one.get_by_role("button", name=name, exact=True).click()


def toast(page: Page, text: str) -> Locator:
    found = page.locator(".toast", has_text=text).last
    expect(found).to_be_visible()
    return found


def panel(page: Page, name: str) -> Locator:
    button = page.locator("#dock").get_by_role("button", name=name)
    if button.get_attribute("aria-expanded") != "true":
        button.click()
    drawer = page.locator("#drawer")
    expect(drawer).to_be_visible()
    return drawer


def heat(page: Page) -> dict[str, Any]:
    """Of each chunk its place on the scale, and of each token its ground."""
    frame(page)
    return dict(
        page.evaluate(
            "() => Object.fromEntries([...document.querySelectorAll('.chunk')].map((one) => [one.dataset.key,"
            " {heat: Number(one.style.getPropertyValue('--heat')), grounds: [...one.querySelectorAll('.text span')].map((span) => Number(span.className.replace('hot', '')) || 0)}]))"
        )
    )


def grounds(page: Page) -> dict[str, list[int]]:
    """Of each chunk the step of light that each of its tokens stands on."""
    frame(page)
    return dict(
        page.evaluate(
            "() => Object.fromEntries([...app.views.context.chunks].map(([key, view]) =>"
            " [key, view.chunk.pieces.map((_, at) => view.partsAt(at)[0]?.step ?? 0)]))"
        )
    )


def file(name: str, text: str | bytes) -> dict[str, object]:
    data = text.encode() if isinstance(text, str) else text
    return {"name": name, "mimeType": "application/octet-stream", "buffer": data}


def attach(page: Page, *files: dict[str, object]) -> None:
    page.get_by_label("Files to attach").set_input_files(list(files))
    page.wait_for_function("() => !document.querySelector('.attachment.reading')")


def looking_at(house, *pieces: bytes) -> None:
    """While the model answers it looks at these tokens of what was said before; while it reads, at nothing more."""

    def look(at):
        weights = np.full(len(at.ids), 0.001, np.float32)
        answering = at.text.rsplit("<|turn|>", 1)[-1].startswith("assistant")
        if answering:
            weights[[piece in pieces for piece in house.engine.pieces(at.ids).pieces()]] = 10.0
        return weights

    house.engine.look = look


TOPICS = [
    "the harbour at dawn",
    "a recipe for rye bread",
    "how bees find flowers",
    "the rules of chess",
    "snow on the pass",
]


def full_window(house, **settings):
    """A window over its budget: the first exchange sleeps."""
    window = house.window(
        max_context_tokens=120,
        min_chunk_tokens=8,
        resurrection_budget=0,
        timestamps=False,
        memory_tree_in_prompt=False,
        strategy="magnitude_voting",  # the oldest sleep first
        **settings,
    )
    house.ask("PATCH", f"/windows/{window}", json={"system_prompt": ""})
    house.say(window, "My cat is called Mochi.", "Mochi is a lovely name for a cat.")
    for topic in TOPICS:
        house.say(window, f"Tell me about {topic}.", f"There is much to say about {topic}, and little time.")
    assert house.context(window)["stats"]["pruned_chunks"] > 0
    return window
