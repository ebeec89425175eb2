"""Replies over GF(p) checked by random projection."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla.blocks import Split
from codedla.codes.exact import ModularCode
from codedla.galois import EXACT, balance

__all__ = ["FieldCheck"]

Array = NDArray[Any]

CHECKS = 3
"""Random vectors that every reply is multiplied by: a wrong one passes with probability p**-3."""


class FieldCheck:
    """Tell right replies from wrong ones over GF(p), by random projection.

    ``R_w r = A~_w (B~_w r)`` holds modulo p for honest replies, whatever their sizes: nobody is
    accused wrongly.

    Parameters
    ----------
    code : ModularCode
    a, b : ndarray or scipy.sparse
        Balanced residues of the operands, float64.
    masks : pair of sequences of ndarray
        Balanced residues that are mixed into the shares of A and of B.
    rng : numpy.random.Generator, optional
        Source of the random vectors; by default one nobody can foresee.
    """

    def __init__(
        self,
        code: ModularCode,
        a: Any,
        b: Any,
        masks: tuple[Any, Any] = ((), ()),
        rng: np.random.Generator | None = None,
    ) -> None:
        self.code, self.field = code, code.galois
        self.rows = Split(a.shape[0], code.grid.m)
        self.inner = Split(a.shape[1], code.grid.p)
        self.cols = Split(b.shape[1], code.grid.n)
        rng = np.random.default_rng() if rng is None else rng
        self.r = self.field.balanced(rng.integers(0, self.field.p, (self.cols.size, CHECKS)))
        self._a = [*self._blocks(a, self.rows, self.inner), *masks[0]]
        self._b = [*self._blocks(b, self.inner, self.cols), *masks[1]]
        self._known: dict[tuple[int, bytes], Array] = {}
        self._projected: list[Array] = []

    @staticmethod
    def _blocks(matrix: Any, rows: Split, cols: Split) -> list[Any]:
        whole = matrix if isinstance(matrix, np.ndarray) else matrix.tocsr()
        return [
            whole[rows.slice(i), cols.slice(j)]
            for i in range(rows.parts)
            for j in range(cols.parts)
        ]

    def check(self, share: int, reply: Array) -> bool:
        """Tell whether ``reply`` can be the product of the operands of ``share``."""
        height, width = reply.shape
        block = self.code.plain_block(share)
        if block is None:
            if (height, width) != (self.rows.size, self.cols.size):
                return False
        else:
            i, j = divmod(block, self.code.grid.n)
            due = self.rows.slice(i), self.cols.slice(j)
            if (height, width) != tuple(part.stop - part.start for part in due):
                return False
        # NaN must count as wrong, hence "not <".
        if not (np.abs(reply) < EXACT - 2 * self.field.p).all() or (reply != np.rint(reply)).any():
            return False
        found = self.field.product(balance(np.array(reply), self.field.p), self.r[:width])
        return bool(np.array_equal(found, self._expected(share)[:height]))

    def _expected(self, share: int) -> Array:
        """Return what an honest reply to ``share`` times the random vectors is."""
        if not self._projected:
            self._projected = [self._padded(b, self.r, self.inner.size) for b in self._b]
        weights_a, weights_b = self.code.generator_a[share], self.code.generator_b[share]
        right = self._mixed(weights_b, self._projected)
        held = np.flatnonzero(weights_a)
        parts = [self._of_block(int(u), weights_b, right) for u in held]
        return self._mixed(weights_a[held], parts)

    def _mixed(self, weights: Array, parts: list[Array]) -> Array:
        total = np.zeros_like(parts[0])
        for weight, part in zip(weights, parts, strict=True):
            total = (total + weight * part) % self.field.p
        return total

    def _of_block(self, u: int, weights_b: Array, right: Array) -> Array:
        """Return a block of A times the right-hand side, which several shares have in common."""
        key = u, weights_b.tobytes()
        if key not in self._known:
            self._known[key] = self._padded(self._a[u], self.field.balanced(right), self.rows.size)
        return self._known[key]

    def _padded(self, block: Any, right: Array, height: int) -> Array:
        """Return a block times columns, modulo p, with rows of zeros to the longest block's."""
        product = np.zeros((height, right.shape[1]), dtype=np.int64)
        product[: block.shape[0]] = self.field.product(block, right[: block.shape[1]])
        return product
