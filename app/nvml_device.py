"""Which of a machine's GPUs is meant: the one the user chose, or the one the engine says it runs on, or the one where
the driver lists the engine's process, or CUDA's first.

A GPU that is cut into instances (MIG) stands for them: CUDA runs on one, with that one's memory. Devices that don't
answer are passed over, so that a broken card doesn't hide the others. Numbers are the driver's own, as nvidia-smi has
them; CUDA's may differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Protocol

from app.nvml_faults import NoSuchGpu, costs_one_figure

Handle = Any  # a device, opaque
UUIDS = ("GPU-", "MIG-")  # what identifiers of a whole GPU and of an instance begin with


class Nvml(Protocol):
    """The part of pynvml that is used here; what older ones lack is looked up by name."""

    NVMLError: type[Exception]

    def nvmlDeviceGetCount(self) -> int: ...
    def nvmlDeviceGetHandleByIndex(self, index: int) -> Handle: ...
    def nvmlDeviceGetUUID(self, handle: Handle) -> str | bytes: ...
    def nvmlDeviceGetName(self, handle: Handle) -> str | bytes: ...


def find(nvml: Nvml, chosen: str, told: str, lists: Callable[[Handle], bool], visible: str) -> Handle:
    """`chosen`: a number or identifier, "" for none; `told`: the identifier of the engine's device; `lists(handle)`:
    whether the engine's process runs there; `visible`: CUDA_VISIBLE_DEVICES. Raises NoSuchGpu."""
    if chosen:
        return _inside(nvml, _chosen(nvml, chosen), told, lists)
    everything = list(devices(nvml))
    if told:
        for handle in everything:
            if same(uuid_of(nvml, handle), told):
                return handle
    if len(everything) > 1:
        for handle in everything:
            with suppress(nvml.NVMLError):  # one that is broken isn't where the engine runs
                if lists(handle):
                    return handle
    return first_visible(nvml, visible)


def devices(nvml: Nvml) -> Iterator[Handle]:
    """All that CUDA could run on: whole GPUs, and the instances of those that are cut."""
    for index in range(nvml.nvmlDeviceGetCount()):
        handle = by_number(nvml, index)
        if handle is not None:
            yield from instances(nvml, handle) or [handle]


def instances(nvml: Nvml, handle: Handle) -> list[Handle]:
    """Of a GPU in MIG mode; none of any other, and where the driver knows nothing of it."""
    try:
        current, _ = nvml.nvmlDeviceGetMigMode(handle)  # type: ignore[attr-defined]
        most = nvml.nvmlDeviceGetMaxMigDeviceCount(handle) if current else 0  # type: ignore[attr-defined]
    except (nvml.NVMLError, AttributeError):
        return []
    found = []
    for index in range(most):
        with suppress(nvml.NVMLError):  # numbers of instances have gaps
            found.append(nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index))  # type: ignore[attr-defined]
    return found


def first_visible(nvml: Nvml, visible: str) -> Handle:
    """CUDA's first device: NVML counts all, CUDA only those that CUDA_VISIBLE_DEVICES names. A name that this machine
    doesn't have leaves CUDA none; the first that answers is shown then. Raises NoSuchGpu where there is none."""
    first = visible.split(",")[0].strip()
    handle = by_number(nvml, int(first)) if first.isdecimal() else by_uuid(nvml, first)
    if handle is None:
        handle = next(devices(nvml), None)
    if handle is None:
        if nvml.nvmlDeviceGetCount():
            nvml.nvmlDeviceGetHandleByIndex(0)  # says what is wrong with it
        raise NoSuchGpu("the NVIDIA driver answers but gives no GPU; is one passed to this system or container?")
    return next(iter(instances(nvml, handle)), handle)


def by_number(nvml: Nvml, index: int) -> Handle | None:
    """None: not here, or it doesn't answer."""
    try:
        return nvml.nvmlDeviceGetHandleByIndex(index)
    except nvml.NVMLError:
        return None


def by_uuid(nvml: Nvml, text: str) -> Handle | None:
    """By an identifier or the beginning of one, as CUDA takes it."""
    if not text.startswith(UUIDS):
        return None
    for index in range(nvml.nvmlDeviceGetCount()):
        handle = by_number(nvml, index)
        for one in () if handle is None else (handle, *instances(nvml, handle)):
            if uuid_of(nvml, one).startswith(text):
                return one
    return None


def uuid_of(nvml: Nvml, handle: Handle) -> str:
    """"" where the driver doesn't tell."""
    try:
        return text_of(nvml.nvmlDeviceGetUUID(handle))
    except (nvml.NVMLError, AttributeError):
        return ""


def name_of(nvml: Nvml, handle: Handle) -> str:
    try:
        return text_of(nvml.nvmlDeviceGetName(handle)) or "NVIDIA GPU"
    except nvml.NVMLError as error:
        if not costs_one_figure(error):
            raise
        return "NVIDIA GPU"


def same(one: str, other: str) -> bool:
    """Identifiers of one device; torch has them without what NVML puts in front."""
    bare = [text.removeprefix(UUIDS[0]).removeprefix(UUIDS[1]).lower() for text in (one, other)]
    return bool(bare[0]) and bare[0] == bare[1]


def text_of(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _chosen(nvml: Nvml, chosen: str) -> Handle:
    handle = by_number(nvml, int(chosen)) if chosen.isdecimal() else by_uuid(nvml, chosen)
    if handle is None:
        raise NoSuchGpu(f"there is no GPU '{chosen}' here, or it doesn't answer; {listing(nvml)}")
    return handle


def _inside(nvml: Nvml, handle: Handle, told: str, lists: Callable[[Handle], bool]) -> Handle:
    """Of a GPU that is cut, the instance the engine runs on, or CUDA's first of it."""
    cut = instances(nvml, handle)
    for part in cut:
        if (told and same(uuid_of(nvml, part), told)) or lists(part):
            return part
    return cut[0] if cut else handle


def listing(nvml: Nvml) -> str:
    """What there is to choose from, in words."""
    found = []
    for index in range(nvml.nvmlDeviceGetCount()):
        handle = by_number(nvml, index)
        if handle is None:
            continue
        with suppress(nvml.NVMLError):
            found.append(f"{index} ({name_of(nvml, handle)})")
            found += [f"{uuid_of(nvml, part)} ({name_of(nvml, part)})" for part in instances(nvml, handle)]
    return f"this machine has {', '.join(found)}" if found else "this machine has none that answers"
