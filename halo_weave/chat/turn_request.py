"""What a turn is asked to do: answer a new message, regenerate a reply, or continue one."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from halo_weave.chat.documents import Document
from halo_weave.chat.open_window import OpenWindow
from halo_weave.chat.recall_plan import NO_OVERRIDES, RecallOverrides
from halo_weave.chat.reply import THOUGHT, TOOL, ReplyKind, generation_prompt
from halo_weave.chat.runtime import Runtime
from halo_weave.core.pruning import Prune, PrunePlan, PruneReason
from halo_weave.core.tokens import Role, Tokens
from halo_weave.engines.base import Engine, Sampling
from halo_weave.errors import BadInput
from halo_weave.settings import Settings
from halo_weave.store.records import TurnRecord
from halo_weave.store.sql_store import SqlStore


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """Options of an API client for one reply. They replace those of the window."""

    system_prompt: str = ""
    tools: str = ""  # JSON; the model calls these tools, and the client runs them
    grammar: str = ""  # GBNF that the reply must follow
    likely: int = 0  # the number of likeliest tokens in each token event


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """What a turn has to do. `text` is the user's message, new or old.

    When the new turn or reply is stored, later turns leave the current branch.
    """

    text: str
    stop: tuple[str, ...] = ()
    # The id of the turn that the message follows, instead of the last one; 0: it begins the conversation.
    after: int | None = None
    question: int | None = None  # the id of a user turn to answer again; None: the message is new
    opening: tuple[tuple[ReplyKind, Tokens], ...] = ()  # tokens that the reply begins with
    client: ClientOptions | None = None  # options of the API client; None: the page or the terminal
    overrides: RecallOverrides = NO_OVERRIDES
    documents: tuple[Document, ...] = ()  # attached to the message
    speaker: str = ""  # the author of the message, if several people write in the window

    @property
    def tokens(self) -> int:
        """The number of tokens of the opening."""
        return sum(len(tokens) for _, tokens in self.opening)

    def sampling(self, settings: Settings, max_tokens: int) -> Sampling:
        """The sampling settings of the reply, of at most `max_tokens` tokens. API clients send their own stop strings."""
        stop = self.stop if self.client else (*self.stop, *settings.stops)
        return Sampling(
            temperature=settings.temperature,
            top_p=settings.top_p,
            top_k=settings.top_k,
            min_p=settings.min_p,
            repeat_penalty=settings.repeat_penalty,
            seed=settings.seed,
            max_new_tokens=max_tokens,
            stop=stop,
            grammar=self.client.grammar if self.client else "",
            likely=self.client.likely if self.client else 0,
        )


def on_branch(store: SqlStore, window_id: str, turn_id: int) -> bool:
    """Whether the window's current branch goes through a turn."""
    return any(turn.id == turn_id for turn in store.branch(window_id, turn_id - 1)[:1])


def checkout_turn(runtime: Runtime, window_id: str, turn_id: int) -> None:
    """Make the window's current branch go through this turn. If it does not, the turn becomes its last one."""
    if not on_branch(runtime.store, window_id, turn_id):
        runtime.store.switch(window_id, turn_id, now=runtime.now())


def message_request(
    runtime: Runtime, window_id: str, text: str, stop: Sequence[str], after: int | None
) -> TurnRequest:
    if after:
        checkout_turn(runtime, window_id, after)
    return TurnRequest(text, tuple(stop), after)


def regenerate_request(
    runtime: Runtime, window_id: str, turn_id: int | None, stop: Sequence[str]
) -> TurnRequest:
    """`turn_id`: the user's turn, or its answer; None: the last one."""
    store = runtime.store
    if turn_id is None:
        user_turns = [turn for turn in store.branch(window_id) if turn.role is Role.USER]
        if not user_turns:
            raise BadInput("There is nothing to answer yet. Send a message first.")
        turn = user_turns[-1]
    else:
        turn = store.turn_record(turn_id)
    if turn.answers is not None:
        turn = store.turn_record(turn.answers)
    if turn.role is not Role.USER:
        raise BadInput(f"Turn {turn.id} is not the user's; only those are answered.")
    checkout_turn(runtime, window_id, turn.id)
    return TurnRequest(text_of_turn(store, turn.id), tuple(stop), question=turn.id)


def continue_request(runtime: Runtime, window_id: str, stop: Sequence[str]) -> TurnRequest:
    """A request to continue the reply at the end of the branch."""
    store, head, model = runtime.store, runtime.window(window_id).head, runtime.model_for_window(window_id)
    last = store.turn_record(head) if head else None
    if last is None or last.role is not Role.ASSISTANT or last.answers is None:
        raise BadInput(
            "There is no reply to continue. Send a message, or regenerate the reply to the last one."
        )
    kinds: dict[ReplyKind, Tokens] = {}
    for record in store.turn(last.id):
        if record.gone or TOOL in record.tags:
            continue
        kind: ReplyKind = "thought" if THOUGHT in record.tags else "answer"
        tokens = record.chunk.tokens
        if record.tokenizer != model.engine.info.tokenizer or not model.prompt_builder.tokens_are_valid(
            tokens
        ):
            tokens = model.engine.tokenize(record.chunk.text)
        kinds[kind] = kinds[kind] + tokens if kind in kinds else tokens
    if not kinds:
        raise BadInput("The last reply is empty. Regenerate it.")
    effort = runtime.settings(runtime.window(window_id)).effort
    opening = _with_delimiters(runtime, model.engine, kinds, effort)
    return TurnRequest(text_of_turn(store, last.answers), tuple(stop), question=last.answers, opening=opening)


def _with_delimiters(
    runtime: Runtime, engine: Engine, kinds: dict[ReplyKind, Tokens], effort: str | None
) -> tuple[tuple[ReplyKind, Tokens], ...]:
    """A reply as the model wrote it: with the delimiters around its thought that are not in the prompt."""
    marks = engine.facts.marks
    if marks is None:
        return (("answer", kinds["answer"]),) if "answer" in kinds else ()
    opened = marks.opened_by(generation_prompt(engine, effort))
    parts: list[tuple[ReplyKind, Tokens]] = []
    if "thought" in kinds or opened:
        if not opened:
            parts.append(("mark", engine.tokenize(marks.open, special=True)))
        if "thought" in kinds:
            parts.append(("thought", kinds["thought"]))
        if "answer" in kinds:
            parts.append(("mark", engine.tokenize(marks.close + "\n\n", special=True)))
    if "answer" in kinds:
        parts.append(("answer", kinds["answer"]))
    return tuple(parts)


def text_of_turn(store: SqlStore, turn_id: int) -> str:
    """The text of a turn, without thoughts."""
    parts = [part for part in store.turn(turn_id) if part.merged_into is None and THOUGHT not in part.tags]
    return b"".join(part.chunk.tokens.raw for part in parts).decode("utf-8", errors="replace")


def hide_replaced_turns(runtime: Runtime, open_window: OpenWindow, request: TurnRequest) -> None:
    """Remove the turns that the request replaces from the open window. The store moves them to another branch when the new turn is
    stored."""
    last_kept = request.question if request.question is not None else request.after
    if last_kept is None:
        return
    open_window.hide_replaced_turns(_ids(runtime.store.branch(open_window.record.id, last_kept)))
    if request.question is None:
        return
    chunks = [chunk for chunk in runtime.store.turn(request.question) if not chunk.gone]
    if not chunks:
        raise BadInput(f"Turn {request.question} was deleted. Restore it first.")
    end = max(chunk.chunk.stop for chunk in chunks)
    later = [live for live in open_window.working_set if live.chunk.start >= end]
    prunes = [
        Prune(chunk.chunk.key, len(chunk.chunk), chunk.peak, PruneReason.TURN_OVER, 0) for chunk in later
    ]
    if prunes:  # chunks of later turns, also those of other windows
        open_window.prune(PrunePlan(0, 0, tuple(prunes)), now=runtime.now())
    pruned = [chunk.key for chunk in chunks if chunk.key not in open_window.working_set]
    plan = open_window.plan_resurrection_of(pruned, open_window.engine.info.context)
    if plan.chunks:
        open_window.resurrect(plan, {}, now=runtime.now())


def _ids(turns: Collection[TurnRecord]) -> frozenset[int]:
    return frozenset(turn.id for turn in turns)
