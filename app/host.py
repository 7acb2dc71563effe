"""What the system says of a process' memory and of the machine's, from outside the process, so that it outlives it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from ui.contracts import HostMemory

KIB = 1 << 10


def host_memory(pid: int | None) -> HostMemory:
    """`own` is 0 once the process is gone; what this system doesn't tell is None. Linux tells all of it."""
    if not sys.platform.startswith("linux"):
        return HostMemory(own=None if pid is None or _is_alive(pid) else 0, available=None)
    return HostMemory(own=_own(pid), available=_available())


def _own(pid: int | None) -> int:
    """Resident pages that are no file's."""
    try:
        _, resident, files, *_ = Path(f"/proc/{pid}/statm").read_text().split()
    except (OSError, ValueError):
        return 0
    return (int(resident) - int(files)) * os.sysconf("SC_PAGE_SIZE")


def _available() -> int | None:
    """What programs may take without swapping."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * KIB
    except (OSError, ValueError, IndexError):
        pass
    return None


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
