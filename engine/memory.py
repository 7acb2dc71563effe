"""What this process and this machine know of their memory, bytes. Guarded: each figure is 0 or None where the
system doesn't tell. NVML isn't asked here: the window's process samples it, so that it outlives the engine.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from typing import NamedTuple

KIB = 1 << 10
_NO_MEMORY = ("can't allocate memory", "bad_alloc", "out of memory")  # torch's allocator, C++'s, CUDA's


class Resident(NamedTuple):
    """Pages of a process that are in memory, bytes."""

    total: int = 0
    files: int = 0  # of files: libraries, a model that is mapped. The system can take them back; 0 where it can't tell


NOTHING = Resident()


def resident() -> Resident:
    """Of this process; nothing where it can't be had."""
    try:
        if sys.platform == "linux":
            _, total, files, *_ = Path("/proc/self/statm").read_text().split()
            page = os.sysconf("SC_PAGE_SIZE")
            return Resident(int(total) * page, int(files) * page)
        if sys.platform == "win32":
            return Resident(_windows_working_set())
        return Resident(_peak_resident())
    except (OSError, ValueError, AttributeError):
        return NOTHING


def available_bytes() -> int | None:
    """Memory that new allocations may take without swapping, a container's limit counted; None: not known."""
    try:
        if sys.platform == "linux":
            return min(_meminfo("MemAvailable"), *_cgroup_room(), *_address_room())
        if sys.platform == "win32":
            return _windows_status().available
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2  # macOS: total is all it tells
    except (OSError, ValueError, KeyError, AttributeError):
        return None


def ran_out(error: BaseException) -> bool:
    """Whether an allocation failed. torch tells that of the CPU's memory by a plain RuntimeError."""
    if isinstance(error, MemoryError):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(words in text for words in _NO_MEMORY)


def plainly(error: BaseException) -> str:
    """A failed allocation in one line, without where in whose code it failed."""
    first = (str(error).splitlines() or [""])[0]
    return first.rpartition("DefaultCPUAllocator: ")[2] or "the system gave no more"


# --- Linux ---


def _meminfo(key: str) -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    figures = {name: rest for name, _, rest in (line.partition(":") for line in lines)}
    return int(figures[key].split()[0]) * KIB


def _cgroup_room() -> list[int]:
    """What the container's limit leaves, if there is one (cgroup v2, then v1)."""
    root = Path("/sys/fs/cgroup")
    room = []
    for limit, usage in (
        (root / "memory.max", root / "memory.current"),
        (root / "memory/memory.limit_in_bytes", root / "memory/memory.usage_in_bytes"),
    ):
        try:
            room.append(max(0, int(limit.read_text()) - int(usage.read_text())))
        except (OSError, ValueError):  # no such file; or "max": no limit
            continue
    return room


def _address_room() -> list[int]:
    """What `ulimit -v` leaves, if it is set."""
    import resource  # not on Windows

    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return []
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    return [max(0, limit - mapped)]


# --- macOS ---


def _peak_resident() -> int:
    """The highest it has been: the current figure would need Mach calls."""
    import resource  # not on Windows

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS


# --- Windows ---


class _Status(ctypes.Structure):
    """MEMORYSTATUSEX."""

    _fields_ = [
        ("length", ctypes.c_uint32),
        ("load", ctypes.c_uint32),
        ("total", ctypes.c_uint64),
        ("available", ctypes.c_uint64),
        ("_rest", ctypes.c_uint64 * 5),
    ]


class _Counters(ctypes.Structure):
    """PROCESS_MEMORY_COUNTERS."""

    _fields_ = [
        ("size", ctypes.c_uint32),
        ("faults", ctypes.c_uint32),
        ("peak", ctypes.c_size_t),
        ("working_set", ctypes.c_size_t),
        ("_rest", ctypes.c_size_t * 6),
    ]


def _windows_status() -> _Status:
    status = _Status(length=ctypes.sizeof(_Status))
    if not ctypes.windll.kernel32.GlobalMemoryStatusEx(ctypes.byref(status)):
        raise OSError("GlobalMemoryStatusEx failed")
    return status


def _windows_working_set() -> int:
    counters = _Counters(size=ctypes.sizeof(_Counters))
    kernel = ctypes.windll.kernel32
    kernel.GetCurrentProcess.restype = ctypes.c_void_p
    kernel.K32GetProcessMemoryInfo.argtypes = [ctypes.c_void_p, ctypes.POINTER(_Counters), ctypes.c_uint32]
    if not kernel.K32GetProcessMemoryInfo(kernel.GetCurrentProcess(), ctypes.byref(counters), counters.size):
        raise OSError("K32GetProcessMemoryInfo failed")
    return counters.working_set
