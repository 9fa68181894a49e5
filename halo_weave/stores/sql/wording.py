"""What the tables keep of a chunk's text beside the text itself: its terms, and how much of it tells something."""

from __future__ import annotations

from halo_weave.core.telling import told_share
from halo_weave.core.words import index_terms
from halo_weave.stores.packing import moment


def word_terms(raw: bytes, speaker: str, said: int) -> str:
    return index_terms(raw.decode("utf-8", errors="replace"), speaker=speaker, said=moment(said))


def told_of(raw: bytes) -> float:
    return told_share(raw.decode("utf-8", errors="replace"))
