"""Room in the model's context: for what the user says, and for what wakes up beside it."""

from __future__ import annotations

from halo_weave.core.resurrection import room_for
from halo_weave.core.tokens import Tokens
from halo_weave.errors import BadInput
from halo_weave.weave.desk import Desk


def model_room(desk: Desk, live: int) -> int:
    """What the model's context leaves for words, next to the reply's room and the frames of this exchange."""
    frames = sum(desk.window.frame_tokens.values())
    return desk.engine.info.context - live - desk.reply_room - frames


def wake_room(desk: Desk, user: int, *, given: bool = False) -> int:
    """Tokens that may wake up next to the user's words and the frames of the exchange.

    `given`: room is made for them, so that only what cannot sleep is in the way.
    """
    if given:
        return model_room(desk, _staying(desk)) - user
    window, settings = desk.window, desk.settings
    return room_for(
        model_context=desk.engine.info.context,
        live=window.size + sum(window.frame_tokens.values()),
        user=user,
        max_new=desk.reply_room,
        max_context=desk.live_limit,
        quota=settings.resurrection_budget,
    )


def fitting(desk: Desk, text: str) -> Tokens:
    """The user's words, if they fit next to what cannot fall asleep."""
    said = desk.engine.tokenize(text)
    window, reply = desk.window, desk.reply_room
    pinned = sum(len(chunk) for chunk in window.chunks if chunk.key in window.pinned)
    room = model_room(desk, window.system_tokens + pinned)
    if room < 1:
        raise BadInput(
            f"There is no room for a message: of the model's {desk.engine.info.context} tokens the system prompt "
            f"takes {window.system_tokens}, pinned chunks {pinned}, the reply up to {reply}. "
            "Shorten the system prompt, unpin something, or lower max_new_tokens."
        )
    if len(said) > room:
        raise BadInput(
            f"Your message has {len(said)} tokens, and there is room for {room} next to the system prompt, "
            f"pinned chunks and a reply of {reply}. Send it in parts, or lower max_new_tokens."
        )
    return said


def _staying(desk: Desk) -> int:
    """Tokens that stay whatever sleeps: the system prompt, and pinned chunks with the frames of their turns."""
    window = desk.window
    pinned = [chunk for chunk in window.chunks if chunk.key in window.pinned]
    frames = {chunk.key.turn_id: window.frame_tokens.get(chunk.key.role, 0) for chunk in pinned}
    return window.system_tokens + sum(len(chunk) for chunk in pinned) + sum(frames.values())
