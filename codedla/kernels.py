"""Checked doors to the compiled kernels, with a NumPy fallback.

The kernels read and write raw memory and check nothing; everything a caller can get wrong (shapes,
dtypes, layouts, overlapping buffers) is found here, by :mod:`codedla.layouts`. ``CODEDLA_PURE=1``
in the environment, or a package without compiled kernels, selects the NumPy twins of
:mod:`codedla._reference`.
``CODEDLA_ISA=avx512|avx2|baseline`` forces an instruction set, for tests and measurements.
"""

from __future__ import annotations

import itertools
import math
import operator
import os
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from codedla import _reference, layouts
from codedla.errors import CodedlaWarning, UsageError

__all__ = [
    "aligned_empty",
    "available_instruction_sets",
    "barycentric_weights",
    "combine",
    "combine_mod",
    "fold",
    "instruction_set",
    "leja_order",
    "parker_traub_inverse",
    "stream_copy",
    "using_instruction_set",
    "vandermonde_solve",
]

Array = NDArray[Any]

_ISA_NUMBERS = {"baseline": 0, "avx2": 1, "avx512": 2}
_LINE = 64
# Below this many bytes of blocks a second thread costs more than it brings.
_THREAD_BYTES = 1 << 20


def _load_compiled() -> tuple[Any, Any]:
    """Modules with the block and the Vandermonde kernels: compiled, or the twin twice."""
    if os.environ.get("CODEDLA_PURE", "0") not in ("", "0"):
        return _reference, _reference
    try:
        import codedla._kernels.blocks as blocks
        import codedla._kernels.vandermonde as vandermonde
    except ModuleNotFoundError:
        return _reference, _reference
    except ImportError as error:
        warnings.warn(
            f"the compiled kernels cannot be loaded ({error}); the slower NumPy twins are used. "
            "Reinstall codedla, or set CODEDLA_PURE=1 to accept this",
            CodedlaWarning,
        )
        return _reference, _reference
    return blocks, vandermonde


_blocks, _vandermonde = _load_compiled()


def available_instruction_sets() -> tuple[str, ...]:
    """Instruction sets this processor and this build can use, best first."""
    if _blocks is _reference:
        return ("numpy",)
    best = int(_blocks.best_isa())
    return tuple(name for name, number in reversed(_ISA_NUMBERS.items()) if number <= best)


def _initial_isa() -> str:
    wanted = os.environ.get("CODEDLA_ISA", "")
    available = available_instruction_sets()
    if not wanted or available == ("numpy",):
        return available[0]
    if wanted not in available:
        raise UsageError(
            f"CODEDLA_ISA must be one of {', '.join(available)} here, got {wanted!r}; "
            "unset it to let codedla choose"
        )
    return wanted


_isa_name = _initial_isa()


def instruction_set() -> str:
    """Name of the kernels in use: ``avx512``, ``avx2``, ``baseline`` or ``numpy``."""
    return _isa_name


@contextmanager
def using_instruction_set(name: str) -> Iterator[None]:
    """Use another instruction set inside a ``with`` block (whole process; tests, benchmarks).

    Parameters
    ----------
    name : str
        One of :func:`available_instruction_sets`.

    Raises
    ------
    UsageError
        The name is not available here.
    """
    global _isa_name
    available = available_instruction_sets()
    if name not in available:
        raise UsageError(f"the instruction set must be one of {', '.join(available)}, got {name!r}")
    before = _isa_name
    _isa_name = name
    try:
        yield
    finally:
        _isa_name = before


def _isa() -> int:
    return _ISA_NUMBERS.get(_isa_name, 0)


_stagger = itertools.count()


def aligned_empty(shape: int | Sequence[int], dtype: DTypeLike = np.float64) -> Array:
    """Uninitialised C-ordered array whose first byte lies at a multiple of 64.

    Large arrays start at different offsets inside their 4096-byte page, so that many blocks read
    side by side do not compete for the same few cache sets.

    Parameters
    ----------
    shape : int or tuple of int
    dtype : dtype, optional
        Float64 by default.

    Returns
    -------
    ndarray
        Of the given shape and dtype; writable.
    """
    dtype = np.dtype(dtype)
    dims = (shape,) if isinstance(shape, (int, np.integer)) else tuple(shape)
    if any(length < 0 for length in dims):
        raise UsageError(f"a shape must have no negative length, got {dims}")
    size = math.prod(dims) * dtype.itemsize
    slack = _LINE * (next(_stagger) % 64) if size >= 4096 else 0
    raw = np.empty(size + slack + _LINE, np.uint8)
    (address,) = _blocks.addresses([raw])
    start = slack + (-(address + slack)) % _LINE
    return raw[start : start + size].view(dtype).reshape(dims)


# --- block kernels ------------------------------------------------------------------------------


def _run(
    kernel: Callable[[list[Array], list[Array], int, int], None],
    ins: list[Array],
    outs: list[Array],
    *,
    fresh: bool,
    in_place: bool,
    threads: int,
) -> None:
    """Call ``kernel(ins, outs, first, last)`` on memory it can use, over all columns.

    Parameters
    ----------
    kernel : callable
    ins, outs : list of ndarrays of one shape and dtype
    fresh : bool
        The old contents of the outputs are not read.
    in_place : bool
        An output that is exactly an input is harmless.
    threads : int

    Raises
    ------
    UsageError
        ``threads`` is no positive integer, or the outputs are read-only or overlap something.
    """
    if not isinstance(threads, (int, np.integer)) or threads < 1:
        raise UsageError(f"threads must be an integer of at least 1, got {threads!r}")
    layouts.check_outputs(outs)
    if not outs or outs[0].size == 0:
        return
    layouts.refuse_overlap(ins, outs, _blocks.addresses([*outs, *ins]), in_place)
    ready_ins, ready_outs, copy_back = layouts.prepare(ins, outs, fresh)
    streams = len(ins) + len(outs)

    def work(first: int, last: int) -> None:
        kernel(ready_ins, ready_outs, first, last)

    _by_columns(work, ready_outs[0], streams, int(threads))
    for out, stand_in in copy_back:
        out[...] = stand_in


def _by_columns(
    work: Callable[[int, int], None], block: Array, n_blocks: int, threads: int
) -> None:
    """Call ``work(first, last)`` over the columns of ``block``, split among threads."""
    columns = block.shape[-1]
    if block.nbytes * n_blocks < _THREAD_BYTES:
        threads = 1
    # Whole cache lines per thread: two threads never write one line of an aligned output.
    unit = _LINE // block.itemsize
    step = -(-columns // (threads * unit)) * unit
    bounds = [(start, min(start + step, columns)) for start in range(0, columns, step)]
    if len(bounds) <= 1:
        work(0, columns)
        return
    failures: list[BaseException] = []

    def guarded(first: int, last: int) -> None:
        try:
            work(first, last)
        except BaseException as error:
            failures.append(error)

    helpers = [threading.Thread(target=guarded, args=bound) for bound in bounds[1:]]
    for helper in helpers:
        helper.start()
    guarded(*bounds[0])
    for helper in helpers:
        helper.join()
    if failures:
        raise failures[0]


def combine(
    W: ArrayLike,
    ins: Sequence[Array],
    outs: Sequence[Array],
    *,
    accumulate: bool = False,
    wide: bool = False,
    threads: int = 1,
) -> None:
    """Linear combinations of blocks: encoding and one-shot decoding.

    Parameters
    ----------
    W : array_like (n_out, n_in)
        Real or complex weights.
    ins : sequence of n_in ndarrays
        Blocks of one shape (1-D or 2-D) and one dtype (float32, float64, complex64, complex128).
        Never modified; may be read-only, strided, or share memory with each other.
    outs : sequence of n_out ndarrays
        Results, same shape and dtype. They must not share memory with the inputs or with each
        other; a single output may be exactly one of the inputs.
    accumulate : bool, optional
        Add to the outputs instead of replacing them.
    wide : bool, optional
        Sum blocks of single precision in double precision, with weights in double precision.
    threads : int, optional
        Threads that share the columns (default 1: the ranks already share the node). The result
        is the same to the last bit whatever their number.

    Raises
    ------
    UsageError
        Shapes, dtypes or memory break a rule above, or W is complex and the blocks are real.

    Notes
    -----
    ``outs[i] (+)= sum_j W[i, j] * ins[j]``. Sums run in the precision of the blocks: float32
    blocks have their weights rounded to float32 and are summed in float32, unless ``wide`` is
    given: then each output is rounded once, when its sum is complete. Zero weights are not
    skipped, so an infinity in any input makes NaN where its weight is zero, as IEEE arithmetic
    says. Blocks whose last axis is contiguous are used where they lie, whatever their row stride
    (a column block of a C-ordered matrix, a tile of the result); any other layout is copied.
    """
    ins, outs = layouts.as_list("ins", ins), layouts.as_list("outs", outs)
    some = outs[0] if outs else ins[0] if ins else None
    if isinstance(some, np.ndarray):
        layouts.check_blocks("outs", outs, some)
        layouts.check_blocks("ins", ins, some)
    elif some is not None:
        raise UsageError(
            f"blocks must be NumPy arrays, got {type(some).__name__}; wrap them with numpy.asarray"
        )
    complex_ok = some is None or some.dtype.kind == "c"
    W = layouts.check_weights("W", W, (len(outs), len(ins)), complex_ok)
    isa = _isa()
    combine_blocks = _blocks.combine_wide if wide else _blocks.combine

    def kernel(ins: list[Array], outs: list[Array], first: int, last: int) -> None:
        combine_blocks(W, ins, outs, accumulate, isa, first, last)

    _run(kernel, ins, outs, fresh=not accumulate, in_place=len(outs) == 1, threads=threads)


def combine_mod(
    W: ArrayLike,
    ins: Sequence[Array],
    outs: Sequence[Array],
    p: int,
    *,
    accumulate: bool = False,
    threads: int = 1,
) -> None:
    """Linear combinations of blocks modulo ``p``, reduced once for each output.

    Parameters
    ----------
    W : array_like (n_out, n_in)
        Integers of magnitude ``p // 2`` or less.
    ins : sequence of n_in ndarrays, float64
        Blocks as of :func:`combine`, holding integers of magnitude ``p // 2`` or less.
    outs : sequence of n_out ndarrays, float64
        Balanced residues ``-p/2 < x < p/2`` (0 and 1 modulo 2); memory as of :func:`combine`.
    p : int
        At least 2.
    accumulate : bool, optional
        Add to the outputs, which hold balanced residues, instead of replacing them.
    threads : int, optional

    Raises
    ------
    UsageError
        A sum could exceed what float64 holds exactly, or a rule of :func:`combine` is broken.

    Notes
    -----
    ``outs[i] = sum_j W[i, j] * ins[j] mod p``, exact as ``n_in * (p // 2)**2 + 2 * p < 2**53``.
    Larger inputs do no harm while all sums stay below ``2**53 - 2 * p``: so blocks are reduced
    in place, with ``W = [[1]]``.
    """
    ins, outs = layouts.as_list("ins", ins), layouts.as_list("outs", outs)
    like = np.empty(outs[0].shape if outs and isinstance(outs[0], np.ndarray) else 0)
    layouts.check_blocks("outs", outs, like)
    if outs:
        layouts.check_blocks("ins", ins, like)
    weights = layouts.check_weights("W", W, (len(outs), len(ins)), False)
    p = operator.index(p)
    if p < 2 or len(ins) * (p // 2) ** 2 + 2 * p >= 2**53:
        raise UsageError(
            f"sums of {len(ins)} products modulo p are exact for 2 <= p and {len(ins)} * "
            f"(p // 2)**2 + 2 * p < 2**53; got p={p}; use a smaller prime or fewer blocks"
        )
    if not (np.abs(weights) <= p // 2).all() or not (weights == np.rint(weights)).all():
        raise UsageError(
            f"W must hold balanced residues, integers of at most {p // 2}; got "
            f"{weights.ravel()[:3]} ...; reduce them with codedla.galois.Field.balanced"
        )
    isa = _isa()

    def kernel(ins: list[Array], outs: list[Array], first: int, last: int) -> None:
        _blocks.combine_mod(weights, ins, outs, float(p), accumulate, isa, first, last)

    _run(kernel, ins, outs, fresh=not accumulate, in_place=len(outs) == 1, threads=threads)


def fold(accs: Sequence[Array], w: ArrayLike, block: Array, *, threads: int = 1) -> None:
    """Add one block to several accumulators in one pass: decoding while replies arrive.

    Parameters
    ----------
    accs : sequence of s ndarrays
        Accumulators, updated in place; the shape and dtype of ``block``.
    w : array_like (s,)
        Real or complex weights.
    block : ndarray, 1-D or 2-D
        The arrived block; never modified.
    threads : int, optional
        Threads that share the columns.

    Raises
    ------
    UsageError
        Shapes or dtypes differ, memory overlaps, or ``w`` is complex and the blocks are real.

    Notes
    -----
    ``accs[r] += w[r] * block``. Layouts and precision as in :func:`combine`.
    """
    accs = layouts.as_list("accs", accs)
    if not isinstance(block, np.ndarray):
        raise UsageError(
            f"block must be a NumPy array, got {type(block).__name__}; wrap it with numpy.asarray"
        )
    layouts.check_blocks("accs", accs, block)
    w = layouts.check_weights("w", w, (len(accs),), block.dtype.kind == "c")
    isa = _isa()

    def kernel(ins: list[Array], accs: list[Array], first: int, last: int) -> None:
        _blocks.fold(accs, w, ins[0], isa, first, last)

    _run(kernel, [block], accs, fresh=False, in_place=len(accs) == 1, threads=threads)


def stream_copy(ins: Sequence[Array], outs: Sequence[Array], *, threads: int = 1) -> None:
    """Copy blocks with streaming stores: the physical limit that decoding is measured against.

    Parameters
    ----------
    ins, outs : sequences of equally many ndarrays
        As in :func:`combine`.
    threads : int, optional
        Threads that share the columns.

    Raises
    ------
    UsageError
        As in :func:`combine`, or the numbers of blocks differ.
    """
    ins, outs = layouts.as_list("ins", ins), layouts.as_list("outs", outs)
    if len(ins) != len(outs):
        raise UsageError(
            f"stream_copy needs as many outputs as inputs, got {len(ins)} inputs and "
            f"{len(outs)} outputs"
        )
    if not ins:
        return
    layouts.check_blocks("outs", outs[:1], np.asarray(outs[0]))
    layouts.check_blocks("outs", outs, outs[0])
    layouts.check_blocks("ins", ins, outs[0])
    isa = _isa()

    def kernel(ins: list[Array], outs: list[Array], first: int, last: int) -> None:
        _blocks.stream_copy(ins, outs, isa, first, last)

    _run(kernel, ins, outs, fresh=True, in_place=False, threads=threads)


# --- Vandermonde kernels ------------------------------------------------------------------------


def _check_nodes(nodes: Array) -> None:
    good = isinstance(nodes, np.ndarray) and nodes.ndim == 1
    if not good or nodes.dtype not in (np.dtype(np.float64), np.dtype(np.complex128)):
        raise UsageError(
            "the kernels need nodes as a 1-D float64 or complex128 array; "
            "use codedla.vandermonde, which converts"
        )


def vandermonde_solve(
    nodes: Array, x: Array, *, transpose: bool = False, chebyshev: bool = False
) -> None:
    """Solve a Vandermonde system in place, for many right-hand sides.

    Parameters
    ----------
    nodes : ndarray (k,), float64 or complex128
        Distinct nodes (not checked here; see :func:`codedla.vandermonde.solve`).
    x : ndarray (k, width), float64 or complex128, C-ordered
        Right-hand sides on entry, solutions on return. Complex nodes need a complex ``x``.
    transpose, chebyshev : bool, optional
        Transposed matrix; Chebyshev instead of monomial basis.

    Raises
    ------
    UsageError
        Shape, dtype or layout breaks a rule above.
    """
    _check_nodes(nodes)
    good = isinstance(x, np.ndarray) and x.ndim == 2 and x.shape[0] == len(nodes)
    if not good or not x.flags.c_contiguous or not x.flags.writeable or not x.flags.aligned:
        raise UsageError(
            f"x must be a writable C-ordered array of shape ({len(nodes)}, width); "
            "use codedla.vandermonde.solve, which converts"
        )
    allowed = "c" if nodes.dtype.kind == "c" else "fc"
    if x.dtype.kind not in allowed or x.dtype.itemsize != (16 if x.dtype.kind == "c" else 8):
        raise UsageError(
            f"x must be float64 or complex128 (complex for complex nodes), got {x.dtype}"
        )
    if np.may_share_memory(nodes, x):
        raise UsageError("nodes and x must not share memory; copy the nodes")
    _vandermonde.vandermonde_solve(
        np.ascontiguousarray(nodes), x, bool(transpose), bool(chebyshev), _isa()
    )


def barycentric_weights(nodes: Array) -> Array:
    """``1 / prod_{j != i} (nodes[i] - nodes[j])``, shape (k,); nodes float64 or complex128."""
    _check_nodes(nodes)
    result: Array = _vandermonde.barycentric_weights(np.ascontiguousarray(nodes))
    return result


def parker_traub_inverse(nodes: Array) -> Array:
    """Inverse of the monomial Vandermonde matrix, shape (k, k); nodes float64 or complex128."""
    _check_nodes(nodes)
    result: Array = _vandermonde.parker_traub_inverse(np.ascontiguousarray(nodes))
    return result


def leja_order(nodes: Array) -> NDArray[np.intp]:
    """Indices of the nodes in Leja order, shape (k,); nodes float64 or complex128."""
    _check_nodes(nodes)
    result: NDArray[np.intp] = _vandermonde.leja_order(np.ascontiguousarray(nodes))
    return result
