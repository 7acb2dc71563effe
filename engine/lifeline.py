"""The child dies with its parent, however the parent died, and even in the middle of a long native call.

Linux kills it outright (PR_SET_PDEATHSIG). Everywhere, a thread waits for the parent's end, which shows as an
end of file on a pipe that only the parent holds, and looks at the parent's id now and then.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
import time
from multiprocessing.connection import wait

PR_SET_PDEATHSIG = 1  # from linux/prctl.h
LOOK = 0.5  # s between looks at the parent's id


def tie_to_parent(parent: int) -> None:
    """Call first thing in the child. `parent` is the id of the process that started it."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.name == "posix" and os.getppid() != parent:  # it died before the tie was made
        os._exit(1)
    threading.Thread(target=_watch, args=(parent,), name="lifeline", daemon=True).start()


def _watch(parent: int) -> None:
    process = multiprocessing.parent_process()
    while True:
        if process is None:  # not started by multiprocessing, so that there is no pipe
            time.sleep(LOOK)
        elif wait([process.sentinel], LOOK):
            break
        if os.name == "posix" and os.getppid() != parent:
            break
    os._exit(1)
