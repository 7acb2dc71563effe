"""A team of threads that run one program of phases together, and never wait for a thread that isn't at work.

A phase is cut into chunks. Whoever is free claims the next chunk; a phase is over when all of its chunks are done, and
then anyone goes on to the next. So a thread that the system takes off its core between two chunks holds nobody up: the
others do its share. In the middle of a chunk (tens of microseconds) it does, and the others let go of their cores.
That is what a fixed division with a barrier after it (OpenMP) can't do: beside a window that draws on the same two
cores, every barrier there waits for the thread that was put aside.

A phase has a line of its own in memory: [claimed, done], each with the step's number in the upper half. A thread that
wakes when its step is long over finds another number there and leaves; it can't touch the new step's work. The same
way out is taken when a step breaks off: the number 0, which no step has, is put everywhere.
"""

from __future__ import annotations

import _thread
import threading
import weakref
from collections.abc import Callable

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from engine.cpu.vector import HOST, i32, i64

LINE = 128  # bytes from one phase's counters to the next: processors fetch lines of 64 in pairs
_PATIENCE = 300  # looks at a counter (about 10 µs) before the core is offered to others
_COUNT = (1 << 32) - 1


@intrinsic
def _load(context, address):
    def generate(context, builder, signature, arguments):
        return builder.load_atomic(builder.inttoptr(arguments[0], i64.as_pointer()), "acquire", 8)

    return types.int64(types.int64), generate


@intrinsic
def _swap(context, address, old, new):
    """Put `new` where `old` stands; whether it did."""

    def generate(context, builder, signature, arguments):
        at, old, new = arguments
        result = builder.cmpxchg(builder.inttoptr(at, i64.as_pointer()), old, new, "acq_rel", "acquire")
        return builder.extract_value(result, 1)

    return types.boolean(types.int64, types.int64, types.int64), generate


@intrinsic
def _add(context, address, number):
    def generate(context, builder, signature, arguments):
        at, number = arguments
        return builder.atomic_rmw("add", builder.inttoptr(at, i64.as_pointer()), number, "acq_rel")

    return types.int64(types.int64, types.int64), generate


@intrinsic
def _rest(context, tries):
    """Between two looks at a counter: a moment's pause, and after many of them the core to whoever wants it."""
    yields = llvm.address_of_symbol("sched_yield") is not None

    def generate(context, builder, signature, arguments):
        if "avx" in HOST:  # an x86
            function = builder.module.globals.get("llvm.x86.sse2.pause") or ir.Function(
                builder.module, ir.FunctionType(ir.VoidType(), []), "llvm.x86.sse2.pause"
            )
            builder.call(function, [])
        if yields:
            with builder.if_then(builder.icmp_signed(">", arguments[0], ir.Constant(i64, _PATIENCE)), likely=False):
                function = builder.module.globals.get("sched_yield") or ir.Function(
                    builder.module, ir.FunctionType(i32, []), "sched_yield"
                )
                builder.call(function, [])
        return context.get_dummy_value()

    return types.void(types.int64), generate


@intrinsic
def ticks(context):
    """The processor's own clock, in its own unit."""

    def generate(context, builder, signature, arguments):
        return builder.call(builder.module.declare_intrinsic("llvm.readcyclecounter", [], ir.FunctionType(i64, [])), [])

    return types.int64(), generate


@njit(nogil=True)
def claim(line, step, chunks):
    """The next chunk of the phase at `line` that is nobody's yet; −1 if there's none."""
    while True:
        seen = _load(line)
        if seen >> 32 != step or seen & _COUNT >= chunks:
            return -1
        if _swap(line, seen, seen + 1):
            return seen & _COUNT


@njit(nogil=True)
def next_chunk(line, step, chunks):
    """A chunk is done: what it wrote can be read by whoever sees the phase over. And the next one."""
    _add(line + 8, 1)
    return claim(line, step, chunks)


@njit(nogil=True)
def over(line, step, chunks):
    """Wait until the phase is. False if it isn't this step's any more: then leave."""
    whole = (step << 32) + chunks
    tries = 0
    while True:
        seen = _load(line + 8)
        if seen == whole:
            return True
        if seen >> 32 != step:
            return False
        tries += 1
        _rest(tries)


Program = Callable[..., None]
_LAST = 1 << 30  # steps are numbered 1 … _LAST, and then from 1 again


class Team:
    """`threads` at work, the caller's among them. `lines`: the counters, for `run`'s program to be given by address."""

    def __init__(self, threads: int, phases: int):
        self.threads = threads
        raw = np.zeros((phases + 1) * LINE // 8, np.int64)
        start = -raw.ctypes.data % LINE // 8
        self.lines: NDArray[np.int64] = raw[start : start + phases * LINE // 8].reshape(phases, -1)
        self.step = 0
        self._bench = _Bench(threads - 1, self.lines)
        self._close = weakref.finalize(self, self._bench.close)

    def run(self, program: Program, *arguments: object) -> None:
        """`program(rank, step, *arguments)` in every thread; back when this one is through with all phases.

        What `program` raises in any thread is raised here, and so is Ctrl-C; then nobody is at work any more. Have it
        compiled before, or every thread will want to.
        """
        self.step = self.step % _LAST + 1
        try:
            self._bench.call(program, self.step, arguments)
            program(0, self.step, *arguments)
        except BaseException:
            self._bench.stop()
            raise
        if self._bench.error is not None:
            self._bench.stop()
            error, self._bench.error = self._bench.error, None
            raise error

    def close(self) -> None:
        self._close()


class _Bench:
    """The other threads, asleep until they are called. One that is still busy with an old call misses nothing: it
    takes up the newest one next."""

    def __init__(self, count: int, lines: NDArray[np.int64]):
        self.error: BaseException | None = None  # what a program raised here
        self._lines = lines
        self._lock = threading.Lock()  # for `_step` and the lines to go together
        self._step = 0  # that the lines are for; 0 while none runs
        self._job: tuple[Program, int, tuple[object, ...]] | None = None
        self._gates = [_thread.allocate_lock() for _ in range(count)]
        self._busy = [_thread.allocate_lock() for _ in range(count)]  # held by a thread that runs a program
        self._threads = [
            threading.Thread(target=self._serve, args=(rank,), name=f"cpu-{rank}", daemon=True)
            for rank in range(1, count + 1)
        ]
        for gate in self._gates:
            gate.acquire()
        for thread in self._threads:
            thread.start()

    def call(self, program: Program, step: int, arguments: tuple[object, ...]) -> None:
        with self._lock:
            self._step = step
            self._lines[:, :2] = step << 32
        self._job = program, step, arguments
        self._open()

    def stop(self) -> None:
        """Break the step off, and wait until no thread is at it."""
        self._break_off(self._step)
        self._job = _nothing, 0, ()
        for busy in self._busy:
            with busy:
                pass

    def close(self) -> None:
        self._job = None
        self._open()
        for thread in self._threads:
            if thread is not threading.current_thread():  # a garbage collection may happen in any
                thread.join(1.0)

    def _open(self) -> None:
        for gate in self._gates:
            if gate.locked():
                gate.release()

    def _break_off(self, step: int) -> None:
        with self._lock:
            if step == self._step:
                self._step = 0
                self._lines[:, :2] = 0

    def _serve(self, rank: int) -> None:
        gate, busy = self._gates[rank - 1], self._busy[rank - 1]
        while True:
            gate.acquire()
            with busy:
                job = self._job
                if job is None:
                    return
                program, step, arguments = job
                try:
                    program(rank, step, *arguments)
                except BaseException as error:
                    self.error = error
                    self._break_off(step)


def _nothing(rank: int, step: int) -> None:
    """The job of a thread that is woken by a call that was broken off."""
