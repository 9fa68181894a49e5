"""The algorithms, on values and numpy arrays: no files, clock, randomness or logging."""
