"""What a model's template writes between a tool call and the model's next words."""

from __future__ import annotations

from halo_weave.ports import Engine
from halo_weave.templates.calls import CallReader
from halo_weave.templates.messages import ChatMessage, NativeCall
from halo_weave.weave.prompt import Scribe
from halo_weave.weave.reply import ReplyKind


def round_trip(
    engine: Engine, scribe: Scribe, effort: str | None, call: NativeCall, answer: str, written: str
) -> list[tuple[ReplyKind, str]] | None:
    """The frame, the tool's answer, the frame up to where the model goes on; None if the template has no such form.

    `written`: what the model has written of the frame itself.
    """
    facts = engine.facts
    talk = [
        ChatMessage("user", "a"),
        ChatMessage("assistant", "", calls=(call,)),
        ChatMessage("tool", answer, answers=call),
    ]
    pieces = engine.chat(talk, effort=effort, tools=scribe.tools).pieces
    said = [i for i, piece in enumerate(pieces) if piece.part == "content" and piece.message == 2]
    asked = [i for i, piece in enumerate(pieces) if piece.part == "content" and piece.message == 0]
    if not said or not asked or facts.tools is None:
        return None
    before = "".join(piece.text for piece in pieces[asked[-1] + 1 : said[0]])
    reader = CallReader(facts.tools, scribe.tools, only_declared=False)
    if facts.tools.open and not reader.feed(before):
        return None
    frame = reader.rest if facts.tools.open else before
    frame = frame.removeprefix(written) if written.strip() == "" or frame.startswith(written) else frame
    after = "".join(piece.text for piece in pieces[said[-1] + 1 :])
    return [("mark", frame), ("tool", "".join(pieces[i].text for i in said)), ("mark", after)]
