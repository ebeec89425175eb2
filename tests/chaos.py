"""Random products with random faults: each ends soon, and right or with the one error that fits.

    python tests/chaos.py [--simulated 2000] [--ranks-runs 0] [--seed 20177] [--json FILE]
    python tests/chaos.py --replay 20183          one simulated case again, in detail
    python tests/chaos.py --replay ranks:20179    one job on real ranks again

Case ``i`` has the seed ``S + i``, from which everything follows: operands, code, pool and faults.
What may happen is judged by a model of its own, from the faults that were really met, not by what
the pool says. A simulated case may end

* with the product, compared with NumPy's;
* with NotDecodable, when every worker is dead, frozen or known to lie, or the time-out has passed;
* with VerificationFailed or WorkerError, when a reply was spoiled or a task raised;
* with UsageError, before anything was computed, when a code or grid was asked for that does not
  fit.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import math
import os
import shlex
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from threadpoolctl import threadpool_limits

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import codedla
from codedla.codes import available, get
from codedla.codes.private import PrivateCode
from codedla.engine.round import SILENCE
from codedla.engine.stragglers import CORRUPTIONS, Delays, Fault
from codedla.errors import (
    CodedlaWarning,
    NotDecodable,
    UsageError,
    VerificationFailed,
    WorkerError,
)
from tests.chaos_jobs import COMMAND, Ended, Strike, compare, run_command

SEED = 20177
SIZES = (0, 1, 2, 3, 4, 5, 7, 8, 13, 16, 24, 37)
DTYPES = ("f8", "f8", "f8", "f4", "c16", "c8", "f2", "i8", "i4", "i1", "u1", "?")
WALL = 20.0
"""Processor seconds after which a simulated case counts as hung."""
LOUD = 0.02
"""A reply changed by more than this part of its norm must be noticed."""
FAINT = 1e-5
"""An error may pass that is below this part of the operands' norms multiplied."""
QUIET = 1e-20
"""An error in a reply of zeros that may pass."""
JOB_BOUND = 15.0
"""Seconds within which a job on real ranks must end, from when it was struck or its ranks met, and
beyond the time that it was kept frozen."""


class Wrong(Exception):
    """The case did not end as it may."""


class Hung(BaseException):
    """The case did not end."""


# -- simulated cases -------------------------------------------------------------------------------


@dataclass
class Step:
    """One product of a case; ``stored`` multiplies a resident matrix by several vectors."""

    kind: str
    a: Any
    b: Any
    options: dict[str, Any]
    verify: str
    timeout: float | None
    out: bool

    def __str__(self) -> str:
        words = [f"{self.kind} {_shape(self.a)} @ {_shape(self.b)}"]
        words += [f"{k}={v!r}" for k, v in self.options.items() if v is not None]
        words.append(f"verify={self.verify}")
        words += [f"timeout={self.timeout:.4f}"] if self.timeout is not None else []
        words += ["out"] if self.out else []
        return " ".join(words)


@dataclass
class Case:
    """Everything about a simulated case, drawn from its seed."""

    seed: int
    pool: str
    n_workers: int
    faults: list[Fault]
    delays: Delays | None
    asleep: float
    deadline: float | None
    steps: list[Step] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [f"seed {self.seed}: {self.pool} pool of {self.n_workers} workers"]
        if self.delays is not None:
            lines.append(f"  delays {self.delays.distribution}:{self.delays.parameters}")
        if self.asleep:
            lines.append(f"  never answers with probability {self.asleep:.2f}")
        if self.deadline is not None:
            lines.append(f"  deadline {self.deadline:.4f}")
        lines += [f"  {_fault_text(fault)}" for fault in self.faults]
        lines += [f"  {step}" for step in self.steps]
        return "\n".join(lines)


def draw_case(seed: int) -> Case:
    """Draw a case."""
    rng = np.random.default_rng(seed)
    pool = "simulated" if rng.random() < 0.75 else "serial"
    n = int(rng.choice([1, 2, 3, int(rng.integers(2, 9)), int(rng.integers(4, 13)), 24]))
    faults = _draw_faults(rng, n)
    delays = None
    asleep = 0.0
    deadline = None
    if pool == "simulated":
        if rng.random() < 0.5:
            delays = _draw_delays(rng)
        if rng.random() < 0.25:
            asleep = float(rng.choice([0.05, 0.3, 0.8, 1.0], p=[0.4, 0.4, 0.15, 0.05]))
        if rng.random() < 0.25:
            deadline = float(10 ** rng.uniform(-4, 1))
    case = Case(seed, pool, n, faults, delays, asleep, deadline)
    corrupt = any(fault.kind == "corrupt" for fault in faults)
    for _ in range(int(rng.choice([1, 1, 2, 4]))):
        case.steps.append(_draw_step(rng, n, corrupt=corrupt, virtual=pool == "simulated"))
    return case


def _draw_faults(rng: np.random.Generator, n: int) -> list[Fault]:
    if rng.random() < 0.15:
        return []
    faults = []
    kinds = ("kill", "hang", "delay", "slow", "corrupt", "random", "raise")
    often = np.array([4, 3, 2, 2, 4, 1, 0.3])
    # Up to all workers, as often as not fewer than half of them.
    for worker in rng.permutation(n)[: int(rng.integers(0, n + 1))]:
        for _ in range(int(rng.choice([1, 1, 2]))):
            kind = str(rng.choice(kinds, p=often / often.sum()))
            who = int(worker)
            moment = float(rng.choice([0.0, rng.exponential(0.003), rng.exponential(0.3)]))
            match kind:
                case "kill" | "hang" | "delay":
                    faults.append(Fault(kind, who, moment))
                case "slow":
                    faults.append(Fault(kind, who, float(1 + rng.exponential(10))))
                case "raise":
                    faults.append(Fault(kind, who, float(rng.integers(1, 5))))
                case "corrupt":
                    chance = float(rng.choice([1.0, 0.5, 0.1]))
                    how = str(rng.choice(list(CORRUPTIONS)))
                    faults.append(Fault(kind, who, chance, corruption=how))
                case "random":
                    d = _draw_delays(rng)
                    faults.append(Fault(kind, -1, 0.0, d.distribution, d.parameters, seed=who))
    if rng.random() < 0.03:
        faults += [Fault("kill", worker, float(rng.exponential(0.002))) for worker in range(n)]
    return faults


def _draw_delays(rng: np.random.Generator) -> Delays:
    mean = float(10 ** rng.uniform(-4, 0))
    name = str(rng.choice(["exp", "shifted-exp", "pareto", "bimodal"]))
    parameters = {
        "exp": (mean,),
        "shifted-exp": (mean, mean),
        "pareto": (float(rng.uniform(1.1, 3)), mean),
        "bimodal": (float(rng.random()), mean),
    }[name]
    return Delays(name, parameters)


def _draw_step(rng: np.random.Generator, n: int, *, corrupt: bool, virtual: bool) -> Step:
    kind = str(rng.choice(["matmul", "matvec", "stored"], p=[0.6, 0.2, 0.2]))
    if corrupt and kind == "stored":
        kind = "matvec"  # replies for a stored matrix are not checked
    rows, inner, cols = (int(size) for size in rng.choice(SIZES, 3))
    if kind != "matmul":
        cols = int(rng.choice([0, 1, 1, 2], p=[0.02, 0.4, 0.4, 0.18]))
    dtypes = [np.dtype(rng.choice(DTYPES))] * 2
    if rng.random() < 0.2:
        dtypes[1] = np.dtype(rng.choice(DTYPES))
    if kind == "stored" and dtypes[0].kind in "iub":
        dtypes[0] = np.dtype("f8")
    a = _draw_matrix(rng, (rows, inner), dtypes[0])
    b = _draw_matrix(rng, (inner, cols), dtypes[1])
    if kind == "matvec" and cols == 1 and not sp.issparse(b) and rng.random() < 0.7:
        b = b[:, 0]
    if kind == "stored":
        b = [_draw_matrix(rng, (inner,), dtypes[1]) for _ in range(int(rng.integers(1, 6)))]
    verify = str(rng.choice(["off", "auto", "freivalds", "locate"]))
    if corrupt:
        verify = str(rng.choice(["locate", "freivalds"], p=[0.8, 0.2]))
    timeout = None
    if virtual and rng.random() < 0.1:
        timeout = float(10 ** rng.uniform(-4, 2))
    # The result type of out must be exact, and is NumPy's.
    return Step(kind, a, b, _draw_options(rng, n), verify, timeout, out=rng.random() < 0.2)


def _draw_options(rng: np.random.Generator, n: int) -> dict[str, Any]:
    options: dict[str, Any] = {}
    name = "auto" if rng.random() < 0.35 else str(rng.choice(available()))
    if rng.random() < 0.6:
        options["tolerate"] = int(rng.integers(0, max(n // 2, 1) + 1))
    if name != "auto":
        options["code"] = name
        family = get(name)
        grids = family.grids(n, options.get("tolerate", 0))
        if not grids and rng.random() < 0.9:
            # Nothing fits: lower the wish, mostly.
            options.pop("tolerate", None)
            grids = family.grids(n, 0)
        if grids and rng.random() < 0.5:
            grid = grids[int(rng.integers(len(grids)))]
            options["blocks"] = (grid.m, grid.p, grid.n)
        if family.node_choices and rng.random() < 0.2:
            options["nodes"] = str(rng.choice(family.node_choices))
    if rng.random() < 0.03:
        options["blocks"] = tuple(int(x) for x in rng.integers(1, 4, 2))
    return options


def _draw_matrix(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype) -> Any:
    if dtype.kind == "b":
        return rng.random(shape) < 0.4
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        if rng.random() < 0.3:
            return rng.integers(info.min, info.max, shape, dtype, endpoint=True)
        return rng.integers(max(info.min, -9), 10, shape).astype(dtype)
    values = rng.standard_normal(shape)
    if dtype.kind == "c":
        values = values + 1j * rng.standard_normal(shape)
    if dtype != np.float16 and len(shape) == 2 and rng.random() < 0.2:
        values[rng.random(shape) < 0.7] = 0
        form = str(rng.choice(["csr", "csc", "coo"]))
        return sp.coo_array(values.astype(dtype)).asformat(form)
    if len(shape) == 2 and rng.random() < 0.2:
        return np.asfortranarray(values.astype(dtype))
    return values.astype(dtype)


class Model:
    """What really happened in a pool: who slept, who spoiled a reply, how long things took."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self._rng = np.random.default_rng([case.seed, 1])
        self.asleep: set[int] = set()
        self.spoiled: dict[int, float] = {}
        self.draws = 0
        self.raised: set[int] = set()
        self.longest = 0.0
        self.pool = self._make_pool()
        for worker, plan in enumerate(self.pool.plans):
            plan.corrupt = self._spoil(worker, plan.corrupt)
            plan.start_task = self._start(worker, plan.start_task)

    def new_round(self, a: Any, b: Any) -> None:
        """Forget what belongs to one round only; the next multiplies ``a`` and ``b``."""
        self.scale = _norm(a) * _norm(b)
        self.asleep.clear()
        self.spoiled.clear()
        self.raised.clear()
        self.draws = 0
        self.clock = getattr(self.pool, "clock", 0.0)

    @property
    def passed(self) -> float:
        """Virtual seconds since the round began."""
        return float(getattr(self.pool, "clock", 0.0)) - self.clock

    def away(self) -> set[int]:
        """Workers that are dead, frozen or never answer."""
        serial, now = self.case.pool == "serial", getattr(self.pool, "clock", 0.0)
        gone = {
            worker
            for worker, plan in enumerate(self.pool.plans)
            for moment in (plan.kill_after, plan.hang_after)
            if moment is not None and (serial or moment <= now + 1e-9)
        }
        return gone | self.asleep

    def bound(self, shares: int) -> float:
        """Virtual seconds within which a round must be over."""
        moments = [f.value - self.clock for f in self.case.faults if f.kind in ("kill", "hang")]
        each = self.longest + (self.case.deadline or 0.0)
        return max([*moments, 0.0]) + SILENCE + (shares + 1) * each

    def _make_pool(self) -> Any:
        case = self.case
        if case.pool == "serial":
            return codedla.SerialPool(case.n_workers, faults=case.faults)
        return codedla.SimulatedPool(
            case.n_workers, delays=self._delays, faults=case.faults, deadline=case.deadline
        )

    def _delays(self, _rng: np.random.Generator, n: int) -> Any:
        self.draws += 1
        drawn = np.zeros(n)
        if self.case.delays is not None:
            drawn = self.case.delays.sample(self._rng, n)
        slowest = max((plan.factor for plan in self.pool.plans), default=1.0)
        self.longest = max(self.longest, float(drawn.max()) + self.pool.task_seconds * slowest)
        never = self._rng.random(n) < self.case.asleep
        self.asleep.update(int(worker) for worker in np.flatnonzero(never))
        return np.where(never, np.inf, drawn)

    def _start(self, worker: int, start: Callable[[], float]) -> Callable[[], float]:
        def start_task() -> float:
            try:
                seconds = start()
            except RuntimeError:
                self.raised.add(worker)
                raise
            self.longest = max(self.longest, seconds * 2)
            return seconds

        return start_task

    def _spoil(self, worker: int, corrupt: Callable[[Any], str]) -> Callable[[Any], str]:
        def spoil(reply: Any) -> str:
            self.draws += 1
            honest = reply.copy()
            how = corrupt(reply)
            if how:
                with np.errstate(all="ignore"):
                    change = np.linalg.norm(reply.astype(complex) - honest.astype(complex))
                    size = np.linalg.norm(honest.astype(complex))
                    # A flipped bit may change next to nothing.
                    faint = change <= max(FAINT * self.scale, QUIET)
                    loud = 0.0 if faint else float(change / size) if size else math.inf
                loud = math.inf if math.isnan(loud) else loud
                self.spoiled[worker] = max(self.spoiled.get(worker, 0.0), loud)
            return how

        return spoil


def run_case(case: Case) -> list[str]:
    """Run a simulated case; return how its steps ended.

    Raises
    ------
    Wrong, Hung
    """
    model = Model(case)
    ends = []
    with model.pool, _clocked():
        for number, step in enumerate(case.steps):
            try:
                ends += list(_run_step(model, step))
            except Wrong as wrong:
                raise Wrong(f"step {number} ({step}): {wrong}") from wrong.__cause__
    return ends


def _run_step(model: Model, step: Step) -> Iterator[str]:
    if step.kind != "stored":
        operation = codedla.matmul if step.kind == "matmul" else codedla.matvec
        options: dict[str, Any] = {**step.options, "verify": step.verify}
        if step.timeout is not None:
            options["timeout"] = step.timeout
        if step.out:
            dtype = np.result_type(step.a.dtype, step.b.dtype)
            options["out"] = np.full((step.a.shape[0], *step.b.shape[1:]), 7, dtype)

        def once() -> tuple[Any, Any]:
            result = operation(step.a, step.b, pool=model.pool, return_report=True, **options)
            if step.out and result[0] is not options["out"]:
                raise Wrong("the result is not in out")
            return result

        yield _judge(model, step, step.b, once)
        return
    model.new_round(step.a, step.b[0])
    try:
        stored = codedla.store(step.a, pool=model.pool, **step.options)
    except UsageError as error:
        yield _refused(model, step, error)
        return
    with stored:
        for x in step.b:

            def again(x: Any = x) -> tuple[Any, Any]:
                return stored.matvec(x, timeout=step.timeout), stored.last_report

            yield _judge(model, step, x, again)


def _judge(model: Model, step: Step, b: Any, run: Callable[[], tuple[Any, Any]]) -> str:
    """Run one round and tell how it ended."""
    model.new_round(step.a, b)
    n = model.case.n_workers
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            product, report = run()
        except UsageError as error:
            return _refused(model, step, error)
        except NotDecodable as error:
            if "time-out passed" in str(error):
                if step.timeout is None or model.passed < step.timeout * 0.999:
                    raise Wrong(f"a time-out at {model.passed} s: {error}") from error
                return "time-out"
            gone = model.away() | set(model.spoiled)
            able = set(range(n)) - gone
            # A share that hides the operands is never shown to a second worker.
            hidden = issubclass(get(step.options.get("code", "mds")), PrivateCode)
            if able and not (hidden and gone and "may see the share of another" in str(error)):
                text = f"gave up although ranks {[w + 1 for w in sorted(able)]} live: {error}"
                raise Wrong(text) from error
            return "nobody left"
        except VerificationFailed as error:
            # Replies are checked within their own rounding: a fainter lie passes, and decoding may
            # amplify it until the check of the product sees it.
            faint = any(how <= LOUD for how in model.spoiled.values())
            if not (model.spoiled and step.verify == "freivalds") and not faint:
                raise Wrong(f"a check failed without cause: {error}") from error
            return "found wrong"
        except WorkerError as error:
            if error.rank - 1 not in model.raised:
                raise Wrong(f"an exception of nobody's: {error}") from error
            return "raised"
        except Wrong:
            raise
        except Exception as error:
            raise Wrong(f"unexpected {type(error).__name__}: {error}") from error
    strange = [w for w in caught if not issubclass(w.category, CodedlaWarning)]
    if strange:
        raise Wrong(f"an unexpected warning: {strange[0].message}")
    _check_report(model, step, report)
    if model.spoiled and report.verified == "off":
        return "not checked"
    _check_numbers(step, b, product, report, lied=bool(model.spoiled))
    if not report.redispatched:
        return "right"
    return "right, redispatched"


def _refused(model: Model, step: Step, error: UsageError) -> str:
    if model.draws:
        raise Wrong(f"refused after the start: {error}") from error
    asked = set(step.options) - {"tolerate"}
    if not asked and not step.options.get("tolerate"):
        raise Wrong(f"refused although nothing special was asked for: {error}") from error
    return "refused"


def _check_report(model: Model, step: Step, report: Any) -> None:
    """Nobody may be accused who did nothing, and whoever lied loudly is named."""
    wrong = {rank - 1 for rank in report.wrong}
    if not wrong <= set(model.spoiled):
        raise Wrong(f"ranks {report.wrong} accused; spoiled: {model.spoiled}")
    if report.verified == "locate":
        loud = {worker for worker, how in model.spoiled.items() if how > LOUD}
        if not loud <= wrong:
            raise Wrong(f"ranks {report.wrong} named; spoiled: {model.spoiled}")
    lost = {rank - 1 for rank in report.lost}
    guilty = model.away() | set(model.spoiled)
    if model.case.deadline is None and not lost <= guilty:
        raise Wrong(f"ranks {report.lost} lost; away or lying are {sorted(guilty)}")
    if model.case.pool == "simulated":
        limit = model.bound(report.n_workers)
        if step.timeout is not None:
            limit = min(limit, step.timeout)
        if model.passed > limit * 1.001:
            raise Wrong(f"took {model.passed} virtual seconds; the bound is {limit}")


def _check_numbers(step: Step, b: Any, product: Any, report: Any, *, lied: bool) -> None:
    """Compare with NumPy's product; what a check of the product lets pass is small, not zero."""
    a = step.a.toarray() if sp.issparse(step.a) else step.a
    b = b.toarray() if sp.issparse(b) else b
    dtype = np.result_type(a.dtype, b.dtype)
    if product.dtype != dtype or product.shape != (a.shape[0], *b.shape[1:]):
        raise Wrong(f"got {product.dtype} {product.shape}")
    if dtype.kind in "iub":
        if not np.array_equal(product, a @ b):
            raise Wrong("integers differ from NumPy's")
        return
    wide = np.complex128 if dtype.kind == "c" else np.float64
    expected = a.astype(wide) @ b.astype(wide)
    size = float(np.linalg.norm(expected))
    scale = float(np.linalg.norm(a.astype(wide)) * np.linalg.norm(b.astype(wide)))
    error = float(np.linalg.norm(product.astype(wide) - expected))
    estimate = math.inf if report.error_estimate is None else report.error_estimate
    own = float(np.finfo(dtype).eps)
    if step.kind == "stored":
        # The shares were made before the vector was known.
        own = max(own, float(np.finfo(a.dtype).eps))
    # What NumPy itself loses in this precision belongs to both.
    bound = 50 * estimate * size + 4 * own * (size + scale)
    if lied:
        # Errors in one row may nearly cancel in the one projection of a whole product.
        blind = 1024 if report.verified == "freivalds" else 64
        bound += blind * (1 + report.amplification) * own * scale * math.sqrt(product.size) + QUIET
    # Where the estimate leaves no digit of a narrow dtype, what overflows is within it, too.
    beyond = math.isinf(error) and bound > float(np.finfo(dtype).max)
    if not (error <= bound or beyond):
        raise Wrong(f"error {error:.2e} of {size:.2e}; estimate {estimate:.1e}: {report.code}")
    usual = 1e-2 if own > 1e-10 else 1e-7
    warned = any("may err" in text or "is approximate" in text for text in report.warnings)
    if not warned and estimate * size > usual * max(scale, size):
        raise Wrong(f"an estimate of {estimate:.1e} without a warning: {report.code}")


@contextlib.contextmanager
def _clocked() -> Iterator[None]:
    """Raise Hung after :data:`WALL` seconds of this process's own processor time."""

    def ring(_number: int, _frame: Any) -> None:
        raise Hung(f"no end after {WALL:g} s of processor time")

    before = signal.signal(signal.SIGVTALRM, ring)
    signal.setitimer(signal.ITIMER_VIRTUAL, WALL)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        signal.signal(signal.SIGVTALRM, before)


def _norm(value: Any) -> float:
    return float(np.linalg.norm(_dense(value).astype(complex)))


def _shape(value: Any) -> str:
    if isinstance(value, list):
        return f"{len(value)} x {_shape(value[0])}"
    kind = f"{value.format} " if sp.issparse(value) else ""
    return f"{kind}{value.dtype}{list(value.shape)}"


def _fault_text(fault: Fault) -> str:
    if fault.kind == "random":
        return f"random:{fault.distribution}:{fault.parameters}:{fault.seed}"
    text = f"{fault.kind}:{fault.worker + 1}:{fault.value:.6g}"
    return f"{text}:{fault.corruption}" if fault.kind == "corrupt" else text


# -- jobs on real ranks ----------------------------------------------------------------------------


@dataclass
class Job:
    """Everything about a job on real ranks, drawn from its seed."""

    seed: int
    a: Any
    b: Any
    ranks: int
    words: list[str]
    strikes: list[Strike]
    gone: int
    """Workers that kill or freeze themselves."""

    def __str__(self) -> str:
        lines = [
            f"seed ranks:{self.seed}: {_shape(self.a)} @ {_shape(self.b)}, {self.ranks} ranks, "
            + " ".join(self.words)
        ]
        return "\n  ".join([*lines, *map(str, self.strikes)])


def draw_job(seed: int) -> Job:
    """Draw a job."""
    rng = np.random.default_rng([seed, 2])
    rows, inner, cols = (int(size) for size in rng.integers(1, 400, 3))
    dtype = np.dtype(rng.choice(["f8", "f8", "f4", "c16", "i8"]))
    a, b = (_dense(_draw_matrix(rng, s, dtype)) for s in ((rows, inner), (inner, cols)))
    ranks = int(rng.integers(3, 7))
    workers = ranks - 1
    tolerate = int(rng.integers(0, 3)) if workers > 3 else int(rng.integers(0, 2))
    words = ["--tolerate", str(tolerate)]
    if dtype.kind != "i" and rng.random() < 0.3:
        words += ["--code", str(rng.choice(["replication", "khatri-rao", "mds"]))]
        words[1] = str(min(tolerate, 1))
    if rng.random() < 0.4:
        words += ["--panel-rows", str(max(rows // int(rng.integers(2, 6)), 1))]
    some = [int(r) + 1 for r in rng.permutation(workers)]
    strikes: list[Strike] = []
    gone = 0
    # Some last longer, so that there is something to strike.
    if rng.random() < 0.7:
        words += _inject(*(f"delay:{rank}:{rng.uniform(0.1, 1.5):.2f}" for rank in some))
    what = str(
        rng.choice(
            ["kill", "freeze", "wake", "master", "command", "inside", "lie", "all", "early"],
            p=[0.2, 0.15, 0.12, 0.1, 0.13, 0.1, 0.1, 0.05, 0.05],
        )
    )
    hit = some[: int(rng.integers(1, workers + (workers == 1)))]

    def moment() -> float:
        return float(rng.uniform(0, 2.0))

    match what:
        case "kill" | "freeze":
            number = signal.SIGKILL if what == "kill" else signal.SIGSTOP
            strikes = [Strike(rank, number, moment(), "met") for rank in hit]
        case "wake":
            hit = [int(r) for r in rng.integers(0, ranks, 2)]
            strikes = [
                Strike(rank, signal.SIGSTOP, moment(), "met", float(rng.uniform(0.05, 4)))
                for rank in dict.fromkeys(hit)
            ]
        case "master":
            strikes = [Strike(0, signal.SIGKILL, moment(), str(rng.choice(["met", "start"])))]
        case "command":
            number = [signal.SIGTERM, signal.SIGINT, signal.SIGKILL][int(rng.integers(3))]
            strikes = [Strike(COMMAND, number, moment(), str(rng.choice(["met", "start"])))]
        case "inside":
            words += _inject(
                *(f"{rng.choice(['kill', 'hang'])}:{rank}:{moment():.2f}" for rank in hit)
            )
            gone = len(hit)
        case "lie":
            hit = hit[: max(workers - 1, 1)]
            kinds = list(CORRUPTIONS)
            words += _inject(*(f"corrupt:{rank}:1:{rng.choice(kinds)}" for rank in hit))
            words += ["--verify", "locate"]
        case "all":
            strikes = [Strike(rank, signal.SIGKILL, moment(), "met") for rank in some]
        case "early":
            strikes = [Strike(some[0], signal.SIGKILL, moment(), "start")]
    return Job(seed, a, b, ranks, words, strikes, gone)


def _inject(*specs: str) -> list[str]:
    return [word for spec in specs for word in ("--inject", spec)]


def _dense(value: Any) -> Any:
    return value.toarray() if sp.issparse(value) else value


def run_job(job: Job) -> str:
    """Run a job, and when it came to nothing the same command with ``--resume``.

    Raises
    ------
    Wrong
    """
    with tempfile.TemporaryDirectory(prefix="chaos-") as name:
        folder = Path(name)
        np.save(folder / "A.npy", job.a)
        np.save(folder / "B.npy", job.b)
        expected = job.a @ job.b
        kept = ["C.npy", ".C.npy.codedla-part", ".C.npy.codedla-journal"]
        words = ["matmul", "A.npy", "B.npy", "-o", "C.npy", "--ranks", job.ranks]
        ended = run_command([*words, *job.words], folder, job.strikes, kept=kept)
        _judge_job(job, ended, compare(folder / "C.npy", expected))
        lies = any("corrupt:" in word for word in job.words)
        if ended.code == 0:
            left = [path for path in kept[1:] if (folder / path).exists()]
            if left:
                raise Wrong(f"left beside the finished product: {left}")
            return "right, wrong replies" if lies else "right"
        if not (folder / "C.npy").exists():
            plain = list(_without_faults(job.words))
            again = run_command([*words, *plain, "--resume"], folder, kept=kept[:1])
            if again.code != 0 or not compare(folder / "C.npy", expected) or again.left:
                text = f"--resume: exit code {again.code}, left {again.left}\n{again.err}"
                raise Wrong(text)
    return f"exit code {ended.code}, resumed"


def _without_faults(words: Sequence[str]) -> Iterator[str]:
    iterator = iter(words)
    for word in iterator:
        if word == "--inject":
            next(iterator)
        else:
            yield word


def _judge_job(job: Job, ended: Ended, right: bool | None) -> None:
    problems = []
    frozen = sum(s.wake or 0.0 for s in job.strikes)
    if ended.hung or ended.working > JOB_BOUND + frozen:
        problems.append(f"took {ended.seconds:.1f} s")
    if right is False:
        problems.append("the product is wrong")
    if (ended.code == 0) != (right is True) and ended.code >= 0:
        problems.append(f"exit code {ended.code}, product {right}")
    if ended.code not in _codes(job, ended):
        problems.append(f"exit code {ended.code}, one of {sorted(_codes(job, ended))} was due")
    if "Traceback" in ended.err and not _interrupted_at_once(ended):
        problems.append("a traceback")
    problems += [f"left: {what}" for what in ended.left]
    if problems:
        struck = "\n  ".join(map(str, ended.struck))
        raise Wrong("; ".join(problems) + f"\n  {struck}\n{ended.err}")


def _interrupted_at_once(ended: Ended) -> bool:
    """Tell whether Ctrl-C came while Python was still importing the program."""
    return ended.code == -signal.SIGINT and ended.err.rstrip().endswith("KeyboardInterrupt")


def _codes(job: Job, ended: Ended) -> set[int]:
    """Exit codes that fit what was struck, and when."""
    codes = {0}
    workers = range(1, job.ranks)
    if ended.phases(range(1)) - {"absent"} and any(s.wake is None for s in job.strikes):
        codes.add(1)
    dead = {s.strike.rank for s in ended.struck if s.strike.wake is None and s.phase != "absent"}
    if len(dead & set(workers)) + job.gone >= len(workers):
        codes.add(3)
    for strike in (s.strike for s in ended.struck if s.strike.rank == COMMAND):
        number = strike.number
        codes.add(-number if number == signal.SIGKILL else 128 + number)
        if number != signal.SIGKILL:
            # Before Python has put its handlers in place the signal itself ends the command.
            codes.add(-number)
    return codes


# -- the program -----------------------------------------------------------------------------------


@dataclass
class Score:
    """Ends of many cases."""

    ends: collections.Counter[str] = field(default_factory=collections.Counter)
    failures: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0
    slowest: float = 0.0


def run_many(kind: str, seeds: Sequence[int], *, show: bool = False) -> Score:
    """Run cases of one kind ("simulated" or "ranks"); failures are collected and printed."""
    score = Score()
    began = told = time.monotonic()
    for count, seed in enumerate(seeds):
        start = time.monotonic()
        case: Any = None
        try:
            if kind == "ranks":
                case = draw_job(seed)
                score.ends[run_job(case)] += 1
            else:
                case = draw_case(seed)
                # What idle threads of BLAS spin away would count as the case's own time.
                with threadpool_limits(1):
                    score.ends.update(run_case(case))
        except (Wrong, Hung) as problem:
            score.ends["WRONG" if isinstance(problem, Wrong) else "HUNG"] += 1
            score.failures.append({"seed": seed, "case": str(case), "problem": str(problem)})
            _tell_failure(kind, seed, case, problem)
        now = time.monotonic()
        score.slowest = max(score.slowest, now - start)
        if show and (now - told > 10 or kind == "ranks"):
            told = now
            print(f"{kind}: {count + 1} of {len(seeds)}, {now - began:.0f} s", file=sys.stderr)
    score.seconds = time.monotonic() - began
    return score


def _tell_failure(kind: str, seed: int, case: Any, problem: BaseException) -> None:
    word = f"ranks:{seed}" if kind == "ranks" else str(seed)
    again = shlex.join(["python", os.path.relpath(__file__), "--replay", word])
    print(f"\n{case}\n{problem}\nagain: {again}", file=sys.stderr, flush=True)


def replay(word: str) -> int:
    """Run one case again and show everything about it."""
    kind, _, number = word.rpartition(":")
    seed = int(number)
    case: Any = draw_job(seed) if kind == "ranks" else draw_case(seed)
    print(case)
    try:
        print("ended:", run_job(case) if kind == "ranks" else ", ".join(run_case(case)))
    except (Wrong, Hung) as problem:
        print(problem)
        if problem.__cause__ is not None:
            traceback.print_exception(problem.__cause__)
        return 1
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run cases, print a table, say how to see each failure again."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--simulated", type=int, default=2000, metavar="N", help="simulated cases")
    parser.add_argument("--ranks-runs", type=int, default=0, metavar="N", help="jobs on real ranks")
    parser.add_argument("--seed", type=int, default=SEED, help="seed of the first case")
    parser.add_argument("--replay", metavar="SEED", help="run one case again: SEED or ranks:SEED")
    parser.add_argument("--json", metavar="FILE", help="write the figures")
    args = parser.parse_args(argv)
    if args.replay:
        return replay(args.replay)
    scores = {}
    for kind, count in (("simulated", args.simulated), ("ranks", args.ranks_runs)):
        if count:
            scores[kind] = run_many(kind, range(args.seed, args.seed + count), show=True)
    print(f"{'cases':<12}{'end':<28}{'number':>8}")
    for kind, score in scores.items():
        for end, number in score.ends.most_common():
            print(f"{kind:<12}{end:<28}{number:>8}")
        print(f"{kind:<12}{score.seconds:.0f} s, the slowest {score.slowest:.1f} s")
    failures = sum(len(score.failures) for score in scores.values())
    print(f"{failures} failures")
    if args.json:
        document = {kind: vars(score) for kind, score in scores.items()}
        Path(args.json).write_text(json.dumps({"seed": args.seed, **document}, indent=1) + "\n")
    return int(failures > 0)


if __name__ == "__main__":
    raise SystemExit(main())
