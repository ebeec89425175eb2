"""How close simulated times are to measured ones.

Every configuration is measured in MPI jobs of its own and simulated by the model of
``codedla simulate``, with the speeds that jobs of as many ranks measured in the same turn. The
configurations take turns; the ratio of simulated to measured time is taken turn by turn, and its
median is reported. Only a machine on which nothing else runs gives figures that mean something.

    python benchmarks/fidelity.py [--repeats 5] [--size 2000] [--only NAME ...]
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import _common
import numpy as np

CALLS = 5
"""Products in one job, of which the median counts."""
WARMUPS = 2
"""Products before these: a rank's first ones find and clear the pages of its memory."""
ROUNDS = 100
"""Rounds of resident products that are timed together."""
TARGET = 0.15


@dataclass(frozen=True)
class Configuration:
    """One kind of job. Sizes are parts of ``--size``; ranks include the master."""

    ranks: int
    code: dict[str, Any]
    rows: float = 1.0
    inner: float = 1.0
    columns: float = 1.0
    faults: tuple[str, ...] = ()
    resident: bool = False


UNCODED: dict[str, Any] = {"code": "uncoded"}
CONFIGURATIONS = {
    "3 ranks, uncoded": Configuration(3, UNCODED),
    "3 ranks, wide": Configuration(3, UNCODED, rows=2.0, inner=0.5, columns=1.0),
    "5 ranks, tolerate 1": Configuration(5, {"tolerate": 1}),
    "5 ranks, replication": Configuration(5, {"code": "replication", "tolerate": 1}),
    "5 ranks, one 4x slower": Configuration(5, {"tolerate": 1}, faults=("slow:2:4",)),
    "9 ranks, uncoded": Configuration(9, UNCODED),
    "9 ranks, tolerate 1": Configuration(9, {"tolerate": 1}),
    "9 ranks, tolerate 2": Configuration(9, {"tolerate": 2}),
    "9 ranks, mds, tall": Configuration(
        9, {"code": "mds", "tolerate": 2}, rows=2.0, inner=0.75, columns=0.25
    ),
    "9 ranks, uncoded, one 1 s late": Configuration(9, UNCODED, faults=("delay:3:1",)),
    "9 ranks, tolerate 2, two 1 s late": Configuration(
        9, {"tolerate": 2}, faults=("delay:3:1", "delay:6:1")
    ),
    "9 ranks, resident rounds": Configuration(9, {"code": "mds", "tolerate": 2}, resident=True),
}
QUICK = ("3 ranks, uncoded", "5 ranks, tolerate 1", "5 ranks, one 4x slower")


def shape_of(configuration: Configuration, size: int) -> tuple[int, int, int]:
    """Rows of A, inner dimension, columns of B."""
    parts = (configuration.rows, configuration.inner, configuration.columns)
    rows, inner, columns = (max(int(part * size), 8) for part in parts)
    return rows, inner, 1 if configuration.resident else columns


# -- inside the jobs -------------------------------------------------------------------------------


def run_inside(args: argparse.Namespace) -> int:
    """One job, seen from inside: measure the machine, or a configuration."""
    from codedla.engine.stragglers import parse_fault
    from codedla.mpi import program

    configuration = CONFIGURATIONS.get(args.name)

    def job(pool: Any) -> int:
        if configuration is None:
            from codedla.planning import calibrate

            calibrate(pool, ranks_per_host=pool.n_workers + 1).save(args.machine)
            found: dict[str, Any] = {"seconds": 0.0, "error": 0.0}
        else:
            found = _measure(configuration, args.size, pool)
        Path(args.result).write_text(json.dumps(found))
        return 0

    faults = () if configuration is None else configuration.faults
    return program.run(job, faults=[parse_fault(text) for text in faults])


def _measure(configuration: Configuration, size: int, pool: Any) -> dict[str, Any]:
    import codedla
    from codedla.linalg.product import Product
    from codedla.linalg.stream import panel_rows

    rng = np.random.default_rng(20177)
    rows, inner, columns = shape_of(configuration, size)
    a, b = rng.standard_normal((rows, inner)), rng.standard_normal((inner, columns))
    seconds, panels = [], 1
    if configuration.resident:
        with codedla.store(a, pool=pool, **configuration.code) as stored:
            stored.matvec(b[:, 0])
            for _ in range(WARMUPS + CALLS):
                began = time.perf_counter()
                for _ in range(ROUNDS):
                    c = stored.matvec(b[:, 0])
                seconds.append((time.perf_counter() - began) / ROUNDS)
        c = c[:, None]
    else:
        # Connections are opened and modules loaded before the clock starts.
        codedla.matmul(a[:64, :64], b[:64, :64], pool=pool, verify="off", **configuration.code)
        for _ in range(WARMUPS + CALLS):
            began = time.perf_counter()
            c = codedla.matmul(a, b, pool=pool, verify="off", **configuration.code)
            seconds.append(time.perf_counter() - began)
        plan = plan_of(configuration, size)
        panels = -(-rows // panel_rows(Product(plan, pool), "off"))
    expected = a @ b
    error = float(np.linalg.norm(c - expected) / np.linalg.norm(expected))
    return {"seconds": statistics.median(seconds[WARMUPS:]), "error": error, "panels": panels}


# -- outside ---------------------------------------------------------------------------------------


def plan_of(configuration: Configuration, size: int) -> Any:
    """The plan that the product has, too."""
    import codedla

    rows, inner, columns = shape_of(configuration, size)
    return codedla.make_plan(
        (rows, inner),
        (inner, columns),
        np.dtype(float),
        configuration.ranks - 1,
        operation="matvec" if configuration.resident else "matmul",
        **configuration.code,
    )


def predict(configuration: Configuration, size: int, machine: Any, panels: int) -> float:
    """Simulate a configuration on a measured machine."""
    from codedla.engine.stragglers import FaultPlan, parse_fault
    from codedla.planning import simulate, workload_of

    plan = plan_of(configuration, size)
    faults = [parse_fault(text) for text in configuration.faults]
    plans = [FaultPlan(faults, worker) for worker in range(plan.code.n_workers)]
    work = workload_of(
        plan.code,
        plan.shape,
        plan.compute,
        operation="round" if configuration.resident else "product",
        panels=panels,
    )
    delays = np.array([[plan.start_task() for plan in plans]])
    slow = np.array([plan.factor for plan in plans])
    return float(simulate(work, machine, delays, slow).seconds[0])


def measure_machine(ranks: int, folder: Path) -> Any:
    """Measure the speeds that as many ranks have now."""
    from codedla.planning import Machine

    file = folder / f"machine-{ranks}.json"
    options = {"name": "machine", "machine": str(file)}
    _common.run_as_job(__file__, options, ranks, largest_error=0.0)
    return Machine.load(file)


def summarize(name: str, runs: list[dict[str, float]], size: int) -> dict[str, Any]:
    """One row: medians over the turns."""
    middle = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
    ratios = [run["simulated"] / run["measured"] for run in runs]
    return {
        "configuration": name,
        "ranks": CONFIGURATIONS[name].ranks,
        "shape": list(shape_of(CONFIGURATIONS[name], size)),
        "measured": middle["measured"],
        "simulated": middle["simulated"],
        "panels": int(middle["panels"]),
        "ratio": statistics.median(ratios),
        "ratios": ratios,
        "within": abs(statistics.median(ratios) - 1.0) <= TARGET,
    }


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=2000, help="rows and columns of the factors")
    parser.add_argument("--repeats", type=int, default=5, help="turns")
    parser.add_argument("--only", nargs="+", choices=CONFIGURATIONS, metavar="NAME")
    parser.add_argument("--quick", action="store_true", help="one turn of three small ones")
    parser.add_argument("--json", default="fidelity.json", help="where the figures go")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--name", help=argparse.SUPPRESS)
    parser.add_argument("--machine", help=argparse.SUPPRESS)
    parser.add_argument("--result", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.quick:
        args.repeats, args.size = 1, min(args.size, 400)
    args.only = args.only or list(QUICK if args.quick else CONFIGURATIONS)
    return args


def main() -> int:
    """Measure, simulate, print, write."""
    args = parse()
    if args.inside:
        return run_inside(args)
    import tempfile

    runs: dict[str, list[dict[str, float]]] = {name: [] for name in args.only}
    machines: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(args.repeats):
            counts = sorted({CONFIGURATIONS[name].ranks for name in args.only})
            measured = {ranks: measure_machine(ranks, Path(folder)) for ranks in counts}
            machines += [vars(machine) for machine in measured.values()]
            for name in args.only:
                configuration = CONFIGURATIONS[name]
                options = {"name": name, "size": args.size}
                inside, _ = _common.run_as_job(
                    __file__, options, configuration.ranks, largest_error=1e-10
                )
                machine = measured[configuration.ranks]
                simulated = predict(configuration, args.size, machine, inside["panels"])
                runs[name].append(
                    {
                        "measured": inside["seconds"],
                        "simulated": simulated,
                        "panels": inside["panels"],
                    }
                )
    rows = [summarize(name, found, args.size) for name, found in runs.items()]
    _common.print_table(
        f"simulated against measured, medians of {args.repeats} interleaved turns",
        ["configuration", "shape", "panels", "measured s", "simulated s", "simulated / measured"],
        [
            [
                row["configuration"],
                "x".join(map(str, row["shape"])),
                str(row["panels"]),
                f"{row['measured']:.4f}",
                f"{row['simulated']:.4f}",
                f"{row['ratio']:.2f}" + ("" if row["within"] else " !"),
            ]
            for row in rows
        ],
    )
    worst = max(abs(math.log(row["ratio"])) for row in rows)
    inside_target = sum(row["within"] for row in rows)
    print(
        f"\n{inside_target} of {len(rows)} within {TARGET:.0%}; "
        f"the worst is off by a factor of {math.exp(worst):.2f}"
    )
    settings = {"size": args.size, "repeats": args.repeats}
    _common.write_json(args.json, {"settings": settings, "machines": machines, "rows": rows})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
