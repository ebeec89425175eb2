r"""Check every reply of a stored matrix in linear time, by projection from the left.

The matrix is read once, when it is stored. With a random vector ``s`` and

.. math:: \ell_w = \sum_u G^A_{wu} \, s^T A_u, \qquad q_w = \sum_u |G^A_{wu}| \, |s|^T |A_u|,

the reply :math:`y_w = \tilde A_w z` to a share of the vector satisfies, in exact arithmetic,
:math:`s^T y_w = \ell_w z`; for a wrong one that holds with probability zero (Freivalds, from the
other side). Rounding explains, in whatever order the terms are added, a difference of up to

.. math:: (L + \text{rows} + \text{blocks}) \, \epsilon \; q_w |z|

(Higham, "Accuracy and Stability of Numerical Algorithms", section 3.1), so that no honest worker is
accused; what is off by less, relative to :math:`|A| |x|`, stays unnoticed.
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
        self._left = code.generator_a @ left
        self._size = np.abs(code.generator_a) @ size
        self._weights_b = code.generator_b
        terms = plan.shape[1] + self._rows.size + 2 * (grid.m + grid.p) + 16
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
            weights = self._weights_b[share]
            z = np.tensordot(weights, blocks, 1)
            allowed = self._roundings * (self._size[share] @ np.tensordot(abs(weights), sizes, 1))
            allowed += self._least * (1 + self._size[share].max(initial=0.0))
            with np.errstate(all="ignore"):
                difference = np.abs(self._s[: reply.shape[0]] @ reply - self._left[share] @ z)
            # Of NaN nothing is said to be small, hence "<=" and not the opposite.
            return bool((difference <= allowed).all())

        return check
