"""What workers compute in coded transforms: Fourier transforms of rows, convolutions of rows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla.engine.attend import CarryOn, always, attend

__all__ = ["METHODS", "convolve", "fft", "rfft"]

Array = NDArray[Any]

METHODS = ("auto", "direct", "fft")
"""How convolutions are computed; "auto" decides by their sizes."""
_PANEL_POINTS = 1 << 20
"""Points transformed between two looks at the orders: some 30 ms."""
_PANEL_TERMS = 1e8
"""Multiply-adds of a direct convolution between two looks."""
_SHORT = 128
"""Up to this length of the shorter row, multiplying it out is not slower than transforming."""


def fft(
    operands: Sequence[Array], out: Array | None = None, carry_on: CarryOn = always
) -> Array | None:
    """Transform every row; return None when stopped."""
    (rows,) = operands
    return _transform(np.fft.fft, rows, rows.shape[1], out, carry_on)


def rfft(
    operands: Sequence[Array], out: Array | None = None, carry_on: CarryOn = always
) -> Array | None:
    """Transform every real row, to the first half of its spectrum; return None when stopped."""
    (rows,) = operands
    return _transform(np.fft.rfft, rows, rows.shape[1] // 2 + 1, out, carry_on)


def _transform(
    kind: Any, rows: Array, width: int, out: Array | None, carry_on: CarryOn
) -> Array | None:
    count, length = rows.shape
    if out is None:
        out = np.empty((count, width), np.result_type(rows.dtype, np.complex64))
    step = max(1, _PANEL_POINTS // max(1, length))
    for top in range(0, count, step):
        if not carry_on():
            return None
        source, target = rows[top : top + step], out[top : top + step]

        def piece(source: Array = source, target: Array = target) -> None:
            with np.errstate(all="ignore"):
                kind(source, axis=1, out=target)

        if not attend(piece, carry_on if length > _PANEL_POINTS else always):
            return None
    return out


def convolve(
    operands: Sequence[Array],
    out: Array | None = None,
    carry_on: CarryOn = always,
    *,
    method: str = "auto",
) -> Array | None:
    """Convolve each row of the first operand with that row of the second, to full length.

    Integers are multiplied out, and wrap around as NumPy's do. Returns None when stopped.
    """
    a, b = operands
    if a.shape[1] < b.shape[1]:
        a, b = b, a
    (count, long), short = a.shape, b.shape[1]
    dtype = np.result_type(a.dtype, b.dtype)
    if out is None:
        out = np.empty((count, long + short - 1), dtype)
    if dtype.kind in "iu" or method == "direct" or (method == "auto" and short <= _SHORT):
        done = _multiply_out(a, b, out, carry_on)
    else:
        done = _by_transforms(a, b, out, carry_on)
    return out if done else None


def _multiply_out(a: Array, b: Array, out: Array, carry_on: CarryOn) -> bool:
    long, short = a.shape[1], b.shape[1]
    step = max(short, int(_PANEL_TERMS / short))
    out[...] = 0
    for row, other, target in zip(a, b, out, strict=True):
        for left in range(0, long, step):
            if not carry_on():
                return False
            chunk = row[left : left + step]

            def piece(chunk: Array = chunk, other: Array = other) -> Array:
                with np.errstate(all="ignore"):
                    return np.convolve(chunk, other)

            # Two long rows are one step, however long it takes.
            large = float(chunk.size) * short > 2 * _PANEL_TERMS
            products = attend(piece, carry_on if large else always)
            if not products:
                return False
            target[left : left + chunk.size + short - 1] += products[0]
    return True


def _by_transforms(a: Array, b: Array, out: Array, carry_on: CarryOn) -> bool:
    """Overlap and add: pieces of the longer row, some times as long as the shorter one."""
    from scipy.fft import next_fast_len

    long, short = a.shape[1], b.shape[1]
    real = out.dtype.kind != "c"
    forward, back = (np.fft.rfft, np.fft.irfft) if real else (np.fft.fft, np.fft.ifft)
    points = next_fast_len(min(long + short - 1, max(8 * short, 1 << 14)), real=real)
    step = points - short + 1
    attended = carry_on if points > _PANEL_POINTS else always
    out[...] = 0
    for row, other, target in zip(a, b, out, strict=True):
        if not carry_on():
            return False
        spectra = attend(partial(forward, other, points), attended)
        for left in range(0, long, step):
            if not (spectra and carry_on()):
                return False
            chunk, spectrum = row[left : left + step], spectra[0]

            def piece(chunk: Array = chunk, spectrum: Array = spectrum) -> Array:
                with np.errstate(all="ignore"):
                    return back(forward(chunk, points) * spectrum, points)

            products = attend(piece, attended)
            if not products:
                return False
            width = chunk.size + short - 1
            target[left : left + width] += products[0][:width]
    return True
