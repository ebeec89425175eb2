"""Rounds whose work is not a product: named operations, functions that travel, attention."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
import scipy.sparse as sp

import codedla
from codedla.blocks import Grid
from codedla.codes import registry
from codedla.engine import work
from codedla.engine.attend import attend
from codedla.engine.collector import Collector
from codedla.engine.decoder import make_decoder
from codedla.engine.round import Operand, Round
from codedla.engine.stragglers import parse_fault
from codedla.errors import UsageError, WorkerError

POOLS = pytest.mark.parametrize("kind", [codedla.SerialPool, codedla.SimulatedPool])
A = np.random.default_rng(31).standard_normal((6, 5))
B = np.random.default_rng(32).standard_normal((5, 4))


def make_round(function=None, *, operands=1, name="call", width=4, dtype=float):
    """Two blocks on four workers, any two of which decode; the function must be linear."""
    code = registry.get("mds")(4, Grid(2, 1, 1))
    generator = code.generator_a

    def supply(share):
        first = Operand(0, lambda: np.tensordot(generator[share], A.reshape(2, 3, 5), 1))
        return (first, Operand(0, lambda: B))[:operands]

    return Round(
        shares=code.shares,
        operands=supply,
        collector=Collector(code, eps=2.0**-52, tolerance=1.0, workers=range(4)),
        decoder=make_decoder(code, np.empty((6, width), dtype), np.dtype(dtype)),
        work=name,
        function=function,
    )


@POOLS
@pytest.mark.parametrize("operands", [1, 2])
def test_a_function_of_the_shares(kind, operands):
    def function(a, b=B):
        return -(a @ b)

    job = make_round(function, operands=operands)
    with kind(4, faults=[parse_fault("kill:1:0"), parse_fault("delay:2:1")]) as pool:
        pool.run(job)
    np.testing.assert_allclose(job.decoder.output, -A @ B, atol=1e-12)


@POOLS
@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda a: a / 0 if a is None else 1 // 0, "ZeroDivisionError"),
        (lambda a: a.sum(), "TypeError: .*must return a matrix of one of .*; got float64"),
        (lambda a: a[0], r"TypeError: .*got float64 of shape \(5,\)"),
        (lambda a: a.astype("f2"), r"TypeError: .*got float16 of shape \(3, 5\)"),
        (lambda a: a, r"TypeError: .*must return float64 of shape \(3, 4\) .* shape \(3, 5\)"),
        (lambda a: (a @ B).astype("f4"), r"must return float64 .* got float32 of shape \(3, 4\)"),
        (lambda a: a.fill(0), "ValueError: assignment destination is read-only"),
    ],
)
def test_what_a_function_raises_names_the_rank(kind, function, text):
    with kind(4) as pool, pytest.raises(WorkerError, match=text) as caught:
        pool.run(make_round(function))
    assert caught.value.rank in (1, 2, 3, 4)
    assert "Traceback" in caught.value.traceback


def test_the_name_of_the_work_and_its_function_belong_together():
    with pytest.raises(UsageError, match=r"workers can do .*got work='add'"):
        make_round(name="add")
    with pytest.raises(UsageError, match="work 'call', and no other, has a function"):
        make_round()
    with pytest.raises(UsageError, match="work 'call', and no other, has a function"):
        make_round(np.negative, name="matmul")


def test_numbers_and_names_are_unique():
    names = [one.name for one in work._ALL]
    assert len({one.number for one in work._ALL}) == len(set(names)) == len(names)
    for one in work._ALL:
        assert work.by_number(one.number) is work.by_name(one.name) is one
    with pytest.raises(RuntimeError, match="operation 99 is not known on this rank"):
        work.by_number(99)


# -- as it happens on another rank -----------------------------------------------------------------


def test_a_function_travels_as_bytes():
    shift = 3.0
    packed = make_round(lambda a: (a + shift) @ B).parcel(0)[-1]
    assert packed.key == 0
    data = packed.supply()
    assert data.dtype == np.uint8
    assert data.shape == (1, data.size)
    reply = work.by_name("call").perform((A, data), None, lambda *_: True)
    np.testing.assert_array_equal(reply, (A + 3.0) @ B)


def test_what_cannot_travel_is_named():
    lock = threading.Lock()
    with pytest.raises(UsageError, match=r"that can be sent to other ranks .*lock"):
        work.pack_function(lambda a: (lock, a))


@pytest.mark.parametrize("function", [lambda a: a, lambda a: a[::-1, ::2], lambda a: a.T])
def test_the_reply_is_memory_of_its_own(function):
    reply = work.by_name("call").perform((A, function), None, lambda *_: True)
    np.testing.assert_array_equal(reply, function(A))
    assert reply.flags.c_contiguous
    assert reply.flags.writeable
    assert not np.may_share_memory(reply, A)


def test_a_sparse_share():
    reply = work.by_name("call").perform(
        (sp.csr_array(A), lambda a: a.toarray()), None, lambda *_: True
    )
    np.testing.assert_array_equal(reply, A)


# -- attention -------------------------------------------------------------------------------------


def test_orders_are_looked_for_while_a_function_runs():
    asked = []

    def carry_on(between=True, /):
        asked.append(between)
        return True

    assert attend(lambda: time.sleep(0.1) or 5, carry_on) == [5]
    assert len(asked) > 3
    assert not any(asked)


def test_what_is_not_wanted_any_more_is_left_alone_and_awaited_later():
    going = threading.Event()
    order = []

    def endless():
        going.wait(10)
        order.append("first")

    assert attend(endless, lambda *_: False) == []
    assert attend(lambda: order.append("never"), lambda *_: False) == []
    threading.Timer(0.05, going.set).start()
    assert attend(lambda: order.append("second"), lambda *_: True) == [None]
    assert order == ["first", "second"]


def test_an_exit_comes_through():
    def leave():
        raise SystemExit(7)

    with pytest.raises(SystemExit):
        attend(leave, lambda *_: True)


def test_a_long_row_is_transformed_attentively(monkeypatch):
    monkeypatch.setattr("codedla.engine.spectral._PANEL_POINTS", 1 << 8)
    rows = np.random.default_rng(33).standard_normal((2, 1 << 9))
    for name, function in (("fft", np.fft.fft), ("rfft", np.fft.rfft)):
        reply = work.by_name(name).perform((rows,), None, lambda *_: True)
        np.testing.assert_array_equal(reply, function(rows))
        assert work.by_name(name).perform((rows,), None, lambda *_: False) is None
