"""The probe against a driver made of plain values: every gap is None, every loss is a reason, and it comes back."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pynvml
import pytest

from app import nvml as module
from app.nvml import NvmlProbe, memory_of, number, processes_of, split
from app.nvml_device import first_visible
from app.nvml_faults import LOST
from ui.contracts import DeviceMemory

MIB = 1 << 20
ME = os.getpid()


class NVMLError(Exception):
    pass


def error(kind: str) -> NVMLError:
    return type(f"NVMLError_{kind}", (NVMLError,), {})(kind)


class Gpu:
    """One device; a value that is an exception is raised. `parts`: its instances, None for a GPU without MIG."""

    def __init__(self, name: str = "NVIDIA RTX 4090", uuid: str = "GPU-0"):
        self.name: object = name
        self.uuid = uuid
        self.memory2: object = SimpleNamespace(total=24564 * MIB, used=3000 * MIB, reserved=400 * MIB)
        self.memory1: object = SimpleNamespace(total=24564 * MIB, used=3400 * MIB)
        self.compute: object = {ME: 2000 * MIB, 1: 700 * MIB}
        self.graphics: object = {1: 700 * MIB}
        self.parts: list[Gpu] | None = None
        self.broken: Exception | None = None  # by whatever asks for it


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
        if index >= len(self.gpus):
            return self._given(error("InvalidArgument"))
        return self._given(self.gpus[index].broken or self.gpus[index])

    def nvmlDeviceGetUUID(self, gpu: Gpu) -> str:
        return self._given(gpu.uuid)

    def nvmlDeviceGetMigMode(self, gpu: Gpu) -> tuple[int, int]:
        return self._given(error("NotSupported") if gpu.parts is None else (1, 1))

    def nvmlDeviceGetMaxMigDeviceCount(self, gpu: Gpu) -> int:
        return self._given(7)

    def nvmlDeviceGetMigDeviceHandleByIndex(self, gpu: Gpu, index: int) -> Gpu:
        parts = dict(zip((0, 2, 5), gpu.parts, strict=False))  # numbers have gaps
        return self._given(parts.get(index) or error("NotFound"))

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

    def make(fake: FakeNvml, pid: int | None = ME, gpu: str = "") -> NvmlProbe:
        probes.append(NvmlProbe(lambda: pid, gpu, fake, interval=0.01))
        return probes[-1]

    yield make
    for probe in probes:
        probe.close()


def until(met: Callable[[], object]) -> None:
    end = time.monotonic() + 10
    while not met():
        assert time.monotonic() < end
        time.sleep(0.005)


def sample(watch: Callable[..., NvmlProbe], fake: FakeNvml, **options: object) -> DeviceMemory:
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
    assert sample(watch, FakeNvml(first, second), gpu="0").name == "first"
    assert sample(watch, FakeNvml(first, second), gpu="1", pid=None).name == "second"
    assert sample(watch, FakeNvml(first, second), gpu="GPU-1", pid=None).name == "second"
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


def test_the_engine_s_own_word_finds_its_gpu_where_no_processes_are_listed(watch) -> None:
    """WSL2 lists none, and CUDA's first device needn't be the driver's."""
    first, second = Gpu("first", "GPU-AB-1"), Gpu("second", "GPU-AB-2")
    for gpu in (first, second):
        gpu.compute = gpu.graphics = error("NotSupported")
    probe = watch(FakeNvml(first, second))
    until(probe.latest)
    assert probe.latest().name == "first"
    probe.follow("ab-2")  # torch's spelling
    until(lambda: probe.latest().name == "second")
    probe.follow("")  # an engine on the CPU next
    until(lambda: probe.latest().name == "first")


def test_a_gpu_that_is_not_here_is_said_with_those_that_are(watch) -> None:
    for chosen in ("7", "GPU-9", "MIG-9", "nonsense"):
        probe = watch(FakeNvml(Gpu("first"), Gpu("second", "GPU-1")), gpu=chosen)
        until(lambda probe=probe: "there is no GPU" in probe.reason)
        assert probe.latest() is None
        assert f"'{chosen}'" in probe.reason and "0 (first), 1 (second)" in probe.reason


def test_a_broken_gpu_does_not_hide_the_others(watch) -> None:
    broken, well = Gpu("broken"), Gpu("well", "GPU-1")
    broken.broken = error("GpuIsLost")
    assert sample(watch, FakeNvml(broken, well)).name == "well"
    assert sample(watch, FakeNvml(broken, well), pid=None).name == "well"
    broken.broken, broken.compute = None, error("GpuIsLost")  # it answers, until it is asked
    assert sample(watch, FakeNvml(broken, well)).name == "well"
    alone = FakeNvml(Gpu())
    alone.gpus[0].broken = error("GpuIsLost")
    probe = watch(alone)
    until(lambda: "fell off the bus" in probe.reason)
    none = FakeNvml()
    none.gpus = []
    probe = watch(none)
    until(lambda: "gives no GPU" in probe.reason)


def cut() -> tuple[Gpu, list[Gpu]]:
    """A GPU in three instances, of which the second runs the engine."""
    whole = Gpu("NVIDIA H100")
    whole.memory1 = whole.memory2 = whole.compute = whole.graphics = error("NoPermission")
    whole.parts = [Gpu(f"NVIDIA H100 MIG 2g.20gb {n}", f"MIG-{n}") for n in (1, 2, 3)]
    for part in whole.parts:
        part.compute, part.graphics = {1: MIB}, error("NotSupported")
        part.memory2 = SimpleNamespace(total=20 * MIB, used=5 * MIB, reserved=0)
    whole.parts[1].compute = {ME: 3 * MIB, 1: MIB}
    return whole, whole.parts


def test_of_a_gpu_in_instances_the_engine_s_one_is_shown(watch, monkeypatch) -> None:
    whole, parts = cut()
    seen = sample(watch, FakeNvml(whole))
    assert (seen.name, seen.total, seen.process, seen.others) == (parts[1].name, 20 * MIB, 3 * MIB, MIB)
    assert sample(watch, FakeNvml(whole), pid=None).name == parts[0].name  # CUDA's first
    assert sample(watch, FakeNvml(whole), gpu="0").name == parts[1].name
    assert sample(watch, FakeNvml(whole), gpu="MIG-3").name == parts[2].name
    assert sample(watch, FakeNvml(Gpu(), whole), gpu="1", pid=None).name == parts[0].name
    probe = watch(FakeNvml(whole), pid=None)
    probe.follow("3")
    until(lambda: probe.latest() and probe.latest().name == parts[2].name)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-2,MIG-1")
    assert sample(watch, FakeNvml(whole), pid=None).name == parts[1].name


def test_mig_mode_without_an_instance_shows_what_the_whole_tells(watch) -> None:
    whole, _ = cut()
    whole.parts = []
    seen = sample(watch, FakeNvml(whole))
    assert (seen.total, seen.used, seen.reserved, seen.process, seen.others) == (None,) * 5


CODES = sorted(name for name in vars(pynvml) if name.startswith("NVML_ERROR_"))
CALLS = ("memory", "first memory", "compute", "graphics", "both lists", "name", "uuid")


@pytest.mark.parametrize("code", CODES)
def test_every_error_code_costs_one_figure_or_gives_a_reason(code: str, monkeypatch) -> None:
    """The real library's exceptions, from each call in turn: what isn't told is None, never 0 or a guess."""
    failure = pynvml.NVMLError(getattr(pynvml, code))
    monkeypatch.setattr(FakeNvml, "NVMLError", pynvml.NVMLError)
    monkeypatch.setattr(module, "_is_here", lambda number: True)
    kind = type(failure).__name__.removeprefix("NVMLError_")
    for call in CALLS:
        gpu = Gpu()
        gpu.compute, gpu.graphics = {ME: 5, 1: 7}, {2: 9}
        match call:
            case "memory":
                gpu.memory2 = failure
            case "first memory":
                gpu.memory1 = gpu.memory2 = failure
            case "compute":
                gpu.compute = failure
            case "graphics":
                gpu.graphics = failure
            case "both lists":
                gpu.compute = gpu.graphics = failure
            case "name":
                gpu.name = failure
            case "uuid":
                gpu.uuid = failure
        fake = FakeNvml(gpu)
        monkeypatch.setattr(fake, "nvmlDeviceGetMigMode", lambda _: (_ for _ in ()).throw(failure))
        try:
            seen = sampled(fake)
        except pynvml.NVMLError as error:
            assert error is failure and kind in LOST and call != "uuid"
            assert LOST[kind] in module.lost(error)
            continue
        assert kind not in LOST or call == "uuid"
        assert seen.name == ("NVIDIA GPU" if call == "name" else "NVIDIA RTX 4090")
        memory = (seen.total, seen.used, seen.reserved)
        if call == "memory":
            assert memory == (24564 * MIB, 3400 * MIB, None)
        elif call == "first memory":
            assert memory == (None, None, None)
        else:
            assert memory == (24564 * MIB, 3000 * MIB, 400 * MIB)
        without_graphics = (5, 7 if kind == "NotSupported" else None)
        parts = {"both lists": (None, None), "compute": (None, None), "graphics": without_graphics}.get(call, (5, 16))
        assert (seen.process, seen.others) == parts, call


def sampled(fake: FakeNvml) -> DeviceMemory:
    """One sample, on this thread."""
    probe = NvmlProbe.__new__(NvmlProbe)
    probe._pid, probe._gpu, probe._told = (lambda: ME), "", ""
    return probe._sample(fake)


def test_the_calls_that_are_faked_are_the_library_s() -> None:
    own = {name for name in vars(FakeNvml) if name.startswith("nvml")}
    assert own and all(hasattr(pynvml, name) for name in own)


def test_the_real_library_gives_a_sample_or_a_reason() -> None:
    probe = NvmlProbe(lambda: ME)
    try:
        until(lambda: probe.latest() is not None or "yet" not in probe.reason)
        assert (probe.latest() is None) == bool(probe.reason)
    finally:
        probe.close()
