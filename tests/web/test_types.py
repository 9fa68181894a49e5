"""The page's types are those of the API as it is described now."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_types_of_the_page_are_made_from_the_description_as_it_is_now():
    done = subprocess.run(
        [sys.executable, "scripts/_types.py", "--check"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_an_answer_an_event_and_a_field_that_may_be_missing_have_their_types():
    types = (ROOT / "halo_weave" / "web" / "types.d.ts").read_text()
    assert '"GET /api/windows/{window_id}/context": ' in types
    assert "    resurrected: ResurrectedEvent;" in types
    assert '    confirm: "delete everything";' in types  # of a body
    assert "    system_prompt?: string | null;" in types  # may be left out
