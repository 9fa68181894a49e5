"""Halo Weave: long-term memory for conversations with local language models."""

__version__ = "0.2.0"
