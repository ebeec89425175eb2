"""When a worker leaves by itself."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

pytestmark = pytest.mark.mpi


class Left(Exception):
    """Stands for the end of the process."""


@pytest.fixture
def vigil(monkeypatch):
    from codedla.mpi import worker  # late, because importing it starts MPI

    def leave(code):
        raise Left

    monkeypatch.setattr(worker.world, "hard_exit", leave)
    monkeypatch.setattr(worker, "_TICK", 0.0)
    monkeypatch.setenv("CODEDLA_ORPHAN", "0.5")
    return worker.Vigil()


def ping(*, host: str = "", beats: bool = True, pid: int | None = None):
    from codedla.mpi import wire

    message = wire.Message(wire.Kind.PING, 0, (host or socket.gethostname()).encode())
    message.words[4:7] = beats, 0, os.getpid() if pid is None else pid
    return wire.Received(message.buffer)


def unheard(vigil, seconds: float) -> None:
    """Let time pass without a word."""
    vigil._unheard += seconds
    vigil.keep()


def test_a_master_on_this_host_may_be_silent_for_as_long_as_it_lives(vigil):
    vigil.watch(ping())
    unheard(vigil, 1e6)


@pytest.mark.parametrize("collected", [True, False])
def test_a_dead_master_on_this_host(vigil, capfd, collected):
    """Also one of which its parent has not taken note, as MPICH's launcher may not."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    vigil.watch(ping(pid=child.pid))
    vigil.keep()
    child.stdin.close()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    if collected:
        child.wait()
    with pytest.raises(Left):
        vigil.keep()
    assert "a worker on" in capfd.readouterr().err
    child.wait()


def test_a_master_that_cannot_be_seen_from_here(vigil):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    vigil.watch(ping(pid=gone.pid))
    unheard(vigil, 1e6)


def test_a_master_on_another_host_that_has_gone_quiet(vigil):
    vigil.watch(ping(host="elsewhere"))
    unheard(vigil, 0.3)
    vigil.heard()
    unheard(vigil, 0.3)
    with pytest.raises(Left):
        unheard(vigil, 0.3)


def test_a_master_that_promises_no_signs_of_life(vigil):
    vigil.watch(ping(host="elsewhere", beats=False))
    unheard(vigil, 1e6)


def test_a_launcher_that_is_gone(vigil, monkeypatch):
    from codedla.mpi import world

    monkeypatch.setattr(world, "launcher_gone", lambda: True)
    with pytest.raises(Left):
        vigil.keep()
