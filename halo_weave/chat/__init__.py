"""Conversations: windows, turns, recall, pruning and tools on top of core, engines, store and search."""

from halo_weave.chat.weave import Weave

__all__ = ["Weave"]
