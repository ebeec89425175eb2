r"""How long a product takes: a model in the manner of LogGP, for many random rounds at once.

One round goes like this. The master makes the shares one after the other and sends each as soon
as it is made: encoding is the first stage of a pipe, its link (bandwidth ``1/G``) the second. A
message costs the overhead ``o`` and arrives after the latency ``L``. A worker receives, computes,
is late by its random delay and replies; replies queue up before the master, which receives them one
by one and folds them while it waits for the next. When those that are there suffice, the others are
cancelled and the master decodes.

Two ways of sharing the cores of a host are modelled:

* every rank has its part of a core whatever the others do (:func:`_apart`), in closed form;
* all ranks, the master among them, are on one host with fewer cores than ranks
  (:func:`codedla.planning.shared.run`): whoever is busy has an equal part of the cores, so that
  all ranks slow each other down and sleepers leave their part to the others.

A product in panels is several rounds under way (:mod:`codedla.planning.panels`).

References
----------
A. Alexandrov, M. Ionescu, K. Schauser, C. Scheiman, "LogGP: incorporating long messages into the
LogP model", SPAA 1995.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from codedla.codes.base import Code
from codedla.engine.arrivals import decoding_times
from codedla.errors import UsageError
from codedla.planning import panels, shared
from codedla.planning.machine import Machine
from codedla.planning.speculation import copies
from codedla.planning.workload import Workload

__all__ = ["Timings", "simulate"]

Times = NDArray[np.float64]


@dataclass(frozen=True)
class Timings:
    """Times of many simulated rounds.

    Parameters
    ----------
    seconds : ndarray (rounds,)
        From the call to the finished product; ``inf`` where too few replies ever come.
    worker_seconds : ndarray (rounds,)
        Seconds that workers were held, from their orders to their replies or the end.
    master : float
        Seconds in which the master makes and sends all shares, and receives the replies that are
        needed.
    """

    seconds: Times
    worker_seconds: Times
    master: float


def simulate(
    workload: Workload,
    machine: Machine,
    delays: Times | None = None,
    slow: Times | None = None,
    *,
    rounds: int = 1,
    again: Times | None = None,
) -> Timings:
    """Simulate rounds of one product.

    Parameters
    ----------
    workload : Workload
    machine : Machine
    delays : ndarray (rounds, workers), optional
        Seconds that each task of a worker takes longer in this round; ``inf``: it never answers.
    slow : ndarray (workers,), optional
        Factors, 1 or more, of the time a worker's task takes.
    rounds : int
        How many, where no delays are given.
    again : ndarray (rounds, workers), optional
        Given: late tasks are executed again on idle workers, with these delays.

    Returns
    -------
    Timings

    Raises
    ------
    UsageError
        The delays or factors are not those of the code's workers.
    """
    if workload.operation == "round":
        machine = replace(machine, overhead=machine.overhead_round, setup=0.0)
    workers = workload.code.n_workers
    delays = np.zeros((rounds, workers)) if delays is None else np.asarray(delays, float)
    slow = np.ones(workers) if slow is None else np.asarray(slow, float)
    if delays.ndim != 2 or delays.shape[1] != workers or slow.shape != (workers,):
        raise UsageError(
            f"delays must be of shape (rounds, {workers}), factors of shape ({workers},); got "
            f"{delays.shape} and {slow.shape}; give one for each worker"
        )
    together = machine.ranks_per_host > machine.cores and workers < machine.ranks_per_host
    simple = workload.code.load == 1 and again is None
    if workload.panels > 1:
        found = panels.run(workload, machine, delays, slow, together=together)
    elif together and simple:
        found = _ended(workload, machine, *shared.run(workload, machine, delays, slow))
    else:
        plain = _tasks(workload, machine, slow)
        served, ordered, done = _apart(workload, machine, delays, plain)
        if again is not None:
            served, done = _executed_again(workload, machine, (served, ordered, done), plain, again)
        found = _ended(workload, machine, served, ordered, done)
    around = machine.setup + (workload.before + workload.after) / machine.scan
    return Timings(found[0] + around, found[1], master_seconds(workload, machine))


def master_seconds(workload: Workload, machine: Machine) -> float:
    """Return how long the master, and its link, are busy with one product."""
    rounds = workload.panels
    part = 1.0 if rounds == 1 else workload.code.threshold / len(workload.sent)
    made = float(workload.encoded.sum()) / machine.encode
    moved = float(workload.sent.sum()) * part * rounds + workload.resident * len(workload.sent)
    orders = len(workload.sent) * part * rounds * machine.overhead
    answers = workload.code.threshold * rounds * service(workload, machine)
    # Encoding and the link are two stages of a pipe: the slower one sets the pace.
    return max(made * rounds + orders, moved / machine.bandwidth) + answers


def service(workload: Workload, machine: Machine) -> float:
    """Return the seconds in which the master takes one reply."""
    return max(machine.overhead + workload.reply / machine.copy, workload.reply / machine.bandwidth)


def _ended(
    workload: Workload, machine: Machine, served: Times, ordered: Times, done: Times
) -> tuple[Times, Times]:
    """Return when rounds are decoded, and how long workers were held."""
    enough = decoding_times(workload.code, served)
    held = np.minimum(done, enough[:, None]) - ordered
    held = np.clip(np.where(np.isfinite(held), held, 0.0), 0.0, None).sum(axis=1)
    return enough + _decoding(workload, machine, served, enough), held


def _decoding(workload: Workload, machine: Machine, served: Times, enough: Times) -> Times:
    """Return what is left to do after the last needed reply, in seconds.

    Of systematic codes: a combination for each of the ``e`` sums that stand in for a block, and
    those folds for which there was no time before. Nothing if no sum was needed.
    """
    if not workload.code.systematic or not workload.fold:
        return np.full(len(enough), workload.finish / machine.encode)
    sums = (served[:, workload.spare] <= enough[:, None]).sum(axis=1)
    replies = workload.code.threshold
    folding = replies * workload.fold / machine.encode
    made = float(workload.encoded.sum()) / machine.encode
    orders = max(made, float(workload.sent.sum()) / machine.bandwidth)
    idle = np.where(np.isfinite(enough), enough, 0.0) - orders
    idle = idle - replies * service(workload, machine)
    left = replies * workload.reply / machine.encode * np.clip(1.0 - idle / folding, 0.0, 1.0)
    return np.where(sums > 0, sums * (sums + 1) * workload.reply / machine.encode + left, 0.0)


def _tasks(workload: Workload, machine: Machine, slow: Times) -> Times:
    """Return how long each share's task takes from its order's arrival, without a delay."""
    code = workload.code
    core = machine.share_of_core(machine.ranks_per_host) if machine.ranks_per_host else 1.0
    reading = workload.stored * max(1.0 / machine.storage, code.active / machine.storage_total)
    handling = machine.overhead + workload.sent / machine.copy + workload.combined / machine.encode
    computing: Times = workload.computing(machine) / core * slow[_homes(code)]
    return handling / core + reading + computing


def _homes(code: Code) -> NDArray[np.int64]:
    """Return which worker computes each share, (shares,)."""
    return np.array(code.shares) % code.n_workers


def _apart(
    workload: Workload, machine: Machine, delays: Times, plain: Times
) -> tuple[Times, Times, Times]:
    """Return when replies are received, orders arrive and tasks end, (rounds, shares) each."""
    code = workload.code
    homes = _homes(code)
    arrived = _orders(workload, machine)
    lasting = plain + delays[:, homes]
    if code.load == 1:
        ordered = np.broadcast_to(arrived, lasting.shape)
        done = ordered + lasting
    else:
        ordered, done = _in_turn(workload, machine, homes, arrived, lasting)
    return _received(done + machine.latency, service(workload, machine)), ordered, done


def _executed_again(
    workload: Workload,
    machine: Machine,
    times: tuple[Times, Times, Times],
    plain: Times,
    again: Times,
) -> tuple[Times, Times]:
    """Return when replies are received and tasks end if late ones are executed again."""
    # The helper holds nothing yet.
    missing = (workload.whole - workload.sent) / machine.copy
    return copies(
        *times,
        plain=plain + missing,
        again=again[:, _homes(workload.code)],
        sending=machine.overhead + workload.whole / machine.bandwidth,
        travel=machine.latency + service(workload, machine),
    )


def _orders(workload: Workload, machine: Machine) -> Times:
    """Return when each share's order has arrived, (shares,)."""
    made = np.cumsum(machine.overhead + workload.encoded / machine.encode)
    wire = workload.sent / machine.bandwidth
    sent = np.cumsum(wire)
    # Each leaves when it is made and the one before has left.
    left: Times = sent + np.maximum.accumulate(made - (sent - wire))
    return left + machine.latency


def _in_turn(
    workload: Workload,
    machine: Machine,
    homes: NDArray[np.int64],
    arrived: Times,
    lasting: Times,
) -> tuple[Times, Times]:
    """Let workers with several shares do one after the other, asking for each."""
    asking = 2 * machine.latency + machine.overhead
    ordered, done = np.empty_like(lasting), np.empty_like(lasting)
    free = np.zeros((len(lasting), workload.code.n_workers))
    turn = np.zeros(len(homes), dtype=np.int64)
    counts = np.zeros(workload.code.n_workers, dtype=np.int64)
    for place, home in enumerate(homes):
        turn[place] = counts[home]
        counts[home] += 1
    for number in range(int(counts.max())):
        places = np.flatnonzero(turn == number)
        home = homes[places]
        if number == 0:
            ordered[:, places] = arrived[places]
        else:
            fetched = (
                workload.encoded[places] / machine.encode
                + workload.sent[places] / machine.bandwidth
            )
            ordered[:, places] = free[:, home] + asking + fetched
        done[:, places] = ordered[:, places] + lasting[:, places]
        free[:, home] = done[:, places]
    return ordered, done


def _received(arrivals: Times, seconds: float) -> Times:
    """Return when a master that needs ``seconds`` for each has taken what arrives, in order."""
    order = np.argsort(arrivals, axis=1)
    places = np.arange(arrivals.shape[1]) * seconds
    sorted_arrivals = np.take_along_axis(arrivals, order, axis=1)
    ends = np.maximum.accumulate(sorted_arrivals - places, axis=1) + places + seconds
    received = np.empty_like(ends)
    np.put_along_axis(received, order, ends, axis=1)
    return received
