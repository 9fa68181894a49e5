"""Import conversations of other programs."""
