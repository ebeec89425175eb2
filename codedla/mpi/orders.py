"""An order that a worker has taken in: what to compute, from operands that may still arrive."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from numpy.typing import NDArray

from codedla.mpi.wire import Incoming, Transfer, restore

__all__ = ["Held", "Order"]


class Held:
    """An operand of which every message has its place, arrived or not.

    Parameters
    ----------
    incoming : Incoming
    arrays : sequence of ndarray
        The memory that its messages go to.
    """

    def __init__(self, incoming: Incoming, arrays: Sequence[NDArray[Any]]) -> None:
        self._incoming, self._arrays = incoming, arrays

    @property
    def made(self) -> bool:
        """Whether the matrix has been asked for before, and so is there without more ado."""
        return "matrix" in self.__dict__

    @cached_property
    def matrix(self) -> Any:
        """The matrix; only to be asked for when everything has arrived."""
        return restore(self._incoming, self._arrays)


@dataclass
class Order:
    """One RUN order.

    Parameters
    ----------
    round_id, number : int
        Of the round, and of the order, which the answer repeats.
    work : int
        Number of the operation.
    traced : bool
        Whether the answer tells when the panels began.
    operands : sequence of Held
        Chosen when the order came: what is dropped later is still there for it.
    transfer : Transfer or None
        Messages of the operands that have not all arrived yet.
    error : BaseException or None
        Why the operands could not be taken in.
    cancelled : bool
    """

    round_id: int
    number: int
    work: int
    traced: bool
    operands: Sequence[Held] = ()
    transfer: Transfer | None = None
    error: BaseException | None = None
    cancelled: bool = False

    def arrived(self) -> bool:
        """Make progress with the messages; return whether all have come."""
        if self.transfer is not None and self.transfer.done():
            self.transfer = None
        return self.transfer is None
