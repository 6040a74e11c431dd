"""How many examples a law gets."""

from hypothesis import settings

FEWEST = 4


def examples(in_full: int) -> int:
    """A share of those that a law needs in full: all by default, a fifth in `make test`."""
    return max(min(in_full, FEWEST), in_full * settings().max_examples // 100)
