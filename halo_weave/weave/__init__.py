"""The turn: core, store, engine and recall as one conversation that never ends."""

from halo_weave.weave.weave import Weave

__all__ = ["Weave"]
