"""What travels between the master and a worker, and how.

Two messages exist. An *order* (master to worker) and an *answer* (worker to master) are each a
header of 64 little integers plus, when small, the payload itself. Larger payloads follow as
separate messages of the arrays' own dtype, straight from and into the arrays' memory: rows with a
stride go by an MPI vector type, so that a column block is never packed. Round ids travel in the
header, not in the tag. Nothing is pickled but the text of errors and the greeting.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from codedla.engine.recipe import Recipe

__all__ = [
    "HEADER",
    "INLINE",
    "ORDER_AT",
    "TAG_CONTROL",
    "VOIDS_AT",
    "WORK_AT",
    "Answer",
    "Inbox",
    "Kind",
    "Message",
    "Transfer",
    "Types",
    "describe",
    "describe_own",
    "dtype_of",
    "pieces",
    "prepare",
    "restore",
    "runs_of_rows",
]

MAGIC = 0x0C0DED1A
HEADER = 64
"""Integers in a header (512 bytes: always eager)."""
INLINE = 16 * 1024
"""Payloads up to this many bytes travel inside the order or answer."""
ELEMENT_LIMIT = 2**31 - 1
"""Elements per message; larger blocks go in several (a C int counts them in MPI-3)."""

TAG_CONTROL = 1
TAG_DATA = 2

_OPERANDS_AT = 16
_OPERAND_WORDS = 8
ORDER_AT = 9
"""Where an answer's header repeats the number of its order."""
WORK_AT = 8
"""Where an order's header says which operation is to be done."""
VOIDS_AT = 10
"""Where an order's header says that all orders before it are void."""
_MARKS_AT = 10
_WASTE = 8192
"""Elements (of 16 bytes at most) of the memory that unwanted messages are received into."""
_DTYPES = tuple(
    np.dtype(t) for t in ("f4", "f8", "c8", "c16", "i4", "i8", "u1", "u8", "f2", "i2", "i1")
)
_CODES = {dtype: code for code, dtype in enumerate(_DTYPES)}
_MPI_TYPES = {
    np.dtype("f4"): MPI.FLOAT,
    np.dtype("f8"): MPI.DOUBLE,
    np.dtype("c8"): MPI.C_FLOAT_COMPLEX,
    np.dtype("c16"): MPI.C_DOUBLE_COMPLEX,
    np.dtype("i4"): MPI.INT32_T,
    np.dtype("i8"): MPI.INT64_T,
    np.dtype("u1"): MPI.UINT8_T,
}


class Kind(IntEnum):
    """Kinds of orders and answers."""

    RUN = 1
    CANCEL = 2
    DROP = 3
    STOP = 4
    LEAVE = 5
    PING = 6
    HELLO = 11
    REPLY = 12
    ABANDONED = 13
    ERROR = 14
    BYE = 15
    PONG = 16


class Container(IntEnum):
    """How an operand's arrays make up its matrix."""

    RESIDENT = 0
    ROWS = 1
    COLUMNS = 2
    CSR = 3
    RECIPE = 4
    OWN = 5
    """Held, each worker's under another key: the order's plus the worker's number."""


class Message:
    """A header with an optional inline payload, in one buffer.

    Parameters
    ----------
    kind : Kind
    round_id : int
    payload : bytes-like, optional
        At most :data:`INLINE` bytes.
    """

    def __init__(self, kind: Kind, round_id: int = 0, payload: Any = b"") -> None:
        data = memoryview(payload).cast("B")
        self.buffer = np.empty(HEADER * 8 + len(data), np.uint8)
        self.words = self.buffer[: HEADER * 8].view(np.int64)
        self.words[:] = 0
        self.words[:4] = MAGIC, kind, round_id, len(data)
        self.buffer[HEADER * 8 :] = np.frombuffer(data, np.uint8)

    def mark(self, moments: Sequence[int]) -> None:
        """Note when the panels of a task began, and the last ended (nanoseconds).

        A header has room for some fifty; of more panels only every second, third ... is noted.
        """
        room = HEADER - _MARKS_AT - 1
        step = max(1, -(-(len(moments) - 1) // (room - 1)))
        kept = [*moments[:-1:step], moments[-1]]
        self.words[_MARKS_AT] = len(kept)
        self.words[_MARKS_AT + 1 : _MARKS_AT + 1 + len(kept)] = kept


class Inbox:
    """A standing receive: made once, posted again after each message, looked at often.

    Parameters
    ----------
    comm : MPI.Comm
    source : int
    """

    def __init__(self, comm: MPI.Comm, source: int) -> None:
        self.comm, self.source = comm, source
        self._buffer = np.empty(HEADER * 8 + INLINE, np.uint8)
        self._words = self._buffer[: HEADER * 8].view(np.int64)
        self._request = comm.Recv_init([self._buffer, MPI.BYTE], source, TAG_CONTROL)
        self._message = Received(self._buffer)
        self._posted = self._waiting = False

    def post(self) -> None:
        """Post the receive."""
        self._words[0] = 0
        self._request.Start()
        self._posted = True

    def arrived(self) -> bool:
        """Look for a message; once it has come, :meth:`message` gives it."""
        if not self._posted or not self._request.Test():
            return False
        self._posted = False
        return True

    def message(self) -> Received:
        """Return the message that has arrived; it is valid until the next :meth:`post`.

        Raises
        ------
        RuntimeError
            It is none of this program's.
        """
        self._message.check()
        return self._message

    def put_back(self) -> None:
        """Have the message that has arrived come with the next :meth:`poll`."""
        self._waiting = True

    def poll(self) -> Received | None:
        """Return the message that has arrived, if any; it is valid until the next :meth:`post`."""
        if not (self._waiting or self.arrived()):
            return None
        self._waiting = False
        return self.message()

    @property
    def pending(self) -> bool:
        """Whether the receive is posted."""
        return self._posted

    @property
    def shows(self) -> bool:
        """Whether a message shows in the memory: a hint, which :meth:`poll` may not confirm yet.

        It costs no call of MPI. Nor does it make any progress: that is left to the others' calls.
        """
        return self._posted and self._words[0] != 0


class Received:
    """A message that has arrived; a view of its inbox's buffer."""

    def __init__(self, buffer: NDArray[np.uint8]) -> None:
        self.words = buffer[: HEADER * 8].view(np.int64)
        self._room = buffer[HEADER * 8 :]

    def check(self) -> None:
        """Refuse what is no message of this program's."""
        if self.words[0] != MAGIC:
            raise RuntimeError(
                "a message that is not codedla's arrived on codedla's communicator: ranks run "
                "different versions"
            )

    @property
    def payload(self) -> NDArray[np.uint8]:
        """What came with the header."""
        return self._room[: self.words[3]]

    @property
    def kind(self) -> Kind:
        """Kind of the message."""
        return Kind(int(self.words[1]))

    @property
    def round_id(self) -> int:
        """Round it belongs to."""
        return int(self.words[2])


def _marks(words: NDArray[np.int64]) -> tuple[int, ...]:
    return tuple(words[_MARKS_AT + 1 : _MARKS_AT + 1 + int(words[_MARKS_AT])].tolist())


@dataclass(frozen=True)
class Answer:
    """Fields of a REPLY header."""

    round_id: int
    shape: tuple[int, int]
    dtype: np.dtype
    inline: bool
    seconds: float
    marks: tuple[int, ...] = ()

    @staticmethod
    def read(message: Received) -> Answer:
        """Read the fields of an arrived REPLY."""
        words = message.words
        return Answer(
            round_id=message.round_id,
            shape=(int(words[4]), int(words[5])),
            dtype=_DTYPES[int(words[6])],
            inline=bool(words[7]),
            seconds=int(words[8]) * 1e-9,
            marks=_marks(words) if words[_MARKS_AT] else (),
        )

    @staticmethod
    def message(round_id: int, reply: NDArray[Any], seconds: float) -> Message:
        """Build the REPLY that announces, or carries, ``reply`` (C order)."""
        inline = reply.nbytes <= INLINE
        message = Message(Kind.REPLY, round_id, reply.reshape(-1).view(np.uint8) if inline else b"")
        message.words[4:9] = *reply.shape, _CODES[reply.dtype], inline, int(seconds * 1e9)
        return message


# -- operands ------------------------------------------------------------------------------------


def prepare(matrix: Any) -> tuple[Container, list[NDArray[Any]]]:
    """Return how a matrix travels and the arrays that make it up, without copying."""
    if isinstance(matrix, Recipe):
        return Container.RECIPE, [matrix.pack()]
    if not isinstance(matrix, np.ndarray):
        return Container.CSR, [matrix.data, matrix.indices, matrix.indptr]
    if runs_of_rows(matrix):
        return Container.ROWS, [matrix]
    if runs_of_rows(matrix.T):
        return Container.COLUMNS, [matrix.T]
    return Container.ROWS, [np.ascontiguousarray(matrix)]


def runs_of_rows(array: NDArray[Any]) -> bool:
    """Tell whether a matrix is rows of contiguous elements, each row whole elements further on.

    Only such memory is described by a vector type; reversed rows and fields of records are not.
    """
    down, along = array.strides
    return bool(
        array.size == 0
        or (along == array.itemsize and down >= 0 and down % array.itemsize == 0)
        or array.flags.c_contiguous
    )


def describe(words: NDArray[np.int64], position: int, key: int, matrix: Any) -> list[NDArray[Any]]:
    """Write operand ``position`` of an order into its header; return the arrays to send.

    ``matrix`` None means that the worker holds the operand under ``key``.
    """
    at = _OPERANDS_AT + position * _OPERAND_WORDS
    if matrix is None:
        words[at : at + 2] = key, Container.RESIDENT
        return []
    container, arrays = prepare(matrix)
    index = _CODES[arrays[1].dtype] if container is Container.CSR else 0
    count = arrays[0].size if container in (Container.CSR, Container.RECIPE) else 0
    shape = (1, count) if container is Container.RECIPE else matrix.shape
    words[at : at + 7] = key, container, _CODES[arrays[0].dtype], *shape, count, index
    return arrays


def describe_own(words: NDArray[np.int64], position: int, first_key: int) -> None:
    """Write into an order's header that each worker holds its operand, under a key of its own."""
    at = _OPERANDS_AT + position * _OPERAND_WORDS
    words[at : at + 2] = first_key, Container.OWN


def dtype_of(code: int) -> np.dtype:
    """Return the dtype that a header means."""
    return _DTYPES[code]


@dataclass(frozen=True)
class Incoming:
    """One operand as an order's header describes it."""

    key: int
    container: Container
    dtype: np.dtype
    shape: tuple[int, int]
    count: int
    index_dtype: np.dtype

    @staticmethod
    def read(words: NDArray[np.int64], position: int) -> Incoming:
        """Read operand ``position``."""
        at = _OPERANDS_AT + position * _OPERAND_WORDS
        key, container, dtype, rows, cols, count, index = (int(w) for w in words[at : at + 7])
        return Incoming(
            key, Container(container), _DTYPES[dtype], (rows, cols), count, _DTYPES[index]
        )

    def arrays(self) -> list[NDArray[Any]]:
        """Allocate the arrays that will be received."""
        return [np.empty(shape, dtype) for shape, dtype in self._layouts()]

    def messages(self) -> list[tuple[int, np.dtype]]:
        """Return how many elements, of which dtype, each message that the arrays come in has."""
        return [(size, dtype) for shape, dtype in self._layouts() for size in pieces(shape)]

    def key_on(self, worker: int) -> int:
        """Return the key under which this worker holds the operand, or is to keep it."""
        return self.key + worker if self.container is Container.OWN else self.key

    def _layouts(self) -> list[tuple[tuple[int, ...], np.dtype]]:
        """Return shape and dtype of each array."""
        if self.container in (Container.RESIDENT, Container.OWN):
            return []
        if self.container is Container.CSR:
            return [
                ((self.count,), self.dtype),
                ((self.count,), self.index_dtype),
                ((self.shape[0] + 1,), self.index_dtype),
            ]
        if self.container is Container.RECIPE:
            return [((self.count,), self.dtype)]
        shape = self.shape[::-1] if self.container is Container.COLUMNS else self.shape
        return [(shape, self.dtype)]


def restore(incoming: Incoming, arrays: Sequence[NDArray[Any]]) -> Any:
    """Build the matrix from its received arrays.

    Raises
    ------
    Unreadable
        It is to be made from a file that this rank cannot read.
    """
    if incoming.container is Container.RECIPE:
        return Recipe.unpack(arrays[0]).make()
    if incoming.container is Container.CSR:
        import scipy.sparse as sp

        return sp.csr_array(tuple(arrays), shape=incoming.shape, copy=False)
    return arrays[0].T if incoming.container is Container.COLUMNS else arrays[0]


def unpack(payload: NDArray[np.uint8], arrays: Iterable[NDArray[Any]]) -> None:
    """Fill arrays from an inline payload."""
    at = 0
    for array in arrays:
        flat = array.reshape(-1).view(np.uint8)
        flat[...] = payload[at : at + flat.size]
        at += flat.size


def pack(arrays: Iterable[NDArray[Any]]) -> bytes:
    """Join arrays into an inline payload."""
    return b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)


# -- transfers -----------------------------------------------------------------------------------


def pieces(shape: tuple[int, ...]) -> list[int]:
    """Return the elements of each message, all below the element limit, that an array comes in."""
    *above, length = shape
    if 0 in shape:
        return []
    if not above:
        whole, rest = divmod(length, ELEMENT_LIMIT)
        return [ELEMENT_LIMIT] * whole + [rest] * (rest > 0)
    if length > ELEMENT_LIMIT:
        return above[0] * pieces((length,))
    whole, rest = divmod(above[0], ELEMENT_LIMIT // length)
    return [ELEMENT_LIMIT // length * length] * whole + [rest * length] * (rest > 0)


class Types:
    """Committed vector types by layout; freed together at the end."""

    def __init__(self) -> None:
        self._types: dict[tuple[int, int, int, np.dtype], MPI.Datatype] = {}

    def vector(self, rows: int, cols: int, stride: int, dtype: np.dtype) -> MPI.Datatype:
        """Return the type of ``rows`` runs of ``cols`` elements, ``stride`` elements apart."""
        key = (rows, cols, stride, dtype)
        if key not in self._types:
            if len(self._types) >= 256:
                self.free()
            self._types[key] = _MPI_TYPES[dtype].Create_vector(rows, cols, stride).Commit()
        return self._types[key]

    def free(self) -> None:
        """Free all types (pending communication keeps its own reference, by the MPI standard)."""
        for datatype in self._types.values():
            datatype.Free()
        self._types.clear()

    def specs(self, array: NDArray[Any]) -> list[list[Any]]:
        """Return MPI buffer specifications that cover ``array``, each below the element limit.

        Sender and receiver cut the same shape alike, whatever their strides.
        """
        if array.size == 0:
            return []
        kind = _MPI_TYPES[array.dtype]
        if array.ndim == 1:
            limit = ELEMENT_LIMIT
            return [[array[at : at + limit], kind] for at in range(0, array.size, limit)]
        rows, cols = array.shape
        if cols > ELEMENT_LIMIT:
            return [spec for row in array for spec in self.specs(row)]
        step = max(1, ELEMENT_LIMIT // cols)
        return [self._rows(array[top : top + step]) for top in range(0, rows, step)]

    def _rows(self, array: NDArray[Any]) -> list[Any]:
        rows, cols = array.shape
        if array.flags.c_contiguous:
            return [array.reshape(-1), _MPI_TYPES[array.dtype]]
        stride = array.strides[0] // array.itemsize
        span = (rows - 1) * stride + cols
        memory = np.lib.stride_tricks.as_strided(array, (span,), (array.itemsize,))
        return [memory, 1, self.vector(rows, cols, stride, array.dtype)]


class Transfer:
    """Non-blocking messages that belong together, and the memory they use."""

    def __init__(self, requests: list[MPI.Request], keep: Any) -> None:
        self._requests = requests
        # MPI writes to or reads from this memory until the requests are complete.
        self._keep = keep
        self.large = len(requests) > 1
        """Whether a payload follows the message."""

    @staticmethod
    def send(
        channels: tuple[MPI.Comm, MPI.Comm],
        rank: int,
        message: Message,
        arrays: Sequence[NDArray[Any]],
        types: Types,
    ) -> Transfer:
        """Start sending a message on the first channel, the arrays that follow it on the second."""
        control, data = channels
        requests = [control.Isend([message.buffer, MPI.BYTE], rank, TAG_CONTROL)]
        for array in arrays:
            requests += [data.Isend(spec, rank, TAG_DATA) for spec in types.specs(array)]
        return Transfer(requests, (message, arrays))

    @staticmethod
    def receive(
        comm: MPI.Comm, rank: int, arrays: Sequence[NDArray[Any]], types: Types
    ) -> Transfer:
        """Start receiving arrays."""
        requests = []
        for array in arrays:
            requests += [comm.Irecv(spec, rank, TAG_DATA) for spec in types.specs(array)]
        return Transfer(requests, arrays)

    @staticmethod
    def discard(comm: MPI.Comm, rank: int, described: Iterable[Incoming]) -> Transfer:
        """Start receiving, and throwing away, arrays that there is no room for."""
        requests = []
        waste = np.empty(_WASTE * 16, np.uint8)
        for incoming in described:
            for size, dtype in incoming.messages():
                datatype = _overlapping(size, dtype)
                requests.append(comm.Irecv([waste, 1, datatype], rank, TAG_DATA))
                datatype.Free()  # what is under way keeps it
        return Transfer(requests, waste)

    def done(self) -> bool:
        """Make progress; return whether everything is complete."""
        # One Test per request: Testall loses track of the others when one of them fails.
        while self._requests and self._requests[-1].Test():
            self._requests.pop()
        return not self._requests


def _overlapping(size: int, dtype: np.dtype) -> MPI.Datatype:
    """Return a type of this many elements, of which each :data:`_WASTE` lie in the same memory.

    Receiving fewer elements than are sent would do as well, by the standard, but Open MPI 5 writes
    all of a large message all the same.
    """
    kind = _MPI_TYPES[dtype]
    whole, rest = divmod(size, _WASTE)
    stacked = kind.Create_vector(whole, _WASTE, 0)
    try:
        return MPI.Datatype.Create_struct([1, rest], [0, 0], [stacked, kind]).Commit()
    finally:
        stacked.Free()
