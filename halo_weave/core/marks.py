"""The mark of a turn: the same for the same words by the same speaker, however a client lays them out."""

from __future__ import annotations

import re
from hashlib import blake2b

from halo_weave.core.tokens import Role

# What clients add to a reply, or leave out of it: what the model thought, and blocks that fold.
_FOLDED = re.compile(
    r"<(think|thinking|reasoning|details)\b[^>]*>.*?(</\1\s*>|\Z)", re.DOTALL | re.IGNORECASE
)


def mark_of(role: Role, text: str) -> int:
    """A 64-bit number, with a sign. White space, thoughts and folded blocks do not matter."""
    words = "".join(_FOLDED.sub(" ", text).split())
    digest = blake2b(f"{role}\n{words}".encode(errors="replace"), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)
