"""Search over everything ever said: embedders, vector index, word index, query analysis and ranking."""

from __future__ import annotations
