"""Decode while waiting: several strategies over one interface.

A pool receives the reply to share ``w`` into ``decoder.target(w)``, then calls ``decoder.add(w)``.
While nothing arrives it calls ``decoder.idle()``, which folds a block that is waiting. When the
collector says so, ``decoder.finish(responders)`` leaves the product in ``decoder.output``.

==================  ===============================================  =========================
strategy            used for                                         work after the last reply
==================  ===============================================  =========================
SystematicDecoder   codes with plain blocks                          O(erased blocks)
StreamingDecoder    one wanted functional (MatDot)                   s + 1 blocks
PeelingDecoder      sparse codes of many blocks                      that of the peeling
DenseDecoder        everything else                                  one combination, K blocks
==================  ===============================================  =========================
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla.blocks import Split
from codedla.codes.base import Code
from codedla.codes.exact import ExactCode
from codedla.codes.peeling import PeelingCode
from codedla.engine import arithmetic

__all__ = ["Decoder", "DenseDecoder", "StreamingDecoder", "SystematicDecoder", "make_decoder"]

Array = NDArray[Any]
FOLD_BATCH = 4
"""Blocks folded by one call of ``idle``: enough to be efficient, few enough to stay alert."""


class Decoder(ABC):
    """Receive replies in place and decode them into ``output``.

    Parameters
    ----------
    code : Code
    output : ndarray (M, N)
        Where the product goes; rows contiguous or not.
    dtype : numpy.dtype
        dtype of the replies (complex for a complex code, even when ``output`` is real).

    Attributes
    ----------
    threads : int
        Threads that combine blocks; the product is the same to the last bit whatever their number.
    """

    threads = 1

    def __init__(self, code: Code, output: Array, dtype: np.dtype) -> None:
        self.code, self.output, self.dtype = code, output, dtype
        self.rows = Split(output.shape[0], code.grid.m)
        self.cols = Split(output.shape[1], code.grid.n)
        self.shape = (self.rows.size, self.cols.size)
        down, _, across = code.stack
        self.reply_shape = (down * self.rows.size, across * self.cols.size)
        self._targets: dict[int, Array] = {}

    def block(self, index: int) -> Array:
        """Return output block ``index`` as a view of ``output``."""
        i, j = divmod(index, self.code.grid.n)
        return self.output[self.rows.slice(i), self.cols.slice(j)]

    def target(self, share: int) -> Array:
        """Return where the reply to ``share`` belongs; its shape and dtype are the reply's."""
        if share not in self._targets:
            self._targets[share] = self._make_target(share)
        return self._targets[share]

    def _make_target(self, share: int) -> Array:
        return arithmetic.empty(self.reply_shape, self.dtype)

    def parts(self, share: int) -> list[Array]:
        """Return the sub-blocks of the reply to ``share``, in C order, as views."""
        reply = self.target(share)
        down, _, across = self.code.stack
        height, width = self.shape
        return [
            reply[i * height : (i + 1) * height, j * width : (j + 1) * width]
            for i in range(down)
            for j in range(across)
        ]

    @abstractmethod
    def add(self, share: int) -> None:
        """Note that the reply to ``share`` stands in its target."""

    def idle(self) -> bool:
        """Do a little of the decoding ahead; return whether there was anything to do."""
        return False

    def detach(self) -> None:
        """Go on in a copy of ``output``: a reply may still be arriving in the original memory."""
        self.output = self.output.copy()

    def release(self, share: int, *, arriving: bool = False) -> None:
        """Give up the target of a share whose reply is not to be used; there will be another.

        Parameters
        ----------
        share : int
        arriving : bool
            A reply stopped half-way and may still write to the old target.
        """
        self._targets.pop(share, None)

    @abstractmethod
    def finish(self, responders: Iterable[int]) -> None:
        """Complete ``output`` from the replies added so far."""

    def _combine_outputs(
        self, weights: Array, sources: Sequence[Array], indices: Sequence[int]
    ) -> None:
        """Write output blocks ``indices`` = ``weights @ sources``, shape by shape."""
        groups: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for position, index in enumerate(indices):
            groups[self.block(index).shape].append(position)
        for (rows, cols), positions in groups.items():
            cropped = [source[:rows, :cols] for source in sources]
            outputs = [self.block(indices[position]) for position in positions]
            self._combine(np.asarray(weights)[positions], cropped, outputs)

    def _combine(
        self,
        weights: Array,
        sources: Sequence[Array],
        outputs: Sequence[Array],
        *,
        accumulate: bool = False,
    ) -> None:
        """Write ``outputs (+)= weights @ sources``; other than in floats for exact codes."""
        _combine_into(weights, sources, outputs, accumulate=accumulate, threads=self.threads)


class SystematicDecoder(Decoder):
    """Plain replies land in the output; every one is folded into the parity residuals on arrival.

    With missing blocks ``E`` and parity replies ``T``: ``residual_t = reply_t - sum_j P[t, j] C_j``
    over the plain blocks that are there, and ``C_E = W[E, T] @ residual_T``.
    """

    def __init__(self, code: Code, output: Array, dtype: np.dtype) -> None:
        super().__init__(code, output, dtype)
        self._plain = {w: code.plain_block(w) for w in code.shares}
        self._parity = [w for w, block in self._plain.items() if block is None]
        self._owned: set[int] = set()
        self._present: set[int] = set()
        self._backlog: list[int] = []
        self._residuals: dict[int, Array] = {}
        self._arrived: list[int] = []

    def _make_target(self, share: int) -> Array:
        index = self._plain[share]
        # Two copies of one block may be under way at once (replication): the first to be asked for
        # owns the place in the output, another would scribble over it while it is being read.
        if index is None:
            return super()._make_target(share)
        view = self.block(index)
        if view.dtype != self.dtype or index in self._owned:
            return arithmetic.empty((view.shape[0], view.shape[1]), self.dtype)
        self._owned.add(index)
        return view

    def detach(self) -> None:
        """Go on in a copy of ``output``, targets included; see :class:`Decoder`."""
        before = self.output
        super().detach()
        for share, target in self._targets.items():
            index = self._plain[share]
            if index is not None and np.may_share_memory(target, before):
                self._targets[share] = self.block(index)

    def release(self, share: int, *, arriving: bool = False) -> None:
        """Give up a target, and its place in the output; see :class:`Decoder`."""
        target, index = self._targets.get(share), self._plain[share]
        if target is not None and index is not None and np.may_share_memory(target, self.output):
            if arriving:
                self.detach()
            self._owned.discard(index)
        super().release(share)

    def add(self, share: int) -> None:
        """Place a plain reply, or keep a parity reply; see :class:`Decoder`."""
        index = self._plain[share]
        if index is None:
            self._arrived.append(share)
            return
        if index in self._present:
            return
        target, view = self.target(share), self.block(index)
        if not np.may_share_memory(target, view):
            view[...] = target
        self._present.add(index)
        if self._parity and len(self._present) < self.code.grid.outputs:
            self._backlog.append(index)

    def idle(self) -> bool:
        """Fold a few replies ahead; see :class:`Decoder`."""
        if not self._backlog:
            return False
        self._fold(self._parity, [self._backlog.pop() for _ in self._backlog[-FOLD_BATCH:]])
        return True

    def _fold(self, parities: Sequence[int], indices: Iterable[int]) -> None:
        if not self._residuals:
            dtype = arithmetic.accumulating(self.dtype)
            blocks = arithmetic.new_blocks(len(self._parity), self.shape, dtype)
            self._residuals = dict(zip(self._parity, blocks, strict=True))
        groups: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for index in indices:
            groups[self.block(index).shape].append(index)
        for (rows, cols), members in groups.items():
            residuals = [self._residuals[t][:rows, :cols] for t in parities]
            blocks = [self.block(index) for index in members]
            weights = -self.code.generator[np.ix_(parities, members)]
            self._combine(weights, blocks, residuals, accumulate=True)

    def finish(self, responders: Iterable[int]) -> None:
        """Recover what is missing; see :class:`Decoder`."""
        missing = [i for i in range(self.code.grid.outputs) if i not in self._present]
        if not missing:
            return
        survivors = sorted(responders)
        parities = [w for w in survivors if w in set(self._arrived)]
        # Only the residuals that are used still need their backlog.
        if parities:
            self._fold(parities, self._backlog)
        self._backlog = []
        for share in parities:
            unit = np.ones((1, 1))
            self._combine(unit, [self.target(share)], [self._residuals[share]], accumulate=True)
        columns = [survivors.index(w) for w in parities]
        weights = self.code.weights(survivors)[np.ix_(missing, columns)]
        self._combine_outputs(weights, [self._residuals[w] for w in parities], missing)


class DenseDecoder(Decoder):
    """Keep every reply and decode all blocks in one combination."""

    def __init__(self, code: Code, output: Array, dtype: np.dtype) -> None:
        super().__init__(code, output, dtype)
        self._present: set[int] = set()

    def add(self, share: int) -> None:
        """Keep the reply; see :class:`Decoder`."""
        self._present.add(share)

    def finish(self, responders: Iterable[int]) -> None:
        """Combine the replies into all blocks; see :class:`Decoder`."""
        survivors = sorted(set(responders) & self._present)
        weights = self.code.weights(survivors)
        sources = [part for w in survivors for part in self.parts(w)]
        self._combine_outputs(weights, sources, range(self.code.grid.outputs))


class StreamingDecoder(Decoder):
    """One wanted functional: keep ``s + 1`` accumulators instead of ``K`` replies.

    All weight vectors that are valid for the full set of shares are ``w0 + Z h``, with ``Z`` a
    basis of the left null space of the generator (``N x s``), orthonormal when each row is scaled
    by its reply's noise. The accumulators hold ``sum_i w0[i] Y_i`` and ``sum_i Z[i, r] Y_i``; at
    the end the ``h`` of least norm, that is of least noise, is chosen such that the weights of the
    shares that were never answered vanish: ``Z_M h = -w0_M``.
    """

    def __init__(self, code: Code, output: Array, dtype: np.dtype) -> None:
        super().__init__(code, output, dtype)
        import scipy.linalg as sla

        noise = code.norms[:, None]
        null = sla.null_space((code.generator / noise).T) / noise
        everyone = code.weights(range(code.n_workers))[0]
        self._weights = np.column_stack([everyone, null])
        self._accumulators = arithmetic.new_blocks(
            self._weights.shape[1], self.shape, arithmetic.accumulating(dtype)
        )
        self._backlog: list[int] = []
        self._folded: set[int] = set()
        self._spare: list[Array] = []

    def _make_target(self, share: int) -> Array:
        return self._spare.pop() if self._spare else super()._make_target(share)

    def add(self, share: int) -> None:
        """Keep the reply until it is folded; see :class:`Decoder`."""
        self._backlog.append(share)

    def idle(self) -> bool:
        """Fold one reply, and free its memory for the next; see :class:`Decoder`."""
        if not self._backlog:
            return False
        share = self._backlog.pop()
        arithmetic.fold(
            self._accumulators, self._weights[share], self.target(share), threads=self.threads
        )
        self._spare.append(self._targets.pop(share))
        self._folded.add(share)
        return True

    def finish(self, responders: Iterable[int]) -> None:
        """Combine the accumulators; see :class:`Decoder`."""
        while self.idle():
            pass
        missing = [w for w in range(self.code.n_workers) if w not in self._folded]
        base, null = self._weights[:, 0], self._weights[:, 1:]
        h, *_ = np.linalg.lstsq(null[missing], -base[missing], rcond=None)
        weights = np.concatenate([[1.0], h])[None, :]
        self._combine_outputs(weights, self._accumulators, [0])


def make_decoder(code: Code, output: Array, dtype: np.dtype) -> Decoder:
    """Return the cheapest decoder that the code allows."""
    if isinstance(code, ExactCode):
        # They derive from the decoders here.
        from codedla.engine.exact_decoder import make_exact_decoder

        return make_exact_decoder(code, output, dtype)
    if isinstance(code, PeelingCode) and code.peels:
        # It derives from the decoder here.
        from codedla.engine.peeling import PeelingDecoder

        return PeelingDecoder(code, output, dtype)
    if code.systematic and any(code.plain_block(w) is not None for w in code.shares):
        return SystematicDecoder(code, output, dtype)
    one = code.grid.outputs == 1 and len(code.shares) == code.n_workers
    if one and code.counts and not code.approximate and code.tolerates + 1 < code.threshold:
        return StreamingDecoder(code, output, dtype)
    return DenseDecoder(code, output, dtype)


def _combine_into(
    weights: Array,
    sources: Sequence[Array],
    outputs: Sequence[Array],
    *,
    accumulate: bool = False,
    threads: int = 1,
) -> None:
    """Combine, also from complex replies into a real output (the imaginary parts cancel)."""
    if not outputs or outputs[0].size == 0:
        return
    same = outputs[0].dtype.kind == sources[0].dtype.kind
    if same and outputs[0].strides[1] == outputs[0].itemsize:
        wide = arithmetic.accumulating(sources[0].dtype) != sources[0].dtype
        arithmetic.combine(
            weights, sources, outputs, accumulate=accumulate, wide=wide, threads=threads
        )
        return
    rows, cols = outputs[0].shape
    for row, out in zip(weights, outputs, strict=True):
        whole = arithmetic.empty((rows, cols), sources[0].dtype)
        arithmetic.combine(row[None, :], sources, [whole], threads=threads)
        part = whole if out.dtype.kind == whole.dtype.kind else whole.real
        out[...] = out + part if accumulate else part
