"""Memory taken apart: every sum exact, no part negative, whatever the engine and the system say."""

from __future__ import annotations

import numpy as np
import pytest

from engine.records import Memory
from ui import breakdown
from ui.breakdown import Breakdown
from ui.contracts import DeviceMemory, HostMemory
from ui.unload import Unload

MIB = 1 << 20


def sizes(found: Breakdown) -> dict[str, int]:
    assert sum(part.bytes for part in found.parts) == found.total
    assert all(part.bytes >= 0 for part in found.parts)
    return {part.name: part.bytes for part in found.parts}


def test_the_parts_of_a_process_sum_to_its_resident_memory():
    memory = Memory(weights=100 * MIB, kv_pool=64 * MIB + 1, resident=400 * MIB, baseline=120 * MIB)
    parts = sizes(breakdown.process(memory, used=3, cached=2, free=2, reason="no NVIDIA GPU"))
    assert parts["weights"] == 100 * MIB and parts["Python, torch"] == 120 * MIB
    assert parts["KV used"] + parts["KV cached"] + parts["KV free"] == 64 * MIB + 1
    assert parts["rest"] == (400 - 100 - 64 - 120) * MIB - 1


def test_what_drafts_is_a_part_of_its_own():
    held = {"weights": 100, "kv_pool": 50, "draft": 70, "resident": 500, "baseline": 120}
    memory = Memory(**held, allocated=300, reserved=320, peak=310)
    parts = sizes(found := breakdown.process(memory, 1, 0, 1, ""))
    assert parts["draft"] == 70 and parts["rest"] == 160 and sum(parts.values()) == found.total == 500
    sample = DeviceMemory(name="card", total=1_000, used=400, process=400, others=0, reserved=0)
    parts = sizes(found := breakdown.device(memory, sample, 1, 0, 1))
    assert parts["draft"] == 70 and parts["other tensors"] == 80 and sum(parts.values()) == found.total
    assert "draft" not in sizes(breakdown.process(Memory(weights=1, resident=9), 0, 0, 1, ""))


def test_pages_of_files_are_apart_from_the_process_own():
    memory = Memory(weights=100, kv_pool=50, host_pool=20, resident=500, resident_files=180, baseline=260,
                    baseline_files=200)  # fmt: skip
    found = breakdown.process(memory, 1, 0, 1, "", host=(1, 4))
    assert sizes(found) == {
        "weights": 100, "KV used": 25, "KV cached": 0, "KV free": 25, "host pool": 20, "Python, torch": 60,
        "files, mapped": 180, "rest": 90,
    }  # fmt: skip
    assert found.total == 500 and found.over == 0


def test_what_is_not_resident_goes_from_what_is_least_sure_and_is_told():
    """Python gave memory back, then pages of the pool were swapped out."""
    memory = Memory(weights=100 * MIB, kv_pool=80 * MIB, resident=200 * MIB, resident_files=10 * MIB, baseline=40 * MIB)
    parts = sizes(found := breakdown.process(memory, 1, 0, 1, ""))
    assert (parts["Python, torch"], parts["KV free"], parts["rest"]) == (10 * MIB, 40 * MIB, 0)
    assert found.over == 30 * MIB
    note = next(part.note for part in found.parts if part.name == "Python, torch")
    assert note.endswith("30.0 MiB more by the engine's count, not there by the system's")
    memory = Memory(weights=300, kv_pool=200, resident=400, baseline=100)
    parts = sizes(found := breakdown.process(memory, 1, 0, 1, ""))
    assert (parts["weights"], parts["KV used"], parts["KV free"], parts["Python, torch"]) == (300, 100, 0, 0)
    assert found.over == 200


def test_kv_parts_sum_exactly_whatever_the_division():
    for used in range(8):
        assert sum(breakdown.kv_parts(1_000_003, used, 7 - used, 4)) == 1_000_003


CARD = Memory(weights=1_000, kv_pool=600, graphs=50, allocated=1_670, peak=1_900, reserved=2_048)


def test_a_card_taken_apart_to_the_byte():
    """NVML's figures and torch's, every part by hand."""
    sample = DeviceMemory(name="card", total=10_000, used=3_500, reserved=400, process=2_500, others=900)
    found = breakdown.device(CARD, sample, used=2, cached=1, free=3)
    assert sizes(found) == {
        "weights": 1_000,
        "KV used": 200, "KV cached": 100, "KV free": 300,
        "graphs": 50,
        "other tensors": 20,  # 1670 − 1650
        "peak activations": 230,  # 1900 − 1670
        "allocator slack": 148,  # 2048 − 1900
        "CUDA context": 452,  # 2500 − 2048
        "other processes": 900,
        "driver": 400,
        "unexplained": 100,  # 3500 − 2500 − 900
    }  # fmt: skip
    assert (found.total, found.driver, found.free, found.over) == (3_900, 400, 6_100, 0)


def test_the_first_memory_call_counts_the_drivers_part_as_used():
    sample = DeviceMemory(name="card", total=10_000, used=3_900, reserved=None, process=2_500, others=900)
    found = breakdown.device(CARD, sample, 2, 1, 3)
    parts = sizes(found)
    assert parts["unexplained"] == 500 and "driver" not in parts
    assert (found.total, found.driver, found.free) == (3_900, None, 6_100)
    assert "what the driver keeps for itself is in here" in found.parts[-1].note


def test_a_driver_that_lists_no_processes_leaves_the_context_in_the_rest():
    sample = DeviceMemory(name="card", total=10_000, used=3_500, reserved=400, process=None, others=None)
    parts = sizes(breakdown.device(CARD, sample, 2, 1, 3))
    assert "CUDA context" not in parts and "other processes" not in parts
    assert parts["unexplained"] == 3_500 - 2_048


def test_figures_of_two_moments_never_make_a_part_negative():
    """The allocator grew since the driver was asked."""
    sample = DeviceMemory(name="card", total=10_000, used=2_000, reserved=0, process=1_800, others=100)
    found = breakdown.device(CARD, sample, 2, 1, 3)
    parts = sizes(found)
    assert parts["CUDA context"] == parts["allocator slack"] == 0
    assert parts["peak activations"] == 130  # 248 less than the allocator has: 148 of slack, 100 of these
    assert (found.over, parts["unexplained"], parts["weights"]) == (248, 100, 1_000)


def test_a_device_that_tells_little_still_sums():
    sample = DeviceMemory(name="card", total=None, used=None, reserved=None, process=None, others=None)
    found = breakdown.device(Memory(weights=10, kv_pool=20, allocated=30, reserved=32), sample, 1, 0, 0)
    assert found.total == 32 and found.free is None and not found.counted
    assert not {"unexplained", "CUDA context", "other processes", "driver"} & sizes(found).keys()


@pytest.mark.parametrize("seed", range(4))
def test_whatever_is_told_sums(seed: int):
    rng = np.random.default_rng(seed)

    def some(high: int) -> int:
        return int(rng.integers(0, high))

    def maybe(high: int) -> int | None:
        return None if rng.random() < 0.2 else some(high)

    for _ in range(500):
        memory = Memory(**{name: some(1_000) for name in Memory.__struct_fields__})
        sample = DeviceMemory(name="", total=maybe(9_000), used=maybe(4_000), reserved=maybe(300),
                              process=maybe(3_000), others=maybe(2_000))  # fmt: skip
        found = breakdown.device(memory, sample, some(4), some(4), some(4))
        sizes(found)
        if sample.used is not None:
            assert found.total == sample.used + (sample.reserved or 0)
        if memory.resident_files <= memory.resident:
            found = breakdown.process(memory, some(4), some(4), some(4), "")
            sizes(found)
            assert found.total == memory.resident


# --- unloading ---


def test_unloading_tells_what_came_back_of_what_was_held():
    unload = Unload()
    assert unload.words == "" and not unload.begun
    unload.begin(HostMemory(own=312 * MIB, available=4_000 * MIB), None)
    assert unload.words == "it held 312 MiB; waiting for it to come back"
    unload.look(HostMemory(own=312 * MIB, available=4_000 * MIB), None)
    assert not unload.done
    unload.look(HostMemory(own=0, available=4_309 * MIB), None)
    assert unload.done and unload.words == "held 312 MiB, 309 MiB came back"
    unload.look(HostMemory(own=0, available=9_000 * MIB), None)
    assert unload.words == "held 312 MiB, 309 MiB came back"
    unload.forget()
    assert unload.words == ""


def test_where_others_moved_memory_meanwhile_it_says_so():
    unload = Unload()
    unload.begin(HostMemory(own=312 * MIB, available=4_000 * MIB), None)
    unload.look(HostMemory(own=0, available=4_100 * MIB), None)
    told = "held 312 MiB, all given back with its process (the machine has 100 MiB more free: others moved too)"
    assert unload.words == told
    unload.begin(HostMemory(own=312 * MIB, available=None), None)
    unload.look(HostMemory(own=0, available=None), None)
    assert unload.words == "held 312 MiB, and its process is gone"


def test_unloading_a_card_waits_for_the_drivers_list():
    def card(used: int, process: int, others: int) -> DeviceMemory:
        return DeviceMemory(name="card", total=10_000 * MIB, used=used * MIB, reserved=0, process=process * MIB,
                            others=others * MIB)  # fmt: skip

    unload, gone = Unload(), HostMemory(own=0, available=5_400 * MIB)
    unload.begin(HostMemory(own=400 * MIB, available=5_000 * MIB), card(3_000, 2_500, 400))
    assert unload.words == "it held 400 MiB and 2.44 GiB on the card; waiting for it to come back"
    unload.look(gone, card(3_000, 2_500, 400))  # the sample is older than the end
    assert not unload.done
    unload.look(gone, card(610, 0, 500))  # another process took 100 MiB meanwhile
    assert unload.words == "held 2.44 GiB on card, 2.43 GiB came back; held 400 MiB, 400 MiB came back"
