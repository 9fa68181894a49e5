"""A generation ends, for every reason there is."""

from __future__ import annotations

from halo_weave.core.tokens import Role
from halo_weave.engines.base import GenerationEnd, Sampling, Step
from tests.contract.engines.conftest import make_engine
from tests.contract.talks import Talk, size


def test_a_generation_ends_at_the_asked_length(talk: Talk) -> None:
    heard = talk.hear(Sampling(temperature=0.0, max_new_tokens=3))
    assert heard.done is not None
    assert heard.done.reason == "length"
    hidden = not talk.engine.info.abilities.cuts and talk.engine.info.url  # its server counts other tokens
    assert 1 <= heard.done.tokens <= 3 if hidden else heard.done.tokens == 3


def test_a_generation_ends_before_a_stop_string(talk: Talk) -> None:
    free = talk.hear(Sampling(temperature=0.0, max_new_tokens=12)).text
    stop = free[4:9]
    heard = talk.hear(Sampling(temperature=0.0, max_new_tokens=12, stop=("not there", stop)))
    assert heard.done is not None
    assert heard.done.reason == "stop"
    assert heard.text == free[: free.index(stop)]


def test_a_generation_stops_within_one_token_when_told_to(talk: Talk) -> None:
    heard: list[Step] = []
    reason = ""
    sampling = Sampling(temperature=0.0, max_new_tokens=50)
    asked = iter([False, False, False])
    for event in talk.engine.generate(
        talk.window, talk.prompt(), sampling, None, stopped=lambda: next(asked, True)
    ):
        if isinstance(event, Step):
            heard.append(event)
        elif isinstance(event, GenerationEnd):
            reason = event.reason
    assert reason == "abort"
    assert len(heard) <= 3


def test_a_dropped_iterator_ends_its_generation_and_the_window_goes_on(talk: Talk) -> None:
    expected = talk.hear().text
    events = talk.engine.generate(
        talk.window, talk.prompt(), Sampling(temperature=0.0, max_new_tokens=500), None
    )
    next(event for event in events if isinstance(event, Step))
    events.close()  # type: ignore[attr-defined]
    assert talk.hear().text == expected


def test_a_full_context_ends_the_generation_with_that_reason(kind: str) -> None:
    engine = make_engine(kind, context=48)
    try:
        talk = Talk(engine, "w", system="Hi")
        talk.add(Role.USER, "Say a lot about everything that there is in the whole wide world.")
        heard = talk.hear(Sampling(temperature=0.0, max_new_tokens=400))
        assert heard.done is not None
        assert heard.done.reason == "context"
        assert size(talk.prompt()) + len(heard.steps) <= 49
    finally:
        engine.close()
