"""Signal handlers wait while the protocol is between two states. No MPI here."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from codedla.mpi.signals import Postponed


def interrupt():
    os.kill(os.getpid(), signal.SIGINT)


def test_a_handler_runs_where_it_is_let():
    steps = []
    with pytest.raises(KeyboardInterrupt), Postponed() as postponed:
        interrupt()
        steps.append("held back")
        postponed.deliver()
        steps.append("not reached")
    assert steps == ["held back"]
    with pytest.raises(KeyboardInterrupt):  # the usual handler is back
        interrupt()


def test_a_handler_runs_at_the_end_at_the_latest():
    steps = []
    with pytest.raises(KeyboardInterrupt), Postponed():
        interrupt()
        steps.append("whole")
    assert steps == ["whole"]


def test_a_signal_is_not_lost_behind_an_exception():
    with pytest.raises(KeyboardInterrupt) as caught, Postponed():
        interrupt()
        raise ValueError("the block's own")
    assert isinstance(caught.value.__context__, ValueError)


def test_a_caller_is_interrupted_at_once():
    steps = []
    with pytest.raises(KeyboardInterrupt), Postponed() as postponed, postponed.lifted():
        steps.append("inside")
        interrupt()
        steps.append("not reached")
    assert steps == ["inside"]


def test_after_a_caller_signals_are_held_back_again():
    steps = []
    with pytest.raises(KeyboardInterrupt), Postponed() as postponed:
        with postponed.lifted():
            pass
        interrupt()
        steps.append("held back")
    assert steps == ["held back"]


def test_other_threads_have_no_handlers_to_hold_back():
    before = signal.getsignal(signal.SIGINT)
    seen = []

    def work():
        with Postponed() as postponed:
            seen.append(signal.getsignal(signal.SIGINT))
            postponed.deliver()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]
