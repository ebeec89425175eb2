"""The collector is a state machine: events in, instructions out, no clock and no I/O."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codedla import codes
from codedla.blocks import Grid
from codedla.engine.collector import Collector, Instruction
from codedla.errors import NotDecodable, WorkerError

WAIT, FOLD, FINISH = Instruction.WAIT, Instruction.FOLD, Instruction.FINISH
DROP, FAIL = Instruction.DROP, Instruction.FAIL


class Weak:
    """Any 2 of 4 workers decode, but only sets that ``sharp`` holds are accurate."""

    name, n_workers, threshold, grid = "weak", 4, 2, Grid(2, 1, 1)

    def __init__(self, sharp=()):
        self.sharp = {frozenset(s) for s in sharp}

    def needs(self, grid):
        return 2

    def decodable(self, responders):
        return len(set(responders)) >= 2

    def amplification(self, responders):
        return 2.0 if frozenset(responders) in self.sharp or len(responders) > 2 else 1e12


def mds(n_workers=5, blocks=3):
    return codes.get("mds")(n_workers, Grid(blocks, 1, 1))


def collector(code=None, *, eps=2.0**-52, tolerance=1e-9, workers=None):
    return Collector(code or mds(), eps=eps, tolerance=tolerance, workers=workers)


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
        ([("lost", 0, "x"), ("lost", 1, "x"), ("lost", 2, "x")], [WAIT, WAIT, FAIL]),
        ([("lost", 0, "x"), ("lost", 0, "x"), ("lost", 1, "x")], [WAIT, DROP, WAIT]),
        ([("reply", 0), ("lost", 0, "after its reply"), ("reply", 1)], [FOLD, DROP, FOLD]),
        ([("lost", 0, "x"), ("reply", 0), ("reply", 1)], [WAIT, DROP, FOLD]),
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


def test_only_workers_with_a_task_count():
    machine = collector(workers=[0, 1, 2])
    assert machine.reply(4) is DROP
    assert machine.lost(0, "x") is FAIL


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
    machine.extra(4)
    machine.extra(4)
    machine.extra(0)
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
        FAIL,
    ]


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
    play(machine, [("reply", 0), ("lost", 1, "killed"), ("lost", 3, "frozen"), ("lost", 4, "x")])
    error = machine.failure()
    assert isinstance(error, NotDecodable)
    assert (error.have, error.need, error.exit_code) == ((0,), 3, 3)
    text = str(error)
    for words in ("needs any 3 of 5 workers", "1 arrived", "rank 2 (killed)", "rank 4 (frozen)"):
        assert words in text
    assert "no reply yet: rank 3" in text
    assert "too many workers were lost" in text


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
        st.tuples(st.just("reply"), st.integers(-1, 7)),
        st.tuples(st.just("lost"), st.integers(-1, 7), st.just("dead")),
        st.tuples(st.just("reply"), st.integers(0, 4)),
        st.just(("deadline",)),
        st.tuples(st.just("error"), st.integers(0, 4), st.builds(remote)),
    ),
    max_size=25,
)


@settings(max_examples=600, deadline=None)
@given(st.sampled_from(CODES), st.booleans(), EVENTS)
def test_any_sequence_of_events(code, guarded, events):
    """FINISH or FAIL at most once; FINISH only when decodable; FAIL exactly when undecodable."""
    machine = collector(code, eps=2.0**-52 if guarded else 0.0)
    outstanding, replied, ended = set(range(code.n_workers)), set(), False
    for name, *arguments in events:
        answer = getattr(machine, name)(*arguments)
        known = not arguments or arguments[0] in outstanding
        if ended or not known:
            assert answer is DROP
            continue
        if arguments:
            outstanding.discard(arguments[0])
        if name == "reply":
            replied.add(arguments[0])
        enough = len(replied) > 0 and code.decodable(replied)
        hopeless = not code.decodable(replied | outstanding)
        if name == "error" or hopeless or (name == "deadline" and not enough):
            assert answer is FAIL
        elif name == "deadline" or (enough and not outstanding):
            assert answer is FINISH
        elif enough and (not guarded or code.amplification(replied) * 2.0**-52 <= 1e-9):
            # A loss does not make an accurate set of replies: that was decided at the reply.
            assert answer is (FINISH if name == "reply" else WAIT)
        else:
            assert answer is (FOLD if name == "reply" else WAIT)
        ended = answer in (FINISH, FAIL)
        assert machine.finished is ended
    assert set(machine.responders) == replied
    assert len(machine.responders) == len(replied)
