"""Transforms, convolutions and a function of shares on real ranks, one late and one killed."""

from __future__ import annotations

import sys
import time

import numpy as np
from common import WORDS, faults, write

import codedla
from codedla.blocks import Grid
from codedla.codes import registry
from codedla.engine.collector import Collector
from codedla.engine.decoder import make_decoder
from codedla.engine.round import Operand, Round
from codedla.errors import CodedlaError, UsageError
from codedla.mpi import program

RNG = np.random.default_rng(47)
result = {"errors": [], "raised": []}


def call(pool, function, inputs, width):
    """Two blocks on four workers: a linear function of each."""
    code = registry.get("mds")(4, Grid(2, 1, 1))

    def operands(share):
        return (Operand(0, lambda: np.tensordot(code.generator_a[share], inputs, 1)),)

    job = Round(
        shares=code.shares,
        operands=operands,
        collector=Collector(code, eps=2.0**-52, tolerance=1.0, workers=range(4)),
        decoder=make_decoder(code, np.empty((2 * inputs.shape[1], width)), np.dtype(float)),
        work="call",
        function=function,
    )
    pool.run(job)
    return job.decoder.output


def note(got, expected):
    error = np.linalg.norm(got - expected) / np.linalg.norm(expected)
    result["errors"].append(float(error))


def work(pool):
    late = False
    for length in (600, 60_000):  # within the order, and behind it
        x = RNG.standard_normal((2, length))
        got, report = codedla.fft(x, pool=pool, parts=2, verify="locate", return_report=True)
        note(got, np.fft.fft(x))
        late = late or 2 in report.stragglers
        x = x[0] + 1j * x[1]
        note(codedla.ifft(x.astype(np.complex64), pool=pool, parts=2), np.fft.ifft(x))
        kernel = RNG.standard_normal(length // 3)
        note(codedla.convolve(x, kernel, pool=pool, blocks=(2, 1)), np.convolve(x, kernel))
        counts = RNG.integers(-9, 9, length)
        got = codedla.convolve(counts, counts[:99], pool=pool, blocks=(2, 1))
        result["exact"] = bool((got == np.convolve(counts, counts[:99])).all())
    result["late"] = late

    inputs = RNG.standard_normal((2, 300, 40))
    matrix = RNG.standard_normal((40, 30))
    flat = inputs.reshape(600, 40)
    note(call(pool, lambda a: a @ matrix, inputs, 30), flat @ matrix)
    large = np.zeros(10_000)  # a function that does not fit into an order

    def slow(a):
        time.sleep(0.3)
        return a @ matrix + large[0]

    note(call(pool, slow, inputs, 30), flat @ matrix)
    for function in (lambda a: 1 // 0, lambda a: a, lambda a: pool):
        try:
            call(pool, function, inputs, 30)
        except (CodedlaError, UsageError) as error:
            result["raised"].append(f"{type(error).__name__}: {error}")
    note(codedla.fft(x, pool=pool, parts=2), np.fft.fft(x))
    write("result", result)
    return 0


sys.exit(program.run(work, faults=faults(WORDS)))
