from typing import Any

from numpy.typing import NDArray

Array = NDArray[Any]

def best_isa() -> int: ...
def addresses(blocks: list[Array]) -> list[int]: ...
def combine(
    W: Array,
    ins: list[Array],
    outs: list[Array],
    accumulate: bool,
    isa: int,
    first: int,
    last: int,
) -> None: ...
def combine_wide(
    W: Array,
    ins: list[Array],
    outs: list[Array],
    accumulate: bool,
    isa: int,
    first: int,
    last: int,
) -> None: ...
def combine_mod(
    W: Array,
    ins: list[Array],
    outs: list[Array],
    p: float,
    accumulate: bool,
    isa: int,
    first: int,
    last: int,
) -> None: ...
def fold(accs: list[Array], w: Array, block: Array, isa: int, first: int, last: int) -> None: ...
def stream_copy(ins: list[Array], outs: list[Array], isa: int, first: int, last: int) -> None: ...
