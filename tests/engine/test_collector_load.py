"""The collector with codes that give every worker several shares."""

from __future__ import annotations

import random

import numpy as np
import pytest

from codedla import codes
from codedla.blocks import Grid
from codedla.engine.collector import Collector, Instruction
from tests.engine.troubles import last_answer

WAIT, FOLD, FINISH = Instruction.WAIT, Instruction.FOLD, Instruction.FINISH
DROP, FAIL, AGAIN = Instruction.DROP, Instruction.FAIL, Instruction.REDISPATCH


class Thrice(codes.Code):
    """Any 6 of the 12 shares of 4 workers decode; two workers may be lost."""

    name = "thrice"
    operation = "matvec"
    splits = ("m",)
    load = 3

    def _generators(self):
        return np.vander(np.linspace(-1, 1, 12), 6), np.ones((12, 1))

    @classmethod
    def survives(cls, n_workers, grid):
        return 2


def thrice():
    return Thrice(4, Grid(6, 1, 1))


CODES = {
    "thrice": thrice(),
    "batch": codes.get("batch")(5, Grid(3, 1, 1)),
    "bivariate": codes.get("bivariate")(4, Grid(3, 1, 2)),
    "convolutional": codes.get("convolutional")(5, Grid(3, 1, 1)),
    "lt": codes.get("lt")(4, Grid(9, 1, 1)),
}


def collector(code=None, *, eps=0.0):
    return Collector(code or thrice(), eps=eps, tolerance=1e-9)


def started(code=None):
    """A collector whose workers all compute their first share."""
    machine = collector(code)
    for worker in sorted(machine.workers):
        machine.next(worker)
    return machine


def test_workers_go_through_their_shares_in_order():
    machine = collector()
    assert [machine.next(1) for _ in range(4)] == [1, 5, 9, None]
    assert [machine.next(3), machine.next(0)] == [3, 0]
    assert machine.has_more(3)
    assert not machine.has_more(1)


def test_replies_of_anybody_add_up():
    machine = started()
    assert [machine.reply(s) for s in (2, 6, 10, 1, 5)] == [FOLD] * 5
    assert machine.reply(0) is FINISH
    assert machine.stragglers == {3}, "the others have done what they could"
    assert machine.next(1) is None


def test_the_rest_of_a_lost_worker_is_not_waited_for():
    machine = started()
    assert machine.reply(0) is FOLD
    assert machine.lost(0, "x") is WAIT
    assert machine.outstanding == {1, 2, 3, 5, 6, 7, 9, 10, 11}
    assert machine.lost(1, "x") is WAIT
    assert machine.queue == []
    # One reply and three shares are too few: two more are needed, and only these.
    assert machine.lost(2, "x") is AGAIN
    assert machine.queue == machine.redispatched == [1, 2]
    assert machine.reply(3) is FOLD
    order = [machine.next(3)]
    for answer in (FOLD, FOLD, FOLD, FINISH):
        assert machine.reply(order[-1], 3) is answer
        order.append(machine.next(3))
    assert order == [7, 11, 1, 2, None], "its own come first"
    assert machine.computed_by == {0: 0, 3: 3, 7: 3, 11: 3, 1: 3, 2: 3}


def test_a_silent_worker_that_is_heard_goes_on():
    machine = started()
    assert [machine.silent(w, "s") for w in (0, 1, 2)] == [WAIT, WAIT, AGAIN]
    assert machine.queue == [0, 1, 2]
    assert machine.back(1) in (WAIT, AGAIN)
    assert {1, 5, 9} <= machine.outstanding
    assert 1 not in machine.queue, "it is being computed"
    assert machine.next(1) == 5, "nothing was lost"


def test_a_late_reply_brings_back_all_of_its_workers_shares():
    machine = started()
    for worker in (0, 1, 2):
        machine.silent(worker, "s")
    assert not {4, 8} & machine.outstanding
    assert machine.reply(0) is FOLD
    assert {4, 8} <= machine.outstanding
    assert machine.has_more(0)
    assert machine.next(0) == 4


def test_a_lost_share_is_computed_by_its_home_or_another():
    machine = started()
    for worker in (0, 1, 2):
        machine.silent(worker, "s")
    machine.reply(3)
    assert [machine.next(3), machine.next(3)] == [7, 11]
    for share in (7, 11):
        machine.reply(share)
    assert machine.next(3) == 0
    machine.back(0)
    assert machine.reply(0, 0) is FOLD
    assert machine.reply(0, 3) is DROP
    assert machine.next(0) == 4


def test_what_a_liar_said_before_is_kept_and_nothing_after():
    machine = started()
    assert machine.reply(0) is FOLD
    assert machine.next(0) == 4
    assert machine.refuse(4, 0, "wrong") is WAIT
    assert machine.next(0) is None
    assert machine.responders == [0]
    assert machine.reply(8, 0) is DROP
    assert machine.outstanding == {1, 2, 3, 5, 6, 7, 9, 10, 11}
    assert machine.wrong == [0]


def test_a_deadline_names_who_gave_nothing():
    machine = started()
    for share in (0, 4, 1):
        machine.reply(share)
    assert machine.deadline() is FAIL
    text = str(machine.failure())
    assert "any 6 of 12 shares of 4 workers" in text
    assert "3 arrived and the time-out passed; no reply yet: rank 3, rank 4;" in text


def test_few_shares_are_computed_again_where_it_matters_which():
    lt = codes.get("lt")(6, Grid(90, 1, 1))
    machine = started(lt)
    answers = [machine.lost(worker, "x") for worker in range(4)]
    assert answers[:3] == [WAIT] * 3 or AGAIN in answers
    assert machine.lost(4, "x") is AGAIN
    under_way = [*machine.responders, *machine.outstanding]
    assert lt.decodable(under_way)
    # One worker has 75 of 90 ranks at most.
    assert 15 <= len(machine.queue) <= 45
    assert set(machine.queue) <= set(machine.redispatched)


@pytest.mark.parametrize("name", CODES)
def test_any_sequence_of_events(name):
    """FINISH or FAIL once; FINISH only when decodable; never stuck with living help."""
    code = CODES[name]
    for seed in range(60):
        rng = random.Random(f"{name} {seed}")
        machine = collector(code, eps=rng.choice((0.0, 2.0**-52)))
        tasks: dict[int, int] = {}
        dead: set[int] = set()
        ended = False
        for _ in range(6 * code.n_shares):
            worker = rng.randrange(-1, code.n_workers + 2)
            event = rng.random()
            if event < 0.45:
                share = machine.next(worker) if worker not in tasks else None
                if share is not None:
                    assert not ended
                    assert worker not in dead
                    tasks[worker] = share
                answer = WAIT
            elif event < 0.9:
                if worker not in tasks:
                    continue
                wrong = rng.random() < 0.03
                share = tasks.pop(worker)
                dead |= {worker} if wrong else set()
                answer = (
                    machine.refuse(share, worker, "wrong")
                    if wrong
                    else machine.reply(share, worker)
                )
            elif event < 0.92:
                answer = machine.lost(worker, "x")
                dead.add(worker)
            elif event < 0.95:
                answer = machine.silent(worker, "s")
            elif event < 0.999:
                answer = machine.back(worker)
            else:
                answer = machine.deadline()
            assert answer in (DROP, WAIT) or not ended
            ended = ended or answer in (FINISH, FAIL)
            assert machine.finished is ended
            if answer is FINISH:
                assert code.decodable(machine.responders)
            if not ended:
                away = {*machine.lost_workers, *machine.silent_workers}
                if machine.living:
                    assert code.decodable([*machine.responders, *machine.outstanding])
                    # Whatever is hoped for has somebody to compute it.
                    for share in machine.outstanding:
                        somebody = any(s == share and w not in away for w, s in tasks.items())
                        home = code.home(share) not in away
                        assert somebody or home or share in machine.queue
            assert len(set(machine.responders)) == len(machine.responders)
            assert not set(machine.queue) & set(machine.responders)


@pytest.mark.parametrize("name", CODES)
def test_a_round_ends_while_one_worker_lives(name):
    """Workers die, wake up, answer wrongly or fall silent; one that does none of it is enough."""
    code = CODES[name]
    for seed in range(40):
        rng = random.Random(f"{name} {seed}")
        steps = 100 * code.n_shares
        assert last_answer(collector(code), rng, steps, (0.8, 0.84, 0.86, 0.93)) is FINISH
