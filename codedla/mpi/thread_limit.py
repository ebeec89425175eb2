"""Threads of BLAS and OpenMP in a rank that serves, also of libraries that come along later."""

from __future__ import annotations

import contextlib
import sys
from types import TracebackType
from typing import Self

__all__ = ["ThreadLimit"]


class ThreadLimit:
    """Limit the threads of this process's libraries within the block; give them back after it.

    What a user's function imports (PyTorch, SciPy) brings libraries of its own, which take all
    cores that they see: on a node full of ranks they spend their time waiting for each other.

    Parameters
    ----------
    threads : int
        For each library.
    """

    def __init__(self, threads: int) -> None:
        self._threads, self._modules = threads, -1
        self._limits = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self.renew()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._limits.close()

    def renew(self) -> None:
        """Limit what has been loaded since; costs next to nothing if there were no imports."""
        if len(sys.modules) != self._modules:
            from threadpoolctl import threadpool_limits

            self._limits.enter_context(threadpool_limits(limits=self._threads))
            self._modules = len(sys.modules)
