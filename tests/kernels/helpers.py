"""What the kernel tests share; plain functions, no fixtures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

DTYPES = ("float32", "float64", "complex64", "complex128")
POISON = 77


def numbers(rng: np.random.Generator, shape: Any, dtype: str) -> Array:
    """Normal deviates of any of the four types."""
    values = rng.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        values = values + 1j * rng.standard_normal(shape)
    return np.asarray(values).astype(dtype)


def weights(rng: np.random.Generator, shape: Any, is_complex: bool) -> Array:
    return numbers(rng, shape, "complex128" if is_complex else "float64")


def guarded(shape: Sequence[int], dtype: str, offset: int = 0) -> tuple[Array, Array]:
    """Output filled with poison inside a poisoned buffer; ``offset`` shifts it by real numbers."""
    real = np.dtype(dtype).type(0).real.dtype
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize // real.itemsize
    buffer = np.full(size + offset + 64, POISON, real)
    inner = buffer[32 + offset : 32 + offset + size].view(dtype).reshape(shape)
    return inner, buffer


def check_guard(inner: Array, buffer: Array, offset: int = 0) -> None:
    """Nothing was written outside ``inner``."""
    size = inner.nbytes // buffer.itemsize
    assert (buffer[: 32 + offset] == POISON).all()
    assert (buffer[32 + offset + size :] == POISON).all()


def close(got: Array, want: Array, terms: int, scale: float = 1.0) -> None:
    """Equal up to the rounding of a sum of ``terms`` products of size ``scale``."""
    eps = np.finfo(got.dtype).eps
    assert got.dtype == want.dtype
    np.testing.assert_allclose(got, want, rtol=0, atol=16 * eps * max(1, terms) * scale)
