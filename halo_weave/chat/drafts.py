"""Save replies while they are generated, so that a killed process loses little."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import datetime
from threading import Condition, Event, Lock, Thread

from halo_weave.chat.events import INTERNAL_ERROR_MESSAGE
from halo_weave.chat.open_window import OpenWindow
from halo_weave.core.tokens import Tokens
from halo_weave.errors import BadInput, HaloWeaveError, LeaseLost
from halo_weave.store.records import Draft
from halo_weave.store.sql_store import SqlStore

log = logging.getLogger(__name__)
PERIOD = 0.05  # seconds between two saves
LAG = 0.08  # seconds that a shown token may be unsaved; if a save takes longer, tokens are saved before they are shown
WAIT = 2.0  # seconds that a token is held back at most
LATE = 1.0  # seconds after which the user is told
RETRY = 0.5  # seconds between two tries when the store refuses

ReportUnstored = Callable[[OpenWindow, str], None]  # why the reply is not stored yet; empty: it is


def unstored_message(why: str) -> str:
    """The message to the user while a reply cannot be stored."""
    return f"This reply is not stored yet: it is kept in memory, and storing it is tried again. {why}"


class OpenDraft:
    """The reply of a running turn, and how much of it is saved."""

    def __init__(
        self,
        writer: DraftWriter,
        open_window: OpenWindow,
        tokenizer: str,
        now: datetime,
        tell: ReportUnstored,
    ) -> None:
        self._writer, self.open_window, self._tokenizer, self._begun, self._tell = (
            writer,
            open_window,
            tokenizer,
            now,
            tell,
        )
        self._changed = Condition()
        self._saved = 0
        self._behind: float | None = None  # since when a shown token is unsaved
        self._failed = False
        self._lost: LeaseLost | None = None  # the reply cannot be saved any more

    def token_added(self) -> None:
        """A token was added to the reply; it may be shown when this returns. Raises LeaseLost if the reply cannot be
        saved any more."""
        if self._lost:
            raise self._lost
        with self._changed:
            if self._behind is None:
                self._behind = time.monotonic()
            self._writer.due.set()
            allowed = 0.0 if self._writer.slow else LAG
            if not self._failed and self._lag() > allowed:
                self._changed.wait_for(lambda: self._failed or self._lag() <= allowed, WAIT)
            late = not self._failed and self._lag() > LATE
        if late:
            self._tell(self.open_window, unstored_message("The memory has been busy for more than a second."))

    def _lag(self) -> float:
        return 0.0 if self._behind is None else time.monotonic() - self._behind

    def snapshot(self, now: datetime) -> Draft | None:
        """The whole reply so far, if part of it is unsaved.

        It does not take the open window's lock, so that generation never waits for this thread: a reply only grows.
        """
        reply = self.open_window.working_set.reply
        count = 0 if reply is None else len(reply.pieces)
        if reply is None or count <= self._saved:
            return None
        return Draft(
            self.open_window.record.id,
            reply.turn_id,
            reply.start,
            reply.answers,
            Tokens.of(reply.ids[:count], reply.pieces[:count]),
            self._tokenizer,
            self._begun,
            now,
        )

    def saved(self, draft: Draft, taken: float) -> float:
        """This draft of the reply was saved. Returns for how many seconds part of it was unsaved."""
        reply = self.open_window.working_set.reply
        more = reply is not None and len(reply.pieces) > len(draft.tokens)
        with self._changed:
            took = self._lag()
            self._saved, self._failed = len(draft.tokens), False
            self._behind = taken if more else None
            self._changed.notify_all()
        self._tell(self.open_window, "")
        return took

    def failed(self, why: str) -> None:
        with self._changed:
            self._failed = True
            self._changed.notify_all()
        self._tell(self.open_window, unstored_message(why))

    def lost(self, error: LeaseLost) -> None:
        """Another server has taken the window over, with what was saved of the reply."""
        with self._changed:
            self._failed, self._lost = True, error
            self._changed.notify_all()

    def close(self) -> None:
        """The reply has ended. When this returns, the thread no longer uses it."""
        self._writer.forget(self)


class DraftWriter:
    """Saves the replies of all windows in one transaction: the first token at once, then every `PERIOD` seconds."""

    def __init__(self, store: SqlStore, now: Callable[[], datetime]) -> None:
        self._store, self._now = store, now
        self.due = Event()
        self.slow = True  # the last save took too long, or there was none yet
        self._open: list[OpenDraft] = []
        self._saving = Lock()
        self._thread: Thread | None = None
        self._closed = False

    def begin(self, open_window: OpenWindow, tokenizer: str, tell: ReportUnstored) -> OpenDraft:
        draft = OpenDraft(self, open_window, tokenizer, self._now(), tell)
        with self._saving:
            self._open.append(draft)
            if self._thread is None:
                self._thread = Thread(target=self._run, name="halo-weave drafts", daemon=True)
                self._thread.start()
        return draft

    def forget(self, draft: OpenDraft) -> None:
        with self._saving:
            if draft in self._open:
                self._open.remove(draft)

    def close(self) -> None:
        self._closed = True
        self.due.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._closed:
            self.due.wait()
            self.due.clear()
            with self._saving:
                whole = self._save()
            if not whole:
                self.due.set()
            time.sleep(RETRY if not whole else PERIOD / 10 if self.slow else PERIOD)

    def _save(self) -> bool:
        """Save all open drafts. Returns whether the store took them."""
        taken, now = time.monotonic(), self._now()
        pending = [(one, draft) for one in self._open if (draft := one.snapshot(now)) is not None]
        if not pending:
            return True
        try:
            try:
                self._store.save_drafts([draft for _, draft in pending])
            except BadInput:
                pending = [pair for pair in pending if self._save_one_by_one(*pair)]
        except Exception as error:
            known = isinstance(error, HaloWeaveError)
            if not known:
                log.exception("Replies under way could not be saved.")
            for one, _ in pending:
                one.failed(str(error) if known else INTERNAL_ERROR_MESSAGE)
            return False
        took = [one.saved(draft, taken) for one, draft in pending]
        self.slow = max(took, default=0.0) > LAG
        return True

    def _save_one_by_one(self, one: OpenDraft, draft: Draft) -> bool:
        """One of several replies cannot be saved because its window was deleted: save the others one by one."""
        try:
            self._store.save_drafts([draft])
        except LeaseLost as error:
            self._open.remove(one)
            one.lost(error)
            return False
        except BadInput as error:
            self._open.remove(one)
            one.failed(str(error))
            return False
        return True
