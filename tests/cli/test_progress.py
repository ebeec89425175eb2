"""The progress bar: only on a terminal, fed through a file, gone before anything is printed."""

from __future__ import annotations

import io
import sys
import time

import pytest

from codedla.cli import progress


class Terminal(io.StringIO):
    """A stderr that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def use_terminal(monkeypatch):
    """Make stderr a terminal; to be called in the test, because pytest sets stderr before it."""

    def use() -> Terminal:
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setenv("COLUMNS", "80")
        stream = Terminal()
        monkeypatch.setattr(sys, "stderr", stream)
        return stream

    return use


def test_no_bar_without_a_terminal(tmp_path, capsys):
    with progress.progress(quiet=False) as draw:
        assert draw is None
    with progress.follow(quiet=False, folder=tmp_path) as env:
        assert env == {}
    assert capsys.readouterr().err == ""


def test_no_bar_when_quiet(tmp_path, use_terminal):
    terminal = use_terminal()
    with progress.progress(quiet=True) as draw:
        assert draw is None
    with progress.follow(quiet=True, folder=tmp_path) as env:
        assert env == {}
    assert terminal.getvalue() == ""


def test_bar_of_the_same_process(use_terminal):
    terminal = use_terminal()
    with progress.progress(quiet=False) as draw:
        draw(3, 6, 8)
    assert "of 6 needed" in terminal.getvalue()


def test_bar_of_a_job(tmp_path, use_terminal, monkeypatch):
    terminal = use_terminal()
    with progress.follow(quiet=False, folder=tmp_path) as env:
        monkeypatch.setenv(progress.NOTE, env[progress.NOTE])
        with progress.progress(quiet=False) as draw:
            draw(2, 6, 8)
            time.sleep(0.4)
        # The bar has gone by now: the master may print.
        length = len(terminal.getvalue())
        time.sleep(0.3)
        assert len(terminal.getvalue()) == length
    assert "2 of 6 needed" in terminal.getvalue()
    assert list(tmp_path.iterdir()) == []


def test_a_job_does_not_wait_long_for_a_lost_drawer(tmp_path, monkeypatch):
    monkeypatch.setenv(progress.NOTE, str(tmp_path / "note"))
    start = time.monotonic()
    with progress.progress(quiet=False) as draw:
        draw(1, 2, 3)
    assert time.monotonic() - start < 2


def test_other_things_than_replies_are_counted_in_their_own_words(use_terminal):
    stream = use_terminal()
    with progress.progress(quiet=False, what="steps") as draw:
        draw(3, 7, 7)
        time.sleep(0.2)
    text = stream.getvalue()
    assert "steps" in text
    assert "3 of 7" in text
    assert "needed" not in text
