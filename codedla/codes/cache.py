"""A small memory of what was computed for survivor sets: the same set returns round after round."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

__all__ = ["Recent"]

Value = TypeVar("Value")


class Recent(Generic[Value]):
    """The most recently used values, by key; threads may share it.

    Parameters
    ----------
    room : int
        Number of values kept.
    """

    def __init__(self, room: int) -> None:
        self.room = room
        self._values: OrderedDict[Hashable, Value] = OrderedDict()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: Hashable) -> Value | None:
        """Return the value under ``key``, which makes it the most recent, or None."""
        value = self._values.get(key)
        if value is not None:
            with contextlib.suppress(KeyError):  # another thread has dropped it meanwhile
                self._values.move_to_end(key)
        return value

    def put(self, key: Hashable, value: Value, room: int | None = None) -> None:
        """Keep ``value``; drop the least recent ones beyond ``room`` (or less room, if given)."""
        self._values.pop(key, None)
        self._values[key] = value
        most = self.room if room is None else min(self.room, max(1, room))
        with contextlib.suppress(KeyError):  # other threads have dropped what was to go
            while len(self._values) > most:
                self._values.popitem(last=False)

    def clear(self) -> None:
        """Forget everything."""
        self._values.clear()
