"""What the in-process pools share: resident operands, one task's computation, faults."""

from __future__ import annotations

import socket
import traceback
from collections.abc import Iterable, Sequence
from typing import Any

from codedla.engine.round import Operand, Round
from codedla.engine.stragglers import Fault, FaultPlan, check_ranks
from codedla.engine.work import multiply
from codedla.errors import PoolClosed, UsageError, WorkerError

__all__ = ["LocalPool"]


class LocalPool:
    """Base of the pools that compute in this process.

    Parameters
    ----------
    n_workers : int
        Number of workers, at least 1.
    faults : iterable of Fault
        Faults on purpose; see :mod:`codedla.engine.stragglers`.
    """

    def __init__(self, n_workers: int, faults: Iterable[Fault] = ()) -> None:
        if n_workers < 1:
            raise UsageError(f"a pool needs at least 1 worker; got {n_workers}")
        self.n_workers = n_workers
        self.faults = tuple(faults)
        check_ranks(self.faults, n_workers)
        self.plans = [FaultPlan(self.faults, worker) for worker in range(n_workers)]
        self._resident: dict[tuple[int, int], Any] = {}
        self._last_key = 0
        self._closed = False

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Forget all resident operands; idempotent."""
        self._closed = True
        self._resident.clear()

    def new_key(self) -> int:
        """Return an unused positive id."""
        self._last_key += 1
        return self._last_key

    def drop(self, keys: Sequence[int]) -> None:
        """Forget resident operands."""
        gone = set(keys)
        self._resident = {k: v for k, v in self._resident.items() if k[1] not in gone}

    def check_open(self) -> None:
        """Raise PoolClosed after close."""
        if self._closed:
            raise PoolClosed("this pool is closed; use it inside its with block")

    def fetch(self, worker: int, operand: Operand) -> Any:
        """Return a worker's operand, supplying it first if the worker does not hold it."""
        if operand.key == 0:
            return operand.supply()
        place = (worker, operand.key)
        if place not in self._resident:
            self._resident[place] = operand.supply()
        return self._resident[place]

    def compute(self, job: Round, worker: int, matrices: tuple[Any, Any]) -> WorkerError | None:
        """Compute one reply into its target; return the task's exception instead of raising it."""
        target = job.decoder.target(worker)
        try:
            multiply(*matrices, target)
        except Exception as error:
            return remote_error(worker, error)
        self.plans[worker].corrupt(target)
        return None


def remote_error(worker: int, error: Exception) -> WorkerError:
    """Dress a task's exception as the master will see it."""
    text = "".join(traceback.format_exception(error))
    message = f"{type(error).__name__}: {error}"
    return WorkerError(message, rank=worker + 1, host=socket.gethostname(), traceback=text)
