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
from app.nvml_device import Handle, find, name_of
from app.nvml_device import Nvml as Devices
from app.nvml_faults import absent, costs_one_figure, kind_of, lost
from ui.contracts import DeviceMemory, HostMemory

INTERVAL = 0.5  # seconds between samples; a sample takes some 100 µs, the driver itself refreshes about as often
RETRY = 5.0  # seconds until a driver that stopped answering is asked again
UNLISTED = -1  # in place of a process' number
NOT_AVAILABLE = (1 << 64) - 1  # what NVML puts into a 64-bit field that has no value


class Figures(Protocol):
    """NVML's memory struct; `reserved` in its second version only."""

    total: int
    used: int
    reserved: int


class Nvml(Devices, Protocol):
    """The part of pynvml that is used here; its calls on processes are looked up by name."""

    def nvmlInit(self) -> None: ...
    def nvmlShutdown(self) -> None: ...
    def nvmlDeviceGetMemoryInfo(self, handle: Handle, version: int | None = None) -> Figures: ...


class NvmlProbe:
    """A DeviceProbe. `pid` gives the engine's process now; `gpu` picks one by number or identifier, "" the one that the
    engine uses."""

    def __init__(
        self,
        pid: Callable[[], int | None],
        gpu: str = "",
        nvml: Nvml | None = None,
        interval: float = INTERVAL,
    ):
        self._pid, self._gpu, self._nvml, self._interval = pid, gpu, nvml, interval
        self._told = ""  # the identifier of the engine's device
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

    def follow(self, uuid: str) -> None:
        """The engine says which device it runs on: the driver may list no processes (WSL2), and CUDA counts devices in
        an order of its own."""
        self._told = uuid

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
                if kind_of(error) == "LibraryNotFound":
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
            self._now = (None, lost(error))
            self._closed.wait(RETRY)
        finally:
            with suppress(Exception):  # what is lost can't be shut down
                nvml.nvmlShutdown()

    def _sample(self, nvml: Nvml) -> DeviceMemory:
        pid = self._pid()

        def lists(handle: Handle) -> bool:
            return pid is not None and pid in (processes_of(nvml, handle) or ())

        handle = find(nvml, self._gpu, self._told, lists, os.environ.get("CUDA_VISIBLE_DEVICES", ""))
        total, used, reserved = memory_of(nvml, handle)
        process, others = split(processes_of(nvml, handle), pid)
        return DeviceMemory(
            name=name_of(nvml, handle),
            total=total,
            used=used,
            reserved=reserved,
            process=process,
            others=others,
        )


def memory_of(nvml: Nvml, handle: Handle) -> tuple[int | None, int | None, int | None]:
    """Total, used, reserved by the driver. The older call counts the reserved part as used."""
    version = getattr(nvml, "nvmlMemory_v2", None)
    if version is not None:
        try:
            info = nvml.nvmlDeviceGetMemoryInfo(handle, version=version)
            return positive(info.total), number(info.used), number(info.reserved)
        except nvml.NVMLError as error:
            if not costs_one_figure(error):
                raise
    try:
        info = nvml.nvmlDeviceGetMemoryInfo(handle)
    except nvml.NVMLError as error:
        if not costs_one_figure(error):
            raise
        return None, None, None
    return positive(info.total), number(info.used), None


def processes_of(nvml: Nvml, handle: Handle) -> dict[int, int | None] | None:
    """Bytes by process, compute and graphics; None where the driver doesn't list those that compute. Where it keeps
    only the other list to itself, `UNLISTED` stands for who may be on it."""
    found: dict[int, int | None] = {}
    for call in ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses"):
        try:
            entries = getattr(nvml, call)(handle)
        except AttributeError:  # an old binding
            entries = None
        except nvml.NVMLError as error:
            if not costs_one_figure(error):
                raise
            # a device that knows no graphics (an instance, a card without a display) has none to list
            entries = [] if "Graphics" in call and kind_of(error) == "NotSupported" else None
        if entries is None:
            if "Compute" in call:
                return None
            found[UNLISTED] = None
        for entry in entries or ():
            # a process that does both is listed twice with the same figure
            size = number(entry.usedGpuMemory)
            before = found.get(entry.pid, size)
            found[entry.pid] = None if size is None or before is None else max(size, before)
    return found


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
