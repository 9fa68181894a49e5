"""The turn: core, store, engine and recall as one conversation that never ends."""
