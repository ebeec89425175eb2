"""The collector is a state machine: events in, instructions out, no clock and no I/O."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codedla import codes
from codedla.blocks import Grid
from codedla.engine.collector import Collector, Instruction
from codedla.errors import NotDecodable, WorkerError
from tests.engine.troubles import last_answer

WAIT, FOLD, FINISH = Instruction.WAIT, Instruction.FOLD, Instruction.FINISH
DROP, FAIL, AGAIN = Instruction.DROP, Instruction.FAIL, Instruction.REDISPATCH


class Weak(codes.Code):
    """Any 2 of 4 workers decode, but only sets that ``sharp`` holds are accurate."""

    name = "weak"

    def __init__(self, sharp=()):
        super().__init__(4, Grid(2, 1, 1))
        self.sharp = {frozenset(s) for s in sharp}

    def _generators(self):
        return np.ones((4, 2)), np.ones((4, 1))

    def decodable(self, responders):
        return len(set(responders)) >= 2

    def amplification(self, responders):
        return 2.0 if frozenset(responders) in self.sharp or len(responders) > 2 else 1e12


def mds(n_workers=5, blocks=3):
    return codes.get("mds")(n_workers, Grid(blocks, 1, 1))


def collector(code=None, *, eps=2.0**-52, tolerance=1e-9, **sets):
    return Collector(code or mds(), eps=eps, tolerance=tolerance, **sets)


def started(code=None, **options):
    """Return a collector whose workers all have their own share."""
    machine = collector(code, **options)
    for worker in sorted(machine.workers):
        machine.next(worker)
    return machine


def remote():
    return WorkerError("ValueError: no", rank=2, host="here", traceback="Traceback ...")


def play(machine, events):
    return [getattr(machine, name)(*arguments) for name, *arguments in events]


@pytest.mark.parametrize(
    ("events", "instructions"),
    [
        ([("reply", 0), ("reply", 3), ("reply", 1)], [FOLD, FOLD, FINISH]),
        ([("reply", 4), ("reply", 4), ("reply", 1), ("reply", 2)], [FOLD, DROP, FOLD, FINISH]),
        (
            [("reply", 0), ("reply", 1), ("reply", 2), ("reply", 3), ("lost", 4, "late news")],
            [FOLD, FOLD, FINISH, DROP, DROP],
        ),
        ([("lost", 0, "x"), ("lost", 1, "x"), ("lost", 2, "x")], [WAIT, WAIT, AGAIN]),
        ([("lost", w, "x") for w in range(5)], [WAIT, WAIT, AGAIN, AGAIN, FAIL]),
        ([("lost", 0, "x"), ("lost", 0, "x"), ("lost", 1, "x")], [WAIT, DROP, WAIT]),
        ([("reply", 0), ("lost", 0, "after its reply"), ("reply", 1)], [FOLD, WAIT, FOLD]),
        # Its answer had left before it died.
        ([("lost", 0, "x"), ("reply", 0), ("reply", 1), ("reply", 2)], [WAIT, FOLD, FOLD, FINISH]),
        ([("reply", 9), ("lost", -1, "x")], [DROP, DROP]),
        ([("reply", 0), ("deadline",)], [FOLD, FAIL]),
        ([("reply", 0), ("reply", 1), ("reply", 2), ("deadline",)], [FOLD, FOLD, FINISH, DROP]),
        ([("deadline",), ("reply", 0)], [FAIL, DROP]),
        ([("reply", 0), ("error", 1, remote()), ("reply", 2)], [FOLD, FAIL, DROP]),
        ([("error", 7, remote()), ("reply", 2)], [DROP, FOLD]),
    ],
)
def test_events_and_instructions(events, instructions):
    assert play(collector(), events) == instructions


def test_only_shares_to_be_computed_count():
    machine = collector(shares=[0, 1, 2])
    assert machine.reply(4) is DROP
    assert machine.lost(4, "x") is DROP
    assert machine.lost(0, "x") is AGAIN


def test_what_is_recorded():
    machine = collector()
    play(machine, [("lost", 2, "killed"), ("reply", 4), ("reply", 0), ("reply", 3)])
    assert machine.responders == [4, 0, 3]
    assert machine.lost_workers == {2: "killed"}
    assert machine.outstanding == {1}
    assert machine.needed == 3
    assert machine.alpha == mds().amplification([0, 3, 4])


def test_an_extra_reply_is_used_and_the_amplification_forgotten():
    machine = collector()
    play(machine, [("reply", 0), ("reply", 1), ("reply", 2)])
    assert machine.extra(4)
    assert not machine.extra(4)
    assert not machine.extra(0)
    assert machine.responders == [0, 1, 2, 4]
    assert machine.alpha is None


def test_replication_finishes_when_every_block_is_covered():
    code = codes.get("replication")(6, Grid(3, 1, 1))
    machine = collector(code)
    assert play(machine, [("reply", w) for w in (0, 3, 1, 5)]) == [FOLD, FOLD, FOLD, FINISH]
    machine = collector(code)
    assert play(machine, [("lost", 1, "x"), ("lost", 2, "x"), ("lost", 4, "x")]) == [
        WAIT,
        WAIT,
        AGAIN,
    ]
    # Shares 1 and 4 are copies of one block: one of them is enough.
    assert machine.queue == machine.redispatched == [1]


def test_the_guard_waits_for_one_more_worker():
    machine = collector(Weak(sharp=[(0, 1)]))
    assert play(machine, [("reply", 0), ("reply", 2), ("reply", 3)]) == [FOLD, FOLD, FINISH]
    assert machine.waited_for_accuracy == 1
    machine = collector(Weak(sharp=[(0, 1)]))
    assert play(machine, [("reply", 1), ("reply", 0)]) == [FOLD, FINISH]


@pytest.mark.parametrize("last", [("deadline",), ("lost", 3, "dead")])
def test_the_guard_takes_what_it_has_when_nobody_is_left(last):
    machine = collector(Weak())
    events = [("lost", 1, "dead"), ("reply", 0), ("reply", 2), last]
    assert play(machine, events) == [WAIT, FOLD, FOLD, FINISH]
    assert machine.finished
    assert machine.alpha == 1e12


def test_the_guard_still_waits_while_somebody_is_left():
    machine = collector(Weak())
    events = [("reply", 0), ("reply", 2), ("lost", 1, "dead"), ("reply", 3)]
    assert play(machine, events) == [FOLD, FOLD, WAIT, FINISH]


def test_exact_arithmetic_needs_no_guard():
    machine = collector(Weak(), eps=0.0)
    assert play(machine, [("reply", 0), ("reply", 2)]) == [FOLD, FINISH]


def test_a_failure_names_ranks_and_numbers():
    machine = collector()
    play(machine, [("reply", 0), ("lost", 1, "killed"), ("lost", 3, "frozen")])
    assert play(machine, [("lost", 4, "x"), ("lost", 0, "on b: y"), ("lost", 2, "z")])[-1] is FAIL
    error = machine.failure()
    assert isinstance(error, NotDecodable)
    assert (error.have, error.need, error.exit_code) == ((0,), 3, 3)
    text = str(error)
    for words in ("needs any 3 of 5 workers", "threshold 3", "1 arrived", "no worker is left"):
        assert words in text
    for words in ("rank 1 (on b: y)", "rank 2 (killed)", "rank 4 (frozen)"):
        assert words in text


def test_a_timeout_names_who_was_late():
    machine = collector()
    play(machine, [("reply", 0), ("lost", 1, "killed"), ("deadline",)])
    assert "no reply yet: rank 3, rank 4, rank 5" in str(machine.failure())


# -- shares computed by others -----------------------------------------------------------------


def test_a_lost_share_is_computed_by_who_is_free():
    machine = started()
    assert play(machine, [("reply", 0), ("lost", 1, "x"), ("lost", 2, "x")]) == [FOLD, WAIT, WAIT]
    assert machine.next(0) is None
    assert machine.lost(3, "x") is AGAIN
    assert machine.queue == [1]
    assert machine.next(4) == 1, "also while its own share is under way elsewhere"
    machine = started()
    play(machine, [("reply", 0), ("lost", 1, "x"), ("lost", 2, "x"), ("lost", 3, "x")])
    assert (machine.next(0), machine.next(0)) == (1, None)
    assert machine.reply(1, 0) is FOLD
    assert machine.reply(4) is FINISH
    assert machine.responders == [0, 1, 4]
    assert machine.computed_by == {0: 0, 1: 0, 4: 4}
    assert machine.redispatched == [1]


def test_one_living_worker_computes_everything():
    machine = started()
    play(machine, [("lost", w, "x") for w in (0, 1, 2, 4)])
    assert machine.reply(3) is FOLD
    order = [machine.next(3)]
    assert machine.reply(order[0], 3) is FOLD
    order.append(machine.next(3))
    assert machine.reply(order[1], 3) is FINISH
    assert order == [0, 1]


def test_a_worker_gets_the_share_that_it_holds():
    machine = started(mds(8, 6))
    play(machine, [("reply", w) for w in (0, 1)])
    play(machine, [("lost", w, "x") for w in (2, 3, 4, 5)])
    assert machine.queue == [2, 3]
    assert machine.next(0, lambda share: share == 3) == 3
    assert machine.next(1, lambda share: share == 3) == 2


def test_workers_without_a_share_help_out():
    machine = collector(mds(4, 3), workers=range(6), shares=range(4))
    assert [machine.next(w) for w in range(6)] == [0, 1, 2, 3, None, None]
    play(machine, [("lost", 0, "x"), ("lost", 1, "x")])
    assert machine.next(5) == 0


def test_a_silent_worker_is_replaced_and_taken_back():
    machine = started()
    play(machine, [("reply", 0), ("reply", 1), ("silent", 2, "s"), ("silent", 3, "s")])
    assert machine.silent(4, "s") is AGAIN
    assert machine.queue == [2]
    assert machine.back(2) is WAIT
    assert machine.queue == []
    assert machine.reply(2) is FINISH
    assert set(machine.silent_workers) == {3, 4}


def test_the_first_of_two_replies_to_a_share_counts():
    machine = started()
    play(machine, [("reply", 0), ("lost", 1, "x"), ("lost", 2, "x"), ("silent", 3, "s")])
    assert machine.queue == [1]
    play(machine, [("lost", 1, "x")])
    assert machine.next(0) == 1
    assert machine.reply(3) is FOLD
    assert machine.reply(4) is FINISH
    assert machine.reply(1, 0) is DROP


def test_silent_workers_alone_are_waited_for_until_they_are_lost():
    machine = started()
    assert play(machine, [("silent", w, "s") for w in range(5)]) == [WAIT, WAIT, AGAIN, AGAIN, WAIT]
    assert machine.next(0) is None
    assert machine.back(4) in (WAIT, AGAIN)
    assert machine.living
    play(machine, [("silent", 4, "s")])
    assert [machine.lost(w, "s") for w in range(5)] == [WAIT, WAIT, WAIT, WAIT, FAIL]


def test_a_share_on_the_queue_is_no_hope_when_nobody_lives():
    machine = started(mds(4, 3))
    play(machine, [("reply", 0), ("reply", 1), ("lost", 2, "x"), ("lost", 3, "x")])
    assert machine.queue == [2]
    assert [machine.lost(w, "x") for w in (0, 1)] == [AGAIN, FAIL]


def test_an_answer_that_comes_too_late_is_a_sign_of_life():
    machine = started()
    play(machine, [("reply", 0), *[("silent", w, "s") for w in (1, 2, 3, 4)]])
    assert machine.queue == [1, 2]
    assert machine.next(0) == 1
    assert machine.reply(1, 0) is FOLD
    assert machine.reply(1, 1) is AGAIN
    assert machine.lost(0, "x") is AGAIN
    assert machine.next(1) == 2


def test_a_wrong_answer_is_refused_and_its_worker_not_used_again():
    machine = started()
    assert play(machine, [("reply", 0), ("refuse", 1, 1, "wrong")]) == [FOLD, WAIT]
    assert (machine.wrong, machine.lost_workers) == ([1], {1: "wrong"})
    assert machine.reply(1, 1) is DROP
    assert play(machine, [("refuse", 2, 2, "wrong"), ("refuse", 3, 3, "wrong")]) == [WAIT, AGAIN]
    assert machine.next(1) is None
    assert machine.next(0) == 1
    assert machine.refuse(1, 0, "wrong") is AGAIN
    assert machine.queue == [1]


def test_a_deadline_is_called_by_its_name():
    machine = collector()
    machine.deadline()
    assert "the time-out passed" in str(machine.failure())


def test_a_tasks_exception_comes_back_as_it_is():
    machine, error = collector(), remote()
    machine.error(1, error)
    assert machine.failure() is error
    assert "rank 2 on here raised ValueError: no\nTraceback" in str(error)


CODES = [
    mds(),
    mds(7, 4),
    codes.get("uncoded")(3, Grid(3, 1, 1)),
    codes.get("replication")(7, Grid(3, 1, 1)),
    codes.get("khatri-rao")(6, Grid(2, 1, 2)),
    codes.get("matdot")(6, Grid(1, 2, 1)),
    Weak(sharp=[(0, 1), (2, 3)]),
]

EVENTS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["reply", "reply", "ask"]), st.integers(0, 7)),
        st.tuples(st.sampled_from(["lost", "silent", "refuse"]), st.integers(-1, 7)),
        st.tuples(st.just("back"), st.integers(0, 7)),
        st.just(("deadline",)),
        st.tuples(st.just("error"), st.integers(0, 4)),
    ),
    max_size=40,
)


@settings(max_examples=800, deadline=None)
@given(st.sampled_from(CODES), st.booleans(), EVENTS)
def test_any_sequence_of_events(code, guarded, events):
    """FINISH or FAIL once, at the end; FINISH only when decodable; never stuck with living help."""
    machine = collector(code, eps=2.0**-52 if guarded else 0.0)
    tasks, dead, ended = {}, set(), False
    for name, *where in events:
        worker = where[0] if where else -1
        match name:
            case "ask":
                share = machine.next(worker) if worker not in tasks else None
                if share is not None:
                    assert not ended
                    assert worker not in dead
                    tasks[worker] = share
                continue
            case "reply" | "refuse":
                if worker not in tasks:
                    continue
                share = tasks.pop(worker)
                words = (share, worker, "wrong") if name == "refuse" else (share, worker)
                answer = getattr(machine, name)(*words)
                dead |= {worker} if name == "refuse" else set()
            case "lost" | "silent":
                answer = getattr(machine, name)(worker, "x")
                dead |= {worker} if name == "lost" else set()
            case "error":
                answer = machine.error(worker, remote())
            case _:
                answer = getattr(machine, name)(*where)
        assert answer is DROP or not ended
        ended = ended or answer in (FINISH, FAIL)
        assert machine.finished is ended
        if answer is FINISH:
            assert code.decodable(machine.responders)
        if answer is FAIL and name not in ("error", "deadline"):
            assert not machine.living
            assert not machine.silent_workers
        if not ended and machine.living:
            assert code.decodable([*machine.responders, *machine.outstanding])
        assert len(set(machine.responders)) == len(machine.responders)
        assert not set(machine.queue) & set(machine.responders)


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(CODES[:-1]), st.integers(0, 2**32))
def test_a_round_ends_while_one_worker_lives(code, seed):
    """Workers die, wake up, answer wrongly or fall silent; one that does none of it is enough."""
    odds = (0.4, 0.6, 0.7, 0.9)
    assert last_answer(collector(code), random.Random(seed), 400, odds) is FINISH


def private():
    """Any 3 of 5 workers decode, and one worker may see one share."""
    return codes.get("secure-matdot")(5, Grid(1, 1, 1))


def test_a_private_share_is_given_to_nobody_else():
    machine = started(private())
    assert machine.reply(0) is FOLD
    assert machine.lost(1, "died") is WAIT and machine.lost(2, "died") is WAIT
    assert not machine.stuck
    assert machine.lost(3, "died") is FAIL
    assert machine.redispatched == [] and machine.next(0) is None
    with pytest.raises(NotDecodable, match=r"1 arrived and no worker may see.*rank 4 \(died\)"):
        raise machine.failure()


def test_silent_holders_of_private_shares_are_waited_for():
    machine = started(private())
    machine.reply(0)
    assert machine.silent(1, "quiet") is WAIT and machine.silent(2, "quiet") is WAIT
    assert not machine.stuck
    assert machine.silent(3, "quiet") is WAIT
    # Worker 4 lives, but is not enough.
    assert machine.living and machine.stuck and machine.queue == []
    assert machine.back(1) is WAIT and not machine.stuck
    assert machine.reply(1) is FOLD and machine.reply(4) is FINISH and not machine.stuck


def test_replies_that_do_not_agree_are_waited_for():
    asked = []

    def agree(responders):
        asked.append(list(responders))
        return len(responders) > 4

    machine = started(mds(6, 3), agree=agree)
    for worker in (0, 1, 2, 5):
        assert machine.reply(worker) is FOLD
    assert machine.reply(4) is FINISH
    assert asked == [[0, 1, 2], [0, 1, 2, 5], [0, 1, 2, 5, 4]]
    assert machine.waited_for_accuracy == 0
    # Nobody is left to wait for: the end, whatever they say.
    machine = started(mds(4, 3), agree=lambda responders: False)
    assert [machine.reply(worker) for worker in range(4)] == [FOLD, FOLD, FOLD, FINISH]


def test_a_reply_that_turns_out_wrong_is_taken_back():
    machine = started(mds(5, 3))
    for worker in (0, 1, 4):
        machine.reply(worker)
    assert machine.finished and machine.alpha is not None
    assert machine.exclude(1, "answered wrongly") == 1
    assert machine.wrong == [1] and machine.lost_workers == {1: "answered wrongly"}
    assert machine.responders == [0, 4] and machine.alpha is None
    assert 1 not in machine.computed_by
