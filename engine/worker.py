"""The child's entry: inbox, step loop, outbox. A crash becomes a Died record.

The step loop runs on the main thread: obey what is in the inbox, run a step, again. It waits in the inbox when
there is nothing to do, so it takes no processor time then. The inbox thread decodes commands; when its pipe
ends, the owner is gone and so is this process. What a step is, and what a command does, is `loop`'s business.
"""

from __future__ import annotations

import os
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from queue import Empty, SimpleQueue

import msgspec

from engine import records as r
from engine.collector import keep_out_of_steps
from engine.compile_log import CompileLog
from engine.config import EngineConfig, SettingRefused
from engine.heap import Tidy
from engine.loop import OWN, Loop, Steps
from engine.memory import ran_out
from engine.model.problem import ModelProblem
from engine.outbox import Outbox

STOP_WITHIN = 1.5  # s that a Stop waits for a step or for loading to end; the owner kills after 3
FLUSH_WITHIN = 2.0  # s for what is left in the outbox
TELL_EVERY = 0.05  # s between two Loading records of one stage; more can't be seen


@dataclass(frozen=True)
class Built:
    """What the step loop needs of an engine that is ready to run."""

    engine: Steps
    encode_request: Callable[[r.Request], list[int]]
    ready: r.Ready
    refusals: tuple[type[Exception], ...]
    out_of_memory: tuple[type[Exception], ...]


Progress = Callable[[str, int, int], None]
Builder = Callable[[EngineConfig, Progress], Built]


def main(commands: Connection, records: Connection, config: bytes) -> None:
    """What the client spawns: the real engine."""
    serve(commands, records, config, build_engine)


def build_engine(config: EngineConfig, progress: Progress) -> Built:
    """torch is imported here, when the pipes already work: it takes over a second."""
    progress("starting torch", 0, 0)
    _share_cores()
    if config.simulation is not None:
        from engine.simulation.build import build
    else:
        from engine.build import build

    return build(config, progress)


def _share_cores() -> None:
    """Let OpenMP's threads spin at a barrier for a moment only, then sleep. Must come before torch is imported.

    Without a bound, any process that takes a core makes spinning threads wait for one that doesn't run: a step took
    800 ms beside one busy process. Sleeping at once costs a wake-up at every product: on 2 idle cores 18 tokens/s at
    1 stream and 100 at 8, against 32 and 156 with this bound (5,000 turns gave 23 and 138).
    """
    if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"} & os.environ.keys():
        os.environ["GOMP_SPINCOUNT"] = "20000"  # turns of a loop


def serve(commands: Connection, records: Connection, config: bytes, build: Builder) -> None:
    """Build an engine and run it until told to stop. Doesn't return: the process ends here."""
    inbox: SimpleQueue[r.Command] = SimpleQueue()
    outbox = Outbox(records, ask_keyframe=lambda: inbox.put(r.SendKeyframe(id=OWN)))
    threading.Thread(target=_read, args=(commands, inbox, outbox), name="inbox", daemon=True).start()
    try:
        loop = _begin(config, build, outbox)
        keep_out_of_steps()
        run(loop, inbox)
        outbox.send(r.Ended())
    except BaseException as error:
        outbox.send(r.Died(reason=explain(error), detail=traceback.format_exc()))
    _exit(outbox)


def run(loop: Loop, inbox: SimpleQueue[r.Command]) -> None:
    """The step loop: everything in the inbox, then a step; wait in the inbox when none is due."""
    tidy = Tidy()
    while not loop.stopped:
        pause = loop.idle_for()
        if pause != 0:
            loop.settle()
        for _ in range(max(1, inbox.qsize())):  # those that come meanwhile wait for the next step
            try:
                loop.handle(inbox.get(timeout=pause) if pause != 0 else inbox.get_nowait())
            except Empty:
                break
            if loop.stopped:
                return
            pause = 0
        loop.turn()
        tidy.turn()


def _begin(config: bytes, build: Builder, outbox: Outbox) -> Loop:
    parsed = msgspec.msgpack.decode(config, type=EngineConfig)
    compiles = CompileLog()
    built = build(parsed, compiles.loading(_Teller(outbox.send)))
    compiles.serving(lambda: getattr(getattr(built.engine, "runner", None), "graphs_captured", 0))
    outbox.send(built.ready)
    loop = Loop(
        built.engine,
        built.encode_request,
        outbox.send,
        refusals=built.refusals,
        out_of_memory=built.out_of_memory,
        paused=parsed.start_paused,
        compiled=compiles.take,
    )
    loop.begin()
    return loop


def _read(commands: Connection, inbox: SimpleQueue[r.Command], outbox: Outbox) -> None:
    """The inbox thread."""
    while True:
        try:
            command = r.decode_command(commands.recv_bytes())
        except (EOFError, OSError):
            os._exit(1)  # the owner is gone; nobody is left to tell
        except r.WrongSchema as error:
            outbox.send(r.Notice(message=f"A command was not understood: {error}"))
            continue
        inbox.put(command)
        if isinstance(command, r.Stop):
            threading.Thread(target=_stop_anyway, args=(outbox,), name="stop", daemon=True).start()


def _stop_anyway(outbox: Outbox) -> None:
    """End even when the main thread is loading a model or deep in a long step."""
    time.sleep(STOP_WITHIN)
    outbox.send(r.Ended())
    _exit(outbox)


def _exit(outbox: Outbox) -> None:
    """Without the interpreter's own ending: torch's threads may be busy, and there is nothing to save."""
    outbox.close(FLUSH_WITHIN)
    os._exit(0)


class _Teller:
    """Progress as Loading records, thinned to what can be seen; a stage's first and last always."""

    def __init__(self, send: Callable[[r.Message], None]):
        self._send = send
        self._stage = ""
        self._next = 0.0

    def __call__(self, stage: str, done: int, total: int, unit: str = "bytes") -> None:
        now = time.monotonic()
        if stage != self._stage or now >= self._next or done == total:
            self._stage, self._next = stage, now + TELL_EVERY
            self._send(r.Loading(stage=stage, done=done, total=total, unit=unit))


def explain(error: BaseException) -> str:
    """Why the engine ends, for people, with what to do about it."""
    text = str(error).strip()
    if isinstance(error, ModelProblem):
        first = text.split(" ")[0]
        names = not first.isalpha() or os.path.exists(first)  # a file or a directory, whose name stays as it is
        begins = text if names else text[:1].upper() + text[1:]
        return begins + ("" if text.endswith(".") else ".")
    if isinstance(error, SettingRefused):
        return f"The engine can't start with these settings: {text}."
    kind = type(error).__name__  # torch's and the runner's own kinds are told by name, for this knows neither
    if ran_out(error) or kind in ("OutOfMemoryError", "OutOfDeviceMemory"):
        return (
            f"Memory ran out: {text or 'the system gave no more'}. "
            "Choose fewer KV blocks, a smaller batch or a smaller model, then restart."
        )
    if isinstance(error, ImportError):
        return f"The engine could not be loaded: {text}. Reinstall Servescope in this environment."
    return f"The engine failed: {kind}: {text}. Restart it; please report this with the detail."
