"""The memory under both pools, kept in step with their bookkeeping: taken before settings change, given back after, and
copied within and between the pools. What is copied, and when settings change, is others' business."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from engine.block_pool import BlockPool
from engine.config import LiveSettings, SettingRefused
from engine.formulas import MIB
from engine.host_pool import HostPool
from engine.records import Swapped
from engine.runner.base import OutOfDeviceMemory

if TYPE_CHECKING:
    from engine.runner.base import Runner


def acquire(runner: Runner, old: LiveSettings, new: LiveSettings) -> None:
    """Take the memory of larger pools, or raise SettingRefused and have taken none. Blocks of another size lose what
    they hold here."""
    if new.block_size != old.block_size:
        try:
            runner.rebuild(new.kv_blocks, new.block_size, new.swap_blocks)
        except OutOfDeviceMemory as error:
            raise _no_room("block_size", "a pool", new.kv_blocks, old.kv_blocks, error) from None
        return
    if new.kv_blocks > old.kv_blocks:
        try:
            runner.resize(new.kv_blocks)
        except OutOfDeviceMemory as error:
            raise _no_room("kv_blocks", "a pool", new.kv_blocks, old.kv_blocks, error) from None
    if new.swap_blocks > old.swap_blocks:
        try:
            runner.resize_host(new.swap_blocks)
        except OutOfDeviceMemory as error:
            if new.kv_blocks > old.kv_blocks:
                runner.resize(old.kv_blocks)
            raise _no_room("swap_blocks", "a host pool", new.swap_blocks, old.swap_blocks, error) from None


def release(runner: Runner, new: LiveSettings) -> None:
    """Give back what smaller pools leave."""
    if new.kv_blocks < runner.num_blocks:
        runner.resize(new.kv_blocks)
    if new.swap_blocks < runner.host_blocks:
        runner.resize_host(new.swap_blocks)


class Copier:
    """Does what both pools have pending, and counts for the next record what went between them. `clock`: monotonic
    ns."""

    def __init__(self, pool: BlockPool, host: HostPool, clock: Callable[[], int]):
        self._pool = pool
        self._host = host
        self._clock = clock
        self._done: Swapped | None = None

    def run(self, runner: Runner) -> bool:
        """Everything in one go: out, then within the pool, then in. False: nothing was to be moved."""
        copies = self._pool.copies
        if not self._host.pending and not copies:
            return False
        started = self._clock()
        out, back = self._host.copies()
        if len(out[0]):
            runner.swap_out(*out)
        if copies:
            runner.copy(np.array(list(copies.values())), np.array(list(copies)))
        if len(back[0]):
            runner.swap_in(*back)
        self._host.settle()
        self._pool.settle()
        if not len(out[0]) + len(back[0]):
            return True
        before = self._done or Swapped(out=0, back=0, bytes=0, ns=0)
        self._done = Swapped(
            out=before.out + len(out[0]),
            back=before.back + len(back[0]),
            bytes=before.bytes + (len(out[0]) + len(back[0])) * self._host.block_bytes,
            ns=before.ns + self._clock() - started,
        )
        return True

    def take(self) -> Swapped | None:
        """What was copied since the last call."""
        done, self._done = self._done, None
        return done


def _no_room(key: str, what: str, wanted: int, now: int, error: OutOfDeviceMemory) -> SettingRefused:
    return SettingRefused(
        key,
        f"{what} of {wanted:,} blocks needs {error.needed / MIB:,.0f} MiB and {error.free / MIB:,.0f} MiB are free; "
        f"it stays at {now:,} blocks",
    )
