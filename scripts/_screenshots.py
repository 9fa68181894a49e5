"""A real conversation on the real model, photographed and filmed: the pictures of README and docs."""

from __future__ import annotations

import io
import os
import shutil
import sys
import tempfile
from pathlib import Path

import httpx
from PIL import Image
from playwright.sync_api import Page, sync_playwright

from halo_weave.app import Options, build_weave
from halo_weave.server.http_server import serve_in_thread
from halo_weave.server.service import Service

PICTURES = Path(__file__).parents[1] / "docs" / "pictures"
LARGEST = 300_000  # bytes
LARGEST_FILM = 1_000_000
WIDE, FILMED = {"width": 1440, "height": 900}, {"width": 1000, "height": 700}
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-sync"]
SETTINGS = {
    "max_context_tokens": 220,
    "max_new_tokens": 80,
    "min_chunk_tokens": 32,
    "resurrection_budget": 0,
    "temperature": 0.2,
    "repeat_penalty": 1.05,
    "seed": 5,
    "memory_tree_in_prompt": False,
    "timestamps": False,
    "capture": "mean",
}
LAST = {"resurrection_budget": 130, "max_context_tokens": 600}
PROMPT = "You are a warm, attentive companion. Answer in a few plain sentences."
KITCHEN = ["My grandmother baked rye bread with caraway every Saturday. What goes well with it?"]
TALK = [
    "My cat is called Mochi. She is grey, eleven years old, and afraid of thunder.",
    "I would like to visit a lighthouse this summer. What should I look at there?",
    "Why did lighthouse keepers ring a bell in the fog?",
    "Tell me a short story about a keeper who writes down every ship in a green book.",
    "How do ships find their way without a lighthouse today?",
    "What do sailors eat on a long journey?",
    "Why is the sea salty?",
    "There is a thunderstorm tonight. What was it again that my cat Mochi is afraid of?",
]


def say(page: Page, text: str) -> None:
    box = page.get_by_label("Your message")
    box.fill(text)
    box.press("Enter")
    page.wait_for_function(
        "text => !app.store.busy && app.store.turn.reason && app.store.live.chunks.some((one) => one.pieces.join('').includes(text))",
        arg=text,
        timeout=300_000,
    )
    print(f"  {text}", file=sys.stderr)


def shoot(page: Page, name: str) -> None:
    page.wait_for_timeout(700)
    file = PICTURES / f"{name}.png"
    page.screenshot(path=file)
    size = file.stat().st_size
    print(f"{file.relative_to(PICTURES.parents[1])}: {size / 1000:.0f} kB")
    if size > LARGEST:
        sys.exit(f"{file} is larger than {LARGEST // 1000} kB.")


class Film:
    """Pictures of the page, one after the other, as one animated WebP."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.frames: list[Image.Image] = []
        self.times: list[int] = []

    def take(self, milliseconds: int) -> None:
        self.page.wait_for_timeout(400)
        self.frames.append(Image.open(io.BytesIO(self.page.screenshot())).convert("RGB"))
        self.times.append(milliseconds)

    def save(self, name: str) -> None:
        file = PICTURES / f"{name}.webp"
        for quality in (80, 60, 40):
            first, *others = self.frames
            more = {"quality": quality, "method": 6, "loop": 0}
            first.save(file, save_all=True, append_images=others, duration=self.times, **more)
            if file.stat().st_size <= LARGEST_FILM:
                break
        size = file.stat().st_size
        print(f"{file.relative_to(PICTURES.parents[1])}: {len(self.frames)} frames, {size / 1000:.0f} kB")
        if size > LARGEST_FILM:
            sys.exit(f"{file} is larger than {LARGEST_FILM // 1000} kB.")


def main() -> None:
    chromium = os.environ.get("HALO_WEAVE_CHROMIUM") or shutil.which("chromium")
    if not chromium:
        sys.exit("Chromium was not found. Install it, or name it with HALO_WEAVE_CHROMIUM.")
    model = sys.argv[1] if len(sys.argv) > 1 else None  # the default model
    PICTURES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        service = Service(
            lambda progress: build_weave(Options(Path(folder), model=model, threads=2), progress)
        )
        service.begin().join()
        if service.failure:
            sys.exit(str(service.failure))
        with serve_in_thread(service) as address, sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
            try:
                take(
                    browser.new_context(viewport=WIDE, color_scheme="dark").new_page(),
                    address,
                )
                phone = browser.new_context(
                    viewport={"width": 390, "height": 844},
                    color_scheme="dark",
                    is_mobile=True,
                    has_touch=True,
                ).new_page()
                phone.goto(address)
                phone.wait_for_selector(".chunk")
                shoot(phone, "phone")
            finally:
                browser.close()


# The word of the last answer that came most from what was said before, as if the pointer stood on it.
POINT = """async () => {
  const light = await app.attributionOf(app.store.newestReply), view = app.views.centre.active;
  const answer = [...view.chunks.values()].filter((one) => one.chunk.turn.turn_id === app.store.newestReply);
  let best = null;
  for (const one of answer) {
    for (let at = 0; at < one.chunk.pieces.length; at++) {
      const share = light?.sources(one.chunk.start, at, at)[0]?.share ?? 0;
      if (/\\w{3}/.test(one.chunk.pieces[at]) && share > (best?.share ?? 0)) best = { view: one, first: at, last: at, share };
    }
  }
  if (best) app.views.light.show(best);
  view.scroll.toEnd();
  document.querySelector("#conversation .turn:last-of-type .remembered details")?.setAttribute("open", "");
}"""


# What was said first, or the line that tells that it sleeps.
BEGINNING = "() => { app.views.context.scroll.following = false; app.views.context.place.scrollTop = 0; }"


def point(page: Page) -> None:
    page.wait_for_selector("#conversation .chunk")
    page.evaluate(POINT)
    page.wait_for_timeout(300)
    page.evaluate("() => app.views.conversation.scroll.toEnd()")


def take(page: Page, address: str) -> None:
    def window(name: str) -> str:
        about = {
            "name": name,
            "user_name": "Ada",
            "ai_name": "Halo",
            "system_prompt": PROMPT,
            "settings": SETTINGS,
        }
        return str(httpx.post(f"{address}/api/windows", json=about, timeout=60).json()["id"])

    kitchen, talk = window("Kitchen"), window("Sea and weather")
    page.goto(f"{address}/#/w/{kitchen}")
    page.wait_for_function("() => window.app?.store.live && app.store.connection.state === 'online'")
    for text in KITCHEN:
        say(page, text)
    page.goto(f"{address}/#/w/{talk}")
    page.wait_for_function("id => app.store.current === id && app.store.live", arg=talk)
    page.set_viewport_size(FILMED)
    page.evaluate("app.preferences.set('view', 'context')")
    film = Film(page)
    for text in TALK[:-1]:
        say(page, text)
        page.evaluate(BEGINNING)
        film.take(1100)
    # For the last question memory may wake up, with room enough that it is still there when the picture is taken.
    httpx.patch(f"{address}/api/windows/{talk}", json={"settings": LAST}, timeout=60)
    page.get_by_label("Your message").fill(TALK[-1])
    page.wait_for_selector(".preview:not([hidden])")
    film.take(1800)
    page.locator(".preview summary").click()
    film.take(2500)
    say(page, TALK[-1])
    if not page.evaluate(
        "() => app.store.live.chunks.some((one) => one.resurrected && /Mochi/.test(one.pieces.join('')))"
    ):
        print("The cat was never asleep or did not wake: the film does not show it.", file=sys.stderr)
    page.evaluate(BEGINNING)
    film.take(2500)
    page.evaluate(POINT)
    film.take(4000)
    film.save("remembering")
    page.evaluate("() => { app.views.light.clear(); app.preferences.set('view', 'conversation'); }")
    page.set_viewport_size(WIDE)
    page.wait_for_function("() => app.refresh() && !app.store.status.embedder.pending", polling=1000)
    point(page)
    shoot(page, "conversation")
    page.evaluate("app.preferences.set('theme', 'light')")
    shoot(page, "conversation-light")
    page.evaluate("app.preferences.set('theme', 'dark')")
    page.evaluate("() => { app.views.light.clear(); app.preferences.set('view', 'context'); }")
    page.wait_for_selector("#context .chunk")
    woken = page.locator("#context article", has=page.locator(".wake-badge")).first
    page.evaluate("() => (document.querySelector('#context').scrollTop = 0)")
    shoot(page, "context")
    page.locator("#dock").get_by_role("button", name="Graveyard").click()
    page.wait_for_selector(".grave")
    page.get_by_label("Your message").fill("What could I see at the lighthouse?")
    page.wait_for_selector(".preview:not([hidden])")
    page.evaluate("() => (document.querySelector('#context').scrollTop = 1e6)")
    page.locator(".preview summary").click()
    shoot(page, "graveyard")
    page.get_by_label("Your message").fill("")
    if woken.count():
        page.evaluate("key => app.explain(key)", woken.get_attribute("data-key"))
        page.wait_for_selector("dialog")
        shoot(page, "why")
        page.keyboard.press("Escape")
    page.keyboard.press("Control+k")
    page.get_by_label("Search the whole memory").fill("what grandmother baked")
    page.wait_for_selector(".hit")
    shoot(page, "search")
    page.keyboard.press("Escape")
    page.locator("#dock").get_by_role("button", name="Settings").click()
    shoot(page, "settings")
    page.locator("#dock").get_by_role("button", name="Lab").click()
    page.get_by_role("button", name="Compare").click()
    page.wait_for_selector(".outcomes")
    page.get_by_role("button", name="Watch Use and surprise").click()
    page.wait_for_selector(".replay-field")
    shoot(page, "lab")
    page.evaluate("app.views.drawer.show('')")


if __name__ == "__main__":
    main()
