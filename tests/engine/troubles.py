"""Drive a collector through a round in which everything happens to all workers but one."""

from __future__ import annotations

import random

from codedla.engine.collector import Collector, Instruction


def last_answer(
    machine: Collector,
    rng: random.Random,
    steps: int,
    odds: tuple[float, float, float, float],
) -> Instruction:
    """Return the instruction with which the round ends, or the last after so many steps.

    Parameters
    ----------
    machine : Collector
    rng : random.Random
    steps : int
    odds : tuple of float
        Ascending: below the first a worker replies, then it is lost, answers wrongly, falls silent;
        above the last it comes back. One worker, the hero, does nothing but reply.
    """
    replies, dies, lies, sleeps = odds
    workers = machine.code.n_workers
    hero = rng.randrange(workers)
    tasks: dict[int, int] = {}
    answer = Instruction.WAIT
    for _ in range(steps):
        worker = rng.randrange(workers)
        if worker not in tasks and (share := machine.next(worker)) is not None:
            tasks[worker] = share
        event = rng.random()
        if worker == hero or event < replies:
            if worker in tasks:
                answer = machine.reply(tasks.pop(worker), worker)
        elif event < dies:
            answer = machine.lost(worker, "x")
            tasks.pop(worker, None)
        elif event < lies and worker in tasks:
            answer = machine.refuse(tasks.pop(worker), worker, "wrong")
        elif event < sleeps:
            answer = machine.silent(worker, "s")
        else:
            answer = machine.back(worker)
        if answer in (Instruction.FAIL, Instruction.FINISH):
            break
    return answer
