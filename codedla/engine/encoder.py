"""Encode one operand: turn its blocks into the share of one worker, when that worker is served.

Plain blocks of a systematic code are views of the operand (nothing is copied). Coded shares are
written once, straight from the operand's strided sub-blocks, by :func:`codedla.kernels.combine`.
Blocks of a dimension that does not divide evenly differ by one row or column; the share has the
size of the longest, and a missing row counts as zeros without being stored.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla.blocks import Split
from codedla.engine import arithmetic, buffers
from codedla.engine.facts import canonical

__all__ = ["DenseEncoder", "SparseEncoder", "make_encoder"]

Array = NDArray[Any]

BAND_BYTES = 32 << 20
"""Of the blocks read between two calls of ``meanwhile``: a few milliseconds. Lower bands are read
in shorter runs, which is slower."""
DENSE_SHARE_FROM = 0.25
"""Density from which a coded share of a sparse operand is stored dense: BLAS wins from there on."""


class DenseEncoder:
    """Encode a dense matrix cut into ``rows.parts x cols.parts`` blocks.

    Parameters
    ----------
    matrix : ndarray (r, c)
        Any memory order. Never modified; C- and Fortran-ordered matrices are not copied.
    rows, cols : Split
        How the two dimensions are cut.
    dtype : numpy.dtype
        dtype of the shares.

    Attributes
    ----------
    threads : int
        Threads that encode; shares are the same to the last bit whatever their number.
    given : set of bytes
        Weights of the shares that were handed out already.
    ready : dict
        By their weights, shares that were made and not asked for yet.
    meanwhile : callable
        Called again and again while a large share is made, so that what else is under way goes on.
    """

    threads = 1

    def __init__(self, matrix: Array, rows: Split, cols: Split, dtype: np.dtype) -> None:
        self.given: set[bytes] = set()
        self.ready: dict[bytes, Any] = {}
        self.meanwhile: Callable[[], object] = _nothing
        # Real operands of a complex code are cast once, not once per share.
        matrix = np.asarray(matrix, dtype=dtype)
        # Fortran order is encoded as the transposed matrix, so that kernels see contiguous rows.
        self.transposed = matrix.flags.f_contiguous and not matrix.flags.c_contiguous
        if self.transposed:
            matrix, rows, cols = matrix.T, cols, rows
        elif matrix.size and matrix.strides[1] != matrix.itemsize:
            matrix = np.ascontiguousarray(matrix)
        self.matrix, self.rows, self.cols, self.dtype = matrix, rows, cols, dtype

    def plain(self, block: int) -> Array:
        """Return block ``block`` (row-major) itself: a view."""
        i, j = self._position(block)
        view = self.matrix[self.rows.slice(i), self.cols.slice(j)]
        return view.T if self.transposed else view

    def coded(self, weights: Array, across: int = 1) -> Array:
        """Return combinations of the blocks, side by side, as a new matrix.

        Parameters
        ----------
        weights : ndarray (count, blocks), or (blocks,) for one
            One row a combination; each has the shape of the longest block.
        across : int
            Combinations beside each other; the next ones stand below.
        """
        return self.coded_together([weights], across)[0]

    def coded_together(self, shares: Sequence[Array], across: int = 1) -> list[Array]:
        """Return several shares, each as :meth:`coded` would, from one pass over the matrix.

        The matrix is larger than the caches: reading it once, not once per share, is what counts.

        Parameters
        ----------
        shares : sequence of ndarray
            The weights of each share.
        across : int
            As of :meth:`coded`, the same for all.
        """
        results, targets = [], []
        stacked = [np.atleast_2d(weights) for weights in shares]
        for weights in stacked:
            whole, parts = self._new_share(len(weights), across)
            results.append(whole.T if self.transposed else whole)
            targets += parts
        rows = np.concatenate(stacked)
        for alike in _alike(rows):
            self._combine(rows[alike], [targets[index] for index in alike])
        return results

    def _new_share(self, count: int, across: int) -> tuple[Array, list[Array]]:
        """Return memory for a share, and in it the places of its ``count`` combinations."""
        down, height, width = count // across, self.rows.size, self.cols.size
        # The matrix may be held as its transpose: what is to stand below stands beside then.
        tall, wide = (across, down) if self.transposed else (down, across)
        whole = buffers.take((tall * height, wide * width), self.dtype)
        places = []
        for index in range(count):
            i, j = divmod(index, across)
            if self.transposed:
                i, j = j, i
            places.append(whole[i * height : (i + 1) * height, j * width : (j + 1) * width])
        return whole, places

    def _combine(self, weights: Array, targets: list[Array]) -> None:
        """Write ``sum_u weights[t, u] * block_u`` into each target, reading the blocks once."""
        blocks = [(u, *self._position(u)) for u in np.flatnonzero(weights.any(axis=0)).tolist()]
        for piece_rows, piece_cols in itertools.product(_pieces(self.rows), _pieces(self.cols)):
            outputs = [target[piece_rows, piece_cols] for target in targets]
            sources, used = [], []
            for u, i, j in blocks:
                block = self.matrix[self.rows.slice(i), self.cols.slice(j)]
                view = block[piece_rows, piece_cols]
                if view.shape == outputs[0].shape:
                    sources.append(view)
                    used.append(u)
            if not used:
                for output in outputs:
                    output[...] = 0
                continue
            # In one piece where nothing is under way.
            bands = [slice(None)] if self.meanwhile is _nothing else _bands(sources)
            for band in bands:
                self._add_up(
                    weights[:, used],
                    [source[band] for source in sources],
                    [output[band] for output in outputs],
                )
                self.meanwhile()

    def _add_up(self, weights: Array, sources: list[Array], targets: list[Array]) -> None:
        """Write ``targets = weights @ sources``; other than in floats for exact codes."""
        arithmetic.combine(weights, sources, targets, threads=self.threads)

    def _position(self, block: int) -> tuple[int, int]:
        if self.transposed:
            j, i = divmod(block, self.rows.parts)
            return i, j
        return divmod(block, self.cols.parts)


class SparseEncoder:
    """Encode a SciPy sparse matrix; shares stay CSR while that is the cheaper form.

    Parameters
    ----------
    matrix : scipy.sparse array or matrix (r, c)
    rows, cols : Split
    dtype : numpy.dtype

    Attributes
    ----------
    threads : int
        As of :class:`DenseEncoder`; not used.
    given : set of bytes
    ready : dict
    meanwhile : callable
        As of :class:`DenseEncoder`; not called.
    """

    threads = 1

    def __init__(self, matrix: Any, rows: Split, cols: Split, dtype: np.dtype) -> None:
        self.meanwhile: Callable[[], object] = _nothing
        self.rows, self.cols, self.dtype = rows, cols, dtype
        self.given: set[bytes] = set()
        self.ready: dict[bytes, Any] = {}
        # Column slices are cheap in CSC, row slices in CSR.
        whole = matrix.tocsr() if cols.parts == 1 else matrix.tocsc()
        self.matrix = canonical(whole).astype(dtype)

    def plain(self, block: int) -> Any:
        """Return block ``block`` (row-major) as CSR."""
        i, j = divmod(block, self.cols.parts)
        return self.matrix[self.rows.slice(i), self.cols.slice(j)].tocsr()

    def coded(self, weights: Array, across: int = 1) -> Any:
        """Return combinations of the blocks: CSR, or an ndarray when it fills up.

        Parameters as of :meth:`DenseEncoder.coded`.
        """
        import scipy.sparse as sp

        parts = [self._combined(row) for row in np.atleast_2d(weights)]
        share = parts[0]
        if len(parts) > 1:
            grid = [parts[start : start + across] for start in range(0, len(parts), across)]
            share = sp.csr_array(sp.block_array(grid))
        if share.nnz > DENSE_SHARE_FROM * share.shape[0] * share.shape[1]:
            return share.toarray()
        return share

    def coded_together(self, shares: Sequence[Array], across: int = 1) -> list[Any]:
        """Return several shares, each as :meth:`coded` does."""
        return [self.coded(weights, across) for weights in shares]

    def _combined(self, weights: Array) -> Any:
        """Return the weighted sum of the blocks as CSR."""
        import scipy.sparse as sp

        shape = (self.rows.size, self.cols.size)
        data, rows, cols = [], [], []
        if self.dtype.kind in "iu":
            # Integer weights, because int64 times float64 rounds to 53 bits.
            array = np.asarray(weights)
            whole = array if array.dtype.kind in "iu" else np.rint(array.real)
            weights = whole.astype(self.dtype)
        for u in np.flatnonzero(weights).tolist():
            part = self.plain(u).tocoo()
            data.append((part.data * weights[u]).astype(self.dtype))
            rows.append(part.row)
            cols.append(part.col)
        if not data:
            return sp.csr_array(shape, dtype=self.dtype)
        joined = (np.concatenate(data), (np.concatenate(rows), np.concatenate(cols)))
        return sp.coo_array(joined, shape=shape).tocsr()


def make_encoder(
    matrix: Any, rows: Split, cols: Split, dtype: np.dtype
) -> DenseEncoder | SparseEncoder:
    """Return the encoder for a dense or sparse operand."""
    kind = DenseEncoder if isinstance(matrix, np.ndarray) else SparseEncoder
    return kind(matrix, rows, cols, dtype)


def _alike(weights: Array) -> list[list[int]]:
    """Group combinations of largely the same blocks: all together, or each for itself."""
    used = weights != 0
    together = np.count_nonzero(used.any(axis=0)) * len(weights)
    everything = list(range(len(weights)))
    if 2 * together <= 3 * np.count_nonzero(used):
        return [everything]
    return [[index] for index in everything]


def _nothing() -> None:
    """Have nothing to do meanwhile."""


def _bands(blocks: Sequence[Array]) -> list[slice]:
    """Cut the rows of blocks of one shape so that a band of all of them is :data:`BAND_BYTES`."""
    rows = len(blocks[0])
    height = max(BAND_BYTES * rows // max(sum(block.nbytes for block in blocks), 1), 1)
    return [slice(top, min(top + height, rows)) for top in range(0, rows, height)]


def _pieces(split: Split) -> list[slice]:
    """Cut a block's index range where the shorter blocks of ``split`` end."""
    shortest = split.length // split.parts
    pieces = [slice(0, shortest), slice(shortest, split.size)]
    return [piece for piece in pieces if piece.start < piece.stop] or [slice(0, 0)]
