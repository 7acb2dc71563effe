"""The probe against a driver made of plain values: every gap is None, every loss is a reason, and it comes back."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

from app import nvml as module
from app.nvml import NvmlProbe, first_visible, memory_of, number, processes_of, split
from ui.contracts import DeviceMemory

MIB = 1 << 20
ME = os.getpid()


class NVMLError(Exception):
    pass


def error(kind: str) -> NVMLError:
    return type(f"NVMLError_{kind}", (NVMLError,), {})(kind)


class Gpu:
    """One device; a value that is an exception is raised."""

    def __init__(self, name: str = "NVIDIA RTX 4090", uuid: str = "GPU-0"):
        self.name: object = name
        self.uuid = uuid
        self.memory2: object = SimpleNamespace(total=24564 * MIB, used=3000 * MIB, reserved=400 * MIB)
        self.memory1: object = SimpleNamespace(total=24564 * MIB, used=3400 * MIB)
        self.compute: object = {ME: 2000 * MIB, 1: 700 * MIB}
        self.graphics: object = {1: 700 * MIB}


class FakeNvml:
    """pynvml's calls over a list of devices. `fail` is raised by every call while set."""

    NVMLError = NVMLError
    nvmlMemory_v2 = 2 | 40 << 24

    def __init__(self, *gpus: Gpu):
        self.gpus = list(gpus) or [Gpu()]
        self.fail: Exception | None = None
        self.threads: set[int] = set()
        self.started = 0

    def _given(self, value: object) -> object:
        self.threads.add(threading.get_ident())
        if self.fail:
            raise self.fail
        if isinstance(value, Exception):
            raise value
        return value

    def nvmlInit(self) -> None:
        self.started += 1
        self._given(None)

    def nvmlShutdown(self) -> None:
        self.started -= 1
        self._given(None)

    def nvmlDeviceGetCount(self) -> int:
        return self._given(len(self.gpus))

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Gpu:
        return self._given(self.gpus[index] if index < len(self.gpus) else error("InvalidArgument"))

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Gpu:
        found = [gpu for gpu in self.gpus if gpu.uuid == uuid]
        return self._given(found[0] if found else error("NotFound"))

    def nvmlDeviceGetName(self, gpu: Gpu) -> object:
        return self._given(gpu.name)

    def nvmlDeviceGetMemoryInfo(self, gpu: Gpu, version: int | None = None) -> object:
        return self._given(gpu.memory2 if version else gpu.memory1)

    def _listed(self, processes: object) -> list[SimpleNamespace]:
        given = self._given(processes)
        return [SimpleNamespace(pid=pid, usedGpuMemory=size) for pid, size in given.items()]

    def nvmlDeviceGetComputeRunningProcesses(self, gpu: Gpu) -> list[SimpleNamespace]:
        return self._listed(gpu.compute)

    def nvmlDeviceGetGraphicsRunningProcesses(self, gpu: Gpu) -> list[SimpleNamespace]:
        return self._listed(gpu.graphics)


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., NvmlProbe]]:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(module, "RETRY", 0.01)
    probes = []

    def make(fake: FakeNvml, pid: int | None = ME, index: int | None = None) -> NvmlProbe:
        probes.append(NvmlProbe(lambda: pid, index, fake, interval=0.01))
        return probes[-1]

    yield make
    for probe in probes:
        probe.close()


def until(met: Callable[[], object]) -> None:
    end = time.monotonic() + 10
    while not met():
        assert time.monotonic() < end
        time.sleep(0.005)


def sample(watch: Callable[..., NvmlProbe], fake: FakeNvml, **options: int | None) -> DeviceMemory:
    probe = watch(fake, **options)
    until(probe.latest)
    assert probe.reason == ""
    return probe.latest()


def test_a_plain_gpu(watch) -> None:
    assert sample(watch, FakeNvml()) == DeviceMemory(
        name="NVIDIA RTX 4090",
        total=24564 * MIB,
        used=3000 * MIB,
        reserved=400 * MIB,
        process=2000 * MIB,
        others=700 * MIB,
    )


def test_never_on_the_thread_of_the_window(watch) -> None:
    fake = FakeNvml()
    sample(watch, fake)
    assert threading.get_ident() not in fake.threads


def test_closing_ends_the_thread_and_shuts_nvml_down(watch) -> None:
    fake = FakeNvml()
    probe = watch(fake)
    until(probe.latest)
    probe.close()
    until(lambda: fake.started == 0)


def test_an_old_driver_counts_the_reserved_part_as_used(watch) -> None:
    gpu = Gpu()
    gpu.memory2 = error("FunctionNotFound")
    seen = sample(watch, FakeNvml(gpu))
    assert (seen.total, seen.used, seen.reserved) == (24564 * MIB, 3400 * MIB, None)


def test_an_old_binding_without_the_second_call() -> None:
    fake = FakeNvml()
    fake.nvmlMemory_v2 = None
    assert memory_of(fake, fake.gpus[0]) == (24564 * MIB, 3400 * MIB, None)


def test_wsl2_lists_no_processes(watch) -> None:
    gpu = Gpu()
    gpu.compute = gpu.graphics = error("NotSupported")
    seen = sample(watch, FakeNvml(gpu))
    assert (seen.process, seen.others) == (None, None) and seen.used == 3000 * MIB


def test_windows_lists_processes_without_sizes(watch) -> None:
    gpu = Gpu()
    gpu.compute = {ME: None, 1: (1 << 64) - 1}
    seen = sample(watch, FakeNvml(gpu))
    assert (seen.process, seen.others) == (None, None)


def test_unified_memory_has_no_total(watch) -> None:
    gpu = Gpu("NVIDIA GB10")
    gpu.memory1 = gpu.memory2 = error("NotSupported")
    seen = sample(watch, FakeNvml(gpu))
    assert (seen.total, seen.used, seen.reserved, seen.process) == (None, None, None, 2000 * MIB)


@pytest.mark.parametrize("value", ["N/A", None, (1 << 64) - 1, -1, True])
def test_values_that_stand_for_none(value: object) -> None:
    assert number(value) is None


def test_a_total_of_zero_is_none(watch) -> None:
    gpu = Gpu()
    gpu.memory2 = SimpleNamespace(total=0, used=0, reserved="N/A")
    seen = sample(watch, FakeNvml(gpu))
    assert (seen.total, seen.used, seen.reserved) == (None, 0, None)


def test_names_may_be_bytes(watch) -> None:
    assert sample(watch, FakeNvml(Gpu(b"Tesla T4"))).name == "Tesla T4"


def test_a_process_that_computes_and_draws_counts_once() -> None:
    fake = FakeNvml()
    assert processes_of(fake, fake.gpus[0]) == {ME: 2000 * MIB, 1: 700 * MIB}


@pytest.mark.parametrize(
    ("processes", "pid", "parts"),
    [
        ({ME: 5, 1: 7}, ME, (5, 7)),
        ({1: 7}, ME, (0, 7)),  # an engine on the CPU
        ({1: 7}, None, (0, 7)),  # no engine now
        ({}, None, (0, 0)),
        ({}, ME, (None, None)),  # in a container: not listed
        ({2**22 + 5: 7}, ME, (None, None)),  # in a container: the host's ids
        ({ME: 5, 1: None}, ME, (5, None)),
        (None, ME, (None, None)),
        (None, None, (0, None)),
    ],
    ids=lambda value: "id" if value == ME else None,  # the same in every process that collects
)
def test_engine_and_others(processes: dict | None, pid: int | None, parts: tuple, monkeypatch) -> None:
    monkeypatch.setattr(module, "_is_here", lambda number: number in (ME, 1))
    assert split(processes, pid) == parts


def test_of_several_gpus_the_engine_s_own_is_shown(watch, monkeypatch) -> None:
    first, second = Gpu("first"), Gpu("second", "GPU-1")
    first.compute = {1: MIB}
    assert sample(watch, FakeNvml(first, second)).name == "second"
    assert sample(watch, FakeNvml(first, second), pid=None).name == "first"
    assert sample(watch, FakeNvml(first, second), index=0).name == "first"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-1,GPU-0")
    assert sample(watch, FakeNvml(first, second), pid=None).name == "second"


@pytest.mark.parametrize(
    ("visible", "name"), [("", "a"), ("1", "b"), ("GPU-1", "b"), ("-1", "a"), ("9", "a"), ("GPU-9", "a"), ("x", "a")]
)
def test_the_first_device_that_cuda_sees(visible: str, name: str) -> None:
    assert first_visible(FakeNvml(Gpu("a"), Gpu("b", "GPU-1")), visible).name == name


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("LibraryNotFound", "no NVIDIA driver on this machine"),
        ("DriverNotLoaded", "not loaded"),
        ("LibRmVersionMismatch", "restart the machine"),
        ("NoPermission", "permission"),
        ("Unknown", "does not answer"),
    ],
)
def test_without_a_driver_there_is_a_reason(watch, kind: str, said: str) -> None:
    fake = FakeNvml()
    fake.fail = error(kind)
    probe = watch(fake)
    until(lambda: said in probe.reason)
    assert probe.latest() is None


def test_without_the_module_there_is_a_reason(watch, monkeypatch) -> None:
    def absent(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(module.importlib, "import_module", absent)
    probe = watch(None)
    until(lambda: "nvidia-ml-py" in probe.reason)


def test_a_driver_that_vanishes_and_comes_back(watch) -> None:
    fake = FakeNvml()
    probe = watch(fake)
    until(probe.latest)
    fake.fail = error("GpuIsLost")
    until(lambda: probe.latest() is None)
    until(lambda: "GpuIsLost" in probe.reason)
    fake.fail = None
    until(probe.latest)
    assert probe.reason == ""


def test_a_driver_that_vanishes_while_only_one_call_fails(watch) -> None:
    fake = FakeNvml()
    probe = watch(fake)
    until(probe.latest)
    fake.gpus[0].memory2 = error("Unknown")
    until(lambda: "stopped answering (Unknown)" in probe.reason)
    assert probe.latest() is None


def test_the_real_library_gives_a_sample_or_a_reason() -> None:
    probe = NvmlProbe(lambda: ME)
    try:
        until(lambda: probe.latest() is not None or "yet" not in probe.reason)
        assert (probe.latest() is None) == bool(probe.reason)
    finally:
        probe.close()
