"""Let workers lie, and count who is found, who is named, and whether anybody honest is accused.

Every run multiplies small random matrices; the replies of one or more workers are replaced on their
way to the master. The checks are those of ``verify="spares"``, which compares replies with each
other, and of ``verify="locate"``, which compares each with the operands. There are as many spare
replies as are needed to name the liars, or just one, and then a wrong reply can be found but not be
named. Lies:

* ``random``    a random block;
* ``doubled``   all liars answer as if B were twice as large: together a codeword;
* ``agreed``    all liars add the same random block;
* ``entry``     one entry is off by one;
* ``exponent``  one bit of the exponent of one entry is flipped, in float64.

    OPENBLAS_NUM_THREADS=1 python benchmarks/adversary.py --json adversary.json
    python benchmarks/adversary.py --runs 200
"""

from __future__ import annotations

import argparse
import re
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from _common import print_table, write_json

import codedla
from codedla.blocks import Grid
from codedla.codes import get
from codedla.codes.exact import ModularCode
from codedla.engine.round import Round
from codedla.engine.stragglers import Fault
from codedla.errors import CodedlaWarning, VerificationFailed

SEED = 61_043
LIES = ("random", "doubled", "agreed", "entry", "exponent")
CODES = {
    "galois": (2, 1, 2),
    "lagrange": (1, 3, 1),
    "secure-matdot": (1, 2, 1),
    "gasp": (2, 1, 2),
    "mds": (4, 1, 1),
    "khatri-rao": (2, 1, 2),
    "polynomial": (2, 1, 2),
    "matdot": (1, 3, 1),
    "lagrange-real": (1, 3, 1),
}
"""Blocks of every code; the first four are exact."""


@dataclass(frozen=True)
class Setting:
    """One row of the table.

    Parameters
    ----------
    verify : str
        How replies are checked.
    liars : int
        Wrong workers in each run.
    spares : int
        Workers beyond the threshold.
    """

    verify: str
    liars: int
    spares: int

    @property
    def nameable(self) -> bool:
        """Whether the liars are to be named, not only noticed."""
        return self.verify == "locate" or self.spares >= 2 * self.liars


SETTINGS = (
    Setting("spares", 0, 2),
    Setting("spares", 1, 1),
    Setting("spares", 1, 2),
    Setting("spares", 2, 4),
    Setting("locate", 1, 1),
    Setting("locate", 2, 2),
)


class LyingPool(codedla.SerialPool):
    """A pool of which some workers answer something else.

    Parameters
    ----------
    order : sequence of int
        Workers in the order in which they reply.
    liars : collection of int
    lie : str
        One of :data:`LIES`.
    rng : numpy.random.Generator
    """

    def __init__(
        self, order: Sequence[int], liars: set[int], lie: str, rng: np.random.Generator
    ) -> None:
        faults = [Fault("slow", worker, 1.0 + place) for place, worker in enumerate(order)]
        super().__init__(len(order), faults=faults)
        self.liars, self.lie, self.rng = liars, lie, rng
        self._agreed: dict[tuple[int, ...], np.ndarray] = {}

    def compute(self, job: Round, share: int, worker: int, matrices: tuple[Any, Any]) -> None:
        """Compute, and lie if the worker is one of the liars."""
        super().compute(job, share, worker, matrices)
        if worker in self.liars:
            code = job.decoder.code
            modulus = code.prime if isinstance(code, ModularCode) else None
            self._lie(job.decoder.target(share), modulus)

    def _lie(self, reply: np.ndarray, modulus: int | None) -> None:
        if self.lie == "doubled":
            reply *= 2
        elif self.lie in ("random", "agreed"):
            known = self._agreed.get(reply.shape) if self.lie == "agreed" else None
            block = self._block(reply.shape, modulus) if known is None else known
            self._agreed[reply.shape] = block
            reply[...] = block if self.lie == "random" else reply + block
        else:
            # Of residues, a multiple of the modulus stays what it is.
            seen = reply if modulus is None else reply % modulus
            spot = tuple(self.rng.choice(np.argwhere(seen != 0)))
            if self.lie == "entry":
                reply[spot] += 1
            else:
                entry = np.array([reply[spot]])
                entry.view(np.int64)[...] ^= np.int64(1 << int(self.rng.integers(52, 63)))
                reply[spot] = entry[0]

    def _block(self, shape: tuple[int, ...], modulus: int | None) -> np.ndarray:
        if modulus is None:
            return self.rng.standard_normal(shape)
        return self.rng.integers(1, modulus, shape).astype(float)


def one_run(name: str, setting: Setting, lie: str, rng: np.random.Generator) -> str:
    """Multiply once; return "named", "noticed", "quiet", or what went wrong."""
    family, grid = get(name), Grid(*CODES[name])
    need = family.needs(grid)
    workers = need + setting.spares
    order = rng.permutation(workers).tolist()
    # Those who come late may not be asked at all.
    liars = {int(w) for w in rng.choice(order[:need], setting.liars, replace=False)}
    shape = rng.integers(4, 10, 3)
    if family.field == "GF(p)":
        A, B = rng.integers(-999, 999, shape[:2]), rng.integers(-999, 999, shape[1:])
    else:
        A, B = rng.standard_normal(shape[:2]), rng.standard_normal(shape[1:])
    ranks = sorted(worker + 1 for worker in liars)
    with LyingPool(order, liars, lie, rng) as pool:
        try:
            C, report = codedla.matmul(
                A,
                B,
                pool=pool,
                code=name,
                blocks=CODES[name],
                verify=setting.verify,
                return_report=True,
            )
        except VerificationFailed as error:
            # A reply that cannot be any product tells by itself.
            named = {int(rank) for rank in re.findall(r"rank (\d+)", str(error))}
            if named - set(ranks):
                return "accused"
            return "noticed" if liars else "false alarm"
    right = np.array_equal(C, A @ B) if C.dtype.kind == "i" else np.allclose(C, A @ B, atol=1e-9)
    if set(report.wrong) - set(ranks):
        return "accused"
    if not right or report.wrong != ranks:
        return "missed"
    return "named" if liars else "quiet"


def measure(runs: int) -> list[dict[str, Any]]:
    """Run every code and setting; return the rows of the table."""
    rows = []
    for place, setting in enumerate(SETTINGS):
        cases = [(name, lie) for name in CODES for lie in LIES]
        counts = {name: Counter[str]() for name in CODES}
        for run in range(runs):
            name, lie = cases[run % len(cases)]
            rng = np.random.default_rng([SEED, place, run])
            counts[name][one_run(name, setting, lie, rng)] += 1
        for name, count in counts.items():
            rows.append(
                {
                    "code": name,
                    "verify": setting.verify,
                    "liars": setting.liars,
                    "spares": setting.spares,
                    "runs": count.total(),
                    "expected": "quiet"
                    if not setting.liars
                    else "named"
                    if setting.nameable
                    else "noticed",
                    **{
                        what: count[what]
                        for what in (
                            "quiet",
                            "named",
                            "noticed",
                            "missed",
                            "accused",
                            "false alarm",
                        )
                    },
                }
            )
    return rows


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--runs", type=int, default=2000, help="runs of every setting")
    parser.add_argument("--json", metavar="FILE", help="write the figures to this file")
    args = parser.parse_args()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CodedlaWarning)
        rows = measure(args.runs)
    shown = ("code", "verify", "liars", "spares", "runs", "named", "noticed", "missed", "accused")
    print_table(
        "workers that answer wrongly", shown, [[str(row[key]) for key in shown] for row in rows]
    )
    total = sum(row["runs"] for row in rows)
    lied = sum(row["runs"] for row in rows if row["liars"])
    missed = sum(row["missed"] for row in rows)
    accused = sum(row["accused"] + row["false alarm"] for row in rows)
    unnamed = sum(row["runs"] - row[row["expected"]] for row in rows)
    print(
        f"\n{total} runs, {lied} with liars: {missed} missed, {accused} honest workers accused, "
        f"{unnamed} that did not end as they should"
    )
    if args.json:
        write_json(args.json, {"runs": args.runs, "rows": rows})
    if missed or accused:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
