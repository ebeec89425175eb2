"""Coded transforms: Fourier transforms and convolutions that do not wait for the slowest."""
