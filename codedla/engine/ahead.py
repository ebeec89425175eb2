"""Encode the coded shares of an operand several at a time, in one pass over it.

All workers are served one right after the other, so that the shares of a batch will be under way
together anyway; made one by one, each of them would read the whole operand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from numpy.typing import NDArray

from codedla.engine.encoder import DenseEncoder, SparseEncoder
from codedla.engine.recipe import RecipeEncoder

__all__ = ["MOST_TOGETHER", "Ahead", "Encoder"]

Encoder = DenseEncoder | SparseEncoder | RecipeEncoder

MOST_TOGETHER = 8
"""Combinations written in one pass: as many as the kernels hold in registers."""


class Ahead:
    """Coded shares of one operand, made when the first of them is asked for.

    Parameters
    ----------
    encoder : Encoder
        It keeps what is ready, and remembers what was given out, for all rounds with its shares.
    shares : sequence of int
        Those that are coded, in the order in which they will be asked for.
    weights : callable
        ``weights(share)`` returns the combinations that make up a share.
    across : callable
        ``across(weights)`` returns how many combinations stand beside each other.
    """

    def __init__(
        self,
        encoder: Encoder,
        shares: Sequence[int],
        weights: Callable[[int], NDArray[Any]],
        across: Callable[[NDArray[Any]], int],
    ) -> None:
        self._encoder, self._shares = encoder, shares
        self._weights, self._across = weights, across

    def take(self, share: int) -> Any:
        """Return a share, and forget it here: its memory is free once it has been sent.

        A share that is asked for again, because its worker was lost, is encoded again.
        """
        weights = self._weights(share)
        name = weights.tobytes()
        if name not in self._encoder.ready:
            batch = {name: weights, **self._others(weights)}
            made = self._encoder.coded_together(list(batch.values()), self._across(weights))
            self._encoder.ready.update(zip(batch, made, strict=True))
        self._encoder.given.add(name)
        return self._encoder.ready.pop(name)

    def _others(self, first: NDArray[Any]) -> dict[bytes, NDArray[Any]]:
        """Return the weights of those to be made together with one that was not there."""
        found: dict[bytes, NDArray[Any]] = {}
        # Sparse matrices and files are not read faster for several shares at once.
        room = MOST_TOGETHER // len(first) - 1 if isinstance(self._encoder, DenseEncoder) else 0
        away = self._encoder.ready.keys() | self._encoder.given | {first.tobytes()}
        for share in self._shares:
            if len(found) >= room:
                break
            weights = self._weights(share)
            if weights.shape == first.shape and weights.tobytes() not in away:
                found[weights.tobytes()] = weights
        return found
