"""What ``benchmarks/iterative.py`` is made of."""
