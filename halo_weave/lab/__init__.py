"""Compare pruning strategies: replay and plot recorded conversations, evaluate strategies on given ones."""
