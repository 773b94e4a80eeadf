"""What becomes of open recorders when the process exits, is forked, or is told to end by SIGTERM (decision 10)."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
from types import FrameType
from typing import Protocol

from monitor_core.limits import SIGTERM_TIMEOUT_S
from monitor_core.manifest import Status

_NUMBER = int(signal.SIGTERM)
_DEFAULT = 0  # SIG_DFL as a C pointer
_REMOVED, _CALLED = b"\0", b"\xff"  # no signal has these numbers


class Closable(Protocol):
    """A recorder, as far as this file knows it."""

    def close(self, status: Status = "finished", reason: str | None = None) -> object:
        """Write what is left and say how it ended."""

    def silence(self) -> None:
        """Stop without writing anything."""


_open: set[Closable] = set()
_watch: SigtermWatch | None = None
_ending = False


def opened(recorder: Closable) -> None:
    """From now on ``recorder`` is closed when the program ends, and silenced in forked children."""
    global _watch
    _open.add(recorder)
    if _watch is None:
        _watch = SigtermWatch.install()


def closed(recorder: Closable) -> None:
    """``recorder`` has ended by itself. With the last one SIGTERM is given back."""
    global _watch
    _open.discard(recorder)
    if not _open and _watch is not None and _watch.remove():
        _watch = None


def ending() -> bool:
    """Whether SIGTERM has come: the process lives for some milliseconds more and nothing must be opened."""
    return _ending


class SigtermWatch:
    """SIGTERM closes the open recorders first and then kills the process as it would have done without us.

    Python runs signal handlers in the main thread only, between two bytecodes. A training may sit in one C call for minutes,
    or for ever when a collective hangs, and must die of SIGTERM all the same. So the work is done by a thread of its own
    that sleeps on the pipe into which the interpreter writes each signal's number at once (``signal.set_wakeup_fd``).
    The main thread is not held up meanwhile: it may own a lock that closing needs.
    """

    def __init__(self) -> None:
        self._process = os.getpid()
        self._removed = False
        self._shared = False
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._thread = threading.Thread(target=self._run, name="msmon-sigterm", daemon=True)

    @classmethod
    def install(cls) -> SigtermWatch | None:
        """None where SIGTERM is not ours to take: somebody handles or ignores it, or this is not the main thread."""
        if os.name != "posix" or not _in_main_thread() or _disposition() != _DEFAULT:
            return None
        with contextlib.suppress(OSError, ValueError):  # no descriptor left, or not the main interpreter
            watch = cls()
            watch._thread.start()
            before = signal.set_wakeup_fd(watch._write, warn_on_full_buffer=False)
            if before == -1:
                signal.signal(_NUMBER, watch._called)
                return watch
            signal.set_wakeup_fd(before)
            os.write(watch._write, _REMOVED)
        return None

    def remove(self) -> bool:
        """Give SIGTERM back, unless somebody took it since; False when this thread cannot (then it stays, and only kills)."""
        if not _in_main_thread():
            return False
        self._give_back()
        with contextlib.suppress(BlockingIOError):
            os.write(self._write, _REMOVED)
        return True

    def forget(self) -> None:
        """In a forked child, which has this object but not its thread."""
        self._give_back()
        self._close_pipe()

    def _give_back(self) -> None:
        self._removed = True
        with contextlib.suppress(ValueError):
            if signal.getsignal(_NUMBER) == self._called:
                signal.signal(_NUMBER, signal.SIG_DFL)
            now = signal.set_wakeup_fd(-1)
            if now not in (-1, self._write):
                signal.set_wakeup_fd(now)
                self._shared = True

    def _called(self, number: int, frame: FrameType | None) -> None:
        """The handler. It interrupts anything the main thread does, so it takes no lock.

        A handler that was put over ours may call it too, after its own work.
        """
        if self._removed or os.getpid() != self._process:
            _die()
        with contextlib.suppress(BlockingIOError):  # full of bytes that say the same
            os.write(self._write, _CALLED)

    def _run(self) -> None:
        while (byte := os.read(self._read, 1)) != _REMOVED:
            # Who has put another handler over ours decides alone what SIGTERM does.
            unopposed = signal.getsignal(_NUMBER) in (self._called, signal.SIG_DFL)
            if byte == _CALLED or (byte[0] == _NUMBER and unopposed):
                _end()
        self._close_pipe()

    def _close_pipe(self) -> None:
        """Not when somebody put a pipe in the place of ours: to put ours back later would name some other file by then."""
        if not self._shared:
            os.close(self._read)
            os.close(self._write)


def _end() -> None:
    global _ending
    _ending = True
    closer = threading.Thread(target=_close_all, args=("stopped", "SIGTERM"), name="msmon-closer", daemon=True)
    closer.start()
    closer.join(SIGTERM_TIMEOUT_S)
    _die()


def _die() -> None:
    """By SIGTERM itself, so that the parent sees what it would have seen."""
    ctypes.pythonapi.PyOS_setsig(ctypes.c_int(_NUMBER), ctypes.c_void_p(_DEFAULT))
    os.kill(os.getpid(), _NUMBER)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _disposition() -> int:
    """The handler as the system knows it: C libraries install some that ``signal.getsignal`` does not see."""
    ask = ctypes.pythonapi.PyOS_getsig
    ask.restype = ctypes.c_void_p
    return ask(ctypes.c_int(_NUMBER)) or _DEFAULT


def _close_all(status: Status, reason: str) -> None:
    while _open:  # until the main thread is through, too, which may be opening or closing one at this very moment
        for recorder in list(_open):
            recorder.close(status, reason)
        time.sleep(0.002)


def _at_exit() -> None:
    uncaught = None if hasattr(sys, "ps1") else getattr(sys, "last_type", None)  # at a prompt it is any earlier one
    reason = uncaught.__name__ if uncaught else "the program ended before train_end"
    failed = uncaught is not None and issubclass(uncaught, Exception)
    for recorder in list(_open):
        recorder.close("failed" if failed else "stopped", reason)


def _in_child() -> None:
    global _watch, _ending
    for recorder in list(_open):
        recorder.silence()
    _open.clear()
    _ending = False
    if _watch is not None:
        _watch.forget()
        _watch = None


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
