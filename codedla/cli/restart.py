"""An unfinished product on disk, from which a later run of the same command goes on.

Beside ``C.npy`` there are, while its panels are computed, ``.C.npy.codedla-part`` (the product,
locked by the master that works on it) and, from the first finished panel on,
``.C.npy.codedla-journal``. Both are gone once ``C.npy`` is there.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import logging
import os
import stat
import time
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla.cli import journal
from codedla.cli.checksums import (
    Place,
    file_facts,
    intact_entries,
    product_place,
    recorded_place,
)
from codedla.cli.files import Operand
from codedla.cli.journal import Contents, Entry, Panel
from codedla.cli.output import Output
from codedla.errors import CodedlaWarning, UsageError

__all__ = ["Restart", "Session", "identity_of"]

logger = logging.getLogger("codedla")

_PATIENCE = 2.0
"""Seconds that a lock is waited for: its holder may be dying."""
_LONGEST_NAME = 200
"""Bytes of an output's name that fit, with what is added here, into the 255 of a file name."""
_WORDS = {
    "operation": "the operation is another",
    "a": "operand A is another or has changed",
    "b": "operand B is another or has changed",
    "output": "the output is another",
}


def identity_of(operation: str, a: Operand, b: Operand, output: Output) -> dict[str, Any]:
    """Return what must not have changed for a product to be continued."""
    facts = {
        "operation": operation,
        "a": _operand_facts(a),
        "b": _operand_facts(b),
        "output": [os.path.realpath(output.path), output.dataset],
    }
    # As it comes back from a file: lists, not tuples.
    return dict(json.loads(json.dumps(facts)))


def _operand_facts(operand: Operand) -> dict[str, Any]:
    status = operand.path.stat()
    return {
        "path": os.path.realpath(operand.path),
        "dataset": operand.dataset,
        "size": status.st_size,
        # The time of the last change of anything: unlike that of the contents nobody can set it.
        "ctime_ns": status.st_ctime_ns,
        "shape": operand.shape,
        "dtype": operand.dtype.str,
    }


class Restart:
    """What an interrupted run of a command left, and what this run will leave.

    Parameters
    ----------
    output : Output
        Where the product goes in the end.
    identity : dict
        See :func:`identity_of`.
    """

    def __init__(self, output: Output, identity: dict[str, Any]) -> None:
        self.output, self.identity = output, identity
        name = _fitting(output.path.name)
        self.part = output.path.with_name(f".{name}.codedla-part")
        self.journal = output.path.with_name(f".{name}.codedla-journal")
        self._fresh = output.path.with_name(f".{name}.codedla-journal.new")

    def left(self) -> bool:
        """Tell whether an earlier run left anything."""
        return any(os.path.lexists(path) for path in (self.part, self.journal))

    def allocated(self) -> int:
        """Bytes of disk that the unfinished product takes already."""
        try:
            return self.part.lstat().st_blocks * 512
        except OSError:
            return 0

    def probe(self) -> None:
        """Make sure that no other job is working on this output.

        Raises
        ------
        UsageError
            One is.
        """
        with self._part() as number:
            if number is not None:
                self._lock(number, fcntl.LOCK_SH)

    def complete(self, shape: tuple[int, int]) -> bool:
        """Tell whether the output is the product of this very command, and remove the journal.

        That can be proved only of a run that ended between giving the product its name and
        removing its journal: the journal then has checksums of every byte.
        """
        contents = journal.read(self.journal)
        if (
            contents is None
            or os.path.lexists(self.part)
            or not self.output.path.is_file()
            or self._differs(contents.header)
            or journal.remaining(shape, contents.entries)
        ):
            return False
        try:
            number = os.open(self.output.path, os.O_RDONLY)
        except OSError:
            return False
        try:
            sound = intact_entries(number, contents)
        finally:
            os.close(number)
        if sound is None or len(sound) < len(contents.entries):
            return False
        self.discard()
        return True

    def tidy(self) -> list[Entry]:
        """After a job: remove what no later run can use; return what one can."""
        with self._part() as number:
            if number is None:
                return []
            try:
                self._lock(number, fcntl.LOCK_EX, patience=0.2)
            except UsageError:
                return []  # another job's
            if not self.holds(number):
                return []  # another job's, which has just ended
            contents = journal.read(self.journal)
            if contents is None or not contents.entries:
                self.discard()
                return []
            return [] if self._differs(contents.header) else contents.entries

    def abandon(self) -> None:
        """Remove what an earlier run left, and say so when it was of use."""
        number = self._claim()
        try:
            self._say_replaced(journal.read(self.journal))
            self.discard()
        finally:
            os.close(number)

    def discard(self) -> None:
        """Remove everything; names that are no files' are left to their owners."""
        for path in (self.part, self._fresh, self.journal):
            with contextlib.suppress(FileNotFoundError, IsADirectoryError):
                path.unlink()

    @contextlib.contextmanager
    def session(
        self, shape: tuple[int, ...], dtype: np.dtype[Any], *, resume: bool
    ) -> Iterator[Session]:
        """Lend the product to be completed; what is finished when the block fails is kept."""
        number = self._claim()
        try:
            try:
                # The job that had the lock before may have been the same command.
                self.output.recheck()
                session = self._begin(number, shape, np.dtype(dtype), resume=resume)
            except BaseException:
                if os.fstat(number).st_size == 0:
                    self.part.unlink(missing_ok=True)  # made by this run, and of no use
                raise
            try:
                yield session
            finally:
                if not session.finished and not session.entries:
                    self.discard()
        finally:
            os.close(number)

    # -- beginning -----------------------------------------------------------------------------

    def _begin(
        self, number: int, shape: tuple[int, ...], dtype: np.dtype[Any], *, resume: bool
    ) -> Session:
        contents = journal.read(self.journal)
        product = {"shape": list(shape), "dtype": dtype.str}
        if resume:
            session = self._continue(number, contents, shape, dtype)
            if session is not None:
                return session
        else:
            self._say_replaced(contents)
        if os.path.lexists(self.journal):
            _clear(self.journal)
        if os.path.lexists(self._fresh):
            _clear(self._fresh)
        try:
            # Before the copy of an HDF5 file is made: what changes it afterwards must be seen.
            original = self._original()
            place = Place(self.output.allocate(self.part, shape, dtype), shape, dtype)
            header = {
                "identity": self.identity,
                "original": original,
                "product": product,
                "file": file_facts(number, place),
            }
        except BaseException:
            self.discard()
            raise
        return Session(self, number, place, header, [])

    def _continue(
        self,
        number: int,
        contents: Contents | None,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
    ) -> Session | None:
        """Return the session of an earlier run, None (said why) when it cannot be continued."""
        again = f"{self.output.spec} is computed from the beginning"
        if contents is None:
            logger.info("nothing to resume: %s", again)
            return None
        if contents.problem:
            _warn(f"the journal {self.journal} is of no use: {contents.problem}; {again}")
            return None
        header = contents.header
        why = self._differs(header)
        if not why and header.get("product") != {"shape": list(shape), "dtype": dtype.str}:
            why = "the product has another shape or type"
        if not why and header.get("original") != self._original():
            why = f"{self.output.path} has changed"
        if why:
            _warn(f"the unfinished {self.output.spec} is another command's ({why}); {again}")
            return None
        if contents.damaged:
            _warn(f"{contents.damaged} damaged lines of {self.journal} are left out")
        place = None
        sound = intact_entries(number, contents)
        if sound is not None:
            try:
                place = Place(self.output.locate(self.part, shape, dtype), shape, dtype)
            except Exception as error:  # a damaged file has many ways to be unreadable
                logger.info("%s cannot be opened: %s", self.part, error)
        if sound is None or place is None or product_place(number, place) != recorded_place(header):
            _warn(f"the unfinished {self.part} is missing or damaged; {again}")
            return None
        bad = len(contents.entries) - len(sound)
        if bad:
            _warn(
                f"{bad} of {len(contents.entries)} finished panels are damaged in {self.part}; "
                "they are computed again"
            )
        logger.info("%d finished panels are kept", len(sound))
        return Session(self, number, place, header, sound)

    def _say_replaced(self, contents: Contents | None) -> None:
        if contents is not None and contents.entries:
            _warn(
                f"an unfinished {self.output.spec} ({len(contents.entries)} finished panels) is "
                "replaced; with --resume it would have been continued"
            )

    def _differs(self, header: Mapping[str, Any]) -> str:
        """Return in what the header's command is another one; empty when it is this."""
        found = header.get("identity")
        if not isinstance(found, dict):
            return "it cannot be read"
        different = [word for key, word in _WORDS.items() if found.get(key) != self.identity[key]]
        return "; ".join(different)

    def _original(self) -> list[int] | None:
        """What identifies the HDF5 file that the unfinished product is a copy of."""
        if not self.output.dataset or not self.output.path.exists():
            return None
        status = self.output.path.stat()
        return [status.st_size, status.st_mtime_ns]

    # -- the lock ------------------------------------------------------------------------------

    def _claim(self) -> int:
        """Open and lock the unfinished product; make an empty one when there is none."""
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        for _ in range(10):
            try:
                number = os.open(self.part, flags, 0o666)
            except OSError as error:
                if error.errno not in (errno.EISDIR, errno.ELOOP, errno.EACCES, errno.ENXIO):
                    raise
                logger.info("%s is removed: %s", self.part, error.strerror)
                _clear(self.part)
                continue
            try:
                if not stat.S_ISREG(os.fstat(number).st_mode):
                    logger.info("%s is removed: it is no file", self.part)
                    _clear(self.part)
                else:
                    self._lock(number, fcntl.LOCK_EX)
                    # Whoever held the lock before may have renamed or removed the file.
                    if self.holds(number):
                        return number
            except BaseException:
                os.close(number)
                raise
            os.close(number)
        raise self._busy()

    def holds(self, number: int) -> bool:
        """Tell whether this open file is still the one under the unfinished product's name."""
        try:
            return os.path.samestat(os.fstat(number), self.part.lstat())
        except FileNotFoundError:
            return False

    @contextlib.contextmanager
    def _part(self) -> Iterator[int | None]:
        """Lend the unfinished product's file, None when there is none that can be opened."""
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        try:
            number = os.open(self.part, flags)
        except OSError:
            yield None
            return
        try:
            yield number
        finally:
            os.close(number)

    def _lock(self, number: int, kind: int, patience: float | None = None) -> None:
        end = time.monotonic() + (_PATIENCE if patience is None else patience)
        while True:
            try:
                fcntl.flock(number, kind | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > end:
                    raise self._busy() from None
                time.sleep(0.05)
            except OSError as error:
                if kind == fcntl.LOCK_EX:
                    _warn(
                        f"{self.part.parent} knows no locks ({error.strerror}): make sure that no "
                        f"other job writes {self.output.spec}"
                    )
                return

    def _busy(self) -> UsageError:
        return UsageError(
            f"an output is computed by one job at a time; another job is writing "
            f"{self.output.spec}; wait for it, or choose another name"
        )


class Session:
    """A product being completed.

    Parameters
    ----------
    restart : Restart
    number : int
        The locked file.
    place : Place
        Where in it the product lies. Panels are written, not mapped: the product may be larger
        than memory, and on a full disk a map would end the process.
    header : dict
        Of the journal.
    entries : list of Entry
        What is finished already.

    Attributes
    ----------
    finished : bool
        Whether the product has got its name.
    """

    def __init__(
        self,
        restart: Restart,
        number: int,
        place: Place,
        header: dict[str, Any],
        entries: list[Entry],
    ) -> None:
        self.entries = list(entries)
        self.finished = False
        self._restart, self._number, self._header = restart, number, header
        self._place = place

    def save(self, panel: Panel, block: NDArray[Any], verified: str) -> None:
        """Bring a finished panel to the disk, then note it in the journal.

        Parameters
        ----------
        panel : ((int, int), (int, int))
            Rows and columns.
        block : ndarray
            Its entries, of the product's dtype.
        verified : str
            The check that it passed.

        Raises
        ------
        OSError
            The disk is full, for instance; the journal is the one of the call before.
        """
        rows, cols = panel
        place = self._place
        try:
            place.write(self._number, panel, block)
            self._sync()
        except OSError as error:
            what = f"a panel of the product cannot be written ({error.strerror})"
            raise OSError(error.errno, what, str(self._restart.part)) from error
        columns = None if cols == (0, place.width) else cols
        pieces = [np.ascontiguousarray(block).reshape(-1).view(np.uint8)]
        entry = Entry(*rows, journal.digest(pieces), verified, columns)
        entries = sorted([*self.entries, entry], key=lambda e: e.start)
        journal.write(self._restart.journal, self._restart._fresh, self._header, entries)
        self.entries = entries

    def finish(self) -> None:
        """Give the complete product its name and remove what is left.

        Raises
        ------
        UsageError
            A file of that name appeared meanwhile, and may not be replaced.
        """
        restart = self._restart
        self._sync()
        if not restart.holds(self._number):
            raise UsageError(
                f"an unfinished output must be left alone; {restart.part} was removed or replaced "
                "while it was worked on; run again"
            )
        restart.output.publish(restart.part)
        self.finished = True
        journal.sync_folder(restart.part.parent)
        restart.discard()

    def _sync(self) -> None:
        os.fsync(self._number)


def _fitting(name: str) -> str:
    """Cut a file's name so that something can be added to it; cut names stay different."""
    whole = os.fsencode(name)
    if len(whole) <= _LONGEST_NAME:
        return name
    mark = hashlib.blake2b(whole, digest_size=6).hexdigest()
    return f"{os.fsdecode(whole[: _LONGEST_NAME - 20])}-{mark}"


def _warn(text: str) -> None:
    warnings.warn(text, CodedlaWarning, stacklevel=3)


def _clear(path: Path) -> None:
    """Free a name of ours from whatever has it.

    Raises
    ------
    UsageError
        A directory with something in it, or somebody else's.
    """
    try:
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        else:
            path.unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(
            f"{path} must be free for the unfinished product; it cannot be removed "
            f"({error.strerror}); remove it, or choose another output"
        ) from error
