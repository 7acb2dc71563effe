"""One life of the child process: start it, carry bytes both ways, and say in plain words how it ended.

The supervisor thread starts the child, reads from it until it is gone and reaps it. It is one thread for all
of this because Linux ties the child's life to the thread that started it (PR_SET_PDEATHSIG), and so that
nobody else waits for the process. What the child writes to its standard output and error goes to a
file without a name and ends up in `Died.detail`, not on the user's terminal; SERVESCOPE_DEBUG=1 leaves it there.

Knows nothing of the engine: the worker is looked up by name, and only in the child.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import signal
import tempfile
import threading
import traceback
from multiprocessing.connection import Connection, wait
from queue import SimpleQueue

from engine.backlog import Backlog, tag_of
from engine.records import Died, Stop, encode

WORKER = "engine.worker:main"
GRACE = 3.0  # s between asking the child to stop and killing it
DETAIL = 8_000  # characters of the child's last output kept for a bug report

_MASKED = (signal.SIGINT,)
_CAN_MASK = hasattr(signal, "pthread_sigmask")


class Child:
    """`target` is "module:function", called in the child with (commands, records, config)."""

    def __init__(self, config: bytes, target: str = WORKER):
        self.backlog = Backlog()
        self.pid: int | None = None
        self._commands: SimpleQueue[bytes | None] = SimpleQueue()
        self._started = threading.Event()
        self._process: multiprocessing.process.BaseProcess | None = None
        self._ending: threading.Thread | None = None
        self._log = _Log()
        self._supervisor = threading.Thread(
            target=self._supervise, args=(config, target), name="engine-supervisor", daemon=True
        )
        self._supervisor.start()

    def send(self, data: bytes) -> None:
        """Hand over an encoded command; returns at once. Lost when the child is gone."""
        self._commands.put(data)

    def close(self) -> None:
        """Ask the child to stop, and see to it in the background that it does."""
        if self._ending is None:
            self.send(encode(Stop(id=0)))
            # Not a daemon thread: the program doesn't exit before the child is gone.
            self._ending = threading.Thread(target=self._end, name="engine-closer")
            self._ending.start()

    def join(self, timeout: float | None = None) -> bool:
        """Wait until the child is gone and reaped; False when it wasn't in time."""
        self._supervisor.join(timeout)
        return not self._supervisor.is_alive()

    # --- the supervisor's thread ---

    def _supervise(self, config: bytes, target: str) -> None:
        try:
            records, commands = self._start(config, target)
            threading.Thread(target=self._write, args=(commands,), name="engine-commands", daemon=True).start()
            last = self._receive(records)
            code = self._reap()
            if last not in (b"Died", b"Ended"):
                self.backlog.put(encode(Died(reason=explain(code), detail=self._log.tail())))
        except Exception as error:
            what = "started" if self._process is None else "read from"
            reason = f"The engine's process could not be {what}: {error}. Restart it."
            self.backlog.put(encode(Died(reason=reason, detail=traceback.format_exc())))
        finally:
            self._started.set()
            self._commands.put(None)
            self._log.close()
            self.backlog.close()

    def _receive(self, records: Connection) -> bytes:
        """Read until the child's end of the pipe is gone; the tag of the last message."""
        last = b""
        with records, contextlib.suppress(EOFError, OSError):
            while True:
                data = records.recv_bytes()
                self.backlog.put(data)
                last = tag_of(data)
        return last

    def _start(self, config: bytes, target: str) -> tuple[Connection, Connection]:
        context = multiprocessing.get_context("spawn")
        records, child_records = context.Pipe(duplex=False)
        child_commands, commands = context.Pipe(duplex=False)
        process = context.Process(
            target=_enter,
            args=(target, child_commands, child_records, config, self._log.path, os.getpid()),
            name="servescope-engine",
            daemon=True,
        )
        with _no_interrupts():
            process.start()
        # Only the child may hold its ends: then its death is an end of file here, and ours one there.
        child_records.close()
        child_commands.close()
        self._process, self.pid = process, process.pid
        self._started.set()
        return records, commands

    def _reap(self) -> int | None:
        process = self._process
        assert process is not None
        process.join(GRACE)
        if process.exitcode is None:  # it closed its pipe, yet lives
            process.kill()
            process.join()
        return process.exitcode

    def _write(self, commands: Connection) -> None:
        with contextlib.suppress(OSError):
            while (data := self._commands.get()) is not None:
                commands.send_bytes(data)
        commands.close()

    # --- the closer's thread ---

    def _end(self) -> None:
        self._started.wait()
        process = self._process
        if process is not None and not wait([process.sentinel], GRACE):
            process.kill()
        self._supervisor.join(GRACE)


def explain(code: int | None) -> str:
    """How a child ended that said nothing itself, and what to do about it."""
    restart = "Restart it"
    if code is None or code == 0:
        return f"The engine ended without saying why. {restart}."
    if code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        if name == "SIGKILL":
            return (
                "The engine was killed (SIGKILL): by the system because memory ran out, or by hand. "
                f"{restart}; if it happens again, choose fewer KV blocks or a smaller model."
            )
        if name == "SIGTERM":
            return f"The engine was ended by another program (SIGTERM). {restart}."
        return (
            f"The engine crashed in native code ({name}). {restart}; if it happens again, try another device "
            "or dtype, and report it with the detail."
        )
    return f"The engine ended with exit code {code}. {restart}; the detail says what it printed last."


class _Log:
    """A file for what the child prints. Its name is gone as soon as the child has opened it."""

    def __init__(self) -> None:
        self._fd = -1
        self.path = ""
        if not os.environ.get("SERVESCOPE_DEBUG"):
            with contextlib.suppress(OSError):  # a full disk costs the detail of a crash, no more
                self._fd, self.path = tempfile.mkstemp(prefix="servescope-", suffix=".log")

    def tail(self) -> str:
        if self._fd < 0:
            return ""
        with open(os.dup(self._fd), "rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(0, end - DETAIL))
            return file.read().decode("utf-8", "replace").strip()

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            with contextlib.suppress(OSError):
                os.unlink(self.path)


@contextlib.contextmanager
def _no_interrupts():
    """Block Ctrl-C in this thread, and so in the child until it can ignore it: its owner decides."""
    if not _CAN_MASK:
        yield
        return
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()  # would be started by start(), and clears the mask when it is
    old = signal.pthread_sigmask(signal.SIG_BLOCK, _MASKED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old)


# --- in the child ---


def _enter(
    target: str, commands: Connection, records: Connection, config: bytes, log: str, parent: int
) -> None:
    """The child's first function: nothing of the engine is imported yet, nor may it be before this."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if _CAN_MASK:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _MASKED)
    if log:
        _redirect(log)
    try:
        from engine.lifeline import tie_to_parent

        tie_to_parent(parent)
        module, _, name = target.partition(":")
        getattr(importlib.import_module(module), name)(commands, records, config)
    except ImportError as error:
        reason = f"The engine could not be loaded: {error}. Reinstall Servescope in this environment."
        records.send_bytes(encode(Died(reason=reason, detail=traceback.format_exc())))
    except Exception as error:
        reason = f"The engine failed: {type(error).__name__}: {error}"
        records.send_bytes(encode(Died(reason=reason, detail=traceback.format_exc())))


def _redirect(log: str) -> None:
    fd = os.open(log, os.O_WRONLY | os.O_APPEND)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.close(fd)
    if os.name == "posix":
        os.unlink(log)
    import faulthandler

    faulthandler.enable(2)  # a crash in native code leaves its stack in the log
