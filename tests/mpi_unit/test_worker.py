"""A worker takes one order ahead: run under ``mpirun -n 4 pytest --with-mpi``.

Rank 0 plays the master by hand towards rank 1; the others only come and go.
"""

from __future__ import annotations

import contextlib
import pickle
import time

import numpy as np
import pytest

pytestmark = pytest.mark.mpi(min_size=2)

RNG = np.random.default_rng(90121)
LONG = 0.2
"""Seconds that a task takes with the fault that is planned where something is to come meanwhile."""


class Lead:
    """What a master does towards one worker, without its books."""

    def __init__(self, control, data, rank):
        from codedla.mpi import wire

        self.wire, self.control, self.data, self.rank = wire, control, data, rank
        self.types, self.inbox = wire.Types(), wire.Inbox(data, rank)
        self.sends = []
        self.inbox.post()

    def send(self, kind, round_id=0, payload=b"", arrays=(), **words):
        message = self.wire.Message(kind, round_id, payload)
        for at, value in words.items():
            message.words[int(at[1:])] = value
        return self.start(message, arrays)

    def start(self, message, arrays=()):
        channels = (self.control, self.data)
        self.sends.append(self.wire.Transfer.send(channels, self.rank, message, arrays, self.types))

    def order(self, round_id, number, a, b, keys=(0, 0)):
        """RUN the product of two matrices; ``None`` for one that the worker holds."""
        wire = self.wire
        message = wire.Message(wire.Kind.RUN, round_id)
        arrays = []
        for position, (key, matrix) in enumerate(zip(keys, (a, b), strict=True)):
            arrays += wire.describe(message.words, position, key, matrix)
        inline = sum(array.nbytes for array in arrays) <= wire.INLINE
        if inline:
            whole = wire.Message(wire.Kind.RUN, round_id, wire.pack(arrays))
            whole.words[16:] = message.words[16:]
            message, arrays = whole, []
        message.words[4:9] = 2, inline, 0, number, 0
        self.start(message, arrays)

    def cancel(self, round_id, number=0):
        self.send(self.wire.Kind.CANCEL, round_id, **{f"w{self.wire.ORDER_AT}": number})

    def drop(self, *keys):
        self.send(self.wire.Kind.DROP, payload=np.array(keys, np.int64).tobytes())

    def answer(self, seconds=10.0):
        """Return kind, round, order number and reply (or text) of the next answer."""
        wire, end = self.wire, time.monotonic() + seconds
        while (message := self.inbox.poll()) is None:
            self.sends = [s for s in self.sends if not s.done()]
            assert time.monotonic() < end, "no answer"
            time.sleep(1e-4)
        kind, number, content = message.kind, int(message.words[wire.ORDER_AT]), None
        round_id = message.round_id
        if kind is wire.Kind.REPLY:
            answer = wire.Answer.read(message)
            content = np.empty(answer.shape, answer.dtype)
            if answer.inline:
                wire.unpack(message.payload, [content])
            else:
                transfer = wire.Transfer.receive(self.data, self.rank, [content], self.types)
                while not transfer.done():
                    assert time.monotonic() < end, "the reply does not arrive"
                    time.sleep(1e-4)
        elif kind in (wire.Kind.ERROR, wire.Kind.HELLO):
            content = pickle.loads(message.payload.tobytes())
        self.inbox.post()
        return kind.name, round_id, number, content

    def end(self):
        """Let the worker go, whatever answers are still on their way."""
        kind = self.wire.Kind
        if "BYE" not in self.stop():
            raise AssertionError("the worker did not say goodbye")
        self.send(kind.LEAVE, w4=1)
        self.finish()
        self.types.free()

    def stop(self):
        """STOP, and return the kinds of the answers up to the goodbye."""
        self.send(self.wire.Kind.STOP)
        kinds = []
        while not kinds or kinds[-1] != "BYE":
            kinds.append(self.answer()[0])
        self.inbox.post = lambda: None
        return kinds

    def finish(self):
        end = time.monotonic() + 10
        while not all(transfer.done() for transfer in self.sends):
            assert time.monotonic() < end, "a message was never received"
            time.sleep(1e-4)


@pytest.fixture
def served():
    """``with served(faults) as leads``: the :class:`Lead` of a worker; on workers no element."""
    from mpi4py import MPI

    from codedla.engine.stragglers import parse_fault
    from codedla.mpi.worker import worker_serve

    comm = MPI.COMM_WORLD
    control, data = comm.Dup(), comm.Dup()

    @contextlib.contextmanager
    def serve(*faults):
        if comm.Get_rank():
            worker_serve(control, data, faults=[parse_fault(spec) for spec in faults])
            yield []
            return
        leads = [Lead(control, data, rank) for rank in range(1, comm.Get_size())]
        try:
            for lead in leads:
                assert lead.answer()[0] == "HELLO"
            yield leads[:1]  # one is enough; the others hear what is said to all
        finally:
            for lead in leads:
                lead.end()

    yield serve
    comm.Barrier()
    control.Free()
    data.Free()


def slow(round_trip=LONG):
    """Every worker sleeps in every task, and listens meanwhile."""
    return [f"delay:{rank}:{round_trip}" for rank in (1, 2, 3)]


def matrices(size):
    return RNG.standard_normal((size, size)), RNG.standard_normal((size, size))


@pytest.mark.parametrize("size", [8, 300])
def test_an_order_ahead_is_received_while_another_is_computed(served, size):
    """Inline operands as well as ones of their own messages; the answers come in order."""
    with served(*slow()) as leads:
        for lead in leads:
            pairs = [matrices(size), matrices(size)]
            began = time.monotonic()
            for number, (a, b) in enumerate(pairs, 1):
                lead.order(number, 10 + number, a, b)
            lead.finish()  # all operands have been received ...
            assert time.monotonic() - began < 0.8 * LONG, "... before the first task is done"
            for number, (a, b) in enumerate(pairs, 1):
                kind, round_id, order, reply = lead.answer()
                assert (kind, round_id, order) == ("REPLY", number, 10 + number)
                np.testing.assert_allclose(reply, a @ b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("which", ["under way", "ahead", "both", "one order of a round"])
def test_cancel_names_a_round(served, which):
    with served(*slow()) as leads:
        for lead in leads:
            pairs = [matrices(8), matrices(300), matrices(8)]
            rounds = (7, 7 if which == "one order of a round" else 8, 9)
            lead.order(rounds[0], 1, *pairs[0])
            lead.order(rounds[1], 2, *pairs[1])
            match which:
                case "under way":
                    lead.cancel(7)
                case "ahead":
                    lead.cancel(8)
                case "both":
                    lead.cancel(7)
                    lead.cancel(8)
                case _:
                    lead.cancel(7, number=2)
            cancelled = {"under way": {1}, "both": {1, 2}}.get(which, {2})
            began = time.monotonic()
            answers = [lead.answer(), lead.answer()]
            if which == "both":
                assert time.monotonic() - began < 0.8 * LONG, "neither was computed"
            lead.order(rounds[2], 3, *pairs[2])
            answers.append(lead.answer())
            for number, (kind, round_id, order, reply) in enumerate(answers, 1):
                assert (round_id, order) == (rounds[number - 1], number)
                assert kind == ("ABANDONED" if number in cancelled else "REPLY")
                if reply is not None:
                    a, b = pairs[number - 1]
                    np.testing.assert_allclose(reply, a @ b, rtol=1e-12, atol=1e-12)


def test_a_cancel_of_another_round_changes_nothing(served):
    with served(*slow(0.05)) as leads:
        for lead in leads:
            a, b = matrices(8)
            lead.cancel(4)
            lead.order(4, 1, a, b)
            lead.cancel(3)
            lead.cancel(4, number=2)
            assert lead.answer()[:3] == ("REPLY", 4, 1)


def test_an_operand_of_a_cancelled_order_is_kept(served):
    with served(*slow(0.1)) as leads:
        for lead in leads:
            a, b = matrices(300)
            lead.order(1, 1, *matrices(300))
            lead.order(2, 2, a, b, keys=(5, 0))
            lead.cancel(2)
            lead.order(3, 3, None, b, keys=(5, 0))
            kinds = [lead.answer() for _ in range(3)]
            assert [k[0] for k in kinds] == ["REPLY", "ABANDONED", "REPLY"]
            np.testing.assert_allclose(kinds[2][3], a @ b, rtol=1e-12, atol=1e-12)


def test_orders_are_obeyed_as_they_come(served):
    """A DROP leaves alone what an earlier order needs, under way or ahead, and no later one."""
    with served(*slow()) as leads:
        for lead in leads:
            a, b = matrices(200)
            new, _ = matrices(200)
            lead.order(1, 1, a, b, keys=(5, 6))
            lead.order(2, 2, None, b, keys=(5, 0))
            lead.drop(5)
            lead.order(3, 3, None, b, keys=(5, 0))
            lead.order(4, 4, new, None, keys=(5, 6))
            lead.order(5, 5, None, None, keys=(5, 6))
            answers = [lead.answer() for _ in range(5)]
            assert [k[0] for k in answers] == ["REPLY", "REPLY", "ERROR", "REPLY", "REPLY"]
            assert [k[2] for k in answers] == [1, 2, 3, 4, 5]
            for answer, left in zip(answers, (a, a, None, new, new), strict=True):
                if left is not None:
                    np.testing.assert_allclose(answer[3], left @ b, rtol=1e-12, atol=1e-12)


def test_a_worker_that_computes_answers_pings(served):
    with served(*slow()) as leads:
        for lead in leads:
            lead.order(1, 1, *matrices(8))
            lead.order(2, 2, *matrices(300))
            lead.send(lead.wire.Kind.PING, 1, w6=1)
            assert [lead.answer()[0] for _ in range(3)] == ["PONG", "REPLY", "REPLY"]


def test_stop_ends_the_order_under_way_and_the_one_ahead(served):
    with served(*slow(30.0)) as leads:
        for lead in leads:
            lead.order(1, 1, *matrices(8))
            lead.order(2, 2, *matrices(300))
            lead.stop, kinds = lambda kinds=("BYE",): kinds, lead.stop()
            assert kinds == ["ABANDONED", "ABANDONED", "BYE"]


def test_no_room_for_the_operands_of_an_order_ahead(served, monkeypatch):
    """It is said when its turn comes, and once more of an order that counts on what was lost."""
    from codedla.mpi import wire

    arrays = wire.Incoming.arrays

    def full(incoming):
        if incoming.shape == (301, 301) and incoming.container is not wire.Container.RESIDENT:
            raise MemoryError("no room, on purpose")
        return arrays(incoming)

    monkeypatch.setattr(wire.Incoming, "arrays", full)
    with served(*slow(0.1)) as leads:
        for lead in leads:
            a, b = matrices(300)
            large, _ = matrices(301)
            lead.order(1, 1, a, b)
            lead.order(2, 2, large, large, keys=(5, 0))
            lead.order(3, 3, None, None, keys=(5, 5))
            lead.order(4, 4, a, b)
            answers = [lead.answer() for _ in range(4)]
            assert [k[0] for k in answers] == ["REPLY", "ERROR", "ERROR", "REPLY"]
            assert [k[3]["memory"] for k in answers[1:3]] == [True, True]
            np.testing.assert_allclose(answers[3][3], a @ b, rtol=1e-12, atol=1e-12)
