"""What the codes know of a gradient after some replies, and how tight their frames are."""

from __future__ import annotations

from typing import Any

import _common
import numpy as np

from codedla.iterative.lwpd_codes import (
    coherence,
    frame_bounds,
    greedy,
    kaczmarz,
    least_squares,
    make_code,
    peels,
    ring,
    welch,
)

__all__ = ["errors", "frames"]

BLOCKS, WORKERS = 8, 16
ARRIVALS = (4, 6, 8, 10, 12)
EXPECTED: dict[str, tuple[float, ...]] = {
    "replication": (0.73, 0.58, 0.43, 0.27, 0.12),
    "ring": (0.70, 0.50, 0.27, 0.09, 0.02),
    "greedy": (0.69, 0.47, 0.17, 0.02, 0.00),
    "dense": (0.69, 0.45, 0.00, 0.00, 0.00),
}
"""Errors of least squares of the prototype from which this package's codes were made."""
SEED = 220_112
FRAMES = ((4, 2, 8), (4, 2, 12), (8, 2, 16), (8, 4, 16), (4, 2, 6), (8, 3, 16))


def frames() -> list[dict[str, Any]]:
    """Coherence and eigenvalues of light codes; print them and return the rows."""
    codes = [(f"greedy, weight {w}", greedy(k, m, w)) for k, w, m in FRAMES]
    codes += [(f"ring, k={k}", ring(k, 2 * k)) for k in (4, 8)]
    rows = []
    for name, code in codes:
        m, k = code.shape
        low, high = frame_bounds(code)
        rows.append(
            {
                "code": name,
                "k": k,
                "m": m,
                "coherence": coherence(code),
                "welch": welch(k, m),
                "lowest": low,
                "highest": high,
                "m_over_k": m / k,
                "tight": bool(np.allclose([low, high], m / k, rtol=1e-9)),
            }
        )
    _common.print_table(
        "frames: eigenvalues of the sum of all c c', which are m/k of a tight one",
        ("code", "k", "m", "coherence", "Welch's bound", "eigenvalues", "m/k", "tight"),
        [
            (
                row["code"],
                str(row["k"]),
                str(row["m"]),
                f"{row['coherence']:.3f}",
                f"{row['welch']:.3f}",
                f"{row['lowest']:.3f} .. {row['highest']:.3f}",
                f"{row['m_over_k']:.3f}",
                "yes" if row["tight"] else "no",
            )
            for row in rows
        ],
    )
    return rows


def errors(trials: int) -> list[dict[str, Any]]:
    """Relative errors after some of the replies, in random order; print and return them.

    Parameters
    ----------
    trials : int
        Random gradients for each code and number of replies.
    """
    rng = np.random.default_rng(SEED)
    rows = []
    for name, expected in EXPECTED.items():
        code = make_code(name, BLOCKS, WORKERS)
        for s, known in zip(ARRIVALS, expected, strict=True):
            found = np.array([_trial(code, s, rng) for _ in range(trials)]).mean(axis=0)
            rows.append(
                {
                    "code": name,
                    "replies": s,
                    "least_squares": found[0],
                    "expected": known,
                    "off_by": abs(found[0] - known),
                    "kaczmarz": found[1],
                    "peeled": found[2],
                }
            )
    cells = {
        (row["code"], row["replies"]): (
            f"{row['least_squares']:.2f}/{row['kaczmarz']:.2f}/{row['peeled']:.2f}"
        )
        for row in rows
    }
    worst = max(row["off_by"] for row in rows)
    _common.print_table(
        f"k={BLOCKS}, m={WORKERS}: error of least squares / of one pass of Kaczmarz / part of the "
        f"blocks that peeling finds, after s replies; least squares at most {worst:.3f} off",
        ("code", *(f"s={s}" for s in ARRIVALS)),
        [(name, *(cells[name, s] for s in ARRIVALS)) for name in EXPECTED],
    )
    return rows


def _trial(code: np.ndarray, s: int, rng: np.random.Generator) -> tuple[float, float, float]:
    gradient = rng.standard_normal((BLOCKS, 1))
    rows = rng.permutation(WORKERS)[:s]
    some, size = code[rows], np.linalg.norm(gradient)
    replies = some @ gradient
    squares = np.linalg.norm(least_squares(some, replies) - gradient)
    swept = np.linalg.norm(kaczmarz(some, replies, np.zeros_like(gradient)) - gradient)
    return float(squares / size), float(swept / size), peels(code, rows.tolist()) / BLOCKS
