"""The checked doors: what they refuse, how they choose, what they hand out."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from codedla import kernels
from codedla.errors import UsageError


def two() -> list[np.ndarray]:
    return [np.ones(4), np.ones(4)]


@pytest.mark.parametrize(
    ("W", "ins", "outs", "message"),
    [
        (np.ones((2, 2)), two(), [np.ones(4)], r"W must have shape \(1, 2\).*got \(2, 2\)"),
        (np.ones(2), two(), [np.ones(4)], r"W must have shape \(1, 2\)"),
        ([["a", "b"]], two(), [np.ones(4)], "W must hold real or complex numbers"),
        (np.ones((1, 2)) * 1j, two(), [np.ones(4)], "complex W needs complex blocks"),
        (np.ones((1, 2)), [np.ones(4), np.ones(5)], [np.ones(4)], r"ins\[1\] is \(5,\) float64"),
        (
            np.ones((1, 2)),
            [np.ones(4), np.ones(4, "f")],
            [np.ones(4)],
            r"ins\[1\] is \(4,\) float32",
        ),
        (np.ones((1, 2)), two(), [np.ones(4, "f")], r"ins\[0\] is \(4,\) float64"),
        (np.ones((1, 1)), [np.ones(4, int)], [np.ones(4, int)], "must be float32, float64"),
        (np.ones((1, 1)), [np.ones(4, ">f8")], [np.ones(4, ">f8")], "must be float32, float64"),
        (np.ones((1, 1)), [np.ones((2, 2, 2))], [np.ones((2, 2, 2))], "1-D or 2-D, got 3-D"),
        (np.ones((1, 1)), [[1.0, 2.0]], [np.ones(2)], "must be a NumPy array, got list"),
        (np.ones((1, 1)), [np.ones(2)], [[1.0, 2.0]], "must be NumPy arrays, got list"),
        (np.ones((1, 4)), np.ones(4), [np.ones(4)], "ins must be a list of separate arrays"),
    ],
)
def test_combine_refuses(W, ins, outs, message):
    with pytest.raises(UsageError, match=message):
        kernels.combine(W, ins, outs)


def test_read_only_output_is_refused():
    out = np.ones(4)
    out.flags.writeable = False
    with pytest.raises(UsageError, match=r"outs\[0\] is read-only"):
        kernels.combine([[1.0]], [np.ones(4)], [out])


@pytest.mark.parametrize("threads", [0, -1, 1.5, "2"])
def test_number_of_threads(threads):
    with pytest.raises(UsageError, match="threads must be an integer of at least 1"):
        kernels.combine([[1.0]], [np.ones(4)], [np.ones(4)], threads=threads)


def test_fold_refuses():
    with pytest.raises(UsageError, match=r"accs\[1\] is \(5,\)"):
        kernels.fold([np.ones(4), np.ones(5)], [1, 2], np.ones(4))
    with pytest.raises(UsageError, match=r"w must have shape \(1,\)"):
        kernels.fold([np.ones(4)], [1, 2], np.ones(4))
    with pytest.raises(UsageError, match="complex w needs complex blocks"):
        kernels.fold([np.ones(4)], [1j], np.ones(4))
    with pytest.raises(UsageError, match="block must be a NumPy array"):
        kernels.fold([np.ones(4)], [1], [1.0] * 4)
    shared = np.ones(8)
    with pytest.raises(UsageError, match="overlap"):
        kernels.fold([np.ones(4), shared[2:6]], [1, 1], shared[:4])


def test_stream_copy_refuses():
    with pytest.raises(UsageError, match="as many outputs as inputs, got 2 inputs and 1 outputs"):
        kernels.stream_copy(two(), [np.ones(4)])
    with pytest.raises(UsageError, match="overlap"):
        buffer = np.ones(9)
        kernels.stream_copy([buffer[:5]], [buffer[4:]])


def test_overlapping_buffers_are_refused():
    buffer = np.ones(12)
    W = np.ones((2, 1))
    with pytest.raises(UsageError, match=r"outs\[0\] and outs\[1\] overlap"):
        kernels.combine(W, [np.ones(5)], [buffer[:5], buffer[4:9]])
    with pytest.raises(UsageError, match=r"ins\[0\] and outs\[1\] overlap"):
        kernels.combine(W, [buffer[2:7]], [np.ones(5), buffer[:5]])
    with pytest.raises(UsageError, match="overlap"):
        same = np.ones(5)
        kernels.combine(W, [np.ones(5)], [same, same])


@pytest.mark.parametrize(("row", "column"), [(0, 4), (0, -4), (1, -8), (2, 0), (-1, 7)])
def test_column_blocks_that_share_elements_are_refused(row, column):
    M = np.zeros((12, 24))
    here = M[3:8, 9:14]
    there = M[3 + row : 8 + row, 9 + column : 14 + column]
    assert np.shares_memory(here, there) == (abs(column) < 5)
    other = np.ones((5, 5))
    if np.shares_memory(here, there):
        with pytest.raises(UsageError, match="overlap"):
            kernels.combine([[1.0], [1.0]], [other], [here, there])
        with pytest.raises(UsageError, match="overlap"):
            kernels.combine([[1.0], [1.0]], [there], [here, other])
    else:
        kernels.combine([[1.0], [2.0]], [other], [here, there])
        assert (here == 1).all()
        assert (there == 2).all()


def test_overlap_check_agrees_with_numpy():
    """Random windows of one matrix, equal and different strides."""
    rng = np.random.default_rng(60413)
    base = np.zeros(900)
    wide, narrow = base.reshape(30, 30), base.reshape(45, 20)
    refused = 0
    for _ in range(300):
        views = []
        for _ in range(2):
            M = wide if rng.random() < 0.6 else narrow
            r, c = rng.integers(0, M.shape[0] - 4), rng.integers(0, M.shape[1] - 6)
            views.append(M[r : r + 4, c : c + 6])
        shared = np.shares_memory(*views)
        refused += shared
        if shared:
            with pytest.raises(UsageError, match="overlap"):
                kernels.combine(np.ones((2, 0)), [], views)
        else:
            kernels.combine(np.ones((2, 0)), [], views)
    assert 10 < refused < 290


def test_one_output_may_be_an_input(isa):
    for width in (3, 500):
        block, other = np.full(width, 2.0), np.full(width, 10.0)
        kernels.combine([[3.0, 1.0]], [block, other], [block])
        assert (block == 16).all()
        kernels.fold([block], [0.5], block)
        assert (block == 24).all()


def test_inputs_may_share_memory(isa):
    block, out = np.arange(6.0), np.empty(6)
    kernels.combine([[1.0, 2.0]], [block, block], [out])
    assert (out == 3 * block).all()


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128", "int64"])
@pytest.mark.parametrize("shape", [0, 5, (3, 7), (0, 4), (1000, 9)])
def test_aligned_empty(shape, dtype):
    array = kernels.aligned_empty(shape, dtype)
    assert array.shape == ((shape,) if isinstance(shape, int) else shape)
    assert array.dtype == dtype
    assert array.flags.c_contiguous
    assert array.flags.writeable
    assert array.size == 0 or array.ctypes.data % 64 == 0
    array[...] = 1
    assert (array == 1).all()


def test_large_aligned_arrays_start_at_different_page_offsets():
    arrays = [kernels.aligned_empty(1 << 14) for _ in range(16)]
    assert len({array.ctypes.data % 4096 for array in arrays}) > 8


def test_aligned_empty_refuses_negative_lengths():
    with pytest.raises(UsageError, match="no negative length"):
        kernels.aligned_empty((3, -1))


def test_instruction_set_can_be_chosen():
    available = kernels.available_instruction_sets()
    before = kernels.instruction_set()
    assert before in available
    with kernels.using_instruction_set(available[-1]):
        assert kernels.instruction_set() == available[-1]
    assert kernels.instruction_set() == before
    with (
        pytest.raises(UsageError, match=r"instruction set must be one of .*, got 'mmx'"),
        kernels.using_instruction_set("mmx"),
    ):
        pass


def in_new_process(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_environment_selects_the_twin():
    code = "from codedla import kernels as k; print(k.instruction_set(), k._blocks.__name__)"
    done = in_new_process(code, CODEDLA_PURE="1", CODEDLA_ISA="")
    assert done.stdout.split() == ["numpy", "codedla._reference"], done.stderr


def test_missing_kernels_mean_the_twin():
    code = """
import sys
sys.modules["codedla._kernels.blocks"] = None
from codedla import kernels
print(kernels.instruction_set())
"""
    done = in_new_process(code, CODEDLA_PURE="0", CODEDLA_ISA="")
    assert done.stdout.split() == ["numpy"], done.stderr
    assert "Warning" not in done.stderr


def test_broken_kernels_are_reported():
    code = """
import sys

class Broken:
    def find_spec(self, name, path=None, target=None):
        if name == "codedla._kernels.blocks":
            raise ImportError("undefined symbol")

sys.meta_path.insert(0, Broken())
from codedla import kernels
print(kernels.instruction_set())
"""
    done = in_new_process(code, CODEDLA_PURE="0", CODEDLA_ISA="")
    assert done.stdout.split() == ["numpy"], done.stderr
    assert "CodedlaWarning: the compiled kernels cannot be loaded (undefined symbol)" in done.stderr


@pytest.mark.skipif(kernels.instruction_set() == "numpy", reason="no compiled kernels here")
def test_environment_selects_the_instruction_set():
    code = "from codedla import kernels as k; print(k.instruction_set())"
    done = in_new_process(code, CODEDLA_PURE="0", CODEDLA_ISA="baseline")
    assert done.stdout.split() == ["baseline"], done.stderr
    done = in_new_process(code, CODEDLA_PURE="0", CODEDLA_ISA="mmx")
    assert "CODEDLA_ISA must be one of" in done.stderr


def test_errors_of_helper_threads_reach_the_caller(monkeypatch):
    def broken(*args):
        raise MemoryError("no memory")

    monkeypatch.setattr(kernels._blocks, "stream_copy", broken)
    blocks = [np.zeros(200_000)], [np.zeros(200_000)]
    with pytest.raises(MemoryError, match="no memory"):
        kernels.stream_copy(*blocks, threads=2)


def test_vandermonde_doors_refuse():
    nodes = np.array([1.0, 2.0])
    with pytest.raises(UsageError, match="1-D float64 or complex128"):
        kernels.leja_order(np.array([1, 2]))
    with pytest.raises(UsageError, match=r"shape \(2, width\)"):
        kernels.vandermonde_solve(nodes, np.ones(2))
    with pytest.raises(UsageError, match="C-ordered"):
        kernels.vandermonde_solve(nodes, np.ones((3, 2)).T)
    with pytest.raises(UsageError, match="complex for complex nodes"):
        kernels.vandermonde_solve(nodes * 1j, np.ones((2, 3)))
    with pytest.raises(UsageError, match="got float32"):
        kernels.vandermonde_solve(nodes, np.ones((2, 3), "f"))
    square = np.eye(2)
    with pytest.raises(UsageError, match="share memory"):
        kernels.vandermonde_solve(square[0], square)
