"""Halo Weave: one endless conversation that forgets by attention and remembers in place."""

__version__ = "0.1.0"
