"""The peers of ``benchmarks/peers.py``: one program for each, and what runs them all alike."""
