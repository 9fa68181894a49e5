from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halo_weave.errors import BadSetting
from halo_weave.settings import (
    FIELDS,
    FORMER_NAMES,
    Settings,
    checked_setting,
    described_settings,
    usable_settings,
)


def test_every_setting_has_a_meaning_and_a_default_that_it_accepts():
    for about in described_settings():
        assert len(about["meaning"]) > 20
        assert about["group"]
        assert checked_setting(about["name"], about["default"]) == about["default"]
        assert (about["low"] is None) == (about["type"] in {"boolean", "choice", "text", "day"})


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("temperature", 9, "0 to 5"),
        ("temperature", "hot", "use a number"),
        ("temperature", float("nan"), "use a number"),
        ("temperature", True, "use a number"),
        ("top_k", 1.5, "whole number"),
        ("max_context_tokens", -1, "0 to 1,000,000"),
        ("sink", "last", "max, first"),
        ("timestamps", 1, "true or false"),
        ("decay", None, "cannot be empty"),
        ("colour", 1, "no setting 'colour'"),
        ("temperature", 10**400, "0 to 5"),
        ("recall_since", "yesterday", "a day such as"),
        ("recall_before", 20260504, "a day such as"),
        ("recall_role", "system", "user, assistant"),
    ],
)
def test_a_value_out_of_range_is_refused_with_what_it_may_be(name, value, sentence):
    with pytest.raises(BadSetting, match=sentence):
        Settings().changed({name: value})


@pytest.mark.parametrize(
    ("context", "changes", "limit"),
    [
        (8192, {}, 8192 - 1024 - 512),
        (2048, {}, 2048 - 512 - 256),  # at most a quarter for the reply, an eighth for what wakes up
        (131_072, {}, 16_384),
        (8192, {"resurrection_budget": None}, 8192 - 1024 - 1024),
        (8192, {"resurrection_budget": 0, "max_new_tokens": 100}, 8092),
        (8192, {"max_context_tokens": 2000}, 2000),  # what someone chose holds
        (8192, {"max_context_tokens": 50_000}, 50_000),
        (8192, {"max_context_tokens": 0}, 0),
    ],
)
def test_a_budget_that_nobody_chose_follows_the_models_context(context, changes, limit):
    assert Settings().changed(changes).live_limit(context) == limit


def test_what_is_optional_may_be_empty():
    assert Settings().changed({"resurrection_budget": None, "seed": None}).resurrection_budget is None


def test_a_stored_setting_that_this_version_cannot_use_is_passed_over():
    stored = {"top_k": 7.0, "temperature": 99, "later": {"any": []}, "sink": ["max"], "decay": 10**400}
    assert usable_settings(stored) == {"top_k": 7}
    assert Settings(temperature=0.3).restored(stored) == Settings(temperature=0.3, top_k=7)
    for nothing in (None, 5, [], "top_k"):
        assert Settings().restored(nothing) == Settings()


def test_settings_stored_under_their_former_names_are_read_under_the_current_ones():
    assert not FORMER_NAMES.keys() & FIELDS.keys()
    assert set(FORMER_NAMES.values()) <= FIELDS.keys()
    stored = {
        "fading": 3.0,
        "pairs": "with",
        "may_leave": "window",
        "read_ahead": "off",
        "answered_by": "cellar",
    }
    settings = Settings().restored(stored)
    assert (settings["fade_per_token"], settings.resurrect_pairs) == (3.0, "with")
    assert (settings.remote_scope, settings.prefetch, settings.engine_name) == ("window", "off", "cellar")
    assert usable_settings({"keep_exchanges": 2, "protect_recent_exchanges": 5}) == {
        "protect_recent_exchanges": 5
    }


@given(
    st.sampled_from(sorted(FIELDS)),
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text()),
)
def test_any_value_is_taken_or_refused_with_a_sentence(name, value):
    taken = None
    with suppress(BadSetting):
        taken = checked_setting(name, value)
        assert checked_setting(name, taken) == taken
    if taken is None and value is not None:
        with pytest.raises(BadSetting, match=name):
            checked_setting(name, value)
