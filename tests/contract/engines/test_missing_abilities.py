"""What an engine cannot do it leaves out: no row, no surprisal, everything read anew, and no error."""

from __future__ import annotations

import numpy as np

from halo_weave.core.tokens import Role
from halo_weave.engines.base import Capture
from tests.contract.engines.conftest import make_engine
from tests.contract.talks import Talk


def test_an_engine_without_abilities_writes_and_leaves_the_rest_out() -> None:
    talk = Talk(make_engine("plain"), "w")
    talk.add(Role.USER, "My dog is called Bruno.")
    middle = talk.add(Role.ASSISTANT, "A fine name for a dog.")
    start = talk.next
    talk.add(Role.USER, "What is he called?")
    everything = Capture(reading=True, reading_surprisal=True, raw=True)
    whole = talk.hear(capture=everything, read_from=start)
    assert whole.read is not None
    assert whole.steps
    assert (whole.read.rows, whole.read.surprisal) == ((), None)
    assert all(step.row is None and np.isnan(step.surprisal) for step in whole.steps)
    talk.asleep = {middle}
    talk.hear()
    talk.asleep = set()
    back = talk.hear().read
    assert back is not None
    assert back.restored == 0
    assert back.computed > len(talk.turns[middle][2])
