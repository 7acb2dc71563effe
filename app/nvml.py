"""What the NVIDIA driver says of a GPU's memory, sampled beside the window, never on its thread.

By the engine's process id and from outside it, so that the figures outlive the engine and prove that its memory
came back. A value that the driver doesn't give (WSL2, unified memory, old drivers) is None, never 0. Knows nothing
of torch, models or pools.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from app.host import host_memory
from ui.contracts import DeviceMemory, HostMemory

INTERVAL = 0.5  # seconds between samples; a sample takes some 100 µs, the driver itself refreshes about as often
RETRY = 5.0  # seconds until a driver that stopped answering is asked again
NOT_AVAILABLE = (1 << 64) - 1  # what NVML puts into a 64-bit field that has no value


Handle = object  # a device, opaque


class Figures(Protocol):
    """NVML's memory struct; `reserved` in its second version only."""

    total: int
    used: int
    reserved: int


class Nvml(Protocol):
    """The part of pynvml that is used here; its calls on processes are looked up by name."""

    NVMLError: type[Exception]

    def nvmlInit(self) -> None: ...
    def nvmlShutdown(self) -> None: ...
    def nvmlDeviceGetCount(self) -> int: ...
    def nvmlDeviceGetHandleByIndex(self, index: int) -> Handle: ...
    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Handle: ...
    def nvmlDeviceGetName(self, handle: Handle) -> str | bytes: ...
    def nvmlDeviceGetMemoryInfo(self, handle: Handle, version: int | None = None) -> Figures: ...


class NvmlProbe:
    """A DeviceProbe. `pid` gives the engine's process now; `index` picks a GPU, None the one the engine uses."""

    def __init__(
        self,
        pid: Callable[[], int | None],
        index: int | None = None,
        nvml: Nvml | None = None,
        interval: float = INTERVAL,
    ):
        self._pid, self._index, self._nvml, self._interval = pid, index, nvml, interval
        # one tuple, replaced whole: a reader on another thread never sees half a change
        self._now: tuple[DeviceMemory | None, str] = (None, "the NVIDIA driver has not answered yet")
        self._closed = threading.Event()
        # a daemon: a driver that hangs must not keep the program from ending
        threading.Thread(target=self._run, name="nvml", daemon=True).start()

    def latest(self) -> DeviceMemory | None:
        return self._now[0]

    @property
    def reason(self) -> str:
        return self._now[1]

    def host(self) -> HostMemory:
        return host_memory(self._pid())

    def close(self) -> None:
        """Ends the sampling; returns at once."""
        self._closed.set()

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                nvml = self._nvml or importlib.import_module("pynvml")
            except ImportError:
                self._now = (None, "the module pynvml is missing; pip install nvidia-ml-py")
                return
            try:
                nvml.nvmlInit()
            except Exception as error:  # its own errors, and those of a broken library
                self._now = (None, absent(error))
                if type(error).__name__.endswith("LibraryNotFound"):
                    return  # it won't appear while this program runs
                self._closed.wait(RETRY)
                continue
            self._sample_until_lost(nvml)

    def _sample_until_lost(self, nvml: Nvml) -> None:
        try:
            while True:
                self._now = (self._sample(nvml), "")
                if self._closed.wait(self._interval):
                    return
        except Exception as error:  # a driver that is being replaced, a GPU that fell off the bus
            self._now = (None, f"the NVIDIA driver stopped answering ({_words(error)}); asking again")
            self._closed.wait(RETRY)
        finally:
            with suppress(Exception):  # what is lost can't be shut down
                nvml.nvmlShutdown()

    def _sample(self, nvml: Nvml) -> DeviceMemory:
        pid = self._pid()
        handle, processes = self._device(nvml, pid)
        name = nvml.nvmlDeviceGetName(handle)
        total, used, reserved = memory_of(nvml, handle)
        process, others = split(processes, pid)
        return DeviceMemory(
            name=name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name),
            total=total,
            used=used,
            reserved=reserved,
            process=process,
            others=others,
        )

    def _device(self, nvml: Nvml, pid: int | None) -> tuple[Handle, dict[int, int | None] | None]:
        """The device to show with its processes: the chosen one, or where the engine runs, or CUDA's first."""
        if self._index is not None:
            handle = nvml.nvmlDeviceGetHandleByIndex(self._index)
            return handle, processes_of(nvml, handle)
        count = nvml.nvmlDeviceGetCount()
        if count > 1 and pid is not None:
            for index in range(count):
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                processes = processes_of(nvml, handle)
                if processes and pid in processes:
                    return handle, processes
        handle = first_visible(nvml, os.environ.get("CUDA_VISIBLE_DEVICES", ""))
        return handle, processes_of(nvml, handle)


def first_visible(nvml: Nvml, visible: str) -> Handle:
    """CUDA's first device: NVML counts all, CUDA only those that CUDA_VISIBLE_DEVICES names."""
    first = visible.split(",")[0].strip()
    try:
        if first.isdigit():
            return nvml.nvmlDeviceGetHandleByIndex(int(first))
        if first.startswith("GPU-"):
            return nvml.nvmlDeviceGetHandleByUUID(first)
    except nvml.NVMLError:
        pass  # a name that this machine doesn't have: CUDA sees none, the window shows the first
    return nvml.nvmlDeviceGetHandleByIndex(0)


def memory_of(nvml: Nvml, handle: Handle) -> tuple[int | None, int | None, int | None]:
    """Total, used, reserved by the driver. The older call counts the reserved part as used."""
    version = getattr(nvml, "nvmlMemory_v2", None)
    if version is not None:
        try:
            info = nvml.nvmlDeviceGetMemoryInfo(handle, version=version)
            return positive(info.total), number(info.used), number(info.reserved)
        except nvml.NVMLError as error:
            if not _unsupported(error):
                raise
    try:
        info = nvml.nvmlDeviceGetMemoryInfo(handle)
    except nvml.NVMLError as error:
        if not _unsupported(error):
            raise
        return None, None, None
    return positive(info.total), number(info.used), None


def processes_of(nvml: Nvml, handle: Handle) -> dict[int, int | None] | None:
    """Bytes by process, compute and graphics; None where the driver doesn't list them."""
    found: dict[int, int | None] = {}
    listed = False
    for call in ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses"):
        try:
            entries = getattr(nvml, call)(handle)
        except nvml.NVMLError as error:
            if not _unsupported(error):
                raise
            continue
        listed = True
        for entry in entries:
            # a process that does both is listed twice with the same figure
            size = number(entry.usedGpuMemory)
            before = found.get(entry.pid, size)
            found[entry.pid] = None if size is None or before is None else max(size, before)
    return found if listed else None


def split(processes: dict[int, int | None] | None, pid: int | None) -> tuple[int | None, int | None]:
    """The engine's part and that of all others; None where it isn't known."""
    if processes is None:
        return (0 if pid is None else None), None
    if pid is not None and pid not in processes and not any(_is_here(other) for other in processes):
        # in a container the driver lists none, or the host's ids: ours may be among them under another number
        return None, None
    mine = 0 if pid is None else processes.get(pid, 0)
    rest = [size for other, size in processes.items() if other != pid]
    return mine, None if None in rest else sum(size for size in rest if size is not None)


def _is_here(pid: int) -> bool:
    """Whether that number means a process to this system (Linux; elsewhere the driver's ids are the system's)."""
    return not sys.platform.startswith("linux") or Path(f"/proc/{pid}").exists()


def number(value: object) -> int | None:
    """A byte count, or None for what stands for 'not available'."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < NOT_AVAILABLE:
        return value
    return None


def positive(value: object) -> int | None:
    return number(value) or None


def absent(error: Exception) -> str:
    """Why there are no figures at all, for the user."""
    kind = type(error).__name__
    if kind.endswith("LibraryNotFound"):
        return "no NVIDIA driver on this machine"
    if kind.endswith("DriverNotLoaded"):
        return "the NVIDIA driver is installed but not loaded; load it, or restart the machine after an update"
    if kind.endswith("LibRmVersionMismatch"):
        return "the NVIDIA driver and its library differ in version; restart the machine after the update"
    if kind.endswith("NoPermission"):
        return "no permission to ask the NVIDIA driver; is this user in the group that may use the GPU?"
    return f"the NVIDIA driver does not answer ({_words(error)})"


def _unsupported(error: Exception) -> bool:
    """The device doesn't tell this, as opposed to not answering at all."""
    names = ("NotSupported", "FunctionNotFound", "NoPermission", "ArgumentVersionMismatch", "InvalidArgument", "NoData")
    return type(error).__name__.endswith(names)


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__
