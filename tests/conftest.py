"""What holds for all tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest
from fastapi import FastAPI
from hypothesis import HealthCheck, settings

import tests.fakes
from tests.store.material import SHARED_MEMORY

assert tests.fakes  # adds the engine `scripted`

# A slow machine is no defect: nothing here is judged by the clock.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("fast", settings.get_profile("patient"), max_examples=10)
settings.load_profile("patient")

# Files of tests are in memory, where waiting for the disk takes no time. Tests of the disk say so (stores/disk).
if os.access(SHARED_MEMORY, os.W_OK):
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(SHARED_MEMORY))


@pytest.fixture(scope="session", autouse=True)
def _api_described_once() -> Iterator[None]:
    """A server describes its API at its first request, which takes a while. All of ours have the same addresses."""
    described: dict[type[FastAPI], dict[str, Any]] = {}
    describe = FastAPI.openapi

    def once(app: FastAPI) -> dict[str, Any]:
        kind = type(app)
        if kind is FastAPI:  # somebody else's, in a test
            return describe(app)
        if app.openapi_schema is None:
            if kind not in described:
                described[kind] = deepcopy(describe(app))
            app.openapi_schema = deepcopy(described[kind])
        return app.openapi_schema

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FastAPI, "openapi", once)
        yield
