"""Text of other chats stands where its dates say, whenever it arrived; light finds it there."""

from datetime import UTC, datetime

import numpy as np

from halo_weave.chat import events
from halo_weave.core.retrieval_heads import Calibration, RetrievalHead
from tests.chat.conftest import SMALL, of
from tests.chat.test_turn import spoken_prompt
from tests.fakes.scripted_engine import ScriptedEngine

HEAD = Calibration((RetrievalHead(0, 1, 0.9, 0.9, 1.0),), "")
ROOMY = {**SMALL, "max_context_tokens": 0, "timestamps": True}


def look(at):
    """At the token of "zinnia"."""
    weights = np.full(len(at.ids), 0.001, np.float32)
    pieces = [at_piece(id) for id in at.ids.tolist()]
    weights[[piece == b"nni" for piece in pieces]] = 10.0
    return weights


def at_piece(id):
    return (id & 0xFFFFFF).to_bytes(3, "little").rstrip(b"\0")


def arrived_late(assembled, **more):
    """A chat of today; then, with later positions, text of August and of the day before, as an import brings it."""
    weave = assembled(ScriptedEngine(look=look), **more)
    today, old = (
        weave.windows.create("today", settings=ROOMY).id,
        weave.windows.create("old", settings=ROOMY).id,
    )
    weave.now.at = datetime(2026, 11, 18, 9, tzinfo=UTC)
    list(weave.turns.steps(today, "Good morning, it rains."))
    weave.now.at = datetime(2026, 11, 17, 9, tzinfo=UTC)
    list(weave.turns.steps(old, "In November the zinnia bed froze."))
    weave.now.at = datetime(2026, 8, 2, 9, tzinfo=UTC)
    list(weave.turns.steps(old, "In August the zinnia bed was red."))
    weave.now.at = datetime(2026, 11, 18, 10, tzinfo=UTC)
    return weave, today


def test_what_was_said_in_august_stands_before_november_and_both_before_today(assembled):
    weave, today = arrived_late(assembled)
    turn = list(weave.turns.steps(today, "What of the zinnia bed?"))
    assert of(events.ChunksResurrected, turn)
    prompt = spoken_prompt(weave, today)
    places = [
        prompt.index(text) for text in ("In August", "In November", "Good morning", "What of the zinnia")
    ]
    assert places == sorted(places)
    shown = [turn.chunks[0].chunk.text for turn in weave.windows.context(today).turns if turn.role == "user"]
    assert [text.split()[1] for text in shown] == ["August", "November", "morning,", "of"]
    again = list(weave.turns.steps(today, "Tell me more of it."))
    assert of(events.PrefillFinished, again)[0].rebuilt == ""
    later = spoken_prompt(weave, today)
    assert (
        later.index("In August")
        < later.index("Good morning")
        < later.index("What of")
        < later.index("Tell me")
    )


def test_light_falls_on_the_tokens_that_were_looked_at_wherever_their_turn_stands(assembled):
    weave, today = arrived_late(assembled, calibration=HEAD)
    (spoken,) = of(events.ReplyStored, list(weave.turns.steps(today, "What of the flower bed in August?")))
    chunks = {one.key: weave.runtime.store.chunk(one.key).chunk for one in spoken.use.chunks}
    used = [one.key for one in spoken.use.chunks if one.share >= 0.05]
    assert used
    assert all("zinnia" in chunks[key].text for key in used)
    for sources in spoken.use.tokens:
        for source in sources[:1]:
            chunk = chunks[spoken.use.chunks[source.place].key]
            assert chunk.tokens.pieces()[source.offset] == b"nni"
