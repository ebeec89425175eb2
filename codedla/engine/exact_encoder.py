"""Encoders over GF(p): shares are balanced residues in float64.

Masks, for private codes, are further blocks: the last columns of the generators belong to them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla import kernels
from codedla.blocks import Split
from codedla.engine.encoder import DenseEncoder, SparseEncoder
from codedla.errors import UsageError
from codedla.galois import Field, balance

__all__ = ["DenseModularEncoder", "SparseModularEncoder", "modular_encoder", "residues"]

Array = NDArray[Any]


class DenseModularEncoder(DenseEncoder):
    """Encode a dense matrix of balanced residues.

    Parameters
    ----------
    matrix : ndarray (r, c), float64
    rows, cols : Split
    field : Field
    masks : sequence of ndarray (rows.size, cols.size)
        Balanced residues, as float64.
    """

    def __init__(
        self, matrix: Array, rows: Split, cols: Split, field: Field, masks: Sequence[Array] = ()
    ) -> None:
        super().__init__(matrix, rows, cols, np.dtype(np.float64))
        self.field = field
        self.masks = [mask.T if self.transposed else mask for mask in masks]

    def _combine(self, weights: Array, targets: list[Array]) -> None:
        blocks = weights.shape[1] - len(self.masks)
        super()._combine(weights[:, :blocks], targets)
        if self.masks:
            self._add_up(weights[:, blocks:], self.masks, targets, accumulate=True)

    def _add_up(
        self, weights: Array, sources: list[Array], targets: list[Array], accumulate: bool = False
    ) -> None:
        kernels.combine_mod(
            self.field.balanced(weights),
            sources,
            targets,
            self.field.p,
            accumulate=accumulate,
            threads=self.threads,
        )


class SparseModularEncoder(SparseEncoder):
    """Encode a sparse matrix of balanced residues; parameters as of :class:`SparseEncoder`."""

    def __init__(self, matrix: Any, rows: Split, cols: Split, field: Field) -> None:
        super().__init__(matrix, rows, cols, np.dtype(np.float64))
        self.field = field

    def _combined(self, weights: Array) -> Any:
        # The kernel that sums the entries of one place rounds nothing: all sums are below 2**53.
        share = super()._combined(self.field.balanced(weights))
        share.sum_duplicates()
        balance(share.data, self.field.p)
        return share


def modular_encoder(
    matrix: Any, rows: Split, cols: Split, field: Field, masks: Sequence[Array] = ()
) -> DenseEncoder | SparseEncoder:
    """Return the encoder over a field of a matrix of its residues; see :func:`residues`.

    Raises
    ------
    UsageError
        Masks are to be added to a sparse matrix, which would show where it is zero.
    """
    if isinstance(matrix, np.ndarray):
        return DenseModularEncoder(matrix, rows, cols, field, masks)
    if masks:
        raise UsageError("masks hide nothing in a sparse matrix; pass it dense, with .toarray()")
    return SparseModularEncoder(matrix, rows, cols, field)


def residues(matrix: Any, field: Field) -> Any:
    """Return the balanced residues of an integer matrix, float64, sparse if it is sparse."""
    if isinstance(matrix, np.ndarray):
        return field.balanced(matrix)
    whole = matrix.tocsr() if matrix.format not in ("csr", "csc") else matrix
    return type(whole)((field.balanced(whole.data), whole.indices, whole.indptr), whole.shape)
