"""Decoders of exact codes: wrap-around integers, and residues modulo a prime.

==================  ==================================================================
WrapDecoder         systematic, int64: what was recovered is shifted to the right
SystematicModular   systematic, over GF(p): replies are reduced when they arrive
DenseModular        not systematic, over GF(p)
==================  ==================================================================

Replies over GF(p) are exact integers in float64, sums of products of residues; what they leave in
``output`` are balanced residues.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla import kernels
from codedla.codes.exact import ExactCode, ModularCode, WrapCode
from codedla.engine.decoder import Decoder, DenseDecoder, SystematicDecoder
from codedla.galois import balance

__all__ = [
    "DenseModular",
    "ModularDecoder",
    "SystematicModular",
    "WrapDecoder",
    "make_exact_decoder",
]

Array = NDArray[Any]


class WrapDecoder(SystematicDecoder):
    """Decode integers modulo 2**64; see :class:`codedla.codes.exact.WrapCode`."""

    code: WrapCode

    def finish(self, responders: Iterable[int]) -> None:
        """Recover what is missing, and divide by the powers of 2 it came with."""
        survivors = sorted(responders)
        missing = [i for i in range(self.code.grid.outputs) if i not in self._present]
        super().finish(survivors)
        if missing:
            shifts = self.code.shifts(survivors)
            for index in missing:
                view = self.block(index)
                view >>= shifts[index]


class ModularDecoder(Decoder):
    """What decoding over GF(p) has in common."""

    code: ModularCode

    def _reduce(self, share: int) -> None:
        balance(self.target(share), self.code.prime)

    def _combine(
        self,
        weights: Array,
        sources: Sequence[Array],
        outputs: Sequence[Array],
        *,
        accumulate: bool = False,
    ) -> None:
        field = self.code.galois
        kernels.combine_mod(
            field.balanced(weights),
            sources,
            outputs,
            field.p,
            accumulate=accumulate,
            threads=self.threads,
        )


class SystematicModular(ModularDecoder, SystematicDecoder):
    """Decode a systematic code over GF(p)."""

    def add(self, share: int) -> None:
        """Reduce the reply, and keep it; see :class:`codedla.engine.decoder.Decoder`."""
        self._reduce(share)
        super().add(share)


class DenseModular(ModularDecoder, DenseDecoder):
    """Decode any other code over GF(p)."""

    def add(self, share: int) -> None:
        """Reduce the reply, and keep it; see :class:`codedla.engine.decoder.Decoder`."""
        self._reduce(share)
        super().add(share)


def make_exact_decoder(code: ExactCode, output: Array, dtype: np.dtype) -> Decoder:
    """Return the decoder of an exact code."""
    if isinstance(code, ModularCode):
        return (SystematicModular if code.systematic else DenseModular)(code, output, dtype)
    return WrapDecoder(code, output, dtype)
