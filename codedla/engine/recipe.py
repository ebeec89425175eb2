"""How to make a share from a file: what is sent instead of the share, a few hundred bytes.

Every worker maps the file, which all hosts must see under the same path, reads the blocks that its
share is a combination of and combines them itself. The master sends recipes and reads nothing, so
that its memory and network do not grow with the number of workers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla.blocks import Split
from codedla.engine.encoder import DenseEncoder
from codedla.views import FileView

__all__ = ["Recipe", "RecipeEncoder", "evaluate"]

Array = NDArray[Any]


@dataclass(frozen=True)
class Recipe:
    """One share: a block of a matrix in a file, or combinations of its blocks.

    Parameters
    ----------
    file : FileView
    parts : (int, int)
        Row and column blocks the matrix is cut into.
    block : int
        The block that the share is; -1: a combination.
    weights : ndarray (count, blocks)
        Of a combination; see :meth:`codedla.engine.encoder.DenseEncoder.coded`.
    across : int
    """

    file: FileView
    parts: tuple[int, int]
    block: int
    weights: Array
    across: int

    def make(self) -> Array:
        """Read and combine; return the share.

        Raises
        ------
        Unreadable
            The file cannot be read on this rank.
        """
        matrix = self.file.open()
        rows, cols = (Split(n, p) for n, p in zip(matrix.shape, self.parts, strict=True))
        encoder = DenseEncoder(matrix, rows, cols, matrix.dtype)
        if self.block >= 0:
            # A copy: the share may be used in many rounds, and the file may be far away.
            return np.array(encoder.plain(self.block))
        return encoder.coded(self.weights, self.across)

    def pack(self) -> NDArray[np.uint8]:
        """Return what travels: a line of JSON, and the weights."""
        fields = {
            "file": asdict(self.file),
            "parts": self.parts,
            "block": self.block,
            "weights": [self.weights.dtype.str, self.weights.shape],
            "across": self.across,
        }
        head = json.dumps(fields).encode() + b"\n"
        return np.frombuffer(head + np.ascontiguousarray(self.weights).tobytes(), np.uint8)

    @staticmethod
    def unpack(data: NDArray[np.uint8]) -> Recipe:
        """Return the recipe that :meth:`pack` packed."""
        head, _, rest = data.tobytes().partition(b"\n")
        fields = json.loads(head)
        view = fields["file"]
        view["shape"], view["strides"] = tuple(view["shape"]), tuple(view["strides"])
        dtype, shape = fields["weights"]
        return Recipe(
            file=FileView(**view),
            parts=tuple(fields["parts"]),
            block=fields["block"],
            weights=np.frombuffer(rest, dtype).reshape(shape),
            across=fields["across"],
        )


class RecipeEncoder:
    """An encoder that returns recipes; see :class:`codedla.engine.encoder.DenseEncoder`.

    Parameters
    ----------
    file : FileView
    rows, cols : Split
    """

    threads = 1

    def __init__(self, file: FileView, rows: Split, cols: Split) -> None:
        self.file, self.parts = file, (rows.parts, cols.parts)
        self.given: set[bytes] = set()
        self.ready: dict[bytes, Any] = {}
        self.meanwhile: Callable[[], object] | None = None  # no share takes long

    def plain(self, block: int) -> Recipe:
        """Return the recipe of a block."""
        return Recipe(self.file, self.parts, block, np.empty((0, 0)), 1)

    def coded(self, weights: Array, across: int = 1) -> Recipe:
        """Return the recipe of combinations of the blocks."""
        return Recipe(self.file, self.parts, -1, np.atleast_2d(weights), across)

    def coded_together(self, shares: Sequence[Array], across: int = 1) -> list[Recipe]:
        """Return several recipes."""
        return [self.coded(weights, across) for weights in shares]


def evaluate(matrix: Any) -> Any:
    """Return a share: what a recipe makes, and any other matrix as it is."""
    return matrix.make() if isinstance(matrix, Recipe) else matrix
