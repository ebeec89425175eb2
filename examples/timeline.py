"""See what happened: a slow worker, lost ones, and a share that another worker takes over.

python examples/timeline.py [FOLDER]     (default: build/timeline)

Writes trace.json for https://ui.perfetto.dev and, with matplotlib, timeline.png. The clock is
virtual here; with ``pool.trace = True`` an MPI pool measures the same, and on the command line
``codedla matmul ... --trace t.json --timeline t.png`` does it all.
"""

import sys
from pathlib import Path

import numpy as np

import codedla
from codedla.cli.timeline import write_timeline, write_trace
from codedla.engine.stragglers import Delays, parse_fault

FOLDER = Path(__file__).resolve().parents[1] / "build" / "timeline"
FAULTS = ["slow:2:4", "kill:5:0.3", "kill:6:0.5", "kill:7:0.8"]


def main(folder=FOLDER):
    """Multiply on eight workers, of which the code expects six to answer and only four do."""
    rng = np.random.default_rng(20177)
    A, B = rng.standard_normal((60, 40)), rng.standard_normal((40, 50))
    faults = [parse_fault(text) for text in FAULTS]
    delays = Delays("exp", (0.2,))
    with codedla.SimulatedPool(8, delays, faults, seed=7, task_seconds=1.0) as pool:
        pool.trace = True
        C, report = codedla.matmul(A, B, pool=pool, tolerate=2, return_report=True)
    print(report.summary())
    for event in report.events:
        print(f"{event.seconds:6.3f} s  rank {event.worker + 1}: {event.kind} {event.note}")
    folder.mkdir(parents=True, exist_ok=True)
    write_trace(folder / "trace.json", report)
    try:
        write_timeline(folder / "timeline.png", report)
    except codedla.UsageError as error:
        print(error)  # no matplotlib
    print(f"written to {folder}")
    return np.allclose(C, A @ B) and {5, 6, 7} == set(report.lost) and bool(report.redispatched)


if __name__ == "__main__":
    raise SystemExit(0 if main(*map(Path, sys.argv[1:])) else 1)
