"""The output of a job on its way to the user, without a launcher's remarks on how ranks ended.

Standard library only; MPI is never imported here.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import IO

__all__ = ["NoiseFilter", "Pump", "write_stderr", "write_stdout"]


def write_stderr(data: bytes) -> None:
    """Write to this process's stderr, whoever still reads it."""
    _write(2, data)


def write_stdout(data: bytes) -> None:
    """Write to this process's stdout, whoever still reads it."""
    _write(1, data)


def _write(handle: int, data: bytes) -> None:
    with suppress(OSError):  # our reader went away: the job goes on
        while data:
            data = data[os.write(handle, data) :]


class Pump:
    """A thread that takes lines from a pipe and hands them on (`sink`) or keeps them.

    With `waits`, it leaves them in the pipe until it is told to begin: they may be of no interest.
    """

    def __init__(
        self,
        pipe: IO[bytes],
        sink: Callable[[bytes], None] | None,
        noise: NoiseFilter | None = None,
        *,
        waits: bool = False,
    ) -> None:
        self._pipe = pipe
        self._sink = sink
        self._noise = noise
        self._kept: list[bytes] = []
        self._begun = threading.Event()
        if not waits:
            self._begun.set()
        self._thread = threading.Thread(target=self._work, name="codedla-output", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        self._begun.wait()
        with self._pipe as pipe:
            for line in pipe:
                for item in self._noise.feed(line) if self._noise else [line]:
                    self._hand_on(item)

    def _hand_on(self, data: bytes) -> None:
        if self._sink is None:
            self._kept.append(data)
        else:
            self._sink(data)

    def begin(self) -> None:
        """Hand on what is in the pipe, and what comes."""
        self._begun.set()

    def forget(self) -> None:
        """Drop what has not been handed on yet."""
        self._sink, self._noise = (lambda _data: None), None
        self._begun.set()

    def text(self, *, drop_remarks: bool = False, drop_farewells: bool = False) -> str:
        """Everything kept; what the filter held back is handed on first unless dropped."""
        self._begun.set()
        # Bounded: a process that escaped with the pipe open must not keep us.
        self._thread.join(2.0)
        if self._noise:
            self._hand_on(self._noise.end(drop_remarks=drop_remarks, drop_farewells=drop_farewells))
        return b"".join(self._kept).replace(b"\0", b"").decode(errors="replace")


#: What a master says that was told to stop; whoever told it may say the same, if it had no time.
_FAREWELLS = (b"codedla: interrupted\n", b"codedla: terminated\n")

_RULE = re.compile(rb"^-{60,}\s*$")

#: Remarks of launchers on how processes ended; they matter only when the master said nothing.
#: The first kind comes between two dashed rules, the second on lines of its own.
_REMARK_BLOCK = re.compile(
    rb"non-zero (?:exit )?(?:status|code)|exited on signal|exit(?:ed|ing) improperly"
    rb"|without calling|normally, but|MPI_ABORT was invoked|not tested for post-failure"
    rb"|abnormal termination|user-specified termination|job to be terminated",
    re.I,
)
_REMARK_LINE = re.compile(
    rb"^\[(?:proxy|mpiexec|mpirun)(?::\d+)?@\S+\] "
    rb"|^\[warn\] Epoll |pmix_ptl_base: send_msg: write failed"
    rb"|^Abort\(\d+\) on node \d+ |^abort is in progress\.\.\.hit ctrl-c"
    rb"|^mpi(?:run|exec): .*(?:exited on signal|forcibly)"
    rb"|^=+\s*$|^=   (?:BAD TERMINATION|PID |RANK |EXIT CODE|EXIT STRING|CLEANING UP|YOU CAN)"
    rb"|^YOUR APPLICATION TERMINATED WITH|^This typically refers to a problem with your appl"
    rb"|^Please see the FAQ page for debugging|help message.* help-mpi-osc",
    re.I,
)


class NoiseFilter:
    """Tell a launcher's remarks on ended processes from words that a user needs.

    Open MPI frames its messages between two dashed rules: such a block is judged as a whole.
    """

    def __init__(self) -> None:
        self._block: list[bytes] | None = None
        self._held: list[bytes] = []
        self._farewells: list[bytes] = []

    def feed(self, line: bytes) -> list[bytes]:
        """Lines that may be shown now."""
        if _RULE.match(line):
            if self._block is None:
                self._block = [line]
                return []
            block, self._block = b"".join([*self._block, line]), None
            return self._judge(block, _REMARK_BLOCK)
        if self._block is None:
            if line in _FAREWELLS:
                # Ctrl-C reaches every rank, and each may say so.
                if line not in self._farewells:
                    self._farewells.append(line)
                return []
            return self._judge(line, _REMARK_LINE)
        self._block.append(line)
        if len(self._block) < 40:
            return []
        # No launcher writes as much: the rule was the program's own.
        block, self._block = b"".join(self._block), None
        return [block]

    def _judge(self, text: bytes, remark: re.Pattern[bytes]) -> list[bytes]:
        if remark.search(text):
            self._held.append(text)
            return []
        return [text]

    def end(self, *, drop_remarks: bool, drop_farewells: bool = False) -> bytes:
        """What is still to be shown at the end of the job."""
        last = b"".join(self._block or [])
        farewells = [] if drop_farewells else self._farewells
        if drop_remarks:
            return b"".join([*farewells, b"" if _REMARK_BLOCK.search(last) else last])
        return b"".join([*self._held, last, *farewells])
