"""One host with fewer cores than ranks: whoever is busy has an equal part of the cores.

The clock goes from one event to the next, for all rounds in step. Between two events each busy
rank gets ``min(1, cores / busy ranks)`` of a core; ranks that sleep, wait or are done get nothing.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from codedla.planning.machine import Machine
from codedla.planning.workload import Workload

__all__ = ["run"]

Times = NDArray[np.float64]

# What a worker is doing, in this order.
WAITING, TRAVELLING, RECEIVING, SLEEPING, COMPUTING, DRAGGING, QUEUED, TAKEN = range(8)


def run(
    workload: Workload, machine: Machine, delays: Times, slow: Times
) -> tuple[Times, Times, Times]:
    """Return when replies are received, orders arrive and tasks end, (rounds, workers) each.

    Parameters
    ----------
    workload : Workload
        In a code with one share for each worker.
    machine : Machine
    delays : ndarray (rounds, workers)
        The worker sleeps so long before it computes.
    slow : ndarray (workers,)
        The worker sleeps so long after it has computed that all of it took this times as long.
    """
    state = _Hosts(workload, machine, delays[:, np.array(workload.code.shares)], slow)
    while state.step():
        pass
    return state.served, state.ordered, state.done


class _Hosts:
    """All rounds: the state of each worker and of the master, and the clock."""

    def __init__(self, workload: Workload, machine: Machine, delays: Times, slow: Times) -> None:
        self.machine, self.delays, self.slow = machine, delays, slow[list(workload.code.shares)]
        rounds, count = delays.shape
        o = machine.overhead
        self.making = o + workload.encoded / machine.encode + workload.sent / machine.bandwidth
        reading = workload.stored / machine.storage + workload.combined / machine.encode
        self.receiving = o + workload.sent / machine.copy + reading
        self.computing = workload.computing(machine)
        self.taking = o + workload.reply / machine.copy
        self.clock = np.zeros(rounds)
        self.phase = np.full((rounds, count), WAITING)
        # Seconds of a core that are left, or the time at which something happens by itself.
        self.left = np.zeros((rounds, count))
        self.until = np.full((rounds, count), np.inf)
        self.began = np.zeros((rounds, count))
        self.made = np.zeros(rounds, dtype=np.int64)
        self.master = np.full(rounds, self.making[0])
        self.taken = np.full(rounds, -1)
        self.served = np.full((rounds, count), np.inf)
        self.ordered = np.full((rounds, count), np.inf)
        self.done = np.full((rounds, count), np.inf)

    def step(self) -> bool:
        """Go to the next event of every round; return whether any had one."""
        count = self.phase.shape[1]
        busy = (self.phase == RECEIVING) | (self.phase == COMPUTING)
        at_work = (self.made < count) | (self.taken >= 0)
        running = busy.sum(axis=1) + at_work
        rate = np.minimum(1.0, self.machine.cores / np.maximum(running, 1))
        ends = np.where(busy, self.clock[:, None] + self.left / rate[:, None], self.until)
        master_ends = np.where(at_work, self.clock + self.master / rate, np.inf)
        worker = ends.argmin(axis=1)
        rounds = np.arange(len(ends))
        first = ends[rounds, worker]
        now = np.minimum(first, master_ends)
        open_rounds = np.isfinite(now)
        if not open_rounds.any():
            return False
        spent = np.where(open_rounds, (now - self.clock) * rate, 0.0)
        self.left -= np.where(busy, spent[:, None], 0.0)
        self.master -= np.where(at_work, spent, 0.0)
        self.clock = np.where(open_rounds, now, self.clock)
        by_master = open_rounds & (master_ends <= first)
        self._master(np.flatnonzero(by_master))
        self._workers(np.flatnonzero(open_rounds & ~by_master), worker)
        self._take()
        return True

    def _master(self, rounds: NDArray[np.int64]) -> None:
        """End what the master of these rounds was doing: an order is sent, or a reply is taken."""
        taking = self.taken[rounds] >= 0
        taken = rounds[taking]
        self.served[taken, self.taken[taken]] = self.clock[taken]
        self.phase[taken, self.taken[taken]] = TAKEN
        self.taken[taken] = -1
        sent = rounds[~taking]
        place = self.made[sent]
        self.phase[sent, place] = TRAVELLING
        self.until[sent, place] = self.clock[sent] + self.machine.latency
        self.made[sent] += 1
        more = sent[self.made[sent] < self.phase.shape[1]]
        self.master[more] = self.making[self.made[more]]

    def _workers(self, rounds: NDArray[np.int64], worker: NDArray[np.int64]) -> None:
        """Let one worker of each of these rounds go on to its next phase."""
        who = worker[rounds]
        now, phase = self.clock[rounds], self.phase[rounds, who]
        self.phase[rounds, who] = phase + 1
        self.until[rounds, who] = np.inf
        for old in (TRAVELLING, RECEIVING, SLEEPING, COMPUTING, DRAGGING):
            chosen = phase == old
            r, w, t = rounds[chosen], who[chosen], now[chosen]
            if old == TRAVELLING:
                self.ordered[r, w] = t
                self.left[r, w] = self.receiving[w]
            elif old == RECEIVING:
                self.until[r, w] = t + self.delays[r, w]
            elif old == SLEEPING:
                self.began[r, w] = t
                self.left[r, w] = self.computing
            elif old == COMPUTING:
                self.until[r, w] = t + (self.slow[w] - 1.0) * (t - self.began[r, w])
            else:
                self.done[r, w] = t

    def _take(self) -> None:
        """Let masters that have nothing else to do take the reply that has waited longest."""
        free = (self.made >= self.phase.shape[1]) & (self.taken < 0)
        waiting = np.where(self.phase == QUEUED, self.done, np.inf)
        first = waiting.argmin(axis=1)
        there = free & np.isfinite(waiting[np.arange(len(first)), first])
        self.taken = np.where(there, first, self.taken)
        self.master = np.where(there, self.taking, self.master)
