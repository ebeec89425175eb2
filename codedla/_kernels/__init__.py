"""Compiled kernels, built from ``cython_kernels/``. Only :mod:`codedla.kernels` imports them."""
