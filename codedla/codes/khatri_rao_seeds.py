"""Seeds of good random Khatri-Rao factors, found by a long search."""

SEEDS: dict[tuple[int, int, int], int] = {}
