"""What travels between ranks arrives as it was: run under ``mpirun -n 4 pytest --with-mpi``."""

from __future__ import annotations

import time

import numpy as np
import pytest

pytestmark = pytest.mark.mpi(min_size=2)

DTYPES = ("f4", "f8", "c8", "c16", "i4", "i8")


@pytest.fixture
def wire():
    """The module; imported late, because importing it starts MPI."""
    from codedla.mpi import wire

    return wire


@pytest.fixture
def comm():
    from mpi4py import MPI

    dup = MPI.COMM_WORLD.Dup()
    yield dup
    dup.Barrier()
    dup.Free()


def finish(transfer, seconds=10.0):
    end = time.monotonic() + seconds
    while not transfer.done():
        assert time.monotonic() < end, "the transfer does not end"
        time.sleep(1e-4)


def arrival(inbox, seconds=10.0):
    """Wait for a message; bounded, so that a failure of one rank is no hang of the others."""
    end = time.monotonic() + seconds
    while (message := inbox.poll()) is None:
        assert time.monotonic() < end, "no message arrives"
        time.sleep(1e-4)
    return message


def send_to_all(wire, comm, arrays):
    """Rank 0 sends the arrays to everybody else; return what had to be kept."""
    types = wire.Types()
    sent = []
    for rank in range(1, comm.Get_size()):
        message = wire.Message(wire.Kind.RUN, 7)
        sent.append(wire.Transfer.send((comm, comm), rank, message, arrays, types))
    for transfer in sent:
        finish(transfer)
    types.free()


def receive(wire, comm, arrays):
    types = wire.Types()
    inbox = wire.Inbox(comm, 0)
    inbox.post()
    message = arrival(inbox)
    assert (message.kind, message.round_id) == (wire.Kind.RUN, 7)
    finish(wire.Transfer.receive(comm, 0, arrays, types))
    types.free()


def values(shape, dtype, seed=41):
    rng = np.random.default_rng(seed)
    made = rng.integers(-100, 100, shape).astype(dtype)
    return made * (1 - 3j) if np.dtype(dtype).kind == "c" else made


SHAPES = {
    "matrix": ((37, 11), (slice(None), slice(None))),
    "column block": ((37, 40), (slice(None), slice(5, 16))),
    "every third row": ((111, 11), (slice(None, None, 3), slice(None))),
    "rows and columns": ((90, 50), (slice(2, 80, 7), slice(3, 44))),
    "one row": ((5, 20), (slice(2, 3), slice(1, 19))),
    "one column": ((20, 1), (slice(None), slice(None))),
    "one entry": ((3, 3), (slice(1, 2), slice(1, 2))),
    "empty": ((0, 4), (slice(None), slice(None))),
    "no columns": ((4, 0), (slice(None), slice(None))),
}


@pytest.mark.parametrize("limit", [None, 1, 5, 64, 400])
@pytest.mark.parametrize("layout", SHAPES)
def test_matrices_of_any_stride_and_length(wire, comm, monkeypatch, layout, limit):
    """``limit`` stands for the 2**31 - 1 elements that one message can hold."""
    if limit is not None:
        monkeypatch.setattr(wire, "ELEMENT_LIMIT", limit)
    shape, part = SHAPES[layout]
    for dtype in DTYPES:
        whole = values(shape, dtype)
        if comm.Get_rank() == 0:
            send_to_all(wire, comm, [whole[part]])
            continue
        target = np.zeros_like(whole) - 1
        around = target.copy()
        # The receiver's stride may differ from the sender's.
        place = target[part] if comm.Get_rank() % 2 else np.empty_like(whole[part])
        receive(wire, comm, [place])
        np.testing.assert_array_equal(place, whole[part])
        around[part] = target[part]
        np.testing.assert_array_equal(target, around)


@pytest.mark.parametrize("limit", [None, 1, 7, 1000])
@pytest.mark.parametrize("length", [0, 1, 999, 1000, 1001])
def test_vectors(wire, comm, monkeypatch, limit, length):
    if limit is not None:
        monkeypatch.setattr(wire, "ELEMENT_LIMIT", limit)
    for dtype in DTYPES:
        vector = values(length, dtype)
        if comm.Get_rank() == 0:
            send_to_all(wire, comm, [vector, vector[: length // 2]])
        else:
            place, half = np.empty_like(vector), np.empty_like(vector[: length // 2])
            receive(wire, comm, [place, half])
            np.testing.assert_array_equal(place, vector)
            np.testing.assert_array_equal(half, vector[: length // 2])


def test_chunks_stay_below_the_limit(wire, monkeypatch):
    monkeypatch.setattr(wire, "ELEMENT_LIMIT", 10)
    types = wire.Types()
    for array in (np.zeros((7, 3)), np.zeros((7, 9))[:, :3], np.zeros((2, 35)), np.zeros(35)):
        specs = types.specs(array)
        assert len(specs) > 1
        for spec in specs:
            elements = spec[0].size if len(spec) == 2 else spec[2].Get_size() // 8
            assert elements <= 10
    types.free()


def test_types_are_reused_and_bounded(wire):
    types = wire.Types()
    big = np.zeros((600, 50))
    first = types.specs(big[:3, :4])[0][2]
    assert types.specs(big[10:13, 2:6])[0][2] is first
    for rows in range(2, 600):
        types.specs(big[:rows, :4])
    assert len(types._types) <= 256
    types.free()
    assert not types._types


def field_of_records(a):
    """Rows lie a number of bytes apart that is no multiple of the item size."""
    records = np.zeros(a.shape[0], [("row", a.dtype, a.shape[1:]), ("tag", "i1", 4)])
    records["row"] = a
    return records["row"]


OPERANDS = {
    "C": lambda a: a,
    "F": np.asfortranarray,
    "column block": lambda a: np.pad(a, 3)[3:-3, 3:-3],
    "strided columns": lambda a: np.repeat(a, 2, 1)[:, ::2],
    "reversed": lambda a: a[::-1, ::-1].copy()[::-1, ::-1],
    "reversed rows": lambda a: a[::-1].copy()[::-1],
    "broadcast rows": lambda a: np.broadcast_to(a[:1], a.shape),
    "broadcast columns": lambda a: np.broadcast_to(a[:, :1], a.shape),
    "field of records": field_of_records,
    "read-only": lambda a: np.frombuffer(a.tobytes(), a.dtype).reshape(a.shape),
    "column": lambda a: a[:, :1],
    "vector as column": lambda a: a[:, 0].copy()[:, None],
    "row": lambda a: a[:1],
    "empty": lambda a: a[:0],
}


def same(wire, comm, matrix, inline):
    """Send a matrix as an order's operand; on the others return what arrived."""
    size = comm.Get_size()
    if comm.Get_rank() == 0:
        message = wire.Message(wire.Kind.RUN, 7)
        arrays = wire.describe(message.words, 1, 5, matrix)
        words = message.words[16:].copy()
        for rank in range(1, size):
            order = wire.Message(wire.Kind.RUN, 7, wire.pack(arrays) if inline else b"")
            order.words[16:] = words
            types = wire.Types()
            after = [] if inline else arrays
            finish(wire.Transfer.send((comm, comm), rank, order, after, types))
            types.free()
        return matrix
    inbox = wire.Inbox(comm, 0)
    inbox.post()
    order = arrival(inbox)
    incoming = wire.Incoming.read(order.words, 1)
    assert incoming.key == 5
    arrays = incoming.arrays()
    if inline:
        wire.unpack(order.payload, arrays)
    else:
        types = wire.Types()
        finish(wire.Transfer.receive(comm, 0, arrays, types))
        types.free()
    return wire.restore(incoming, arrays)


@pytest.mark.parametrize("inline", [True, False])
@pytest.mark.parametrize("layout", OPERANDS)
def test_dense_operands(wire, comm, layout, inline):
    for dtype in DTYPES:
        matrix = OPERANDS[layout](values((23, 6), dtype))
        got = same(wire, comm, matrix, inline)
        assert (got.shape, got.dtype) == (matrix.shape, matrix.dtype)
        np.testing.assert_array_equal(got, matrix)
    if layout == "F" and comm.Get_rank() > 0:
        assert got.flags.f_contiguous


@pytest.mark.parametrize("inline", [True, False])
@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize("density", [0.0, 0.1, 1.0])
def test_sparse_operands(wire, comm, inline, index, density):
    import scipy.sparse as sp

    for dtype in DTYPES:
        dense = values((31, 17), dtype) * (np.random.default_rng(43).random((31, 17)) < density)
        matrix = sp.csr_array(dense.astype(dtype))
        matrix.indices, matrix.indptr = matrix.indices.astype(index), matrix.indptr.astype(index)
        got = same(wire, comm, matrix, inline and matrix.nnz < 300)
        assert (got.format, got.dtype, got.shape) == ("csr", matrix.dtype, matrix.shape)
        np.testing.assert_array_equal(got.toarray(), dense)


def test_a_resident_operand_is_named_only(wire):
    message = wire.Message(wire.Kind.RUN, 3)
    assert wire.describe(message.words, 0, 9, None) == []
    incoming = wire.Incoming.read(message.words, 0)
    assert (incoming.key, incoming.container) == (9, wire.Container.RESIDENT)
    assert incoming.arrays() == []


def test_answers(wire):
    for reply in (np.arange(6.0).reshape(2, 3), np.zeros((0, 4), "c8"), np.zeros((999, 99), "i8")):
        message = wire.Answer.message(12, reply, 0.25)
        buffer = np.zeros(wire.HEADER * 8 + wire.INLINE, np.uint8)
        buffer[: message.buffer.size] = message.buffer
        received = wire.Received(buffer)
        answer = wire.Answer.read(received)
        assert (received.kind, answer.round_id, answer.shape) == (wire.Kind.REPLY, 12, reply.shape)
        assert (answer.dtype, answer.seconds) == (reply.dtype, 0.25)
        assert answer.inline is (reply.nbytes <= wire.INLINE)
        if answer.inline:
            content = received.payload.view(answer.dtype).reshape(answer.shape)
            np.testing.assert_array_equal(content, reply)


def test_an_inbox_gives_messages_in_order(wire, comm):
    """Also those that were sent before the receive was posted."""
    count = 30
    if comm.Get_rank() == 0:
        types = wire.Types()
        sent = [
            wire.Transfer.send(
                (comm, comm), rank, wire.Message(wire.Kind.CANCEL, i, bytes(i * 500)), [], types
            )
            for rank in range(1, comm.Get_size())
            for i in range(count)
        ]
        for transfer in sent:
            finish(transfer)
        comm.Barrier()
        return
    inbox = wire.Inbox(comm, 0)
    assert inbox.poll() is None
    assert not inbox.pending
    for i in range(count):
        inbox.post()
        assert inbox.pending
        message = arrival(inbox)
        assert not inbox.pending
        assert (message.kind, message.round_id, message.payload.size) == (2, i, i * 500)
    comm.Barrier()


def test_a_foreign_message_is_recognised(wire, comm):
    if comm.Get_rank() == 0:
        for rank in range(1, comm.Get_size()):
            comm.Send(np.zeros(100), rank, wire.TAG_CONTROL)
        return
    inbox = wire.Inbox(comm, 0)
    inbox.post()
    end = time.monotonic() + 20
    with pytest.raises(RuntimeError, match="ranks run different versions"):
        while time.monotonic() < end:
            inbox.poll()


def test_headers_are_eager_and_little(wire):
    message = wire.Message(wire.Kind.STOP)
    assert message.buffer.nbytes == wire.HEADER * 8 <= 512


def test_any_traceback_fits_into_an_answer(wire):
    from codedla.mpi.worker import _describe_error

    try:
        raise ValueError("\U0001f9ee" * 20000)
    except ValueError as error:
        assert len(_describe_error(error)) <= wire.INLINE


def test_a_message_that_somebody_has_not_taken_is_not_written_to(wire, comm):
    """Of a kind for which there is a message already, once that has left."""
    from codedla.engine.quick import Quick
    from codedla.mpi.link import Link
    from codedla.mpi.outbox import Outboxes

    rounds, length = 3, 1500  # longer than what leaves without being taken
    if comm.Get_rank() == 0:
        links = [Link(worker, comm) for worker in range(comm.Get_size() - 1)]
        boxes, used = Outboxes(comm, links), []
        for number in range(rounds):
            job = Quick(5, np.full((length, 1), float(number)), lambda *_: True, 1.0)
            box = boxes.get(job)
            assert box not in used
            box.fill(job, number, number)
            box.requests[0].Start()
            used.append(box)
        assert boxes.leaving(links[0])
        assert not any(boxes.leaving(link) for link in links[1:])
        comm.Barrier()
        end = time.monotonic() + 10
        while boxes.leaving(links[0]):
            assert time.monotonic() < end
            time.sleep(1e-4)
        assert boxes.get(job) in used, "there are enough"
        other = Quick(6, job.x, job.take, 1.0)
        assert boxes.get(other) not in used
        boxes.free()
        assert not boxes.leaving(links[0])
    else:
        comm.Barrier()
        if comm.Get_rank() == 1:
            inbox = wire.Inbox(comm, 0)
            for number in range(rounds):
                inbox.post()
                message = arrival(inbox)
                assert (message.round_id, int(message.words[7])) == (number, number)
                np.testing.assert_array_equal(message.payload.view("f8"), float(number))
