"""Conversations: core, store, engine, recall and tools working together."""

from halo_weave.weave.weave import Weave

__all__ = ["Weave"]
