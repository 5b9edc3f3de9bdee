"""Surprisal (惊异度) in colours: the one scale that notebooks and the service's page colour a text by.

It imports nothing heavy, so that a figure can use it without loading torch.
"""

# probability from which a token has level 0 (expected), 1, 2, 3; below the last one it has level 4 (a surprise)
LEVELS = (0.5, 0.2, 0.05, 0.01)


def level(probability: float) -> int:
    """Return how surprising a token of this probability is, from 0 (expected) to `len(LEVELS)`."""
    return next((at for at, least in enumerate(LEVELS) if probability >= least), len(LEVELS))
