"""Coded linear algebra: products whose answer does not wait for the slowest worker."""

from codedla.linalg.matmul import matmul
from codedla.linalg.matvec import CodedMatrix, matvec, store

__all__ = ["CodedMatrix", "matmul", "matvec", "store"]
