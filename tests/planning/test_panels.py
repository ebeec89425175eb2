"""The count of finished tasks against the schedule that products in panels follow."""

import heapq
import itertools
import math

import numpy as np
import pytest

from codedla.blocks import Grid
from codedla.codes.families.mds import MDS
from codedla.engine.collector import Collector, Instruction
from codedla.engine.schedule import Schedule
from codedla.planning.panels import counted


def scheduled(code, panels, each):
    """Seconds until the schedule has all panels done, if worker ``i`` needs ``each[i]`` a task."""
    collectors = [Collector(code, eps=1e-16, tolerance=1.0) for _ in range(panels)]
    fresh = iter(enumerate(collectors))
    schedule = Schedule(code.n_workers, lambda: next(fresh, None))
    now, running, order, open_panels = 0.0, {}, itertools.count(), set(range(panels))
    heap = []
    while open_panels:
        schedule.ensure()
        for worker in range(code.n_workers):
            task = schedule.next(worker) if worker not in running else None
            if task is not None:
                running[worker] = task
                heapq.heappush(heap, (now + each[worker], next(order), worker, task))
        now, _, worker, task = heapq.heappop(heap)
        if running.get(worker) is not task:
            continue  # cancelled meanwhile
        del running[worker]
        instruction = collectors[task.key].reply(task.share, worker)
        schedule.answered(worker, task)
        if instruction is Instruction.FINISH:
            open_panels.discard(task.key)
            for other in schedule.close(task.key):
                if other in running and running[other].key == task.key:
                    schedule.answered(other, running.pop(other))
    return now


@pytest.mark.parametrize("panels", [1, 4, 20])
@pytest.mark.parametrize("seed", range(6))
def test_counting_finished_tasks_foretells_the_schedule(panels, seed):
    rng = np.random.default_rng(seed)
    code = MDS(8, Grid(6, 1, 1))
    each = 1.0 + rng.exponential(0.5, 8)
    if seed % 2:
        each[rng.integers(8)] = 50.0
    found = counted(np.zeros((1, 8)), each[None, :], panels, 6 * panels)[0]
    # What is computed twice at the end, or cancelled, is not counted: less than two tasks each.
    usual = float(np.sort(each)[6])
    assert found <= scheduled(code, panels, each) + 1e-9
    assert scheduled(code, panels, each) <= found + 2 * usual


def test_a_dead_worker_costs_its_part_of_the_work():
    code = MDS(5, Grid(4, 1, 1))
    each = np.array([1.0, 1, 1, 1, 1e9])
    dead = np.where(each < 1e9, each, math.inf)
    assert counted(np.zeros((1, 5)), dead[None, :], 8, 32)[0] == pytest.approx(8.0)
    assert scheduled(code, 8, each) == pytest.approx(8.0, abs=1.01)
