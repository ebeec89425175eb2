"""ScaLAPACK's ``pdgemm``: block-cyclic to the workers by ``pdgemr2d``, and back in the same way.

Debian's library is called through ctypes. Process 0 holds the operands and the product and does not
compute. A row-major matrix is the transpose of a column-major one: what is computed is
``C' = B' A'``, without any copy.
"""

import ctypes
import os
from ctypes import byref, c_char_p, c_double, c_int

import numpy as np
import report

BLOCK = 128
NOWHERE = -1  # the context of a grid that a process is no part of
library = ctypes.CDLL("libscalapack-openmpi.so.2.2", mode=ctypes.RTLD_GLOBAL)


def grid_of(processes: list[int], high: int) -> c_int:
    """Context of a grid of these processes, ``high`` to a column; all must call."""
    context = c_int()
    library.Cblacs_get(c_int(0), c_int(0), byref(context))
    members = (c_int * len(processes))(*processes)
    wide = len(processes) // high
    library.Cblacs_gridmap(byref(context), members, c_int(high), c_int(high), c_int(wide))
    return context


class Part:
    """The calling process's part of a matrix that lies on a grid in square blocks."""

    def __init__(self, context: c_int, rows: int, columns: int, block: tuple[int, int]) -> None:
        self.desc = (c_int * 9)(1, NOWHERE, rows, columns, *block, 0, 0, 1)
        self.data = np.empty(0)
        if context.value == NOWHERE:
            return
        place = [c_int() for _ in range(4)]
        library.Cblacs_gridinfo(context, *map(byref, place))
        high, wide, row, column = (number.value for number in place)
        shape = local(rows, block[0], row, high), local(columns, block[1], column, wide)
        self.data = np.empty(shape, order="F")
        self.desc[1], self.desc[8] = context.value, max(1, shape[0])

    def pointer(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(self.data.ctypes.data)


def local(size: int, block: int, place: int, places: int) -> int:
    """How many of ``size`` rows, or columns, lie at a place."""
    return int(library.numroc_(*(byref(c_int(i)) for i in (size, block, place, 0, places))))


def move(source: Part, target: Part, context: c_int) -> None:
    """Copy a matrix from one grid to another; all processes must call."""
    one = c_int(1)
    rows, columns = c_int(source.desc[2]), c_int(source.desc[3])
    library.Cpdgemr2d(
        *(rows, columns, source.pointer(), one, one, source.desc),
        *(target.pointer(), one, one, target.desc, context),
    )


class Grids:
    """All processes, the master alone, and the workers."""

    def __init__(self) -> None:
        me, number = c_int(), c_int()
        library.Cblacs_pinfo(byref(me), byref(number))
        self.me, workers = me.value, number.value - 1
        high = max(d for d in range(1, workers + 1) if workers % d == 0 and d * d <= workers)
        self.all = grid_of(list(range(workers + 1)), 1)
        self.master = grid_of([0], 1)
        self.workers = grid_of(list(range(1, workers + 1)), high)
        pids = (c_int * number.value)()
        pids[self.me] = os.getpid()
        everybody = c_char_p(b"All"), c_char_p(b" ")
        library.Cigsum2d(self.all, *everybody, number, c_int(1), pids, number, c_int(-1), c_int(-1))
        self.pids = list(pids)

    def whole(self, rows: int, columns: int) -> Part:
        """A matrix on the master."""
        return Part(self.master, rows, columns, (rows, columns))

    def spread(self, whole: Part) -> Part:
        """The same matrix on the workers."""
        part = Part(self.workers, whole.desc[2], whole.desc[3], (BLOCK, BLOCK))
        move(whole, part, self.all)
        return part

    def multiply(self, left: Part, right: Part) -> np.ndarray:
        """Everybody's part of ``left @ right``; the master returns it."""
        rows, inner, columns = left.desc[2], left.desc[3], right.desc[3]
        whole = self.whole(rows, columns)
        left, right = self.spread(left), self.spread(right)
        result = Part(self.workers, rows, columns, (BLOCK, BLOCK))
        if self.workers.value != NOWHERE:
            one, plain = byref(c_int(1)), c_char_p(b"N")
            library.pdgemm_(
                *(plain, plain, *(byref(c_int(i)) for i in (rows, columns, inner))),
                *(byref(c_double(1.0)), left.pointer(), one, one, left.desc),
                *(right.pointer(), one, one, right.desc),
                *(byref(c_double(0.0)), result.pointer(), one, one, result.desc),
            )
        move(result, whole, self.all)
        return whole.data


def main() -> None:
    grids = Grids()

    def multiply(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        left, right = grids.whole(*b.shape[::-1]), grids.whole(*a.shape[::-1])
        left.data, right.data = b.T, a.T
        return grids.multiply(left, right).T

    if grids.me == 0:
        report.measure(multiply, grids.pids[1:])
    else:
        a, b = (np.load(report.folder() / f"{name}.npy", mmap_mode="r") for name in "AB")
        small = tuple(min(report.SMALL, length) for length in a.shape)
        for left, right in ((small, small), (b.shape, a.shape)):
            grids.multiply(grids.whole(*left[::-1]), grids.whole(*right[::-1]))
    library.Cblacs_exit(c_int(0))


if __name__ == "__main__":
    main()
