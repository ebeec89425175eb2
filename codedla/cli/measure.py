"""What ``codedla bench`` runs on the master: one stage healthy, one with a slow rank, in turn.

Everything takes turns, so that a machine that slows down half-way slows all cases alike; medians,
and ratios within one turn, are what is reported.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np

from codedla.cli.verdict import Case, Figures
from codedla.engine.plan import make_plan
from codedla.engine.round import Pool
from codedla.errors import CodedlaError, UsageError, VerificationFailed

__all__ = ["CASES", "Measurement", "new_figures"]

#: Name, how the command line asks for it, and the same as arguments of the library.
CASES: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("uncoded", "--code uncoded", {"code": "uncoded"}),
    ("replicated", "--code replication --tolerate 1", {"code": "replication", "tolerate": 1}),
    ("speculative", "--code uncoded --speculate", {"code": "uncoded", "speculate": True}),
    ("tolerate 1", "--tolerate 1", {"tolerate": 1}),
    ("tolerate 2", "--tolerate 2", {"tolerate": 2}),
)

#: Rows that each worker multiplies when its speed is measured, and the other two dimensions; tries.
_PROBE = (256, 768)
_PROBES = 3
#: Entries per side of what is sent to measure the link, columns of the thin other operand, and how
#: often each is tried.
_LINK, _THIN = 2000, 4
_LINKS = {"out": 2, "in": 2, "latency": 5}
#: Rounds of a matrix-vector product per stage, and seconds after which there are no more.
_ROUNDS, _ROUNDS_SECONDS = 30, 1.5
#: Products of the master with a vector, of which the median counts.
_MATVECS = 10
#: Error of an entry that is taken for a wrong computation, for each term of its sum: far more than
#: rounding, amplified by any of the codes, amounts to.
_ERROR = 1e-9


def new_figures(size: int, n_workers: int, threads: int, slow_rank: int, factor: float) -> Figures:
    """Return figures in which nothing is measured yet, but every case says whether it can be."""
    cases = []
    for name, words, options in CASES:
        case = Case(name, words)
        try:
            plan = make_plan((size, size), (size, size), "f8", n_workers, **options)
        except UsageError as error:
            case.impossible = str(error).partition(";")[0]
        else:
            case.code = f"{plan.code.name} {plan.code.blocks}, needs {plan.code.suffices}"
        cases.append(case)
    matvec = Case("round of A @ x", "")
    return Figures(size, n_workers, threads, slow_rank, factor, cases, matvec)


class Measurement:
    """The stages of a bench, one after the other, on the master.

    Parameters
    ----------
    figures : Figures
        Filled in.
    repeats : int
        Pairs of stages wanted.
    budget : float
        Seconds after which no further pair is begun; the first is always finished.
    numpy_threads : int
        Threads of NumPy's own product.
    step : callable
        Called after everything that takes time.
    """

    def __init__(
        self,
        figures: Figures,
        repeats: int,
        budget: float,
        numpy_threads: int,
        step: Callable[[], None] = lambda: None,
    ) -> None:
        self.figures, self.repeats, self.budget, self.step = figures, repeats, budget, step
        figures.numpy_threads = numpy_threads
        rng = np.random.default_rng(30011)
        self._a = rng.standard_normal((figures.size, figures.size))
        self._b = rng.standard_normal((figures.size, figures.size))
        self._expected = np.empty_like(self._a)
        self._stage = 0
        self._began = time.perf_counter()
        self._turn_began = self._began
        self._done = False
        self._speeds: defaultdict[int, list[float]] = defaultdict(list)
        self._links: dict[str, list[float]] = {"out": [], "in": [], "latency": []}

    @staticmethod
    def steps(figures: Figures, repeats: int) -> int:
        """Return how often ``step`` is called when there is time for everything."""
        possible = sum(not case.impossible for case in figures.cases)
        return repeats * (2 * possible + 3)

    def stage(self, pool: Pool) -> None:
        """Measure in a pool: healthy and with a slow rank in turn."""
        slow = self._stage % 2 == 1
        now = time.perf_counter()
        if not slow:
            turn = now - self._turn_began
            self._done = self._stage > 0 and now - self._began + turn > self.budget
            self._turn_began = now
        self._stage += 1
        if self._done:
            return
        self._warm_up(pool)
        if not slow:
            self._alone()
            # One order and one reply per worker are measured, not panels of them.
            streams, pool.streams = pool.streams, False
            self._rates(pool)
            self._link(pool)
            pool.streams = streams
            self.step()
        for case in self.figures.cases:
            if not case.impossible:
                self._case(case, pool, case.slow if slow else case.healthy)
                self.step()
        rounds = self.figures.matvec
        self._rounds(rounds, pool, rounds.slow if slow else rounds.healthy)
        self.step()
        self._summarize()

    def _summarize(self) -> None:
        figures = self.figures
        figures.flops = {
            rank: statistics.median(speeds) for rank, speeds in sorted(self._speeds.items())
        }
        figures.bandwidth_out = statistics.median(self._links["out"])
        figures.bandwidth_in = statistics.median(self._links["in"])
        figures.latency = statistics.median(self._links["latency"])
        figures.seconds = time.perf_counter() - self._began

    def _warm_up(self, pool: Pool) -> None:
        """Meet every worker once, so that nobody's first order is among the figures."""
        from codedla.linalg.matmul import matmul

        tiny = np.ones((4 * pool.n_workers, 8))
        for _, _, options in CASES[:1]:
            matmul(tiny, tiny.T, pool=pool, verify="off", **options)

    def _alone(self) -> None:
        """NumPy on the master, while all others wait."""
        from threadpoolctl import threadpool_limits

        with threadpool_limits(self.figures.numpy_threads):
            began = time.perf_counter()
            np.matmul(self._a, self._b, out=self._expected)
            self.figures.numpy.append(time.perf_counter() - began)
            vector = self._b[:, 0].copy()
            seconds = []
            for _ in range(_MATVECS):
                began = time.perf_counter()
                self._a @ vector
                seconds.append(time.perf_counter() - began)
            self.figures.numpy_matvec.append(statistics.median(seconds))

    def _case(self, case: Case, pool: Pool, seconds: list[float]) -> None:
        from codedla.linalg.matmul import matmul

        options = next(options for name, _, options in CASES if name == case.name)
        out = np.empty_like(self._a)
        began = time.perf_counter()
        _, report = matmul(
            self._a, self._b, pool=pool, out=out, verify="off", return_report=True, **options
        )
        seconds.append(time.perf_counter() - began)
        for rank, reason in report.lost.items():
            raise CodedlaError(
                f"figures need all ranks from start to end; rank {rank} was lost ({reason}); have "
                "it looked at, and start again without it"
            )
        if case.name == "uncoded":
            self.figures.bytes = float(report.bytes["sent"] + report.bytes["received"])
        worst = float(np.abs(out - self._expected).max())
        allowed = _ERROR * self.figures.size
        if not worst <= allowed:  # NaN is no agreement either
            raise VerificationFailed(
                f"the product {case.name} must agree with NumPy's; it is off by {worst:.1e} where "
                f"{allowed:.1e} is allowed; a rank computes wrongly: try codedla doctor"
            )

    def _rounds(self, case: Case, pool: Pool, seconds: list[float]) -> None:
        """Rounds on resident shares: the median of this stage's."""
        from codedla.linalg.matvec import store

        vector = self._b[:, 0].copy()
        found: list[float] = []
        with store(self._a, pool=pool) as stored:
            case.code = f"{stored.plan.code.name} {stored.plan.code.blocks}, resident"
            stored @ vector  # not counted: shares that were late are sent
            end = time.perf_counter() + _ROUNDS_SECONDS
            while len(found) < _ROUNDS and (not found or time.perf_counter() < end):
                began = time.perf_counter()
                stored @ vector
                found.append(time.perf_counter() - began)
        seconds.append(statistics.median(found))

    def _rates(self, pool: Pool) -> None:
        """Speed of every worker: as much to multiply for each, timed where it is done."""
        from codedla.linalg.matmul import matmul

        rows, others = _PROBE
        count = pool.n_workers
        a, b = np.ones((rows * count, others)), np.ones((others, others))
        flops = 2.0 * rows * others * others
        found: defaultdict[int, list[float]] = defaultdict(list)
        pool.trace = True
        try:
            for _ in range(_PROBES):
                _, report = matmul(
                    a,
                    b,
                    pool=pool,
                    code="uncoded",
                    blocks=(count, 1),
                    verify="off",
                    return_report=True,
                )
                spent: defaultdict[tuple[int, int], float] = defaultdict(float)
                for span in report.spans:
                    if span.kind == "compute":
                        spent[span.worker, span.share] += span.end - span.start
                for (worker, _), seconds in spent.items():
                    if seconds > 0:
                        found[worker + 1].append(flops / seconds)
        finally:
            pool.trace = False
        for rank, speeds in found.items():
            # Whoever shares a core is interrupted now and then; what it can do is the best of them.
            self._speeds[rank].append(max(speeds))

    def _link(self, pool: Pool) -> None:
        """Bandwidth to and from the workers, by products of which next to nothing is computed."""
        from codedla.linalg.matmul import matmul

        side = min(_LINK, max(self.figures.size, 2 * pool.n_workers))
        wide, thin = np.ones((side, side)), np.ones((side, _THIN))
        small = np.ones((pool.n_workers, 1))
        for name, a, b in (("out", wide, thin), ("in", thin, thin.T), ("latency", small, small.T)):
            found = []
            for _ in range(_LINKS[name]):
                _, report = matmul(
                    a,
                    b,
                    pool=pool,
                    code="uncoded",
                    blocks=(pool.n_workers, 1),
                    verify="off",
                    return_report=True,
                )
                seconds = report.times["total"]
                moved = report.bytes["sent"] + report.bytes["received"]
                found.append(seconds if name == "latency" else moved / seconds)
            # As with the workers' speeds: what else went on is not the link's fault.
            self._links[name].append(min(found) if name == "latency" else max(found))
