"""Reading a chunk in the middle of a window faster: in a context that holds only what stands before it.

llama.cpp looks at every cell in use, also at those that a token may not see. After 2,000 tokens that is half of the work.
"""

from __future__ import annotations

from collections.abc import Generator

import numpy as np
import numpy.typing as npt

from halo_weave.engines.cache import Cache
from halo_weave.engines.cells import CachedTokens
from halo_weave.engines.disk import Grave, SavedWindow

# In cells looked at (2.5 us of one core each): what copying a token costs, and what making a context does. SmolLM2-135M.
COPY, OPEN = 8, 16_000


class Apart:
    """Lives as long as one prompt is read. Chunks are read in time order, so that each copy goes on where the last ended."""

    def __init__(self, home: Cache, size: int) -> None:
        self._home, self._size = home, size
        self._side: Cache | None = None

    def close(self) -> None:
        if self._side is not None:
            self._side.close()

    def pays(self, start: int, stop: int) -> bool:
        """Whether tokens `start` to `stop` of the prompt are worth it."""
        home = self._home
        if home.shape.sliding or not start:
            return False
        saved = (stop - start) * (len(home.cells) - home.cells.free - start)
        have = self._side.count if self._side else 0
        return saved > COPY * (start - have + stop - start) + (0 if self._side else OPEN)

    def read(
        self, tokens: CachedTokens, columns: npt.NDArray[np.int32], start: int, stop: int, batch: int
    ) -> Generator[None, None, Grave]:
        """Compute tokens `start` to `stop`, of which all before are live at `columns`. Yields after each batch."""
        if self._side is None:
            self._side = Cache(self._home.model, self._home.shape, self._size, attention=False)
        side, have = self._side, self._side.count
        if have < start:
            missing = slice(have, start)
            copied = self._home.copied(tokens.part(missing), columns[missing])
            side.take_in(SavedWindow([copied], 0))
        for first in range(start, stop, batch):
            side.extend(tokens.part(slice(first, min(stop, first + batch))))
            yield
        return side.copied(tokens.part(slice(start, stop)), side.columns[start:stop])
