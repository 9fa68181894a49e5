"""The strategies, by name. Each file in this package registers one; the file's name is the strategy's name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, fields
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

from halo_weave.core.brightness import Strategy
from halo_weave.core.setting_fields import description, is_setting


def _only_strategy(module: ModuleType) -> type[Strategy]:
    strategies = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Strategy) and value.__module__ == module.__name__
    ]
    if len(strategies) != 1:
        raise TypeError(f"{module.__name__} defines {len(strategies)} strategies; it must define one.")
    return strategies[0]


def settings_of(strategies: Mapping[str, type[Strategy]]) -> dict[str, Field[Any]]:
    """The strategies' own settings, by name. Strategies may share a setting if it means the same in both."""
    found: dict[str, Field[Any]] = {}
    for name, strategy in strategies.items():
        for field in filter(is_setting, fields(strategy)):
            if description(found.setdefault(field.name, field)) != description(field):
                raise TypeError(f"{name} and another strategy define the setting {field.name} differently.")
    return found


def _check_traces(strategies: Mapping[str, type[Strategy]]) -> None:
    """Check that strategies with the same number of traces have the same ones: stored traces have no names."""
    known: dict[int, tuple[str, ...]] = {}
    for name, strategy in strategies.items():
        if known.setdefault(len(strategy.traces), strategy.traces) != strategy.traces:
            raise TypeError(f"{name} has as many traces as another strategy, but with other names.")


STRATEGIES: dict[str, type[Strategy]] = {
    name: _only_strategy(import_module(f"{__name__}.{name}"))
    for name in sorted(module.name for module in iter_modules(__path__))
}
_check_traces(STRATEGIES)
