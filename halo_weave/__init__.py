"""Halo Weave: one endless conversation that forgets by attention and remembers in place."""

__version__ = "0.2.0"
