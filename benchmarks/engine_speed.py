"""How fast replies are written: with what strategies read against without, and without against llama.cpp's own server.

What is compared writes in turn, and ratios are taken of neighbours, so that other work on the machine slows both alike.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Generator
from typing import Any

from benchmarks.engine_talk import facts, note, pieces, prompt
from halo_weave.core.attribution import capture_for_attribution
from halo_weave.core.retrieval_heads import Calibration
from halo_weave.engines.base import Capture, GenerationEvent, Prompt, Sampling, Step
from halo_weave.engines.flat_prompt import FlatPrompt, Observation
from halo_weave.engines.llama.engine import LlamaEngine
from halo_weave.settings import Settings

CONTEXTS = (500, 1700, 4000)
WINDOWS = ("one", "other")
BURST = 12  # tokens that are written in a row


def capture_ratio(
    engine: LlamaEngine, calibration: Calibration, rounds: int
) -> dict[str, dict[str, float | None]]:
    """Writing speed with what the product reads over without, by strategy and live tokens."""
    names = dict.fromkeys((Settings().strategy, "use_and_surprise", "magnitude_voting"))
    ratios: dict[str, dict[str, float | None]] = {name: {} for name in names}
    for size in CONTEXTS:
        engine.forget(WINDOWS[1])  # it takes what the first one has read
        fits = size + 64 <= engine.info.context
        ask = prompt(pieces(facts(engine, size), size)) if fits else None
        for name, found in ratios.items():
            strategy = Settings().changed({"strategy": name}).brightness_strategy(calibration)
            capture = capture_for_attribution(strategy.capture, calibration)
            found[str(size)] = _watched_ratio(engine, ask, capture, rounds, name) if ask else None
    for window in WINDOWS:
        engine.forget(window)
    return ratios


def _watched_ratio(engine: LlamaEngine, ask: Prompt, capture: Capture, rounds: int, name: str) -> float:
    """Two windows write the same, one of them watched, a token each in turn. Every round they change roles."""
    taken: tuple[list[float], list[float]] = ([], [])  # plain, watched
    for number in range(rounds):
        roles = ((None, taken[0]), (capture, taken[1]))
        turns = zip(WINDOWS, roles if number % 2 else roles[::-1], strict=True)
        writing = [(_writing(engine, window, ask, seen), times) for window, (seen, times) in turns]
        engine.scheduler.post(_in_turn(writing), "in turn")
        engine.scheduler.wait_until_idle()
    assert len(taken[0]) == len(taken[1]) == rounds * (BURST - 1)
    ratio = statistics.median(plain / watched for plain, watched in zip(*taken, strict=True))
    plain, watched = (statistics.median(times) * 1e3 for times in taken)
    size = sum(len(segment.ids) for segment in ask.segments)
    note(
        f"  {size} tokens, {name}: {plain:.2f} ms a token, {watched:.2f} watched: {ratio:.3f} of {len(taken[0])}"
    )
    return round(ratio, 3)


def _writing(
    engine: LlamaEngine, window: str, ask: Prompt, capture: Capture | None
) -> Generator[GenerationEvent | None]:
    """What `generate` hands to the engine's thread."""
    flat = FlatPrompt.of(ask, vocabulary=engine.model.size, context=engine.info.context)
    sampling = Sampling(temperature=0.0, max_new_tokens=BURST)
    observation = Observation.of(flat, None, capture)
    return engine._generate(
        window, flat, ask.next_label, sampling, capture, observation, "splice", lambda: False
    )


def _in_turn(
    writing: list[tuple[Generator[GenerationEvent | None], list[float]]],
) -> Generator[GenerationEvent | None]:
    """A token of each, and how long it took. The first is not counted: before it the prompt is read."""
    for number in range(BURST):
        for steps, times in writing:
            start = time.perf_counter()
            while not isinstance(next(steps), Step):
                pass
            if number:
                times.append(time.perf_counter() - start)
    for steps, _ in writing:
        steps.close()
    return
    yield


def plain_ratio(engine: LlamaEngine, rounds: int) -> float | None:
    """Our writing speed without capture over that of xllamacpp's own server, at the faster of its two settings."""
    try:
        import xllamacpp
    except ImportError:
        note("  skipped: xllamacpp is not installed")
        return None
    ids = facts(engine, 500)
    text = engine.pieces(ids).text
    ask = prompt(pieces(ids, len(ids)))

    def server(flash: Any) -> Any:
        params = xllamacpp.CommonParams()
        params.model.path = str(engine.model.path)
        params.n_ctx, params.n_parallel, params.warmup, params.verbosity = 2048, 1, False, -1
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = engine.config.threads
        params.flash_attn_type = flash
        return xllamacpp.Server(params)

    def ours() -> list[float]:
        sampling = Sampling(temperature=0.0, max_new_tokens=BURST)
        steps = engine.generate("plain", ask, sampling, None)
        return [time.perf_counter() for event in steps if isinstance(event, Step)]

    def theirs(which: Any) -> list[float]:
        times: list[float] = []
        which.handle_completions(
            {"prompt": text, "max_tokens": BURST, "temperature": 0, "ignore_eos": True, "stream": True},
            lambda _: times.append(time.perf_counter()),
        )
        return times[:-1]  # the last message only says that it is over

    kinds = xllamacpp.llama_flash_attn_type
    servers = {
        "flash attention off": server(kinds.LLAMA_FLASH_ATTN_TYPE_DISABLED),
        "its default": server(kinds.LLAMA_FLASH_ATTN_TYPE_AUTO),
    }
    ratios: dict[str, list[float]] = {name: [] for name in servers}
    for number in range(rounds + 1):
        for name, one in servers.items():
            before = _per_token(theirs(one)) if number % 2 else 0.0
            mine = _per_token(ours())
            its = before or _per_token(theirs(one))
            if number:  # the first round reads the prompt
                ratios[name].append(its / mine)
    engine.forget("plain")
    medians = {name: statistics.median(found) for name, found in ratios.items()}
    note("  " + ", ".join(f"against {name}: {value:.3f}" for name, value in medians.items()))
    return round(min(medians.values()), 3)


def _per_token(times: list[float]) -> float:
    return statistics.median(b - a for a, b in itertools.pairwise(times))
