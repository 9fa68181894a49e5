"""The default chat model for tests: pulled by itself, skipped visibly where it cannot be, required on CI."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from halo_weave.errors import ModelError
from halo_weave.models import catalogue


def chat_model() -> Path:
    try:
        return catalogue.ensure(catalogue.SMOLLM2_135M)
    except ModelError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"the default model is not here: {error}")
