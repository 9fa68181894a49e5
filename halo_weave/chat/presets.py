"""The persona of all windows, and named presets of settings."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from halo_weave.chat.runtime import Runtime
from halo_weave.chat.turn_runner import storable_text
from halo_weave.chat.windows import window_name
from halo_weave.errors import BadInput, UnknownPreset
from halo_weave.settings import PRESETS_KEY, SHARED_KEY, checked_setting, usable_settings
from halo_weave.store.records import PERSONA, PERSONA_KEY, PROMPT_LENGTH, stored_persona

MOST_PRESETS = 200


@dataclass(frozen=True, slots=True)
class Preset:
    """Named settings, and texts (system prompt and names), as far as it has them."""

    name: str
    settings: Mapping[str, Any]
    words: Mapping[str, str]


class Presets:
    """`weave.presets`."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    # The persona of all windows

    def persona(self) -> dict[str, str]:
        """System prompt and names for windows that have none of their own."""
        return stored_persona(self._runtime.store.settings().get(PERSONA_KEY))

    def change_persona(self, changes: Mapping[str, str]) -> dict[str, str]:
        runtime = self._runtime
        runtime.publish_changed(runtime.store.change_persona(_words(changes), now=runtime.now()))
        return self.persona()

    # Presets

    def list(self) -> list[Preset]:
        """All presets, by name."""
        return [_preset(name, stored) for name, stored in sorted(self._stored().items())]

    def get(self, name: str) -> Preset:
        stored = self._stored()
        if name not in stored:
            raise UnknownPreset(f"There is no preset {name!r}. Save it first.")
        return _preset(name, stored[name])

    def save(self, name: str, settings: Mapping[str, Any], words: Mapping[str, str] | None = None) -> Preset:
        """Save a preset, or replace the one of the same name."""
        name = window_name(name)
        if name not in (known := self._stored()) and len(known) >= MOST_PRESETS:
            raise BadInput(f"There are {MOST_PRESETS} presets already. Delete one first.")
        own = {about: checked_setting(about, value) for about, value in settings.items()}
        self._change({name: {"settings": own, "words": _words(words or {})}})
        return self.get(name)

    def save_from(self, name: str, window_id: str | None = None) -> Preset:
        """Save the settings of a window as a preset; without a window, the settings for all."""
        store = self._runtime.store
        if window_id is None:
            words = {about: text for about, text in self.persona().items() if text != PERSONA[about]}
            return self.save(name, usable_settings(store.settings().get(SHARED_KEY)), words)
        window = self._runtime.window(window_id)
        own = {about: getattr(window, about) for about in PERSONA if about not in window.inherits}
        return self.save(name, usable_settings(window.settings), own)

    def rename(self, name: str, to: str) -> Preset:
        stored, to = self._stored(), window_name(to)
        self.get(name)
        if to in stored and to != name:
            raise BadInput(f"There is a preset {to!r} already. Delete it first, or take another name.")
        if to != name:
            self._change({to: stored[name]}, name)
        return self.get(to)

    def delete(self, name: str) -> Preset:
        """Delete a preset and return it. Windows that it was applied to stay as they are."""
        gone = self.get(name)
        self._change({}, name)
        return gone

    def apply(self, name: str, window_id: str | None = None) -> Preset:
        """Apply a preset to a window, or to all. What the preset does not contain stays as it is."""
        runtime, preset = self._runtime, self.get(name)
        settings, words = dict(preset.settings), dict[str, Any](preset.words)
        if window_id is None:
            runtime.store.change_settings(SHARED_KEY, settings, now=runtime.now())
            self.change_persona(preset.words)
        else:
            runtime.window(window_id)
            runtime.store.change_window(window_id, **words, settings=settings, now=runtime.now())
            runtime.publish_changed([window_id])
        return preset

    def _stored(self) -> dict[str, Any]:
        stored = self._runtime.store.settings().get(PRESETS_KEY)
        return stored if isinstance(stored, dict) else {}

    def _change(self, changes: Mapping[str, Any], *gone: str) -> None:
        self._runtime.store.change_settings(PRESETS_KEY, changes, gone, now=self._runtime.now())


def _preset(name: str, stored: Any) -> Preset:
    """A stored preset without what this version cannot use: it may come from a file."""
    found = stored if isinstance(stored, Mapping) else {}
    words: dict[str, str] = {}
    for about, text in found["words"].items() if isinstance(found.get("words"), Mapping) else ():
        with suppress(BadInput):
            words |= _words({about: text}) if about in PERSONA and isinstance(text, str) else {}
    return Preset(name, usable_settings(found.get("settings")), words)


def _words(given: Mapping[str, str]) -> dict[str, str]:
    words = {about: storable_text(text) for about, text in given.items()}
    for about in words.keys() & {"user_name", "ai_name"}:
        words[about] = window_name(words[about])
    if len(words.get("system_prompt", "")) > PROMPT_LENGTH:
        raise BadInput(f"A system prompt has at most {PROMPT_LENGTH:,} characters.")
    return words
