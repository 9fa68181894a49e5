"""Follow replies that another server writes."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Event, Lock, Thread

import numpy as np

from halo_weave.chat.events import TokenGenerated, TurnFailed, WindowChanged
from halo_weave.chat.reply import THOUGHT, ReplyParser, ReplyToken
from halo_weave.chat.reply_storage import read_draft, recover_drafts
from halo_weave.chat.runtime import Runtime
from halo_weave.chat.views import ReplyView
from halo_weave.errors import HaloWeaveError, StoreError
from halo_weave.store.records import Draft

log = logging.getLogger(__name__)
POLL_INTERVAL = 0.1  # seconds between two polls of a reply
SILENCE_TIMEOUT = 2.0  # seconds that a late server gets before its reply counts as abandoned
SERVER_GONE_MESSAGE = (
    "The server that wrote this reply does not answer any more. What was shown of it is kept."
)


@dataclass
class FollowedReply:
    """A reply in a window that another server writes, as far as it is known here."""

    guard: Lock = field(default_factory=Lock)  # the token after the last one that is known
    wanted: bool = True  # a client has asked for it since the last poll
    draft: Draft | None = None  # as it was when it was first seen
    reader: ReplyParser | None = None
    silent: float | None = None  # by the monotonic clock: since when no server writes it
    shown: bool = False  # the reply was published here

    @property
    def count(self) -> int:
        return len(self.reader.tokens) if self.reader else 0


class RemoteReplies:
    """Publishes the tokens of replies that other servers write.

    If a server dies, its reply becomes a turn. Tokens are stored within a moment, so the writing server does nothing
    for clients elsewhere. A reply by a model with another tokenizer is not followed: its delimiters would not be
    recognised.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._lock = Lock()  # not held during queries
        self._followed: dict[str, FollowedReply] = {}
        self._thread: Thread | None = None
        self._ending = Event()

    def on_window_changed(self, window_id: str) -> None:
        """Another server has changed a window: follow its reply, if a client of this server watches the window.

        This does not query the store, since the thread that calls it also renews leases.
        """
        if self._runtime.hubs.watchers_of(window_id):
            self._follow(window_id)

    def reply(self, window_id: str) -> ReplyView | None:
        """The reply that another server writes in a window, as far as it is stored. It is followed from now on."""
        known = window_id in self._followed
        if self._ending.is_set() or not (known or self._runtime.store.fleet.written(window_id)):
            return None
        followed = self._follow(window_id)
        with followed.guard:
            if followed.reader is None:
                with suppress(HaloWeaveError):  # what cannot be read now is read later
                    self._grow(window_id, followed)
            seen = _seen(followed, self._runtime.settings().initial_brightness)
            followed.shown |= seen is not None
            return seen

    def close(self) -> None:
        self._ending.set()

    def _follow(self, window_id: str) -> FollowedReply:
        with self._lock:
            followed = self._followed.setdefault(window_id, FollowedReply())
            followed.wanted = True
            if self._thread is None and not self._ending.is_set():
                self._thread = Thread(target=self._run, name="halo-weave remote replies", daemon=True)
                self._thread.start()
        return followed

    def _run(self) -> None:
        """Poll until there is no reply left to follow."""
        while not self._ending.wait(POLL_INTERVAL):
            with self._lock:
                each = list(self._followed.items())
            for window_id, followed in each:
                followed.wanted = False
                ended = self._ended(window_id, followed)
                with self._lock:
                    over = ended and not followed.wanted
                    if over:
                        del self._followed[window_id]
                if (
                    over and followed.shown
                ):  # clients that saw the reply right before its end load the context again
                    self._runtime.hubs.publish(WindowChanged(), window_id)
            with self._lock:
                if not self._followed:
                    self._thread = None
                    return

    def _ended(self, window_id: str, followed: FollowedReply) -> bool:
        try:
            with followed.guard:
                return self._look(window_id, followed)
        except StoreError:
            return False  # the database cannot be reached for now
        except HaloWeaveError:
            return True  # the window is gone
        except Exception:
            if self._ending.is_set():  # the store has been closed
                return True
            log.exception("A reply of another server cannot be followed.")
            return True

    def _look(self, window_id: str, followed: FollowedReply) -> bool:
        """Publish new tokens. Returns whether the reply has ended; the server that wrote it publishes that itself."""
        written = self._runtime.store.fleet.written(
            window_id
        )  # checked first: when it is false, all that was written is stored
        fresh = self._grow(window_id, followed)
        followed.shown |= bool(fresh)
        self._publish(window_id, *map(_token_event, fresh))
        if followed.draft and not followed.reader:  # written by a model that is not open here
            return True
        if written:
            followed.silent = None
            return False
        if followed.draft is None or window_id in self._runtime.busy_windows or self._ending.is_set():
            return True
        followed.silent = followed.silent or time.monotonic()
        if time.monotonic() - followed.silent < SILENCE_TIMEOUT:
            return False
        if not self._readable(followed.draft):  # the model has been changed
            return True
        stored = recover_drafts(self._runtime, only=window_id)
        if not stored and self._runtime.store.draft_in(window_id, after=followed.count):
            followed.silent = None  # it could not be stored now: try again
            return False
        self._runtime.publish_changed(stored)
        self._publish(window_id, TurnFailed(SERVER_GONE_MESSAGE))
        return True

    def _publish(self, window_id: str, *events: TokenGenerated | TurnFailed) -> None:
        """Publish tokens, unless this server has begun a turn in the window."""
        if not events:
            return
        with self._runtime.try_lock(window_id) as free:
            for event in events if free else ():
                self._runtime.hubs.publish(event, window_id)

    def _grow(self, window_id: str, followed: FollowedReply) -> Sequence[ReplyToken]:
        """Read the tokens since the last poll."""
        draft = self._runtime.store.draft_in(window_id, after=followed.count)
        if draft is None:
            followed.draft = followed.reader = None
            return ()
        if followed.draft and followed.reader and followed.draft.turn_id == draft.turn_id:
            feed = followed.reader.feed
            pairs = zip(draft.tokens.ids.tolist(), draft.tokens.pieces(), strict=True)
            return [token for id, piece in pairs for token in feed(id, piece)]
        if followed.reader:  # another reply
            followed.draft = followed.reader = None
            return self._grow(window_id, followed)
        followed.draft = draft
        if not self._readable(draft):
            return ()
        followed.reader = read_draft(self._runtime, draft)
        return followed.reader.known

    def _readable(self, draft: Draft) -> bool:
        """Whether it was written with the tokenizer of the model that answers in the window here."""
        return draft.tokenizer == self._runtime.model_for_window(draft.window).engine.info.tokenizer


def _token_event(token: ReplyToken) -> TokenGenerated:
    return TokenGenerated(
        token.id, token.position, token.piece, token.text, token.by_tool, token.kind == THOUGHT
    )


def _seen(followed: FollowedReply, bright: float) -> ReplyView | None:
    if followed.draft is None or followed.reader is None:
        return None
    known = followed.reader.known
    return ReplyView(
        followed.draft.turn_id,
        followed.draft.start,
        [token.text for token in known],
        np.full(len(known), bright, np.float32),
        [token.by_tool for token in known],
        [token.kind == THOUGHT for token in known],
    )
