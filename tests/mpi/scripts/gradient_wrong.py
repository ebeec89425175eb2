"""Gradients on ranks of which rank 3 answers wrongly in every round."""

from __future__ import annotations

import warnings

import numpy as np
from common import write

import codedla
from codedla.engine.stragglers import parse_fault
from codedla.mpi import program

POINTS = 3.0 + 0.1 * np.random.default_rng(8123).standard_normal((120, 5))
WAYS = (
    ("fractional", "majority"),
    ("cyclic", "locate"),
    ("uncoded", "krum"),
    ("uncoded", "geometric-median"),
    ("uncoded", "trimmed-mean"),
    ("uncoded", None),
)


def squares(theta, x):
    return 0.5 * float(((x - theta) ** 2).sum()), (theta - x).sum(axis=0)


def master(pool):
    warnings.simplefilter("ignore", codedla.CodedlaWarning)
    theta = np.zeros(5)
    _, expected = squares(theta, POINTS)
    found = {}
    for scheme, robust in WAYS:
        options = {"scheme": scheme, "robust": robust, "stragglers": 0}
        with codedla.CodedGradient(squares, POINTS, pool=pool, **options) as cg:
            for _ in range(3):
                _, gradient = cg(theta)
            error = float(np.linalg.norm(gradient - expected) / np.linalg.norm(expected))
            found[str(robust)] = {"error": error, "wrong": cg.wrong}
    write("result", found)
    return 0


raise SystemExit(program.run(master, faults=[parse_fault("corrupt:3:1:scale")]))
