"""What was said in a window, page by page, and what each reply was reminded of."""

from __future__ import annotations

from pathlib import Path

import pytest

from halo_weave.chat import Weave, events
from halo_weave.core.tokens import ChunkKey, Role
from halo_weave.errors import UnknownChunk
from tests.chat.conftest import of
from tests.chat.test_attribution import opened

ROOMY = {"max_context_tokens": 0, "min_chunk_tokens": 8, "timestamps": False}


def talked(folder: Path) -> tuple[Weave, str, list[events.TurnEvent]]:
    """A dog's name is told, falls asleep, and wakes up for the question about it."""
    weave = opened(folder)
    window = weave.windows.create("one", settings=ROOMY).id
    list(weave.turns.steps(window, "My dog is called Bruno."))
    weave.chunks.prune(window, ChunkKey(1, 0, Role.USER))
    return weave, window, list(weave.turns.steps(window, "What is my dog Bruno called?"))


def test_a_reply_is_stored_with_what_woke_up_for_it(tmp_path: Path) -> None:
    weave, window, turn = talked(tmp_path)
    spoken = of(events.ReplyStored, turn)[0]
    (woken,) = [one for one in spoken.remembered if one.resurrect_reason]
    assert woken.key == ChunkKey(1, 0, Role.USER)
    assert woken.text == "My dog is called Bruno."
    assert (woken.window, woken.window_name, woken.speaker) == (window, "one", "User")
    assert woken.share > 0.4
    assert "bruno" in woken.resurrect_reason["words"]
    weave.close()
    again = opened(tmp_path)
    turns = {one.turn_id: one for one in again.windows.context(window).turns}
    assert turns[spoken.turn_id].remembered == spoken.remembered
    assert again.windows.said(window).turns[-1].remembered == spoken.remembered
    assert turns[2].remembered == ()
    assert turns[1].remembered is None  # it is no reply
    again.close()


def test_what_was_said_comes_in_pages_asleep_or_not(tmp_path: Path) -> None:
    weave, window, _ = talked(tmp_path)
    weave.chunks.prune(window, ChunkKey(2, 0, Role.ASSISTANT))
    other = weave.windows.create("two", settings=ROOMY).id
    list(weave.turns.steps(other, "Something else."))
    whole = weave.windows.said(window)
    assert (whole.total, whole.offset, [one.turn_id for one in whole.turns]) == (4, 0, [1, 2, 3, 4])
    assert "".join(whole.turns[1].chunks[0].text_pieces) == "Hello Anna."
    last = weave.windows.said(window, limit=2)
    assert (last.offset, [one.turn_id for one in last.turns]) == (2, [3, 4])
    assert [one.turn_id for one in weave.windows.said(window, offset=1, limit=2).turns] == [2, 3]
    assert [one.turn_id for one in weave.windows.said(window, around=2, limit=2).turns] == [1, 2]
    weave.chunks.delete(window, ChunkKey(3, 0, Role.USER))
    assert [one.turn_id for one in weave.windows.said(window).turns] == [1, 2]
    weave.close()


def test_the_sources_of_a_replys_words_count_from_its_first_token(tmp_path: Path) -> None:
    weave, window, turn = talked(tmp_path)
    spoken = of(events.ReplyStored, turn)[0]
    start, use = weave.windows.use(window, spoken.turn_id)
    assert start == spoken.chunks[0].start
    assert use is not None
    places = [[(one.place, one.offset) for one in token] for token in use.tokens]
    assert places == [[(one.place, one.offset) for one in token] for token in spoken.use.tokens]
    assert any(places)
    with pytest.raises(UnknownChunk):
        weave.windows.use(window, 99)
    weave.close()


def test_attention_is_told_while_the_reply_is_written(tmp_path: Path) -> None:
    weave, _, turn = talked(tmp_path)
    told = of(events.BrightnessChanged, turn)[-1].attention
    assert told.argmax() == [
        b"uno" in piece for piece in weave.engine.tokenize("My dog is called Bruno.").pieces()
    ].index(True)
    weave.close()
