"""Halo Weave over HTTP: a thin skin over weave."""
