"""One process that renders for all tests of templates."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from halo_weave.engines.templates.renderer import TemplateRenderer


@pytest.fixture(scope="package")
def renderer() -> Iterator[TemplateRenderer]:
    with TemplateRenderer(seconds=60) as renderer:
        yield renderer
