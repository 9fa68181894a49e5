"""Conversations of other programs: each format is one module that turns the values of a file into conversations."""
