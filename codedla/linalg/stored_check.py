r"""Check every reply of a stored matrix in linear time, by projection from the left.

The matrix is read once, when it is stored. With a random vector ``s`` and

.. math:: \ell_w = \sum_u G^A_{wu} \, s^T A_u, \qquad q_w = \sum_u |G^A_{wu}| \, |s|^T |A_u|,

the reply :math:`y_w = \tilde A_w z` to a share of the vector satisfies, in exact arithmetic,
:math:`s^T y_w = \ell_w z`; for a wrong one that holds with probability zero (Freivalds, from the
other side). Rounding explains, in whatever order the terms are added, a difference of up to

.. math:: (L + \text{rows} + \text{blocks}) \, \epsilon \; q_w |z|

(Higham, "Accuracy and Stability of Numerical Algorithms", section 3.1), so that no honest worker is
accused; what is off by less, relative to :math:`|A| |x|`, stays unnoticed. The rows of sub-blocks
of a stack have a vector each, ``s`` times a random number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla.blocks import Split
from codedla.engine.plan import Plan, machine_epsilon
from codedla.linalg.operands import Checked
from codedla.linalg.projection import random_vector
from codedla.linalg.tiles import tiles

__all__ = ["StoredCheck"]

Array = NDArray[Any]


class StoredCheck:
    """Tell right replies of a stored matrix from wrong ones; see the module's text for how.

    Parameters
    ----------
    plan : Plan
        Of the stored matrix; its vectors are not cut by columns.
    a : Checked
        The matrix, finite.
    rng : numpy.random.Generator, optional
        Source of the random vector; by default one nobody can foresee.
    """

    def __init__(self, plan: Plan, a: Checked, rng: np.random.Generator | None = None) -> None:
        rng = np.random.default_rng() if rng is None else rng
        grid, code = plan.grid, plan.code
        self._rows, self._inner = Split(plan.shape[0], grid.m), Split(plan.shape[1], grid.p)
        self._s = random_vector(rng, self._rows.size)
        kind = np.complex128 if a.dtype.kind == "c" else np.float64
        left = np.zeros((grid.m * grid.p, self._inner.size), kind)
        size = np.zeros(left.shape)
        whole = a.matrix.tocsr() if hasattr(a.matrix, "tocsr") else a.matrix
        for i in range(grid.m):
            strip = whole[self._rows.slice(i)]
            for k in range(grid.p):
                block = strip[:, self._inner.slice(k)]
                for rows, cols, tile in tiles(block, np.float64):
                    s = self._s[rows]
                    left[i * grid.p + k, cols] += tile.T @ s
                    size[i * grid.p + k, cols] += abs(tile).T @ abs(s)
        u, q, v = code.stack
        self._down = np.ones(1) if u == 1 else random_vector(rng, u)
        weights = code.generator_a.reshape(code.n_shares, u, q, -1)
        # By share and inner part: what it is multiplied by must come out.
        self._left = np.tensordot(self._down, weights, ([0], [1])) @ left
        self._size = np.abs(weights).sum(axis=1) @ size
        # Vectors are not cut by columns, and so there is one column of sub-blocks.
        self._weights_b = code.generator_b.reshape(code.n_shares, q, v, -1)[:, :, 0]
        terms = plan.shape[1] + u * self._rows.size + 2 * (grid.m + grid.p) + q + 16
        complex_arithmetic = plan.compute.kind == "c" or code.field == "complex"
        self._roundings = (4.0 if complex_arithmetic else 1.0) * terms
        self._roundings *= machine_epsilon(plan.compute)
        self._least = float(np.finfo(plan.compute).tiny) * terms

    def of(self, x: Checked) -> Callable[[int, Array], bool]:
        """Return the check of the replies for one ``x``, as (share, reply) -> bool.

        All entries are finite, and the product is far from overflow.
        """
        matrix = x.matrix if isinstance(x.matrix, np.ndarray) else x.matrix.toarray()
        # Not in the vector's own type: the least of its integers has no absolute value there.
        kind = np.result_type(matrix.dtype, np.float64)
        blocks = np.zeros((self._inner.parts, self._inner.size, matrix.shape[1]), kind)
        for k in range(self._inner.parts):
            piece = matrix[self._inner.slice(k)]
            blocks[k, : piece.shape[0]] = piece
        sizes = np.abs(blocks)

        def check(share: int, reply: Array) -> bool:
            weights, left, size = self._weights_b[share], self._left[share], self._size[share]
            z = np.tensordot(weights, blocks, 1)
            of_sizes = np.tensordot(abs(weights), sizes, 1)
            allowed = self._roundings * np.einsum("ql,qlc->c", size, of_sizes)
            allowed += self._least * (1 + size.max(initial=0.0)) * len(size)
            s = np.outer(self._down, self._s).reshape(-1)[: reply.shape[0]]
            with np.errstate(all="ignore"):
                difference = np.abs(s @ reply - np.einsum("ql,qlc->c", left, z))
            # Of NaN nothing is said to be small, hence "<=" and not the opposite.
            return bool((difference <= allowed).all())

        return check
