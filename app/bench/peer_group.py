"""A process group that a bench starts, holds still while something else is measured, and stops for certain.

While it is held the whole group is stopped (SIGSTOP), so that it costs memory and nothing else, whatever it does when
idle. Knows nothing of what it runs.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

STOP_LIMIT = 10.0  # s between asking and killing
SHOWN = 300  # characters of a last line


class PeerFailed(Exception):
    """A peer can't be run; the message is for the user."""


class Group:
    """A process group, its output in a log whose last line explains its end."""

    def __init__(self, name: str, command: Sequence[str], log: Path, environment: dict[str, str], pipes: bool = False):
        """Runs in the folder of its log."""
        self.name = name
        self.log = log
        wanted = subprocess.PIPE if pipes else subprocess.DEVNULL
        try:
            with open(log, "wb") as written:
                self.process = subprocess.Popen(
                    command,
                    stdin=wanted,
                    stdout=wanted if pipes else written,
                    stderr=written,
                    env=environment,
                    cwd=log.parent,
                    start_new_session=True,  # Ctrl-C is ours to answer, for a stopped group would never hear it
                )
        except OSError as error:
            raise PeerFailed(f"{name} can't be started: {command[0]}: {error.strerror}") from None

    def check(self) -> None:
        code = self.process.poll()
        if code is not None:
            raise PeerFailed(f"{self.name} ended with {code}: {last_words(self.log)}")

    def wake(self) -> None:
        self._tell(signal.SIGCONT)

    def hold(self) -> None:
        self._tell(signal.SIGSTOP)

    @contextmanager
    def awake(self) -> Iterator[None]:
        """The group runs inside the block and is held outside it."""
        self.check()
        self.wake()
        try:
            yield
        finally:
            self.hold()

    def stop(self) -> None:
        """Ask, wait, kill; children that outlived their parent too."""
        self._tell(signal.SIGTERM)
        self.wake()
        try:
            self.process.wait(STOP_LIMIT)
        except subprocess.TimeoutExpired:
            pass
        finally:
            self._tell(signal.SIGKILL)
            self.process.wait()
            for pipe in (self.process.stdin, self.process.stdout):
                if pipe:
                    pipe.close()

    def _tell(self, what: signal.Signals) -> None:
        try:
            os.killpg(self.process.pid, what)
        except (ProcessLookupError, PermissionError):  # gone; macOS calls a group of zombies forbidden
            return


def last_words(log: Path) -> str:
    return last_of(log.read_text(encoding="utf-8", errors="replace"))


def last_of(text: str) -> str:
    """The last line that names an error, else the last."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"\w*Error\b|error:", line)]
    return (errors or lines or ["it said nothing"])[-1][:SHOWN]
